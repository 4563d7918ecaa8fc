//! [`RunClock`]: a clock for deadlines, which runs only while this thread does.

use std::time::{Duration, Instant};

/// The longest time that one round of a thread's loop counts. While strangers have deadlines, the loop
/// takes a round at least this often.
pub const TICK: Duration = Duration::from_millis(100);

/// A clock that runs only while this thread does: a round of its loop counts as one tick at most,
/// however long it took.
///
/// If the process was stopped, or got no processor time, strangers do not lose that time.
#[derive(Debug, Default)]
pub(super) struct RunClock {
    last: Option<Instant>,
    running: Duration,
}

impl RunClock {
    /// Counts a round of the loop. The first one begins it.
    pub(super) fn advance(&mut self, now: Instant) {
        let last = self.last.replace(now).unwrap_or(now);
        self.running += now.saturating_duration_since(last).min(TICK);
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
        let mut clock = RunClock::default();
        clock.advance(start);
        clock.advance(start + TICK / 2);
        assert_eq!(clock.running(), TICK / 2);
        clock.advance(start + Duration::from_secs(3600));
        assert_eq!(clock.running(), TICK / 2 + TICK);
        clock.advance(start + Duration::from_secs(3600) + TICK / 4);
        assert_eq!(clock.running(), TICK / 2 + TICK + TICK / 4);
    }
}
