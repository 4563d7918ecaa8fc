//! [`Clock`]: the time as a value, so that a test can move it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Where a poller takes the time from. It asks only while some call has a deadline.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    #[cfg_attr(not(feature = "test-util"), allow(dead_code))]
    Manual(Rc<Cell<Instant>>),
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
        Self(Source::Manual(Rc::new(Cell::new(Instant::now()))))
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.0 {
            Source::System => Instant::now(),
            Source::Manual(now) => now.get(),
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
            Source::Manual(now) => now.set(now.get() + by),
        }
    }
}

/// A deadline that is `timeout` from now; none if that is beyond what the clock can say.
pub(crate) fn deadline_after(now: Instant, timeout: Duration) -> Option<Instant> {
    now.checked_add(timeout)
}
