//! [`LogLimit`]: limits how often something is logged that peers can cause as often as they like.
//!
//! The same as in `verbline-verbs`, which has its test: neither crate can use the other one.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between the first two lines of one kind. It doubles with each line that stands for several
/// occurrences.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// Longest time between two lines of one kind. A flood that does not end leaves some 500 KiB a day.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Things whose lines of one kind are limited apart.
const MOST_THINGS: usize = 64;

/// Logs a line that peers can cause, at a level such as `info`. Each place in the source has a
/// [`LogLimit`]: the line has a field `count`, the number of occurrences since the last one. The others
/// are logged at the level DEBUG.
///
/// `log_limited!(warn, for address, …)` limits the lines about each address apart: one server that is
/// dead does not hide another one. It is for things of this process, which peers do not name. Beyond
/// [`MOST_THINGS`] things, the others have one limit.
///
/// What a peer did is at most a warning. The level `error` is for failures of the application, which
/// requests of peers can repeat.
macro_rules! log_limited {
    ($level:ident, for $thing:expr, $($line:tt)+) => {{
        static LIMITS: $crate::log_limit::LogLimits = $crate::log_limit::LogLimits::new();
        match LIMITS.note($thing, std::time::Instant::now()) {
            Some(count) => tracing::$level!(count, $($line)+),
            None => tracing::debug!($($line)+),
        }
    }};
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

impl LogLimit {
    /// Creates the limit of a kind that has not occurred.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(State::NEW))
    }

    /// Counts one occurrence. Returns the number of occurrences since the last line if it is time
    /// for the next line.
    pub(crate) fn note(&self, now: Instant) -> Option<u64> {
        // Nothing under this lock panics.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.note(now)
    }
}

/// Limits the log lines of one kind about each of some things.
#[derive(Debug)]
pub(crate) struct LogLimits(Mutex<Vec<(u64, State)>>);

impl LogLimits {
    /// Creates the limits of a kind that has not occurred.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Counts one occurrence of this thing, as [`LogLimit::note`] does.
    pub(crate) fn note(&self, thing: &(impl Hash + ?Sized), now: Instant) -> Option<u64> {
        let thing = BuildHasherDefault::<DefaultHasher>::default().hash_one(thing);
        // Under this lock only the allocator can panic.
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = states.iter();
        let index = match known.position(|(known, _)| *known == thing) {
            Some(index) => index,
            None if states.len() < MOST_THINGS => {
                states.push((thing, State::NEW));
                states.len() - 1
            }
            None => {
                let mut known = states.iter();
                match known.position(|(_, state)| state.is_over(now)) {
                    Some(index) => {
                        states[index] = (thing, State::NEW);
                        index
                    }
                    None => MOST_THINGS - 1,
                }
            }
        };
        states[index].1.note(now)
    }
}

#[derive(Debug)]
struct State {
    /// When the last line came.
    latest: Option<Instant>,
    pause: Duration,
    /// Occurrences since the last line.
    count: u64,
}

impl State {
    const NEW: Self = Self {
        latest: None,
        pause: SHORTEST_PAUSE,
        count: 0,
    };

    /// Returns true if the next occurrence is logged, whatever came before.
    fn is_over(&self, now: Instant) -> bool {
        self.latest
            .is_none_or(|latest| now.saturating_duration_since(latest) >= LONGEST_PAUSE)
    }

    fn note(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        let since = self
            .latest
            .map(|latest| now.saturating_duration_since(latest));
        if since.is_some_and(|since| since < self.pause) {
            return None;
        }
        let is_over = self.is_over(now);
        let count = std::mem::take(&mut self.count);
        // It is over if nothing came for so long.
        self.pause = match is_over && count == 1 {
            true => SHORTEST_PAUSE,
            false => (2 * self.pause).min(LONGEST_PAUSE),
        };
        self.latest = Some(now);
        Some(count)
    }
}
