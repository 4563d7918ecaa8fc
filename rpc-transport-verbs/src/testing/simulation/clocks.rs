//! The clocks of simulated hosts, and what their peers measure of them.

use std::time::Instant;

use rpc_core::for_testing::{Clock, Random};
use rpc_core::transport::PeerClock;

/// The largest error of a measurement, in microseconds.
const LARGEST_ERROR_US: u64 = 500;

/// The largest drift of a host's clock, in millionths: what the kernel slews a clock by.
const LARGEST_DRIFT_PPM: i64 = 500;

/// How fast the error of a measurement grows, in millionths: two clocks may drift apart.
const ERROR_GROWTH_PPM: i64 = 2 * LARGEST_DRIFT_PPM;

/// By how much two clocks may drift apart at once, in microseconds: a simulated clock drifts in steps
/// of a second.
const DRIFT_STEP_US: i64 = ERROR_GROWTH_PPM;

/// Returns the clock of a host: it is up to an hour ahead or behind, or it drifts, or both.
pub(super) fn host_clock(time: &Clock, random: &Random) -> Clock {
    const HOUR_US: u64 = 3_600_000_000;
    let ahead_us = match random.below(3) {
        0 => 0,
        1 => HOUR_US as i64,
        _ => random.below(2 * HOUR_US) as i64 - HOUR_US as i64,
    };
    let drift_ppm = [0, LARGEST_DRIFT_PPM, -LARGEST_DRIFT_PPM][random.below(3) as usize];
    time.on_another_host(ahead_us, drift_ppm)
}

/// A measurement of a peer's clock.
#[derive(Debug)]
pub(super) struct Measurement {
    peer: PeerClock,
    at: Instant,
}

impl Measurement {
    /// Measures `theirs`, as seen by a host with the clock `ours`, with a random error.
    pub(super) fn new(ours: &Clock, theirs: &Clock, random: &Random) -> Self {
        let at = ours.now();
        let error_us = random.below(LARGEST_ERROR_US + 1);
        let off_us = random.below(2 * error_us + 1) as i64 - error_us as i64;
        Self {
            peer: PeerClock {
                ahead_us: theirs.host_us(at) - ours.host_us(at) + off_us,
                // The two readings are whole microseconds.
                error_us: error_us as u32 + 2,
            },
            at,
        }
    }

    /// Returns the peer's clock now, with the error that it has by now.
    pub(super) fn peer_clock(&self, now: Instant) -> PeerClock {
        let age_us = now.saturating_duration_since(self.at).as_micros() as i64;
        let growth_us = age_us * ERROR_GROWTH_PPM / 1_000_000 + DRIFT_STEP_US;
        PeerClock {
            error_us: self.peer.error_us + growth_us as u32,
            ..self.peer
        }
    }
}
