//! [`Counter`] and [`Gauge`]: numbers that one thread writes and any thread may read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A monotonic counter, written by one thread and readable from any thread.
///
/// An addition is a load and a store rather than a locked instruction, so it costs no more than
/// adding to a plain field. A second writer would be sound but additions would be lost. Every
/// access is relaxed, because the counter publishes no other data: a reader may see two counters
/// whose values are a few instructions apart.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count` and returns the previous value. Only the writing thread may call this.
    #[inline]
    pub fn add(&self, count: u64) -> u64 {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before.wrapping_add(count), Ordering::Relaxed);
        before
    }

    /// Returns the current value. May be called from any thread.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A gauge, written by one thread and readable from any thread. See [`Counter`].
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets the value. Only the writing thread may call this.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds `by`. Only the writing thread may call this.
    #[inline]
    pub fn increment(&self, by: u64) {
        self.set(self.get().wrapping_add(by));
    }

    /// Subtracts `by`. Only the writing thread may call this.
    #[inline]
    pub fn decrement(&self, by: u64) {
        self.set(self.get().wrapping_sub(by));
    }

    /// Returns the current value. May be called from any thread.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
