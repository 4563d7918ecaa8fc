//! [`Clock`]: a time source that tests can control.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A poller's time source. The poller reads it only while a call has a deadline.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

/// A time that only advances by hand.
#[derive(Debug)]
struct ManualTime {
    start: Instant,
    /// Nanoseconds advanced since `start`.
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
    /// Returns the system's monotonic clock.
    #[must_use]
    pub fn system() -> Self {
        Self::default()
    }

    /// Creates a clock that stands still until it is [`advance`](Self::advance)d. Its clones share
    /// its time.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn manual() -> Self {
        Self(Source::Manual(Arc::new(ManualTime {
            start: Instant::now(),
            passed_ns: AtomicU64::new(0),
        })))
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.0 {
            Source::System => Instant::now(),
            Source::Manual(time) => {
                time.start + Duration::from_nanos(time.passed_ns.load(Ordering::Relaxed))
            }
        }
    }

    /// Advances a manual clock and all its clones.
    ///
    /// # Panics
    ///
    /// Panics if this is the system's clock.
    #[cfg(feature = "test-util")]
    pub fn advance(&self, by: Duration) {
        match &self.0 {
            Source::System => panic!("the system clock cannot be advanced"),
            Source::Manual(time) => {
                let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
                time.passed_ns.fetch_add(by, Ordering::Relaxed);
            }
        }
    }
}

/// Returns the deadline that is `timeout` from `now`, or `None` if the clock cannot represent it.
pub(crate) fn deadline_after(now: Instant, timeout: Duration) -> Option<Instant> {
    now.checked_add(timeout)
}
