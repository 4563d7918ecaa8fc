//! [`Timers`]: deadlines, most of which are cancelled before they pass.
//!
//! A binary heap whose entries know their position, so that a timer can be removed in logarithmic
//! time, without a search, and without allocating after warm-up. A deadline per call costs a few
//! comparisons; cancelled deadlines do not accumulate.

use std::time::Instant;

/// Identifies a timer. The generation tells it from later ones with the same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerKey {
    index: u32,
    generation: u32,
}

/// Deadlines, each with a target that is returned when it passes.
#[derive(Debug)]
pub(crate) struct Timers<T> {
    /// Ordered as a binary heap by deadline: `heap[i] ≤ heap[2i + 1], heap[2i + 2]`.
    heap: Vec<TimerEntry<T>>,
    /// By the index of a key.
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// The index of the timer's entry in the heap.
    position: u32,
    generation: u32,
}

#[derive(Debug)]
struct TimerEntry<T> {
    deadline: Instant,
    index: u32,
    target: T,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Self {
            heap: Vec::new(),
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Timers<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(crate) fn insert(&mut self, deadline: Instant, target: T) -> TimerKey {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            (self.places.len() - 1) as u32
        });
        let last = self.heap.len();
        self.heap.push(TimerEntry {
            deadline,
            index,
            target,
        });
        let place = &mut self.places[index as usize];
        place.position = last as u32;
        let generation = place.generation;
        self.sift_up(last);
        TimerKey { index, generation }
    }

    /// Removes a timer, unless it has fired.
    pub(crate) fn cancel(&mut self, key: TimerKey) {
        let place = self.places[key.index as usize];
        if place.generation == key.generation {
            self.remove_at(place.position as usize);
        }
    }

    /// Returns the earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        Some(self.heap.first()?.deadline)
    }

    /// Removes and returns the next target whose deadline has passed.
    pub(crate) fn pop_expired(&mut self, now: Instant) -> Option<T> {
        (self.heap.first()?.deadline <= now).then(|| self.remove_at(0))
    }

    fn remove_at(&mut self, at: usize) -> T {
        let last = self.heap.len() - 1;
        self.swap(at, last);
        let entry = self.heap.swap_remove(last);
        let place = &mut self.places[entry.index as usize];
        place.generation = place.generation.wrapping_add(1);
        self.free.push(entry.index);
        if at < last {
            self.sift_down(at);
            self.sift_up(at);
        }
        entry.target
    }

    fn sift_up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent].deadline <= self.heap[at].deadline {
                break;
            }
            self.swap(at, parent);
            at = parent;
        }
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let earliest = [2 * at + 1, 2 * at + 2]
                .into_iter()
                .filter(|&child| child < self.heap.len())
                .min_by_key(|&child| self.heap[child].deadline);
            match earliest {
                Some(child) if self.heap[child].deadline < self.heap[at].deadline => {
                    self.swap(at, child);
                    at = child;
                }
                _ => break,
            }
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[self.heap[a].index as usize].position = a as u32;
        self.places[self.heap[b].index as usize].position = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    /// A holder that has not heard yet that its timer has fired may cancel it.
    #[test]
    fn a_timer_that_has_fired_can_be_cancelled_without_effect() {
        let now = Instant::now();
        let mut timers = Timers::default();
        let fired = timers.insert(now, 1);
        assert_eq!(timers.pop_expired(now), Some(1));
        timers.cancel(fired);
        let later = timers.insert(now, 2);
        timers.cancel(fired);
        assert_eq!(timers.pop_expired(now), Some(2));
        timers.cancel(later);
        assert!(timers.is_empty());
    }

    proptest! {
        /// Compares with a plain list: the timers that fire are those inserted, not cancelled and
        /// due, in order.
        #[test]
        fn timers_fire_in_order_and_cancelled_ones_do_not(
            steps in proptest::collection::vec((0u64..50, any::<bool>()), 1..100),
            now in 0u64..60,
        ) {
            let start = Instant::now();
            let at = |ms| start + Duration::from_millis(ms);
            let mut timers = Timers::default();
            let mut oracle: Vec<(u64, usize, TimerKey)> = Vec::new();
            for (id, (deadline, cancel_one)) in steps.into_iter().enumerate() {
                oracle.push((deadline, id, timers.insert(at(deadline), (deadline, id))));
                if cancel_one {
                    let (_, _, key) = oracle.swap_remove(id % oracle.len());
                    timers.cancel(key);
                }
            }
            let mut fired = Vec::new();
            while let Some(target) = timers.pop_expired(at(now)) {
                fired.push(target);
            }
            prop_assert!(fired.is_sorted_by_key(|(deadline, _)| *deadline));
            let mut due: Vec<_> = oracle.iter().filter(|entry| entry.0 <= now).map(|entry| (entry.0, entry.1)).collect();
            due.sort_unstable();
            fired.sort_unstable();
            prop_assert_eq!(fired, due);
            prop_assert_eq!(timers.is_empty(), oracle.iter().all(|entry| entry.0 <= now));
        }
    }
}
