//! [`ProcessMemory`]: how many bytes this process has registered for messages.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The bytes registered for messages by all pollers of a process.
#[derive(Debug, Default)]
pub(crate) struct ProcessMemory {
    registered: AtomicU64,
    /// True while a pool waits for another to deregister memory.
    is_short: AtomicBool,
}

impl ProcessMemory {
    /// Returns the count of this process. Each process of a simulation has its own.
    pub(crate) fn of_this_process() -> Arc<Self> {
        static ONE: OnceLock<Arc<ProcessMemory>> = OnceLock::new();
        #[cfg(feature = "test-util")]
        if crate::hooks::is_simulated() {
            return Arc::default();
        }
        Arc::clone(ONE.get_or_init(Arc::default))
    }

    /// Counts `len` more bytes, until what is returned is dropped. Returns `None` if there would be
    /// more than `limit`.
    pub(super) fn reserve(self: &Arc<Self>, len: u64, limit: u64) -> Option<CountedBytes> {
        // Relaxed: the number publishes no other data.
        let more = |registered: u64| registered.checked_add(len).filter(|sum| *sum <= limit);
        let order = Ordering::Relaxed;
        self.registered.fetch_update(order, order, more).ok()?;
        let memory = Arc::clone(self);
        Some(CountedBytes { len, memory })
    }

    /// Says whether some pool waits for memory that others have.
    pub(super) fn set_short(&self, is_short: bool) {
        // Relaxed: whoever sets it locks each pool afterwards to look for free chunks, and whoever
        // frees a chunk reads it after it has locked the pool. The lock orders the two.
        self.is_short.store(is_short, Ordering::Relaxed);
    }

    pub(super) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }
}

/// Bytes that are counted as registered.
#[derive(Debug)]
pub(super) struct CountedBytes {
    len: u64,
    memory: Arc<ProcessMemory>,
}

impl CountedBytes {
    pub(super) fn len(&self) -> u64 {
        self.len
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.memory
            .registered
            .fetch_sub(self.len, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_is_counted() {
        let memory = Arc::new(ProcessMemory::default());
        let first = memory.reserve(60, 100).unwrap();
        assert!(memory.reserve(41, 100).is_none());
        let _second = memory.reserve(40, 100).unwrap();
        assert!(memory.reserve(u64::MAX, u64::MAX).is_none());
        drop(first);
        let _third = memory.reserve(60, 100).unwrap();
        assert!(memory.reserve(1, 50).is_none(), "another limit");
    }
}
