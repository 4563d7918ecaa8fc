//! [`LogLimit`]: limits how often something is logged that strangers can cause as often as they like.

use std::time::{Duration, Instant};

/// Time between two log lines of one kind.
const PAUSE: Duration = Duration::from_secs(1);

/// Limits the log lines of one kind.
#[derive(Debug, Default)]
pub struct LogLimit {
    last: Option<Instant>,
    count: u64,
}

impl LogLimit {
    /// Counts one occurrence. Returns the number of occurrences since the last line if it is time
    /// for the next line.
    pub fn note(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        let is_due = |last: Instant| now.saturating_duration_since(last) >= PAUSE;
        if !self.last.is_none_or(is_due) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_logged_once_a_second_with_its_number() {
        let start = Instant::now();
        let mut limit = LogLimit::default();
        assert_eq!(limit.note(start), Some(1));
        for _ in 0..10 {
            assert_eq!(limit.note(start + PAUSE / 2), None);
        }
        assert_eq!(limit.note(start + PAUSE), Some(11));
    }
}
