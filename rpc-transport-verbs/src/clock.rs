//! Where this crate takes the time from.

use std::time::Instant;

/// The system's monotonic clock; in a simulation, the simulation's.
#[inline]
pub(crate) fn now() -> Instant {
    #[cfg(feature = "test-util")]
    if let Some(now) = crate::sim::now() {
        return now;
    }
    Instant::now()
}
