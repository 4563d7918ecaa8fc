//! [`FreeHeap`]: when free memory of the heap goes back to the system.
//!
//! Thousands of streams that end leave free memory between blocks that are still in use, which malloc does
//! not give back by itself. So it is told to, after the end of a burst.

use std::time::{Duration, Instant};

/// The time after which memory goes back: streams of a burst end in many turns.
const SETTLES: Duration = Duration::from_secs(10);

/// The least time between two times at which memory goes back. Threads that allocate wait meanwhile.
const LEAST_BETWEEN: Duration = Duration::from_secs(60);

/// When free memory of the heap goes back.
#[derive(Debug, Default)]
pub(super) struct FreeHeap {
    due: Option<Instant>,
    latest: Option<Instant>,
}

impl FreeHeap {
    pub(super) const NONE: Self = Self {
        due: None,
        latest: None,
    };

    /// Notes that a burst has ended.
    pub(super) fn burst_ended(&mut self, now: Instant) {
        let settled = now + SETTLES;
        let next = self.latest.map_or(settled, |latest| latest + LEAST_BETWEEN);
        self.due.get_or_insert(settled.max(next));
    }

    /// Returns true if memory is to go back, now or later.
    pub(super) fn is_awaited(&self) -> bool {
        self.due.is_some()
    }

    /// Returns true once if memory is to go back now.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            (self.due, self.latest) = (None, Some(now));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_back_once_after_a_burst_and_once_in_a_minute() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut heap = FreeHeap::NONE;
        assert!(!heap.is_awaited());
        heap.burst_ended(at(0));
        heap.burst_ended(at(5));
        assert!(heap.is_awaited());
        assert!(!heap.is_due(at(9)));
        assert!(heap.is_due(at(10)));
        assert!(!heap.is_awaited() && !heap.is_due(at(10)));
        heap.burst_ended(at(11));
        assert!(!heap.is_due(at(69)));
        assert!(heap.is_due(at(70)));
        heap.burst_ended(at(700));
        assert!(!heap.is_due(at(709)));
        assert!(heap.is_due(at(710)));
    }
}
