//! [`Counter`] and [`Level`]: numbers that one thread writes and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that only grows, written by one thread and read by any.
///
/// Adding is a load and a store, and no locked instruction: on a processor it costs what it costs to
/// add to a field. A second writer would not be unsound, but additions would be lost. Every access is
/// relaxed, as nothing else is published through it: a reader may find two counters a few
/// instructions apart.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`, and returns what it was before. By the one thread that writes.
    #[inline]
    pub fn add(&self, count: u64) -> u64 {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before.wrapping_add(count), Ordering::Relaxed);
        before
    }

    /// What has been added so far. By any thread.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down, written by one thread and read by any: see [`Counter`].
#[derive(Debug, Default)]
pub struct Level(AtomicU64);

impl Level {
    /// By the one thread that writes.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// By the one thread that writes.
    #[inline]
    pub fn raise(&self, by: u64) {
        self.set(self.get().wrapping_add(by));
    }

    /// By the one thread that writes.
    #[inline]
    pub fn lower(&self, by: u64) {
        self.set(self.get().wrapping_sub(by));
    }

    /// How it stands. By any thread.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
