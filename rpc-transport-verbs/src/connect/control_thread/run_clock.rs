//! [`RunClock`]: a clock for deadlines, which runs only while this thread does.

use std::time::{Duration, Instant};

/// The longest time that one round of the control thread's loop counts. While handshakes wait for
/// their clients, the loop takes a round at least this often.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// A clock that runs only while this thread does: a round of its loop counts as one tick at most,
/// however long it took.
///
/// If the process was stopped, or got no processor time, clients do not lose that time.
#[derive(Debug)]
pub(super) struct RunClock {
    last: Instant,
    running: Duration,
}

impl RunClock {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            last: now,
            running: Duration::ZERO,
        }
    }

    /// Counts a round of the loop.
    pub(super) fn advance(&mut self, now: Instant) {
        self.running += now.saturating_duration_since(self.last).min(TICK);
        self.last = now;
    }

    /// Returns the time for which the thread has run.
    pub(super) fn running(&self) -> Duration {
        self.running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_in_which_the_process_was_stopped_counts_as_one_tick() {
        let start = Instant::now();
        let mut clock = RunClock::new(start);
        clock.advance(start + TICK / 2);
        assert_eq!(clock.running(), TICK / 2);
        clock.advance(start + Duration::from_secs(3600));
        assert_eq!(clock.running(), TICK / 2 + TICK);
        clock.advance(start + Duration::from_secs(3600) + TICK / 4);
        assert_eq!(clock.running(), TICK / 2 + TICK + TICK / 4);
    }
}
