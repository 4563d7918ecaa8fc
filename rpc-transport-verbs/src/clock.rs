//! The time source of this crate.

use std::time::Instant;

/// Returns the time of the system's monotonic clock or, in a simulation, of the simulated clock.
#[inline]
pub(crate) fn now() -> Instant {
    #[cfg(feature = "test-util")]
    if let Some(now) = crate::sim::now() {
        return now;
    }
    Instant::now()
}
