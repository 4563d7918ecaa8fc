//! Measures the cost of reading the clock, which is part of every time measured with it.

use std::time::{Duration, Instant};

/// Returns the cost of one [`Instant::now`], as the median over batches, so that one interruption
/// of this thread has no effect.
#[must_use]
pub fn cost_of_reading() -> Duration {
    const BATCHES: usize = 101;
    const READINGS: u32 = 1000;
    let mut batches: Vec<Duration> = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            let mut last = start;
            for _ in 0..READINGS {
                last = Instant::now();
            }
            last - start
        })
        .collect();
    batches.sort_unstable();
    batches[BATCHES / 2] / READINGS
}
