//! [`Backlog`]: the requests of a channel that wait to be sent.

use std::collections::VecDeque;
use std::mem;
use std::time::Instant;

use super::unsent::{LANES, Lane, Unsent};
use crate::driver::timers::{TimerKey, Timers};

/// The requests of one channel that wait to be sent.
#[derive(Default)]
pub(super) struct Backlog {
    lanes: [VecDeque<Waiting>; LANES.len()],
    deadlines: Timers<(Lane, u64)>,
}

/// A request that waits.
struct Waiting {
    place: Place,
    request: Unsent,
}

/// The place of a request in its lane.
pub(super) struct Place {
    /// Grows from each request to the next one.
    number: u64,
    timer: Option<TimerKey>,
}

impl Backlog {
    #[inline]
    pub(super) fn is_empty(&self, lane: Lane) -> bool {
        self.lanes[lane as usize].is_empty()
    }

    /// Returns the number of requests of a lane.
    #[cfg(feature = "test-util")]
    pub(super) fn len(&self, lane: Lane) -> usize {
        self.lanes[lane as usize].len()
    }

    /// Returns the next deadline of a request.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next_deadline()
    }

    pub(super) fn push(&mut self, number: u64, request: Unsent) {
        let lane = request.lane();
        let waiting = &mut self.lanes[lane as usize];
        debug_assert!(waiting.back().is_none_or(|last| last.place.number < number));
        let insert = |deadline| self.deadlines.insert(deadline, (lane, number));
        let timer = request.deadline().map(insert);
        let place = Place { number, timer };
        waiting.push_back(Waiting { place, request });
    }

    /// Takes the oldest request of a lane. Its place is kept or left.
    pub(super) fn take_front(&mut self, lane: Lane) -> Option<(Place, Unsent)> {
        let Waiting { place, request } = self.lanes[lane as usize].pop_front()?;
        Some((place, request))
    }

    /// Puts a request back that was taken from the front of its lane.
    pub(super) fn keep(&mut self, place: Place, request: Unsent) {
        self.lanes[request.lane() as usize].push_front(Waiting { place, request });
    }

    /// Ends the wait of a request that was taken.
    pub(super) fn leave(&mut self, place: Place) {
        if let Some(timer) = place.timer {
            self.deadlines.cancel(timer);
        }
    }

    /// Removes a request, if it still waits.
    pub(super) fn remove(&mut self, lane: Lane, number: u64) -> Option<Unsent> {
        let waiting = &mut self.lanes[lane as usize];
        let index = waiting.binary_search_by_key(&number, |waiting| waiting.place.number);
        let Waiting { place, request } = waiting.remove(index.ok()?)?;
        self.leave(place);
        Some(request)
    }

    /// Removes the next request whose deadline has passed.
    pub(super) fn pop_expired(&mut self, now: Instant) -> Option<Unsent> {
        let (lane, number) = self.deadlines.pop_expired(now)?;
        let expired = self.remove(lane, number);
        assert!(expired.is_some(), "a request that waits has a timer");
        expired
    }

    /// Removes the requests that `is_wanted` chooses, the oldest of each lane first.
    pub(super) fn remove_if(&mut self, is_wanted: impl Fn(&Unsent) -> bool) -> Vec<Unsent> {
        let mut removed = Vec::new();
        for lane in LANES {
            for Waiting { place, request } in mem::take(&mut self.lanes[lane as usize]) {
                if is_wanted(&request) {
                    self.leave(place);
                    removed.push(request);
                } else {
                    self.lanes[lane as usize].push_back(Waiting { place, request });
                }
            }
        }
        removed
    }
}
