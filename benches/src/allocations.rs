//! Counting heap allocations, of all threads of a process.
//!
//! A program that wants them counted makes the counting allocator its own:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: benches::allocations::Counting = benches::allocations::COUNTING;
//! # assert!({ let before = benches::allocations::count(); drop(Box::new(1u8)); benches::allocations::count() > before });
//! ```

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// The system's allocator, with counters.
pub type Counting = &'static StatsAlloc<System>;

/// The one that [`count`] reads.
pub const COUNTING: Counting = &INSTRUMENTED_SYSTEM;

/// Allocations and reallocations of this process since it started; 0 for ever in a program that
/// does not use [`COUNTING`].
#[must_use]
pub fn count() -> u64 {
    let stats = INSTRUMENTED_SYSTEM.stats();
    (stats.allocations + stats.reallocations) as u64
}
