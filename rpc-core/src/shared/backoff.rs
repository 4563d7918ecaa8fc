//! [`Backoff`]: the delays between attempts to connect to a server.

use std::time::Duration;

use super::random::Random;

/// Factor by which the limit grows with each failure, up to the maximum. Taken from gRPC's
/// "Connection Backoff Protocol".
const MULTIPLIER: f64 = 1.6;

/// Minimum of any limit: with none, a channel whose server is away would start threads without a
/// pause.
const LEAST: Duration = Duration::from_millis(1);

/// Maximum of any delay, so that sums of times stay within a clock's range.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Exponential backoff with jitter: the delays grow and differ between clients, so that the clients
/// of a restarted server don't all connect at once.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
    random: Random,
}

impl Backoff {
    /// Creates a backoff. `first` is the upper limit of the delay before the first attempt,
    /// `longest` the upper limit after many failures.
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self::with(first, longest, Random::new())
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn seeded(first: Duration, longest: Duration, seed: u64) -> Self {
        Self::with(first, longest, Random::seeded(seed))
    }

    fn with(first: Duration, longest: Duration, random: Random) -> Self {
        Self {
            first: first.clamp(LEAST, DAY),
            longest: longest.clamp(LEAST, DAY),
            failures: 0,
            random,
        }
    }

    /// Returns the delay before the next attempt: between half of the current limit and the limit,
    /// or, for the first attempt after a working connection, between zero and the limit.
    pub(crate) fn next(&mut self) -> Duration {
        let factor = MULTIPLIER.powi(self.failures.min(1000) as i32);
        let limit = (self.first.as_secs_f64() * factor).min(self.longest.as_secs_f64());
        let least = if self.failures == 0 { 0.0 } else { 0.5 };
        self.failures = self.failures.saturating_add(1);
        Duration::from_secs_f64(limit * (least + (1.0 - least) * self.random.uniform()))
    }

    /// Returns the upper limit of the delay after many failures.
    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }

    /// Resets the delays, because a connection was of use.
    pub(crate) fn succeed(&mut self) {
        self.failures = 0;
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
    fn limits_of_nothing_and_of_ages_leave_a_pause_that_ends() {
        for limit in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            let mut backoff = Backoff::new(limit, limit);
            backoff.next();
            let waits = (0..2000).map(|_| backoff.next());
            for wait in waits {
                assert!(LEAST / 2 <= wait && wait <= DAY, "{limit:?}: {wait:?}");
            }
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
