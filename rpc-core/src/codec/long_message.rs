//! [`LongMessage`]: a message that did not fit a frame.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

/// A message that did not fit a frame, all of which has arrived, and the metadata that came with it.
#[derive(Clone, Debug)]
pub(crate) struct LongMessage {
    pub(crate) metadata: Box<[u8]>,
    pub(crate) message: Bytes,
    /// Length in bytes from which the fields of the message share its memory.
    pub(crate) share_from: usize,
    /// Counts the bytes that are copied out of it.
    pub(crate) copied_in: Arc<AtomicU64>,
}

impl LongMessage {
    /// Counts bytes that were copied out of the message.
    pub(crate) fn count_copied(&self, len: usize) {
        // The count publishes nothing else.
        self.copied_in.fetch_add(len as u64, Ordering::Relaxed);
    }
}
