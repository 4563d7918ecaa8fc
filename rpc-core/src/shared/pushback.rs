//! [`Pushback`]: what a poller of a shared channel does while its server is overloaded.
//!
//! A server that refuses a call tells for how long it wants no further ones. The poller then holds
//! its calls back for that time, and fails calls whose deadline comes earlier. It adds jitter, so
//! that the clients of a server do not all return at once. One call at a time goes out
//! nevertheless, as a *probe*: if the server serves it, the hold ends. So a server that has
//! recovered is used again after one round trip, whatever it said before, unless it refuses the
//! probe for the probe's own deadline.

use std::time::{Duration, Instant};

use super::random::Random;

/// The hold of one poller.
#[derive(Debug)]
pub(super) struct Pushback {
    until: Option<Instant>,
    /// The permit of the call that goes out nevertheless.
    probe: Option<u32>,
    random: Random,
}

impl Pushback {
    pub(super) fn new() -> Self {
        Self::with(Random::new())
    }

    fn with(random: Random) -> Self {
        Self {
            until: None,
            probe: None,
            random,
        }
    }

    /// Returns true if calls are held back, or were held back and the time has not been checked.
    #[inline]
    pub(super) fn is_holding(&self) -> bool {
        self.until.is_some()
    }

    /// Returns the time until which calls are held back, if they are.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Returns true if the server wants calls only after this deadline.
    pub(super) fn outlasts(&self, deadline: Option<Instant>) -> bool {
        let until = self.until.zip(deadline);
        until.is_some_and(|(until, deadline)| deadline < until)
    }

    /// Forgets the hold and the probe.
    pub(super) fn forget(&mut self) {
        self.until = None;
        self.probe = None;
    }

    /// Ends the hold if its time has come. Returns true if calls may be sent.
    pub(super) fn has_ended(&mut self, now: Instant) -> bool {
        if self.until.is_some_and(|until| until <= now) {
            self.until = None;
        }
        self.until.is_none()
    }

    /// Returns true if a call may go out as a probe.
    pub(super) fn wants_probe(&self) -> bool {
        self.probe.is_none()
    }

    /// Records that the call with this permit went out as a probe.
    pub(super) fn probe_sent(&mut self, permit: u32) {
        self.probe = Some(permit);
    }

    /// Handles a refusal, after which the server wants no calls for `pushback`. Returns true if the
    /// hold became longer.
    pub(super) fn refused(&mut self, now: Instant, pushback: Duration) -> bool {
        let until = now + pushback + pushback.mul_f64(self.random.uniform());
        let is_later = self.until.is_none_or(|before| before < until);
        if is_later {
            self.until = Some(until);
        }
        is_later
    }

    /// Records that a call has ended. `was_served` is true if its handler started.
    pub(super) fn ended(&mut self, permit: u32, was_served: bool) {
        if self.probe == Some(permit) {
            self.probe = None;
            if was_served {
                self.until = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HINT: Duration = Duration::from_millis(10);

    proptest! {
        #[test]
        fn a_hold_lasts_as_long_as_the_server_says_plus_jitter(seed: u64) {
            let now = Instant::now();
            let mut pushback = Pushback::with(Random::seeded(seed));
            prop_assert!(pushback.has_ended(now));
            prop_assert!(pushback.refused(now, HINT));
            let until = pushback.until().unwrap();
            prop_assert!(until >= now + HINT && until <= now + 2 * HINT);
            prop_assert!(!pushback.has_ended(now));
            prop_assert!(pushback.has_ended(until));
        }
    }

    #[test]
    fn one_probe_at_a_time_and_only_its_success_ends_the_hold() {
        let now = Instant::now();
        let mut pushback = Pushback::with(Random::seeded(1));
        pushback.refused(now, HINT);
        assert!(pushback.wants_probe());
        pushback.probe_sent(7);
        assert!(!pushback.wants_probe());
        pushback.ended(3, true);
        assert!(pushback.is_holding(), "an earlier call says nothing");
        pushback.ended(7, false);
        assert!(pushback.is_holding() && pushback.wants_probe());
        pushback.probe_sent(8);
        pushback.ended(8, true);
        assert!(!pushback.is_holding());
    }

    #[test]
    fn a_shorter_hint_does_not_shorten_the_hold() {
        let now = Instant::now();
        let mut pushback = Pushback::with(Random::seeded(1));
        assert!(pushback.refused(now, HINT * 100));
        assert!(!pushback.refused(now, HINT));
        assert!(pushback.until().unwrap() >= now + HINT * 100);
    }
}
