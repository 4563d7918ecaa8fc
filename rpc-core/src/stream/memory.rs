//! [`Charge`]: memory of streams beyond the least that each needs, for all pollers of the process.
//!
//! A stream always has memory for one frame that waits to be sent, and for a few unread messages. Further
//! frames, further unread messages, and messages on the heap are charged by the memory that they use,
//! whichever peers they wait for. While all of [`STREAM_MEMORY`] is in use, no stream queues a second frame,
//! and a stream or a call that needs more for what arrives fails with `RESOURCE_EXHAUSTED`.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::STREAM_MEMORY;

static IN_USE: AtomicU64 = AtomicU64::new(0);

/// Returns the bytes that may be in use: always the same, but in tests.
#[cfg(not(feature = "test-util"))]
fn limit() -> u64 {
    STREAM_MEMORY
}

/// Returns the bytes that may be in use.
#[cfg(feature = "test-util")]
fn limit() -> u64 {
    LIMIT.load(Ordering::Relaxed)
}

/// Made smaller by a test that uses all of it.
#[cfg(feature = "test-util")]
pub(crate) static LIMIT: AtomicU64 = AtomicU64::new(STREAM_MEMORY);

/// Returns the bytes that are in use.
pub(crate) fn in_use() -> u64 {
    // The count publishes nothing else.
    IN_USE.load(Ordering::Relaxed)
}

/// Returns true if all of the memory is in use.
pub(crate) fn is_scarce() -> bool {
    in_use() >= limit()
}

/// Bytes that are in use. Dropping it gives them back.
#[derive(Debug, Default)]
pub(crate) struct Charge {
    bytes: u64,
}

impl Charge {
    /// Returns the bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the number of bytes, whether there is room for them or not.
    #[inline]
    pub(crate) fn set(&mut self, bytes: u64) {
        if bytes != self.bytes {
            // Two's complement: a smaller number wraps around, and subtracts.
            IN_USE.fetch_add(bytes.wrapping_sub(self.bytes), Ordering::Relaxed);
            self.bytes = bytes;
        }
    }

    /// Changes the number of bytes, unless there is no room for more. Returns false, and changes nothing, if
    /// there is not.
    #[must_use]
    pub(crate) fn resize(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let has_room = more == 0 || in_use().saturating_add(more) <= limit();
        if has_room {
            self.set(bytes);
        }
        has_room
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}
