//! What this process knows of the clock of a peer on another host, and how the control thread passes
//! it to the poller.
//!
//! An exchange bounds the difference between two clocks without any assumption about the network:
//!
//! ```text
//!  this host    asked ------------------------ answered        (CLOCK_MONOTONIC of this host)
//!                   \                         /
//!  peer              `-------- reading ------'                 (CLOCK_MONOTONIC of the peer's host)
//! ```
//!
//! The reading was taken between `asked` and `answered`, so the peer's clock is ahead by at least
//! `reading - answered` and at most `reading - asked`. The estimate is the middle; its error is half
//! the time of the exchange, however that divides between the two directions. Then the error grows
//! with time, because no two clocks run at the same rate.
//!
//! Deadlines are [`Instant`](std::time::Instant)s, so the clock is `CLOCK_MONOTONIC`, whose rate
//! `adjtimex(2)` changes by at most 500 millionths while it corrects the time of day. The error grows
//! by that much for either host. It does not cover a clock that goes wrong by more:
//!
//! * a daemon may change the length of the kernel's tick, as chrony does to correct a large offset,
//!   by default by up to 83,333 millionths (`maxslewrate`);
//! * the clock of a virtual machine that is paused may stand still, or jump when it goes on.
//!
//! Until the next series of questions, a few seconds later, deadlines may then be off by as much as
//! the clock is. A series begins at once when the control thread finds that it ran late by more than
//! a second, or when an answer contradicts the estimate.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

use rpc_core::transport::PeerClock;
use rustix::time::{ClockId, clock_gettime};

/// The largest difference in rate between two clocks that is reckoned with, in millionths: either may
/// be slewed by 500 millionths. Oscillators are off by less than 100.
const DRIFT_PPM: i64 = 2 * 500;

/// Microseconds by which the readings may be off: each is a whole number, and the core converts a
/// deadline with an error of a few.
const READING_ERROR_US: i64 = 5;

/// The largest error with which a clock counts as known: ten seconds. A deadline travels modulo 2³²
/// microseconds, which leaves room for an error of a minute.
const LARGEST_ERROR_US: i64 = 10_000_000;

/// Returns what `CLOCK_MONOTONIC` shows, in microseconds. It does not enter the kernel.
pub(crate) fn monotonic_us() -> i64 {
    let reading = clock_gettime(ClockId::Monotonic);
    reading.tv_sec * 1_000_000 + reading.tv_nsec / 1000
}

/// A measurement of a peer's clock. A peer may send any reading, so the arithmetic wraps; a peer
/// that sends a wrong one gets calls with wrong deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockEstimate {
    ahead_us: i64,
    /// The error at `at_us`.
    error_us: i64,
    /// When the exchange began, on the clock of this host.
    at_us: i64,
}

impl ClockEstimate {
    /// Creates the estimate from an exchange: two readings of this host's clock, and the peer's
    /// reading between them.
    pub(crate) fn new(asked_us: i64, reading_us: i64, answered_us: i64) -> Self {
        let took_us = answered_us.saturating_sub(asked_us).max(0);
        let half_us = took_us / 2;
        Self {
            ahead_us: reading_us.wrapping_sub(asked_us.wrapping_add(half_us)),
            error_us: (took_us - half_us).saturating_add(READING_ERROR_US),
            at_us: asked_us,
        }
    }

    /// Returns the error at a later time of this host.
    fn error_us(&self, now_us: i64) -> i64 {
        let age_us = now_us.saturating_sub(self.at_us).max(0);
        let growth_us = age_us / (1_000_000 / DRIFT_PPM) + 1;
        self.error_us.saturating_add(growth_us)
    }

    /// Returns true if this estimate and a newer one cannot both be right: one of the clocks has
    /// jumped, or runs at another rate.
    pub(crate) fn contradicts(&self, newer: &Self, now_us: i64) -> bool {
        let error_us = self.error_us(now_us).saturating_add(newer.error_us(now_us));
        newer.ahead_us.wrapping_sub(self.ahead_us).unsigned_abs() > error_us as u64
    }

    /// Returns the better one of this estimate and a newer one: the one with the smaller error now.
    /// If they contradict each other, the newer one is right.
    pub(crate) fn or_newer(self, newer: Self, now_us: i64) -> Self {
        let is_better = newer.error_us(now_us) <= self.error_us(now_us);
        if is_better || self.contradicts(&newer, now_us) {
            newer
        } else {
            self
        }
    }

    /// Returns the peer's clock at a time of this host, if it is known well enough.
    pub(crate) fn peer_clock(&self, now_us: i64) -> Option<PeerClock> {
        let error_us = self.error_us(now_us);
        (error_us <= LARGEST_ERROR_US).then_some(PeerClock {
            ahead_us: self.ahead_us,
            // Lossless, because it is at most ten seconds.
            error_us: error_us as u32,
        })
    }
}

/// The estimate of one peer's clock. The control thread stores it, and the poller loads it, without
/// a lock.
///
/// Of two cells, one holds the published estimate; the next one is written to the other.
///
/// ```text
///  control thread                           poller
///  write cell (g + 1) & 1                   read generation: g
///  publish generation g + 1                 read cell g & 1
///  write cell (g + 2) & 1 = g & 1           read generation again
/// ```
///
/// If the poller read part of the third write, then it also sees generation g + 1 or a later one in
/// its second read, because the write of a value releases what came before it, and the read of the
/// value acquires it. Then it reads again. The control thread stores a few times in some seconds.
#[derive(Debug)]
pub(crate) struct PeerClockCell {
    generation: AtomicU64,
    cells: [[AtomicU64; 3]; 2],
}

