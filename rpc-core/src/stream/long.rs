//! Long messages of a stream: those that do not fit in a frame.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use crate::codec::{BegunDecode, DecodeError, DecodeFuture, LongMessage};
use crate::message::Response;
use crate::outcome::Outcome;

/// Bytes of a stream's window that a long message takes, whatever its length: the memory for messages
/// bounds its bytes.
pub(crate) const LONG_MESSAGE_CHARGE: u32 = 4096;

/// Long messages that are fetched before the reader has taken the first of them. Further ones wait at
/// their sender.
pub(crate) const LONG_READ_AHEAD: usize = 2;

/// The next long message of a stream to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextLong {
    /// The driver's name for it.
    pub(crate) transfer: u32,
    /// The reader waits for it.
    pub(crate) is_awaited: bool,
}

/// Counts a long message as fetched ahead of its reader, until it is dropped: when the reader takes the
/// message, or nobody wants it any more.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    len: u64,
    /// The bytes of a connection, and of its poller.
    counts: [Arc<AtomicU64>; 2],
}

impl ReadAhead {
    pub(crate) fn new(len: u64, counts: [Arc<AtomicU64>; 2]) -> Self {
        for count in &counts {
            // The counts publish nothing else.
            count.fetch_add(len, Ordering::Relaxed);
        }
        Self { len, counts }
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        for count in &self.counts {
            count.fetch_sub(self.len, Ordering::Relaxed);
        }
    }
}

/// A long message that the reader has taken.
pub(crate) struct LongRead<T> {
    message: LongMessage,
    /// Another thread decodes it.
    decode: Option<DecodeFuture<T>>,
    /// The metadata of the response whose message it is.
    outcome: Outcome<'static>,
}

impl<T> LongRead<T> {
    pub(crate) fn new(message: LongMessage, outcome: Outcome<'static>) -> Self {
        Self {
            message,
            decode: None,
            outcome,
        }
    }

    /// Returns the length of the message.
    pub(crate) fn message_len(&self) -> usize {
        self.message.message.len()
    }

    /// Decodes the message, and returns the response whose message it is. The first poll calls `begin`.
    pub(crate) fn poll(
        &mut self,
        begin: fn(&Bytes, usize) -> BegunDecode<T>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<T>, DecodeError>> {
        let message = &self.message;
        let decoded = match &mut self.decode {
            Some(decode) => ready!(Pin::new(decode).poll(cx)),
            None => match begin(&message.message, message.share_from) {
                BegunDecode::Done(decoded) => decoded,
                BegunDecode::Beside(decode) => {
                    ready!(Pin::new(self.decode.insert(decode)).poll(cx))
                }
            },
        }?;
        message.count_copied(decoded.copied_len);
        Poll::Ready(Ok(mem::take(&mut self.outcome).respond(decoded.message)))
    }
}
