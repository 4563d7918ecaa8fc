//! [`Waiters`]: calls that may not be sent yet, in order of arrival.

use std::collections::VecDeque;
use std::task::Waker;

use slab::Slab;

use super::timers::TimerKey;

/// Number of turns within which a woken waiter must retry; after that, the next one is woken in its
/// place. The first may still retry later. A future is usually polled before the next turn. A
/// leaked future never is, and must not block the others.
const MAX_TURNS_TO_RETRY: u32 = 16;

/// Identifies a waiting call until it is sent or gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaiterKey(usize);

/// What remains of a waiter that has left the queue.
#[derive(Debug)]
pub(crate) struct RemovedWaiter {
    /// The timer to cancel.
    pub(crate) timer: Option<TimerKey>,
    /// Dropping the waker may run application code, so the caller must drop this where that is
    /// safe.
    _waker: Option<Waker>,
}

/// The waiting calls of one connection.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: Slab<Waiter>,
    /// The waiters that have not been woken, oldest first. May contain some that have left since.
    queue: VecDeque<(usize, u64)>,
    /// Number of waiters woken in this round that have not retried yet.
    expected: u32,
    round: u32,
    /// Turns since a waiter was last woken or last retried.
    turns: u32,
    arrivals: u64,
}

#[derive(Debug)]
struct Waiter {
    arrival: u64,
    /// Taken when the waiter is woken; it brings another one when it retries.
    waker: Option<Waker>,
    /// The round in which the waiter was woken, if it was.
    woken_in: Option<u32>,
    timer: Option<TimerKey>,
}

impl Waiters {
    /// Returns true if a new call would overtake no waiter.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.expected == 0
    }

    /// Returns true if there are no waiters, woken or not.
    pub(crate) fn has_no_waiters(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Appends a waiter to the queue.
    pub(crate) fn enqueue(&mut self, waker: Waker) -> WaiterKey {
        self.arrivals += 1;
        let arrival = self.arrivals;
        let key = self.waiting.insert(Waiter {
            arrival,
            waker: Some(waker),
            woken_in: None,
            timer: None,
        });
        self.queue.push_back((key, arrival));
        WaiterKey(key)
    }

    pub(crate) fn set_timer(&mut self, key: WaiterKey, timer: TimerKey) {
        self.waiting[key.0].timer = Some(timer);
    }

    /// Returns the timers of all waiters, to cancel them before the waiters are discarded.
    pub(crate) fn timers(&self) -> impl Iterator<Item = TimerKey> {
        self.waiting.iter().filter_map(|(_, waiter)| waiter.timer)
    }

    /// Returns the waker of a waiter whose deadline has passed and whose timer has fired. The
    /// waiter checks its deadline itself.
    pub(crate) fn expire(&mut self, key: WaiterKey) -> Option<Waker> {
        let waiter = self.waiting.get_mut(key.0)?;
        waiter.timer = None;
        waiter.waker.take()
    }

    /// Returns true if it is this waiter's turn.
    pub(crate) fn is_turn_of(&self, key: WaiterKey) -> bool {
        self.waiting[key.0].woken_in.is_some()
    }

    /// Replaces the waker that is woken when it is this waiter's turn. Returns the previous one.
    pub(crate) fn set_waker(&mut self, key: WaiterKey, waker: Waker) -> Option<Waker> {
        self.waiting[key.0].waker.replace(waker)
    }

    /// Requeues a waiter whose turn it was but that could not be sent after all. It keeps its
    /// position.
    pub(crate) fn requeue(&mut self, key: WaiterKey) {
        let waiter = &mut self.waiting[key.0];
        let arrival = waiter.arrival;
        if let Some(round) = waiter.woken_in.take() {
            self.count_retry(round);
            let position = self.queue.partition_point(|&(_, other)| other < arrival);
            self.queue.insert(position, (key.0, arrival));
        }
    }

    /// Removes a waiter that is sent or gives up.
    pub(crate) fn leave(&mut self, key: WaiterKey) -> RemovedWaiter {
        let waiter = self.waiting.remove(key.0);
        if let Some(round) = waiter.woken_in {
            self.count_retry(round);
        }
        // While there is no capacity at all, calls may keep arriving and giving up, so the queue is
        // compacted here.
        if self.queue.len() > 2 * self.waiting.len() + 8 {
            let waiting = &self.waiting;
            self.queue
                .retain(|&(key, arrival)| still_waits(waiting, key, arrival));
        }
        RemovedWaiter {
            timer: waiter.timer,
            _waker: waiter.waker,
        }
    }

    fn count_retry(&mut self, round: u32) {
        self.turns = 0;
        self.expected -= u32::from(round == self.round);
    }

    /// Wakes the next waiters, given capacity for `room` calls, by passing their wakers to `wake`.
    /// Called once per turn.
    pub(crate) fn wake_next(&mut self, room: u32, wake: impl FnMut(Waker)) {
        self.turns += 1;
        if self.turns > MAX_TURNS_TO_RETRY {
            self.turns = 0;
            self.expected = 0;
            self.round = self.round.wrapping_add(1);
        }
        self.wake_next_within_turn(room, wake);
    }

    /// Like [`wake_next`](Self::wake_next), but may be called any number of times per turn: it does
    /// not advance the count of turns in which a woken waiter must retry.
    pub(crate) fn wake_next_within_turn(&mut self, room: u32, mut wake: impl FnMut(Waker)) {
        while self.expected < room
            && let Some((key, arrival)) = self.queue.pop_front()
        {
            if still_waits(&self.waiting, key, arrival) {
                let waiter = &mut self.waiting[key];
                waiter.woken_in = Some(self.round);
                self.expected += 1;
                self.turns = 0;
                if let Some(waker) = waiter.waker.take() {
                    wake(waker);
                }
            }
        }
    }
}

