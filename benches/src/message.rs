//! The messages: the same two shapes for Verbline, for tonic and, by their length, for raw verbs.

use clap::ValueEnum;
use prost::Message as _;
use proto::bench::{BenchClient, Blob, Fixed};
use rpc_core::{CallError, Caller};

use crate::Outcome;

/// The shape of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// Eight `fixed64` fields: 64 bytes of payload, 72 encoded, nothing on the heap.
    Fixed64,
    /// One `bytes` field, of any size.
    Bytes,
}

/// The message of one caller, which it sends over and over.
#[derive(Clone, Debug)]
pub enum Load {
    /// See [`Shape::Fixed64`].
    Fixed(Fixed),
    /// See [`Shape::Bytes`].
    Blob(Blob),
}

/// Payload size of a message of eight `fixed64`, in bytes.
pub const FIXED_SIZE: usize = 64;

impl Load {
    /// Creates a message of this shape with `size` bytes of payload.
    ///
    /// # Errors
    ///
    /// Fails if the shape cannot have that size.
    pub fn new(shape: Shape, size: usize) -> Outcome<Self> {
        match shape {
            Shape::Fixed64 if size != FIXED_SIZE => Err(format!(
                "eight fixed64 fields have {FIXED_SIZE} bytes; use --message bytes with --size {size}"
            )
            .into()),
            Shape::Fixed64 => Ok(Self::fixed()),
            Shape::Bytes => Ok(Self::Blob(Blob {
                payload: (0..size).map(|index| index as u8).collect(),
            })),
        }
    }

    /// Creates the message of eight `fixed64`.
    #[must_use]
    pub fn fixed() -> Self {
        // No field is zero, because zeros are not encoded.
        Self::Fixed(Fixed {
            a: 0x0101_0101_0101_0101,
            b: 0x0202_0202_0202_0202,
            c: 0x0303_0303_0303_0303,
            d: 0x0404_0404_0404_0404,
            e: 0x0505_0505_0505_0505,
            f: 0x0606_0606_0606_0606,
            g: 0x0707_0707_0707_0707,
            h: u64::MAX,
        })
    }

    /// Returns the length of the encoded message in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::Fixed(message) => message.encoded_len(),
            Self::Blob(message) => message.encoded_len(),
        }
    }

    /// Makes one call and checks that the response equals the request. The bytes of a blob are
    /// taken from the response and sent again, so the caller itself allocates nothing.
    ///
    /// # Errors
    ///
    /// Returns the call's error.
    ///
    /// # Panics
    ///
    /// Panics if the response is wrong, because its latency would be meaningless.
    #[inline]
    pub async fn exchange<C: Caller>(&mut self, client: &BenchClient<C>) -> Result<(), CallError> {
        match self {
            Self::Fixed(message) => {
                // Each call sends a different message.
                message.a = message.a.wrapping_add(2);
                let answer = client.echo_fixed(*message).await?.into_inner();
                assert_eq!(answer, *message, "the server must echo the request");
            }
            Self::Blob(message) => {
                let len = message.payload.len();
                *message = client
                    .echo_blob(std::mem::take(message))
                    .await?
                    .into_inner();
                assert_eq!(
                    message.payload.len(),
                    len,
                    "the server must echo the request"
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixed_message_has_72_bytes() {
        let load = Load::new(Shape::Fixed64, FIXED_SIZE).expect("its only size");
        assert_eq!(load.encoded_len(), 72);
    }

    #[test]
    fn a_size_that_the_shape_cannot_have_is_refused_with_what_to_say() {
        let error = Load::new(Shape::Fixed64, 256).expect_err("it has 64");
        assert!(error.to_string().contains("--message bytes"), "{error}");
    }
}
