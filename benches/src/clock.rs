//! The clock of the host, and the cost of reading one, which is part of every time measured with it.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Returns the time of a clock that all processes of a host share.
#[must_use]
pub fn host_time() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is negative: the clock counts from the host's start.
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

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

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn the_time_of_the_host_goes_with_the_clock_of_the_process() {
        let (instant, time) = (Instant::now(), host_time());
        thread::sleep(Duration::from_millis(5));
        let (instant, time) = (instant.elapsed(), host_time() - time);
        assert!(time >= Duration::from_millis(5) && time <= instant + Duration::from_millis(5));
    }
}
