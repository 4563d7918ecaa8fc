//! [`Backoff`]: how long to wait before a server is tried again.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Each wait is longer than the one before by this factor, up to the longest (gRPC's "Connection
/// Backoff Protocol" has the same).
const MULTIPLIER: f64 = 1.6;

/// No wait is longer: sums of times stay what a clock can say.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Waits between attempts to connect: longer and longer, and never the same for two clients, so that
/// those of a server that comes back do not all come at once.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
    random: u64,
}

impl Backoff {
    /// With an upper limit of `first` for the wait before the first attempt, and of `longest` for
    /// those after many failures.
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        // The standard library's hasher has keys of its own for each process and each use.
        Self::seeded(first, longest, RandomState::new().hash_one(()))
    }

    pub(crate) fn seeded(first: Duration, longest: Duration, seed: u64) -> Self {
        Self {
            first: first.min(DAY),
            longest: longest.min(DAY),
            failures: 0,
            random: seed | 1,
        }
    }

    /// The wait before the next attempt: somewhere between half of the present limit and all of it;
    /// before the first attempt after a connection that worked, anywhere up to the limit.
    pub(crate) fn next(&mut self) -> Duration {
        let factor = MULTIPLIER.powi(self.failures.min(1000) as i32);
        let limit = (self.first.as_secs_f64() * factor).min(self.longest.as_secs_f64());
        let least = if self.failures == 0 { 0.0 } else { 0.5 };
        self.failures = self.failures.saturating_add(1);
        Duration::from_secs_f64(limit * (least + (1.0 - least) * self.uniform()))
    }

    /// A connection was made: the next wait is short again.
    pub(crate) fn succeed(&mut self) {
        self.failures = 0;
    }

    /// From 0 to 1 (xorshift64*, Vigna, "An experimental exploration of Marsaglia's xorshift
    /// generators, scrambled").
    fn uniform(&mut self) -> f64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn waits_grow_up_to_the_longest_and_are_short_again_after_a_success(seed: u64) {
            let (first, longest) = (Duration::from_millis(20), Duration::from_secs(5));
            let mut backoff = Backoff::seeded(first, longest, seed);
            prop_assert!(backoff.next() <= first);
            let mut limit = first;
            for _ in 0..30 {
                limit = limit.mul_f64(MULTIPLIER).min(longest);
                let wait = backoff.next();
                prop_assert!(wait >= limit / 2 && wait <= limit.mul_f64(1.000_001), "{wait:?} of {limit:?}");
            }
            prop_assert_eq!(limit, longest);
            backoff.succeed();
            prop_assert!(backoff.next() <= first);
        }
    }

    #[test]
    fn two_clients_do_not_wait_alike() {
        let second = Duration::from_secs(1);
        assert_ne!(
            Backoff::new(second, second).next(),
            Backoff::new(second, second).next()
        );
    }
}
