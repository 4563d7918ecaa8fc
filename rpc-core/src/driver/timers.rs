//! [`Timers`]: deadlines, most of which are cancelled before they pass.
//!
//! A binary heap whose entries know their position, so that a timer can be removed in logarithmic
//! time, without a search, and without allocating after warm-up. A deadline per call costs a few
//! comparisons; cancelled deadlines do not accumulate.

use std::time::Instant;

/// Identifies a timer until it fires or is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerKey(u32);

/// Deadlines, each with a target that is returned when it passes.
#[derive(Debug)]
pub(crate) struct Timers<T> {
    /// Ordered as a binary heap by deadline: `heap[i] ≤ heap[2i + 1], heap[2i + 2]`.
    heap: Vec<Entry<T>>,
    /// The heap index of each key's entry.
    positions: Vec<u32>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    deadline: Instant,
    key: u32,
    target: T,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Self {
            heap: Vec::new(),
            positions: Vec::new(),
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
        let key = self.free.pop().unwrap_or_else(|| {
            self.positions.push(0);
            (self.positions.len() - 1) as u32
        });
        let last = self.heap.len();
        self.heap.push(Entry {
            deadline,
            key,
            target,
        });
        self.positions[key as usize] = last as u32;
        self.sift_up(last);
        TimerKey(key)
    }

    /// Removes a timer that has not fired.
    pub(crate) fn cancel(&mut self, key: TimerKey) {
        self.remove_at(self.positions[key.0 as usize] as usize);
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
        self.free.push(entry.key);
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
        self.positions[self.heap[a].key as usize] = a as u32;
        self.positions[self.heap[b].key as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

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
