//! [`Waiters`]: calls that may not be sent yet, in the order in which they came.

use std::collections::VecDeque;
use std::task::Waker;

use slab::Slab;

use super::timers::TimerKey;

/// Turns that a waiter which is called up has for coming; then others are called up in its place,
/// though it may still come. A future that is polled comes before the next turn, mostly; one that
/// was forgotten never does, and must not keep the others waiting.
const PATIENCE: u32 = 16;

/// Names a waiting call until it is sent or gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaiterKey(usize);

/// What is left of one that has left.
#[derive(Debug)]
pub(crate) struct Left {
    /// To cancel.
    pub(crate) timer: Option<TimerKey>,
    /// To be dropped where that may run somebody's code.
    _waker: Waker,
}

/// Waiting calls of one connection.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: Slab<Waiter>,
    /// Those that have not been called up, oldest first. May name some that have left since.
    queue: VecDeque<(usize, u64)>,
    /// How many were called up in this round and have not come yet.
    expected: u32,
    round: u32,
    /// Turns since one of them was called up or came.
    turns: u32,
    arrivals: u64,
}

#[derive(Debug)]
struct Waiter {
    arrival: u64,
    waker: Waker,
    /// The round in which it was called up.
    called_up: Option<u32>,
    timer: Option<TimerKey>,
}

impl Waiters {
    /// Whether nobody waits whom a call that comes now would overtake.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.expected == 0
    }

    /// Whether nobody waits, called up or not.
    pub(crate) fn is_deserted(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Joins the end of the queue.
    pub(crate) fn join(&mut self, waker: Waker) -> WaiterKey {
        self.arrivals += 1;
        let arrival = self.arrivals;
        let key = self.waiting.insert(Waiter {
            arrival,
            waker,
            called_up: None,
            timer: None,
        });
        self.queue.push_back((key, arrival));
        WaiterKey(key)
    }

    pub(crate) fn set_timer(&mut self, key: WaiterKey, timer: TimerKey) {
        self.waiting[key.0].timer = Some(timer);
    }

    /// The timers of all that wait, for when they are forgotten.
    pub(crate) fn timers(&self) -> impl Iterator<Item = TimerKey> {
        self.waiting.iter().filter_map(|(_, waiter)| waiter.timer)
    }

    /// The waiter's deadline has passed and its timer is gone: it is to look for itself.
    pub(crate) fn expire(&mut self, key: WaiterKey) -> Option<Waker> {
        let waiter = self.waiting.get_mut(key.0)?;
        waiter.timer = None;
        Some(waiter.waker.clone())
    }

    /// Whether it is this waiter's turn; if not, `waker` is woken when it is.
    pub(crate) fn is_called_up(&mut self, key: WaiterKey, waker: &Waker) -> bool {
        let waiter = &mut self.waiting[key.0];
        waiter.waker.clone_from(waker);
        waiter.called_up.is_some()
    }

    /// It was this waiter's turn, and there was nothing for it after all: it waits where it did.
    pub(crate) fn call_back(&mut self, key: WaiterKey) {
        let waiter = &mut self.waiting[key.0];
        let arrival = waiter.arrival;
        if let Some(round) = waiter.called_up.take() {
            self.came(round);
            let place = self.queue.partition_point(|&(_, other)| other < arrival);
            self.queue.insert(place, (key.0, arrival));
        }
    }

    /// Leaves, because it is sent or gives up.
    pub(crate) fn leave(&mut self, key: WaiterKey) -> Left {
        let waiter = self.waiting.remove(key.0);
        if let Some(round) = waiter.called_up {
            self.came(round);
        }
        // Calls may come and give up for as long as there is room for none.
        if self.queue.len() > 2 * self.waiting.len() + 8 {
            let waiting = &self.waiting;
            self.queue
                .retain(|&(key, arrival)| is_there(waiting, key, arrival));
        }
        Left {
            timer: waiter.timer,
            _waker: waiter.waker,
        }
    }

    fn came(&mut self, round: u32) {
        self.turns = 0;
        self.expected -= u32::from(round == self.round);
    }

    /// There is room for `room` calls: calls up the next ones, and hands out their wakers. To be
    /// called once per turn.
    pub(crate) fn call_up(&mut self, room: u32, wake: impl FnMut(Waker)) {
        self.turns += 1;
        if self.turns > PATIENCE {
            self.turns = 0;
            self.expected = 0;
            self.round = self.round.wrapping_add(1);
        }
        self.call_up_within_a_turn(room, wake);
    }

    /// The same, as often as there is room: those that were called up before have no less time to come.
    pub(crate) fn call_up_within_a_turn(&mut self, room: u32, mut wake: impl FnMut(Waker)) {
        while self.expected < room
            && let Some((key, arrival)) = self.queue.pop_front()
        {
            if is_there(&self.waiting, key, arrival) {
                let waiter = &mut self.waiting[key];
                waiter.called_up = Some(self.round);
                self.expected += 1;
                self.turns = 0;
                wake(waiter.waker.clone());
            }
        }
    }
}

