//! Numbered messages: each carries its number within the stream, so that the reader notices one that
//! is lost, repeated or out of order.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use proto::bench::{Blob, Fixed};
use rpc_core::{Status, Stream};

use crate::Outcome;
use crate::in_flight::Period;

/// A message with a number.
pub trait Numbered: Sized {
    /// Creates the message with this number. `payload_len` is the length of the payload of a
    /// [`Blob`].
    fn numbered(number: u64, payload_len: usize) -> Self;

    /// Returns the number, or `None` if the message is not as [`numbered`](Self::numbered) made it.
    fn number(&self, payload_len: usize) -> Option<u64>;
}

impl Numbered for Fixed {
    #[inline]
    fn numbered(number: u64, _payload_len: usize) -> Self {
        // No field is zero, because zeros are not encoded.
        Self {
            a: number + 1,
            b: 0x0202_0202_0202_0202,
            c: 0x0303_0303_0303_0303,
            d: 0x0404_0404_0404_0404,
            e: 0x0505_0505_0505_0505,
            f: 0x0606_0606_0606_0606,
            g: 0x0707_0707_0707_0707,
            h: u64::MAX - number,
        }
    }

    #[inline]
    fn number(&self, payload_len: usize) -> Option<u64> {
        let number = self.a.checked_sub(1)?;
        (*self == Self::numbered(number, payload_len)).then_some(number)
    }
}

impl Numbered for Blob {
    #[inline]
    fn numbered(number: u64, payload_len: usize) -> Self {
        let mut payload = vec![0x5a; payload_len];
        payload[..8].copy_from_slice(&number.to_le_bytes());
        Self { payload }
    }

    #[inline]
    fn number(&self, payload_len: usize) -> Option<u64> {
        let number = self.payload.first_chunk::<8>()?;
        (self.payload.len() == payload_len).then_some(u64::from_le_bytes(*number))
    }
}

/// A stream of messages with the numbers from 0.
#[derive(Debug)]
pub struct Numbers<M> {
    numbers: Range<u64>,
    payload_len: usize,
    message: PhantomData<fn() -> M>,
}

impl<M> Numbers<M> {
    /// Creates a stream of `count` messages.
    #[must_use]
    pub fn new(count: u64, payload_len: usize) -> Self {
        Self {
            numbers: 0..count,
            payload_len,
            message: PhantomData,
        }
    }
}

impl<M: Numbered> Iterator for Numbers<M> {
    type Item = M;

    #[inline]
    fn next(&mut self) -> Option<M> {
        let number = self.numbers.next()?;
        Some(M::numbered(number, self.payload_len))
    }
}

impl<M: Numbered> Stream for Numbers<M> {
    type Item = Result<M, Status>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.get_mut().next().map(Ok))
    }
}

/// Reads a stream of numbered messages, and checks them.
#[derive(Debug)]
pub struct Reader<St> {
    stream: St,
    next: u64,
    payload_len: usize,
}

/// Messages between two readings of the clock.
const CHUNK: u64 = 256;

impl<St> Reader<St> {
    /// Creates a reader of a stream that has not been read.
    pub fn new(stream: St, payload_len: usize) -> Self {
        Self {
            stream,
            next: 0,
            payload_len,
        }
    }

    /// Returns the number of messages read.
    #[must_use]
    pub fn read_so_far(&self) -> u64 {
        self.next
    }

    /// Reads until the end of a period. Returns the messages per second in the period.
    ///
    /// # Errors
    ///
    /// Fails if the stream ends, or if a message is not the next one.
    pub async fn rate<M, E>(&mut self, period: Period) -> Outcome<f64>
    where
        St: Stream<Item = Result<M, E>> + Unpin,
        M: Numbered,
        E: std::error::Error + 'static,
    {
        let mut began = None;
        loop {
            for _ in 0..CHUNK {
                self.read().await?;
            }
            let now = Instant::now();
            match began {
                None if period.has_begun(now) => began = Some((now, self.next)),
                Some((start, first)) if period.is_over(now) => {
                    return Ok((self.next - first) as f64 / (now - start).as_secs_f64());
                }
                _ => {}
            }
        }
    }

    /// Reads the next message.
    ///
    /// # Errors
    ///
    /// Fails if the stream ends, or if the message is not the next one.
    #[inline]
    pub async fn read<M, E>(&mut self) -> Outcome<()>
    where
        St: Stream<Item = Result<M, E>> + Unpin,
        M: Numbered,
        E: std::error::Error + 'static,
    {
        let Some(message) = poll_fn(|cx| Pin::new(&mut self.stream).poll_next(cx)).await else {
            return Err("the stream ended".into());
        };
        if message?.number(self.payload_len) != Some(self.next) {
            return Err(format!("a message is not number {}", self.next).into());
        }
        self.next += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream of the given messages.
    struct Of(std::vec::IntoIter<Fixed>);

    impl Stream for Of {
        type Item = Result<Fixed, Status>;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            Poll::Ready(self.0.next().map(Ok))
        }
    }

    fn read_all(messages: Vec<Fixed>, count: usize) -> Outcome<()> {
        let mut reader = Reader::new(Of(messages.into_iter()), 0);
        rpc_core::block_on(async {
            for _ in 0..count {
                reader.read().await?;
            }
            Ok(())
        })
    }

    #[test]
    fn a_lost_message_is_noticed() {
        let all: Vec<Fixed> = Numbers::new(4, 0).collect();
        assert!(read_all(all.clone(), 4).is_ok());
        assert!(read_all(all.clone(), 5).is_err(), "the stream has ended");
        let error = read_all(vec![all[0], all[2]], 2).expect_err("1 is missing");
        assert!(error.to_string().contains("number 1"), "{error}");
    }

    #[test]
    fn a_changed_message_has_no_number() {
        let mut message = Fixed::numbered(7, 0);
        assert_eq!(message.number(0), Some(7));
        message.d += 1;
        assert_eq!(message.number(0), None);
        let blob = Blob::numbered(9, 64);
        assert_eq!((blob.number(64), blob.number(65)), (Some(9), None));
    }
}
