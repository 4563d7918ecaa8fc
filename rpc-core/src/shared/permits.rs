//! [`Tickets`]: where a call through a shared channel and its poller meet.
//!
//! A call takes a ticket before it gives anything to the poller, and there are as many tickets as there
//! is room in the queue between them: the queue is never full. With the ticket comes a buffer, which
//! carries the request to the poller and the answer back, and is used again by the next call.
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

/// A ticket in hand: the right to one call, with its buffer.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) number: u32,
    pub(crate) buf: Vec<u8>,
}

/// The tickets of one poller, shared between it and all callers.
#[derive(Debug)]
pub(crate) struct Tickets {
    desks: Box<[Mutex<Desk>]>,
    office: Mutex<Office>,
    /// Calls that had to wait for a ticket, and those that gave up. Written under the office's lock.
    pub(crate) waited: Counter,
    pub(crate) gave_up: Counter,
}

/// What became of a call: its answer's frame is in the buffer, if there is one.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) buf: Vec<u8>,
    pub(crate) outcome: Result<(), CallError>,
}

/// One ticket's place, while its call is under way.
#[derive(Debug, Default)]
enum Desk {
    #[default]
    Idle,
    Waiting(Waker),
    Abandoned,
    Settled(Settled),
}

/// The tickets that nobody has, and the calls that wait for one.
#[derive(Debug, Default)]
struct Office {
    /// The latest that came back is the next to go: its buffer is still in the cache.
    free: Vec<Ticket>,
    waiters: Waiters,
    deadlines: Timers<WaiterKey>,
}

/// What there is for a caller that wants a ticket.
#[derive(Debug)]
pub(crate) enum Wanted {
    Ticket(Ticket),
    /// None is free; the waker is woken when one is, or at the deadline.
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

    /// A ticket, or a place in the queue for one: `waiter` is what an earlier attempt returned.
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

    /// A call that waits for a ticket gives up.
    pub(crate) fn leave_queue(&self, waiter: WaiterKey) {
        let mut office = self.office();
        let left = office.leave(waiter);
        self.gave_up.add(1);
        // It may have been its turn.
        self.call_up(office);
        drop(left);
    }

    /// A ticket that is not needed any more; the next in the queue is woken.
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
        // Wakers are the callers' code: not under the lock.
        for waker in woken {
            waker.wake();
        }
    }

    /// Wakes those whose deadline has passed while they waited for a ticket, and passes over those
    /// that were called and do not come. The next deadline, if anybody waits.
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
            // Those that were called up and passed over are not waited for.
            is_waiting: !office.waiters.is_empty(),
            next_deadline: office.deadlines.next_deadline(),
        };
        drop(office);
        for waker in woken {
            waker.wake();
        }
        state
    }

    /// The caller has given its request to the poller, and waits.
    pub(crate) fn submit(&self, number: u32, waker: &Waker) {
        *self.desk(number) = Desk::Waiting(waker.clone());
    }

    /// What has become of a call; if nothing yet, `waker` is woken when it has.
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

    /// The caller does not wait any longer. Its ticket comes back when the poller is done with it.
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

    /// Whether nobody waits for a call any more.
    pub(crate) fn is_abandoned(&self, number: u32) -> bool {
        matches!(*self.desk(number), Desk::Abandoned)
    }

    /// The poller is done with a call. Its caller's waker, to be woken, if the caller still waits.
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
            // Settled already, by a caller that found its poller ended.
            other @ (Desk::Idle | Desk::Settled(_)) => {
                *desk = other;
                None
            }
        }
    }

    /// Tickets in somebody's hand.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn in_use(&self) -> usize {
        self.count() - self.office().free.len()
    }

    fn desk(&self, number: u32) -> MutexGuard<'_, Desk> {
        // Nothing panics under these locks but what the allocator does.
        self.desks[number as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn office(&self) -> MutexGuard<'_, Office> {
        self.office.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What [`Tickets::look_after_queue`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueState {
    /// Whether anybody waits for a ticket, and may yet come.
    pub(crate) is_waiting: bool,
    pub(crate) next_deadline: Option<Instant>,
}

impl Office {
    /// What is left is to be dropped when the office is not locked.
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
