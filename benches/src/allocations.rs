//! Counts the heap allocations of all threads of a process.
//!
//! To have its allocations counted, a program installs the counting allocator:
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

/// The allocator that [`count`] reads.
pub const COUNTING: Counting = &INSTRUMENTED_SYSTEM;

/// Returns the number of allocations and reallocations of this process since it started. Always
/// returns 0 in a program that does not install [`COUNTING`].
#[must_use]
pub fn count() -> u64 {
    let stats = INSTRUMENTED_SYSTEM.stats();
    (stats.allocations + stats.reallocations) as u64
}