impl PeerClockCell {
    pub(crate) fn new(first: ClockEstimate) -> Self {
        Self {
            generation: AtomicU64::new(0),
            // The second cell is written before it is published.
            cells: [first, first].map(|estimate| estimate.to_words().map(AtomicU64::new)),
        }
    }

    /// Replaces the estimate. Called by one thread.
    pub(crate) fn store(&self, estimate: ClockEstimate) {
        // Relaxed: no other thread writes it.
        let next = self.generation.load(Ordering::Relaxed) + 1;
        let cell = &self.cells[(next & 1) as usize];
        for (word, value) in cell.iter().zip(estimate.to_words()) {
            word.store(value, Ordering::Release);
        }
        self.generation.store(next, Ordering::Release);
    }

    pub(crate) fn load(&self) -> ClockEstimate {
        loop {
            let generation = self.generation.load(Ordering::Acquire);
            let cell = &self.cells[(generation & 1) as usize];
            let [ahead, error, at] = [&cell[0], &cell[1], &cell[2]];
            let words = [ahead, error, at].map(|word| word.load(Ordering::Acquire));
            if self.generation.load(Ordering::Acquire) == generation {
                return ClockEstimate::from_words(words);
            }
        }
    }
}

impl ClockEstimate {
    fn to_words(self) -> [u64; 3] {
        [self.ahead_us, self.error_us, self.at_us].map(|value| value as u64)
    }

    fn from_words(words: [u64; 3]) -> Self {
        let [ahead_us, error_us, at_us] = words.map(|word| word as i64);
        Self {
            ahead_us,
            error_us,
            at_us,
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    fn numbered(number: i64) -> ClockEstimate {
        ClockEstimate {
            ahead_us: number,
            error_us: number,
            at_us: number,
        }
    }

    /// A poller that loads while the control thread stores twice gets one of the estimates, whole,
    /// and none that is older than one that it got before.
    #[test]
    fn loom_an_estimate_is_loaded_whole() {
        loom::model(|| {
            let cell = Arc::new(PeerClockCell::new(numbered(1)));
            let control = thread::spawn({
                let cell = Arc::clone(&cell);
                move || {
                    cell.store(numbered(2));
                    cell.store(numbered(3));
                }
            });
            let first = cell.load();
            assert_eq!(first, numbered(first.ahead_us));
            control.join().unwrap();
            assert_eq!(cell.load(), numbered(3));
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_error_is_half_the_exchange_and_grows_with_age() {
        let estimate = ClockEstimate::new(1_000_000, 5_000_000, 1_000_201);
        assert_eq!(estimate.ahead_us, 5_000_000 - 1_000_100);
        let error_us = |age_us| Some(estimate.peer_clock(1_000_000 + age_us)?.error_us);
        assert_eq!(error_us(0), Some(101 + 5 + 1));
        // 1000 millionths of ten seconds: both hosts may slew their clocks.
        assert_eq!(error_us(10_000_000), Some(101 + 5 + 1 + 10_000));
        // After half a day without an answer, the clock is not known well enough.
        assert_eq!(error_us(50_000_000_000), None);
        assert_eq!(error_us(i64::MAX / 2), None);
    }

    #[test]
    fn the_smaller_error_wins_but_a_contradiction_means_that_a_clock_has_jumped() {
        let good = ClockEstimate::new(0, 1000, 100);
        let worse = ClockEstimate::new(1000, 2900, 3000);
        assert_eq!(good.or_newer(worse, 3000), good);
        let better = ClockEstimate::new(1000, 2000, 1010);
        assert_eq!(good.or_newer(better, 3000), better);
        let jumped = ClockEstimate::new(1000, 1_000_000, 3000);
        assert_eq!(good.or_newer(jumped, 3000), jumped);
        // An hour later, the old one is the worse one.
        let hour_us = 3_600_000_000;
        let later = ClockEstimate::new(hour_us, hour_us + 1900, hour_us + 2000);
        assert_eq!(good.or_newer(later, hour_us + 2000), later);
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let estimate = |number| ClockEstimate::new(number, -number, number + 7);
        let cell = PeerClockCell::new(estimate(1));
        assert_eq!(cell.load(), estimate(1));
        for number in 2..5 {
            cell.store(estimate(number));
            assert_eq!(cell.load(), estimate(number));
        }
    }

    proptest! {
        /// Whatever a peer sends, nothing overflows.
        #[test]
        fn any_readings_give_an_estimate(
            asked_us in any::<i64>(),
            reading_us in any::<i64>(),
            answered_us in any::<i64>(),
            others in any::<[i64; 4]>(),
        ) {
            let estimate = ClockEstimate::new(asked_us, reading_us, answered_us);
            if let Some(clock) = estimate.peer_clock(others[0]) {
                prop_assert!(clock.error_us > 0);
            }
            let newer = ClockEstimate::new(others[1], others[2], others[3]);
            let better = estimate.or_newer(newer, others[0]);
            prop_assert!(better == estimate || better == newer);
        }
    }
}
