//! Long messages of a stream: those that do not fit in a frame.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

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

/// A long message that has been received.
#[derive(Debug)]
pub(crate) struct ReceivedLong {
    pub(crate) message: Bytes,
    /// The length from which its fields share its memory.
    pub(crate) share_from: usize,
    /// Counts the bytes that are copied out of it.
    pub(crate) copied_in: Arc<AtomicU64>,
}
