//! The atomics of the lock-free modules, so that loom can replace them with its own.
//!
//! `tests/loom` compiles the modules that have loom models with them: `owner`, `commit`, `wake`,
//! `sequence_lock` and `ring::closed`.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Yields the core to another thread.
pub(crate) fn yield_now() {
    #[cfg(not(loom))]
    std::thread::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
}
