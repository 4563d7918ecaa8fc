//! [`Clock`]: the time as a value, so that a test can move it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Where a poller takes the time from. It asks only while some call has a deadline.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

/// A time that is moved by hand.
#[derive(Debug)]
struct ManualTime {
    start: Instant,
    /// How far it has been moved.
    passed_ns: AtomicU64,
}

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    #[cfg_attr(not(feature = "test-util"), allow(dead_code))]
    Manual(Arc<ManualTime>),
}

impl Clock {
    /// The system's monotonic clock.
    #[must_use]
    pub fn system() -> Self {
        Self::default()
    }

    /// A clock that stands still until it is [`advance`](Self::advance)d; its clones move along.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn manual() -> Self {
        Self(Source::Manual(Arc::new(ManualTime {
            start: Instant::now(),
            passed_ns: AtomicU64::new(0),
        })))
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.0 {
            Source::System => Instant::now(),
            Source::Manual(time) => {
                time.start + Duration::from_nanos(time.passed_ns.load(Ordering::Relaxed))
            }
        }
    }

    /// Moves a manual clock, and all its clones.
    ///
    /// # Panics
    ///
    /// On the system's clock, which nobody moves.
    #[cfg(feature = "test-util")]
    pub fn advance(&self, by: Duration) {
        match &self.0 {
            Source::System => panic!("the system's clock cannot be advanced"),
            Source::Manual(time) => {
                let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
                time.passed_ns.fetch_add(by, Ordering::Relaxed);
            }
        }
    }
}

/// A deadline that is `timeout` from now; none if that is beyond what the clock can say.
pub(crate) fn deadline_after(now: Instant, timeout: Duration) -> Option<Instant> {
    now.checked_add(timeout)
}