fn is_there(waiting: &Slab<Waiter>, key: usize, arrival: u64) -> bool {
    waiting
        .get(key)
        .is_some_and(|waiter| waiter.arrival == arrival)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_are_called_up_in_order_and_those_that_left_are_passed_over() {
        let waker = Waker::noop();
        let mut waiters = Waiters::default();
        let [a, b, c, d] = [(); 4].map(|()| waiters.join(waker.clone()));
        waiters.leave(b);
        let mut woken = 0;
        waiters.call_up(2, |_| woken += 1);
        assert_eq!(woken, 2);
        assert!(waiters.is_called_up(a, waker) && waiters.is_called_up(c, waker));
        assert!(!waiters.is_called_up(d, waker));
        // One that was called up and leaves makes room for the next.
        waiters.leave(c);
        waiters.call_back(a);
        waiters.call_up(2, |_| ());
        assert!(waiters.is_called_up(a, waker) && waiters.is_called_up(d, waker));
        waiters.leave(a);
        waiters.leave(d);
        assert!(waiters.is_empty());
    }

    #[test]
    fn those_that_are_called_back_keep_their_order() {
        let waker = Waker::noop();
        let mut waiters = Waiters::default();
        let [a, b, c] = [(); 3].map(|()| waiters.join(waker.clone()));
        waiters.call_up(2, |_| ());
        waiters.call_back(a);
        waiters.call_back(b);
        waiters.call_up(1, |_| ());
        assert!(waiters.is_called_up(a, waker));
        assert!(!waiters.is_called_up(b, waker) && !waiters.is_called_up(c, waker));
    }

    #[test]
    fn one_that_does_not_come_is_passed_over_and_may_still_come() {
        let waker = Waker::noop();
        let mut waiters = Waiters::default();
        let [forgotten, next] = [(); 2].map(|()| waiters.join(waker.clone()));
        for _ in 0..PATIENCE {
            waiters.call_up(1, |_| ());
            assert!(!waiters.is_called_up(next, waker));
        }
        waiters.call_up(1, |_| ());
        waiters.call_up(1, |_| ());
        assert!(waiters.is_called_up(next, waker) && waiters.is_called_up(forgotten, waker));
        waiters.leave(next);
        // Whoever comes now overtakes nobody but the one that does not come.
        assert!(waiters.is_empty());
        waiters.call_back(forgotten);
        assert!(!waiters.is_empty());
        waiters.call_up(1, |_| ());
        assert!(waiters.is_called_up(forgotten, waker));
    }

    #[test]
    fn calls_that_come_and_give_up_leave_nothing() {
        let mut waiters = Waiters::default();
        let stays = waiters.join(Waker::noop().clone());
        for _ in 0..1000 {
            let key = waiters.join(Waker::noop().clone());
            waiters.call_up(0, |_| ());
            waiters.leave(key);
        }
        assert!(waiters.queue.len() < 20, "{}", waiters.queue.len());
        waiters.call_up(1, |_| ());
        assert!(waiters.is_called_up(stays, Waker::noop()));
    }
}
