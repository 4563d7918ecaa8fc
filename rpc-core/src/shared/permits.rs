//! [`Tickets`]: the call permits of a shared channel, through which callers and a poller exchange
//! requests and responses.
//!
//! A call takes a permit before it submits anything to the poller. There are as many permits as the
//! queue between them has entries, so the queue is never full. Each permit owns a buffer, which
//! carries the request to the poller and the response back, and which the next call reuses.
//!
//! ```text
//!                 caller: submit          poller: settle            caller: take
//!        Idle ───────────────▶ Waiting ──────────────────▶ Settled ─────────────▶ Idle
//!                                 │                                                ▲
//!                                 └── caller: leave ──▶ Abandoned ── poller: settle ┘
//! ```

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use crate::call_error::CallError;
use crate::driver::timers::Timers;
use crate::driver::waiters::{Left, WaiterKey, Waiters};
use crate::stats::Counter;

/// A call permit: the right to have one call in flight, with its buffer.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) number: u32,
    pub(crate) buf: Vec<u8>,
}

/// The permits of one poller, shared between the poller and all callers.
#[derive(Debug)]
pub(crate) struct Tickets {
    desks: Box<[Mutex<Desk>]>,
    office: Mutex<Office>,
    /// Calls that had to wait for a permit, and calls that gave up waiting. Written under the lock
    /// of `office`.
    pub(crate) waited: Counter,
    pub(crate) gave_up: Counter,
}

/// The outcome of a call. If it is `Ok`, the buffer contains the response frame.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) buf: Vec<u8>,
    pub(crate) outcome: Result<(), CallError>,
}

/// The state of one permit while its call is in flight.
#[derive(Debug, Default)]
enum Desk {
    #[default]
    Idle,
    Waiting(Waker),
    Abandoned,
    Settled(Settled),
}

/// The free permits, and the calls that wait for one.
#[derive(Debug, Default)]
struct Office {
    /// A stack: the permit released last is reused first, because its buffer is still in the cache.
    free: Vec<Ticket>,
    waiters: Waiters,
    deadlines: Timers<WaiterKey>,
}

/// The result of requesting a permit.
#[derive(Debug)]
pub(crate) enum Wanted {
    Ticket(Ticket),
    /// No permit is free. The waker is woken when one is, or at the deadline.
    Waiting(WaiterKey),
}

