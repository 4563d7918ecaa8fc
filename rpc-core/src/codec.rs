//! [`Codec`]: how a message becomes bytes, and bytes a message.
//!
//! Stubs name one codec for the request and one for the response of each call. [`ProstCodec`] takes
//! any prost message.

use std::error::Error;
use std::fmt;

use prost::{DecodeError, Message};

/// Encodes and decodes messages of type `M`.
///
/// A codec has no state. Stubs pass one by value only to name its type.
pub trait Codec<M> {
    /// Returns the length of the encoded message in bytes.
    fn encoded_len(message: &M) -> usize;

    /// Encodes the message into `out`, which must have the length of the encoded message.
    ///
    /// # Errors
    ///
    /// Returns an error if the encoded message is longer or shorter than `out`. What `out` then
    /// contains is unspecified.
    fn encode(message: &M, out: &mut [u8]) -> Result<(), LengthChanged>;

    /// Decodes a message.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are not an encoded message.
    fn decode(bytes: &[u8]) -> Result<M, DecodeError>;
}

/// The error of [`Codec::encode`]: the encoded message does not have the length of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthChanged;

impl fmt::Display for LengthChanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the encoded message does not have the length of the buffer")
    }
}

impl Error for LengthChanged {}

/// The codec of any prost message: prost encodes and decodes it.
#[derive(Clone, Copy, Debug)]
pub struct ProstCodec;

impl<M: Message + Default> Codec<M> for ProstCodec {
    fn encoded_len(message: &M) -> usize {
        message.encoded_len()
    }

    fn encode(message: &M, mut out: &mut [u8]) -> Result<(), LengthChanged> {
        if message.encode(&mut out).is_err() || !out.is_empty() {
            return Err(LengthChanged);
        }
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<M, DecodeError> {
        M::decode(bytes)
    }
}
