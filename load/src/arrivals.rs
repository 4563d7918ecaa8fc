//! [`Schedule`]: the times at which an open loop should send its calls, regardless of how earlier
//! calls fare.

use std::fmt;
use std::time::Duration;

/// The distribution of the times between calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Arrivals {
    /// Equal intervals
    #[default]
    Fixed,
    /// Exponential intervals, as from many independent callers
    Poisson,
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fixed => "fixed",
            Self::Poisson => "poisson",
        })
    }
}

/// An endless iterator over the intended send times, measured from the start of the loop.
#[derive(Clone, Debug)]
pub struct Schedule {
    arrivals: Arrivals,
    nanos_between: f64,
    /// Where the first fixed arrival is within an interval, from 0 to 1.
    phase: f64,
    /// Index of the next call with fixed intervals. Times are computed from it so that rounding
    /// errors do not add up.
    index: u64,
    /// Time of the latest Poisson arrival, in nanoseconds.
    latest: f64,
    random: fastrand::Rng,
}

impl Schedule {
    /// Creates a schedule of `rate` calls per second. `rate` must be above zero. The same seed
    /// gives the same times. With fixed intervals it decides when the first call is sent, so that loops with
    /// other seeds do not send in step.
    #[must_use]
    pub fn new(arrivals: Arrivals, rate: f64, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        Self {
            arrivals,
            nanos_between: 1e9 / rate,
            phase: random.f64(),
            index: 0,
            latest: 0.0,
            random,
        }
    }
}

impl Iterator for Schedule {
    type Item = Duration;

    #[inline]
    fn next(&mut self) -> Option<Duration> {
        let nanos = match self.arrivals {
            Arrivals::Fixed => {
                let nanos = (self.index as f64 + self.phase) * self.nanos_between;
                self.index += 1;
                nanos
            }
            Arrivals::Poisson => {
                // Above 0 and at most 1, since 0 has no logarithm.
                let uniform = 1.0 - self.random.f64();
                self.latest -= uniform.ln() * self.nanos_between;
                self.latest
            }
        };
        Some(Duration::from_nanos(nanos as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(arrivals: Arrivals, seed: u64, count: usize) -> Vec<Duration> {
        Schedule::new(arrivals, 1e5, seed).take(count).collect()
    }

    #[test]
    fn fixed_arrivals_are_evenly_spaced_and_do_not_drift() {
        let times = first(Arrivals::Fixed, 0, 1_000_001);
        let nanos = Duration::from_nanos(1);
        for (index, time) in [(1, 10), (2, 20), (1_000_000, 10_000_000)] {
            let expected = times[0] + Duration::from_micros(time);
            assert!(times[index].abs_diff(expected) <= nanos, "{index}");
        }
        // The interval is not a whole number of nanoseconds.
        let thirds: Vec<_> = Schedule::new(Arrivals::Fixed, 3e6, 0)
            .take(3_000_001)
            .collect();
        let last = thirds[0] + Duration::from_secs(1);
        assert!(thirds[3_000_000].abs_diff(last) <= nanos);
    }

    #[test]
    fn fixed_arrivals_of_other_seeds_are_not_in_step() {
        let firsts: Vec<_> = (0..8)
            .map(|seed| first(Arrivals::Fixed, seed, 1)[0])
            .collect();
        assert!(firsts.iter().all(|time| *time < Duration::from_micros(10)));
        for (index, time) in firsts.iter().enumerate() {
            assert!(!firsts[..index].contains(time), "{firsts:?}");
        }
    }

    #[test]
    fn poisson_arrivals_have_the_mean_and_the_spread_of_an_exponential() {
        let count = 200_000;
        let times = first(Arrivals::Poisson, 7, count);
        assert!(times.is_sorted());
        let gaps = times.windows(2).map(|pair| (pair[1] - pair[0]).as_nanos());
        let gaps: Vec<f64> = gaps.map(|gap| gap as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // Both are 10 µs for an exponential distribution. The seed is fixed, so the result is
        // deterministic.
        assert!((mean / 10_000.0 - 1.0).abs() < 0.01, "{mean}");
        assert!(
            (variance.sqrt() / 10_000.0 - 1.0).abs() < 0.02,
            "{variance}"
        );
    }

    #[test]
    fn the_seed_decides_the_poisson_arrivals() {
        let times = |seed| first(Arrivals::Poisson, seed, 100);
        assert_eq!(times(42), times(42));
        assert_ne!(times(42), times(43));
    }
}