impl Tickets {
    pub(crate) fn new(count: u32) -> Self {
        let free = (0..count).rev().map(|number| Ticket {
            number,
            buf: Vec::new(),
        });
        Self {
            desks: (0..count).map(|_| Mutex::default()).collect(),
            office: Mutex::new(Office {
                free: free.collect(),
                ..Office::default()
            }),
            waited: Counter::default(),
            gave_up: Counter::default(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.desks.len()
    }

    /// Takes a permit, or queues for one. `waiter` is the key that an earlier attempt returned.
    pub(crate) fn want(
        &self,
        waiter: Option<WaiterKey>,
        deadline: Option<Instant>,
        waker: &Waker,
    ) -> Wanted {
        let mut guard = self.office();
        let office = &mut *guard;
        let is_turn = match waiter {
            Some(waiter) => office.waiters.is_called_up(waiter, waker),
            None => office.waiters.is_empty(),
        };
        if is_turn && let Some(ticket) = office.free.pop() {
            let left = waiter.map(|waiter| office.leave(waiter));
            drop(guard);
            drop(left);
            return Wanted::Ticket(ticket);
        }
        let waiter = match waiter {
            Some(waiter) => {
                office.waiters.call_back(waiter);
                waiter
            }
            None => {
                self.waited.add(1);
                let waiter = office.waiters.join(waker.clone());
                if let Some(deadline) = deadline {
                    let timer = office.deadlines.insert(deadline, waiter);
                    office.waiters.set_timer(waiter, timer);
                }
                waiter
            }
        };
        Wanted::Waiting(waiter)
    }

    /// Removes a call that gives up waiting for a permit.
    pub(crate) fn leave_queue(&self, waiter: WaiterKey) {
        let mut office = self.office();
        let left = office.leave(waiter);
        self.gave_up.add(1);
        // It may have been this waiter's turn, so wake the next one.
        self.call_up(office);
        drop(left);
    }

    /// Releases a permit and wakes the next waiter.
    pub(crate) fn give_back(&self, ticket: Ticket) {
        let mut office = self.office();
        office.free.push(ticket);
        if !office.waiters.is_empty() {
            self.call_up(office);
        }
    }

    fn call_up(&self, mut office: MutexGuard<'_, Office>) {
        let room = office.free.len() as u32;
        let mut woken = Vec::new();
        office
            .waiters
            .call_up_within_a_turn(room, |waker| woken.push(waker));
        drop(office);
        // Wakers are the callers' code, so they are called without the lock.
        for waker in woken {
            waker.wake();
        }
    }

    /// Wakes the waiters whose deadline has passed, and skips woken waiters that do not retry.
    /// Returns the state of the queue, with its next deadline.
    pub(crate) fn look_after_queue(&self, now: Instant) -> QueueState {
        let mut office = self.office();
        if office.waiters.is_deserted() {
            return QueueState::default();
        }
        let mut woken = Vec::new();
        while let Some(waiter) = office.deadlines.pop_expired(now) {
            woken.extend(office.waiters.expire(waiter));
        }
        let room = office.free.len() as u32;
        office.waiters.call_up(room, |waker| woken.push(waker));
        let state = QueueState {
            // Waiters that were woken and then skipped do not count.
            is_waiting: !office.waiters.is_empty(),
            next_deadline: office.deadlines.next_deadline(),
        };
        drop(office);
        for waker in woken {
            waker.wake();
        }
        state
    }

    /// Records that the caller has submitted its request and waits.
    pub(crate) fn submit(&self, number: u32, waker: &Waker) {
        *self.desk(number) = Desk::Waiting(waker.clone());
    }

    /// Takes the outcome of a call. If there is none yet, registers `waker` to be woken when there
    /// is.
    pub(crate) fn take(&self, number: u32, waker: &Waker) -> Option<Settled> {
        let mut desk = self.desk(number);
        match &mut *desk {
            Desk::Waiting(known) => {
                if !known.will_wake(waker) {
                    let old = mem::replace(known, waker.clone());
                    drop(desk);
                    drop(old);
                }
                None
            }
            Desk::Settled(_) => match mem::take(&mut *desk) {
                Desk::Settled(settled) => Some(settled),
                _ => None,
            },
            Desk::Idle | Desk::Abandoned => None,
        }
    }

    /// Abandons a call. Its permit is released when the poller is done with it.
    pub(crate) fn leave(&self, number: u32) {
        let mut desk = self.desk(number);
        match mem::replace(&mut *desk, Desk::Abandoned) {
            Desk::Settled(Settled { buf, .. }) => {
                *desk = Desk::Idle;
                drop(desk);
                self.give_back(Ticket { number, buf });
            }
            Desk::Waiting(waker) => {
                drop(desk);
                drop(waker);
            }
            Desk::Idle | Desk::Abandoned => {}
        }
    }

    /// Returns true if the call has been abandoned.
    pub(crate) fn is_abandoned(&self, number: u32) -> bool {
        matches!(*self.desk(number), Desk::Abandoned)
    }

    /// Stores the outcome of a call that the poller is done with. Returns the waker of its caller,
    /// which must be woken, if the caller still waits.
    #[must_use]
    pub(crate) fn settle(&self, number: u32, settled: Settled) -> Option<Waker> {
        let mut desk = self.desk(number);
        match mem::take(&mut *desk) {
            Desk::Waiting(waker) => {
                *desk = Desk::Settled(settled);
                Some(waker)
            }
            Desk::Abandoned => {
                drop(desk);
                let buf = settled.buf;
                self.give_back(Ticket { number, buf });
                None
            }
            // Already settled, by a caller that found that its poller had ended.
            other @ (Desk::Idle | Desk::Settled(_)) => {
                *desk = other;
                None
            }
        }
    }

    /// Returns the number of permits in use.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn in_use(&self) -> usize {
        self.count() - self.office().free.len()
    }

    fn desk(&self, number: u32) -> MutexGuard<'_, Desk> {
        // Under these locks only the allocator can panic.
        self.desks[number as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn office(&self) -> MutexGuard<'_, Office> {
        self.office.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of [`Tickets::look_after_queue`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueState {
    /// True if a call waits for a permit and may still take one. Excludes woken waiters that were
    /// skipped.
    pub(crate) is_waiting: bool,
    pub(crate) next_deadline: Option<Instant>,
}

impl Office {
    /// Removes a waiter. The returned value must be dropped without holding the lock.
    fn leave(&mut self, waiter: WaiterKey) -> Left {
        let left = self.waiters.leave(waiter);
        if let Some(timer) = left.timer {
            self.deadlines.cancel(timer);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ticket(wanted: Wanted) -> Ticket {
        match wanted {
            Wanted::Ticket(ticket) => ticket,
            Wanted::Waiting(waiter) => panic!("{waiter:?} has to wait"),
        }
    }

    fn waiter(wanted: Wanted) -> WaiterKey {
        match wanted {
            Wanted::Waiting(waiter) => waiter,
            Wanted::Ticket(ticket) => panic!("there was {ticket:?}"),
        }
    }

    fn settled() -> Settled {
        Settled {
            buf: vec![7],
            outcome: Ok(()),
        }
    }

    #[test]
    fn whoever_waits_for_a_ticket_gets_the_next_one_in_turn() {
        let (tickets, waker) = (Tickets::new(1), Waker::noop());
        let first = ticket(tickets.want(None, None, waker));
        let [a, b] = [(); 2].map(|()| waiter(tickets.want(None, None, waker)));
        tickets.give_back(first);
        assert_eq!(waiter(tickets.want(Some(b), None, waker)), b);
        let second = ticket(tickets.want(Some(a), None, waker));
        tickets.give_back(second);
        let third = ticket(tickets.want(Some(b), None, waker));
        tickets.give_back(third);
        assert_eq!(tickets.in_use(), 0);
    }

    #[test]
    fn one_that_gives_up_in_its_turn_lets_the_next_one_in() {
        let (tickets, waker) = (Tickets::new(1), Waker::noop());
        let first = ticket(tickets.want(None, None, waker));
        let [a, b] = [(); 2].map(|()| waiter(tickets.want(None, None, waker)));
        tickets.give_back(first);
        tickets.leave_queue(a);
        ticket(tickets.want(Some(b), None, waker));
    }

    #[test]
    fn an_answer_reaches_its_caller_and_a_ticket_without_one_comes_back() {
        let (tickets, waker) = (Tickets::new(2), Waker::noop());
        let [a, b] = [(); 2].map(|()| ticket(tickets.want(None, None, waker)).number);
        tickets.submit(a, waker);
        tickets.submit(b, waker);
        assert!(tickets.take(a, waker).is_none());
        let _ = tickets.settle(a, settled());
        assert_eq!(tickets.take(a, waker).unwrap().buf, [7]);
        tickets.leave(b);
        assert!(tickets.is_abandoned(b));
        assert_eq!(tickets.in_use(), 2);
        let _ = tickets.settle(b, settled());
        assert_eq!(tickets.in_use(), 1, "a's caller has not given it back");
        tickets.submit(a, waker);
        let _ = tickets.settle(a, settled());
        let _ = tickets.settle(a, settled());
        tickets.leave(a);
        assert_eq!(tickets.in_use(), 0);
    }

    #[test]
    fn a_deadline_that_passes_in_the_queue_is_found() {
        let (tickets, waker) = (Tickets::new(1), Waker::noop());
        let now = Instant::now();
        let _held = ticket(tickets.want(None, None, waker));
        assert!(!tickets.look_after_queue(now).is_waiting);
        let deadline = now + Duration::from_millis(5);
        let waiting = waiter(tickets.want(None, Some(deadline), waker));
        let state = tickets.look_after_queue(now);
        assert_eq!(state.next_deadline, Some(deadline));
        assert_eq!(tickets.look_after_queue(deadline).next_deadline, None);
        tickets.leave_queue(waiting);
        assert!(!tickets.look_after_queue(deadline).is_waiting);
    }
}
