//! Long messages of a stream: those that do not fit in a frame.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;

/// Bytes of a stream's window that a long message takes, whatever its length: the memory for messages
/// bounds its bytes.
pub(crate) const LONG_MESSAGE_CHARGE: u32 = 4096;

/// Long messages that are fetched before the reader has taken the first of them. Further ones wait at
/// their sender.
pub(crate) const LONG_READ_AHEAD: usize = 2;

/// A long message that has been received.
#[derive(Debug)]
pub(crate) struct ReceivedLong {
    pub(crate) message: Bytes,
    /// The length from which its fields share its memory.
    pub(crate) share_from: usize,
    /// Counts the bytes that are copied out of it.
    pub(crate) copied_in: Arc<AtomicU64>,
}
