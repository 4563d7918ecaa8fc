//! [`LogLimit`]: limits how often something is logged that peers can cause as often as they like.

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
#[doc(hidden)]
#[macro_export]
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
pub struct LogLimit(Mutex<State>);

impl LogLimit {
    /// Creates the limit of a kind that has not occurred.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(State::NEW))
    }

    /// Counts one occurrence. Returns the number of occurrences since the last line if it is time
    /// for the next line.
    pub fn note(&self, now: Instant) -> Option<u64> {
        // Nothing under this lock panics.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.note(now)
    }
}

/// Limits the log lines of one kind about each of some things.
#[derive(Debug)]
pub struct LogLimits(Mutex<Vec<(u64, State)>>);

impl LogLimits {
    /// Creates the limits of a kind that has not occurred.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Counts one occurrence of this thing, as [`LogLimit::note`] does.
    pub fn note(&self, thing: &(impl Hash + ?Sized), now: Instant) -> Option<u64> {
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

impl Default for LogLimit {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for LogLimits {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_logged_ever_more_seldom_with_its_number() {
        let start = Instant::now();
        let limit = LogLimit::new();
        assert_eq!(limit.note(start), Some(1));
        for _ in 0..10 {
            assert_eq!(limit.note(start + SHORTEST_PAUSE / 2), None);
        }
        assert_eq!(limit.note(start + SHORTEST_PAUSE), Some(11));
        // An hour of the flood: 1, 2, 4, 8, 16 and 32 seconds, then a line a minute.
        let times = (0..36_000).map(|tenth| start + Duration::from_millis(100 * tenth));
        let lines = times.filter(|now| limit.note(*now).is_some()).count();
        assert!((60..=64).contains(&lines), "{lines}");
        // So is one that takes its time.
        let slow = LogLimit::new();
        let times = (0..3600).map(|second| start + Duration::from_millis(1010 * second));
        let lines = times.filter(|now| slow.note(*now).is_some()).count();
        assert!((60..=68).contains(&lines), "{lines}");
        // What occurs now and then is logged each time.
        let later = start + Duration::from_secs(7200);
        assert!(limit.note(later).is_some());
        for minute in 1..10 {
            let now = later + minute * LONGEST_PAUSE;
            assert_eq!(limit.note(now), Some(1));
        }
    }

    #[test]
    fn each_of_some_things_has_a_limit_of_its_own() {
        let start = Instant::now();
        let limits = LogLimits::new();
        for thing in 0..MOST_THINGS {
            assert_eq!(limits.note(&thing, start), Some(1), "{thing}");
            assert_eq!(limits.note(&thing, start), None, "{thing}");
        }
        // Others take the places of those of which nothing was heard for long, and are as few.
        let minute = (0..600).map(|tenth| start + Duration::from_millis(100 * tenth));
        let lines = minute
            .filter(|now| limits.note(now, *now).is_some())
            .count();
        assert!((1..=6).contains(&lines), "{lines}");
        let hour = (600..36_000).map(|tenth| start + Duration::from_millis(100 * tenth));
        let lines = hour.filter(|now| limits.note(now, *now).is_some()).count();
        assert!((MOST_THINGS..=62 * MOST_THINGS).contains(&lines), "{lines}");
        assert_eq!(limits.0.lock().unwrap().len(), MOST_THINGS);
    }
}