fn still_waits(waiting: &Slab<Waiter>, key: usize, arrival: u64) -> bool {
    waiting
        .get(key)
        .is_some_and(|waiter| waiter.arrival == arrival)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_are_woken_in_order_and_those_that_left_are_passed_over() {
        let waker = Waker::noop();
        let mut waiters = Waiters::default();
        let [a, b, c, d] = [(); 4].map(|()| waiters.enqueue(waker.clone()));
        waiters.leave(b);
        let mut woken = 0;
        waiters.wake_next(2, |_| woken += 1);
        assert_eq!(woken, 2);
        assert!(waiters.is_turn_of(a) && waiters.is_turn_of(c));
        assert!(!waiters.is_turn_of(d));
        // A woken waiter that leaves makes room for the next one.
        waiters.leave(c);
        waiters.requeue(a);
        waiters.wake_next(2, |_| ());
        assert!(waiters.is_turn_of(a) && waiters.is_turn_of(d));
        waiters.leave(a);
        waiters.leave(d);
        assert!(waiters.is_empty());
    }

    #[test]
    fn those_that_are_requeued_keep_their_order() {
        let waker = Waker::noop();
        let mut waiters = Waiters::default();
        let [a, b, c] = [(); 3].map(|()| waiters.enqueue(waker.clone()));
        waiters.wake_next(2, |_| ());
        waiters.requeue(a);
        waiters.requeue(b);
        waiters.wake_next(1, |_| ());
        assert!(waiters.is_turn_of(a));
        assert!(!waiters.is_turn_of(b) && !waiters.is_turn_of(c));
    }

    #[test]
    fn one_that_does_not_come_is_passed_over_and_may_still_come() {
        let waker = Waker::noop();
        let mut waiters = Waiters::default();
        let [forgotten, next] = [(); 2].map(|()| waiters.enqueue(waker.clone()));
        for _ in 0..MAX_TURNS_TO_RETRY {
            waiters.wake_next(1, |_| ());
            assert!(!waiters.is_turn_of(next));
        }
        waiters.wake_next(1, |_| ());
        waiters.wake_next(1, |_| ());
        assert!(waiters.is_turn_of(next) && waiters.is_turn_of(forgotten));
        waiters.leave(next);
        // The only waiter left is the one that did not retry. New calls may overtake it until it is
        // requeued.
        assert!(waiters.is_empty());
        waiters.requeue(forgotten);
        assert!(!waiters.is_empty());
        waiters.wake_next(1, |_| ());
        assert!(waiters.is_turn_of(forgotten));
    }

    #[test]
    fn calls_that_come_and_give_up_leave_nothing() {
        let mut waiters = Waiters::default();
        let stays = waiters.enqueue(Waker::noop().clone());
        for _ in 0..1000 {
            let key = waiters.enqueue(Waker::noop().clone());
            waiters.wake_next(0, |_| ());
            waiters.leave(key);
        }
        assert!(waiters.queue.len() < 20, "{}", waiters.queue.len());
        waiters.wake_next(1, |_| ());
        assert!(waiters.is_turn_of(stays));
    }
}
