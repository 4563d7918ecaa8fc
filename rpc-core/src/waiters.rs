//! [`Waiters`]: calls that may not be sent yet, in the order in which they came.

use std::collections::VecDeque;
use std::task::Waker;

use slab::Slab;

use crate::timers::TimerKey;

/// Names a waiting call until it is sent or gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaiterKey(usize);

/// Waiting calls of one connection.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: Slab<Waiter>,
    /// Those that have not been called up, oldest first. May name some that have left since.
    queue: VecDeque<(usize, u64)>,
    called_up: u32,
    arrivals: u64,
}

#[derive(Debug)]
struct Waiter {
    arrival: u64,
    waker: Waker,
    called_up: bool,
    timer: Option<TimerKey>,
}

impl Waiters {
    /// Whether a call that comes now would overtake somebody.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    #[cfg(feature = "test-util")]
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
            called_up: false,
            timer: None,
        });
        self.queue.push_back((key, arrival));
        WaiterKey(key)
    }

    pub(crate) fn set_timer(&mut self, key: WaiterKey, timer: TimerKey) {
        self.waiting[key.0].timer = Some(timer);
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
        waiter.called_up
    }

    /// It was this waiter's turn, and there was nothing for it after all: it stays first.
    pub(crate) fn call_back(&mut self, key: WaiterKey) {
        let waiter = &mut self.waiting[key.0];
        if std::mem::take(&mut waiter.called_up) {
            self.called_up -= 1;
            self.queue.push_front((key.0, waiter.arrival));
        }
    }

    /// Leaves, because it is sent or gives up. Hands out its timer, to cancel.
    pub(crate) fn leave(&mut self, key: WaiterKey) -> Option<TimerKey> {
        let waiter = self.waiting.remove(key.0);
        self.called_up -= u32::from(waiter.called_up);
        waiter.timer
    }

    /// There is room for `room` calls: calls up the next ones, and hands out their wakers.
    pub(crate) fn call_up(&mut self, room: u32, mut wake: impl FnMut(Waker)) {
        while self.called_up < room
            && let Some((key, arrival)) = self.queue.pop_front()
        {
            if let Some(waiter) = self
                .waiting
                .get_mut(key)
                .filter(|waiter| waiter.arrival == arrival)
            {
                waiter.called_up = true;
                self.called_up += 1;
                wake(waiter.waker.clone());
            }
        }
    }
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
}
