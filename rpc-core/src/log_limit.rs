//! [`LogLimit`]: limits how often something is logged that peers can cause as often as they like.
//!
//! The same as in `verbline-verbs`, which has its test: neither crate can use the other one.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between the first two lines of one kind. It doubles with each line that stands for several
/// occurrences.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// Longest time between two lines of one kind. A flood that does not end leaves some 500 KiB a day.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Logs a line that peers can cause, at a level such as `info`. Each place in the source has a
/// [`LogLimit`]: the line has a field `count`, the number of occurrences since the last one. The others
/// are logged at the level DEBUG.
///
/// What a peer did is at most a warning. The level `error` is for failures of the application, which
/// requests of peers can repeat.
macro_rules! log_limited {
    ($level:ident, $($line:tt)+) => {{
        static LIMIT: $crate::log_limit::LogLimit = $crate::log_limit::LogLimit::new();
        match LIMIT.note(std::time::Instant::now()) {
            Some(count) => tracing::$level!(count, $($line)+),
            None => tracing::debug!($($line)+),
        }
    }};
}

/// Limits the log lines of one kind.
#[derive(Debug)]
pub(crate) struct LogLimit(Mutex<State>);

#[derive(Debug)]
struct State {
    /// When the last line came.
    latest: Option<Instant>,
    pause: Duration,
    /// Occurrences since the last line.
    count: u64,
}

impl LogLimit {
    /// Creates the limit of a kind that has not occurred.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(State {
            latest: None,
            pause: SHORTEST_PAUSE,
            count: 0,
        }))
    }

    /// Counts one occurrence. Returns the number of occurrences since the last line if it is time
    /// for the next line.
    pub(crate) fn note(&self, now: Instant) -> Option<u64> {
        // Nothing under this lock panics.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.count += 1;
        let since = state
            .latest
            .map(|latest| now.saturating_duration_since(latest));
        if since.is_some_and(|since| since < state.pause) {
            return None;
        }
        let count = std::mem::take(&mut state.count);
        // It is over if nothing came for so long.
        let is_over = count == 1 && since.is_none_or(|since| since >= LONGEST_PAUSE);
        state.pause = match is_over {
            true => SHORTEST_PAUSE,
            false => (2 * state.pause).min(LONGEST_PAUSE),
        };
        state.latest = Some(now);
        Some(count)
    }
}
