//! When a handler was last dropped, on a clock that all processes of a machine share.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of [`now_ns`]; 0 if none was dropped yet.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A part of a handler that records the time at which it is dropped.
#[derive(Debug)]
pub struct RecordDrop;

impl Drop for RecordDrop {
    fn drop(&mut self) {
        LAST.store(now_ns(), Ordering::Relaxed);
    }
}

/// Returns the time of the last drop in this process, in nanoseconds; 0 if there was none.
#[must_use]
pub fn last_ns() -> u64 {
    LAST.load(Ordering::Relaxed)
}

/// Returns the time of `CLOCK_MONOTONIC` in nanoseconds, which is the same in all processes.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
