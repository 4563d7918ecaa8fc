//! When a handler was last dropped, on a clock that all processes of a machine share.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::host_time;

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

/// Returns the time of the host in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    host_time().as_nanos() as u64
}
