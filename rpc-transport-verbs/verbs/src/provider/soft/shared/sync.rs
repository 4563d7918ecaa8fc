//! The atomics of the lock-free modules, so that loom can replace them with its own.
//!
//! `tests/loom` compiles the modules that have loom models with them: `announcements`, `commit`,
//! `wake`, `sequence_lock` and `ring::closed`.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
