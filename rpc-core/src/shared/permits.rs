//! [`CallPermits`]: the call permits of a shared channel, through which callers and a poller
//! exchange requests and responses.
//!
//! A call takes a permit before it submits anything to the poller. There are as many permits as the
//! queue between them has entries, so the queue is never full. Each permit owns a buffer, which
//! carries the request to the poller and the response back, and which the next call reuses.
//!
//! ```text
//!                 caller: submit          poller: settle            caller: take
//!        Idle ───────────────▶ Waiting ──────────────────▶ Settled ─────────────▶ Idle
//!                                 │                                                ▲
//!                                 └─ caller: abandon ──▶ Abandoned ─ poller: settle ┘
//! ```

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use crate::call_error::CallError;
use crate::codec::LongMessage;
use crate::driver::timers::Timers;
use crate::driver::waiters::{RemovedWaiter, WaiterKey, Waiters};
use crate::protocol::frame::ResponseHead;
use crate::stream::wakers::wake_all;

/// A call permit: the right to have one call in flight, with its buffer.
#[derive(Debug)]
pub(crate) struct CallPermit {
    pub(crate) number: u32,
    pub(crate) buf: Vec<u8>,
}

/// The permits of one channel at one poller, shared between the poller and all callers.
#[derive(Debug)]
pub(crate) struct CallPermits {
    states: Box<[Mutex<PermitState>]>,
    queue: Mutex<PermitQueue>,
    /// The poller's counters of calls that wait for permits.
    waits: Arc<PermitWaits>,
}

/// Calls that had to wait for a permit, and calls that gave up waiting.
#[derive(Debug, Default)]
pub(super) struct PermitWaits {
    pub(super) waited: AtomicU64,
    pub(super) gave_up: AtomicU64,
}

/// The outcome of a call. If it is `Ok`, the buffer contains the response's metadata and message.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) buf: Vec<u8>,
    /// The response instead, if its message did not fit a frame.
    pub(crate) long: Option<Box<LongMessage>>,
    pub(crate) outcome: Result<ResponseHead, CallError>,
}

/// The state of one permit while its call is in flight.
#[derive(Debug, Default)]
enum PermitState {
    #[default]
    Idle,
    Waiting(Waker),
    Abandoned,
    Settled(Settled),
}

/// The free permits, and the calls that wait for one.
#[derive(Debug, Default)]
struct PermitQueue {
    /// A stack: the permit released last is reused first, because its buffer is still in the cache.
    free: Vec<CallPermit>,
    waiters: Waiters,
    deadlines: Timers<WaiterKey>,
}

/// The result of requesting a permit.
#[derive(Debug)]
pub(crate) enum AcquireOutcome {
    Acquired(CallPermit),
    /// No permit is free. The waker is woken when one is, or at the deadline. If no other call waited,
    /// the poller has to look at the queue from now on.
    Waiting {
        waiter: WaiterKey,
        is_first: bool,
    },
}

impl CallPermits {
    pub(super) fn new(count: u32, waits: &Arc<PermitWaits>) -> Self {
        let free = (0..count).rev().map(|number| CallPermit {
            number,
            buf: Vec::new(),
        });
        Self {
            states: (0..count).map(|_| Mutex::default()).collect(),
            queue: Mutex::new(PermitQueue {
                free: free.collect(),
                ..PermitQueue::default()
            }),
            waits: Arc::clone(waits),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.states.len()
    }

    /// Takes a permit, or queues for one. `waiter` is the key that an earlier attempt returned.
    pub(crate) fn acquire(
        &self,
        waiter: Option<WaiterKey>,
        deadline: Option<Instant>,
        waker: &Waker,
    ) -> AcquireOutcome {
        let acquired = |mut guard: MutexGuard<'_, PermitQueue>, permit| {
            let left = waiter.map(|waiter| guard.leave(waiter));
            drop(guard);
            drop(left);
            AcquireOutcome::Acquired(permit)
        };
        let mut guard = self.queue();
        if let Some(permit) = guard.take(waiter) {
            return acquired(guard, permit);
        }
        drop(guard);
        // Cloning and dropping a waker may run an executor's code, so nothing is locked meanwhile.
        let waker = waker.clone();
        let mut guard = self.queue();
        // A permit may have been released in the meantime.
        if let Some(permit) = guard.take(waiter) {
            return acquired(guard, permit);
        }
        let queue = &mut *guard;
        match waiter {
            Some(waiter) => {
                queue.waiters.requeue(waiter);
                let replaced = queue.waiters.set_waker(waiter, waker);
                drop(guard);
                drop(replaced);
                let is_first = false;
                AcquireOutcome::Waiting { waiter, is_first }
            }
            None => {
                self.waits.waited.fetch_add(1, Ordering::Relaxed);
                let is_first = queue.waiters.has_no_waiters();
                let waiter = queue.waiters.enqueue(waker);
                if let Some(deadline) = deadline {
                    let timer = queue.deadlines.insert(deadline, waiter);
                    queue.waiters.set_timer(waiter, timer);
                }
                AcquireOutcome::Waiting { waiter, is_first }
            }
        }
    }

    /// Removes a call that gives up waiting for a permit.
    pub(crate) fn leave_queue(&self, waiter: WaiterKey) {
        let mut queue = self.queue();
        let left = queue.leave(waiter);
        self.waits.gave_up.fetch_add(1, Ordering::Relaxed);
        // It may have been this waiter's turn, so wake the next one.
        self.wake_next(queue);
        drop(left);
    }

    /// Releases a permit and wakes the next waiter.
    pub(crate) fn release(&self, permit: CallPermit) {
        let mut queue = self.queue();
        queue.free.push(permit);
        if !queue.waiters.is_empty() {
            self.wake_next(queue);
        }
    }

    fn wake_next(&self, mut queue: MutexGuard<'_, PermitQueue>) {
        let room = queue.free.len() as u32;
        let mut woken = Vec::new();
        queue
            .waiters
            .wake_next_within_turn(room, |waker| woken.push(waker));
        drop(queue);
        // Wakers are the callers' code, so they are called without the lock.
        wake_all(woken);
    }

    /// Wakes the waiters whose deadline has passed, and skips woken waiters that do not retry.
    /// Returns the state of the queue, with its next deadline.
    pub(crate) fn maintain_queue(&self, now: Instant) -> QueueState {
        let mut queue = self.queue();
        if queue.waiters.has_no_waiters() {
            return QueueState::default();
        }
        let mut woken = Vec::new();
        while let Some(waiter) = queue.deadlines.pop_expired(now) {
            woken.extend(queue.waiters.expire(waiter));
        }
        let room = queue.free.len() as u32;
        queue.waiters.wake_next(room, |waker| woken.push(waker));
        let state = QueueState {
            any: true,
            // Waiters that were woken and then skipped do not count.
            is_waiting: !queue.waiters.is_empty(),
            next_deadline: queue.deadlines.next_deadline(),
        };
        drop(queue);
        wake_all(woken);
        state
    }

    /// Records that the caller has submitted its request and waits.
    pub(crate) fn submit(&self, number: u32, waker: &Waker) {
        let waiting = PermitState::Waiting(waker.clone());
        *self.state(number) = waiting;
    }

    /// Takes the outcome of a call. If there is none yet, registers `waker` to be woken when there
    /// is.
    pub(crate) fn take(&self, number: u32, waker: &Waker) -> Option<Settled> {
        let mut state = self.state(number);
        let is_known = matches!(&*state, PermitState::Waiting(known) if known.will_wake(waker));
        if is_known {
            return None;
        }
        if let PermitState::Waiting(_) = &*state {
            drop(state);
            // Cloning and dropping a waker may run an executor's code, so nothing is locked.
            let waker = waker.clone();
            state = self.state(number);
            // The call may have been settled in the meantime.
            if let PermitState::Waiting(known) = &mut *state {
                let replaced = mem::replace(known, waker);
                drop(state);
                drop(replaced);
                return None;
            }
        }
        match mem::take(&mut *state) {
            PermitState::Settled(settled) => Some(settled),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Abandons a call. Its permit is released when the poller is done with it. Returns true if the
    /// poller is not, so that it has to be notified.
    pub(crate) fn abandon(&self, number: u32) -> bool {
        let mut state = self.state(number);
        match mem::replace(&mut *state, PermitState::Abandoned) {
            PermitState::Settled(Settled { buf, .. }) => {
                *state = PermitState::Idle;
                drop(state);
                self.release(CallPermit { number, buf });
                false
            }
            PermitState::Waiting(waker) => {
                drop(state);
                drop(waker);
                true
            }
            PermitState::Idle | PermitState::Abandoned => false,
        }
    }

    /// Returns true if the call has been abandoned.
    pub(crate) fn is_abandoned(&self, number: u32) -> bool {
        matches!(*self.state(number), PermitState::Abandoned)
    }

    /// Stores the outcome of a call that the poller is done with. Returns the waker of its caller,
    /// which must be woken, if the caller still waits.
    #[must_use]
    pub(crate) fn settle(&self, number: u32, settled: Settled) -> Option<Waker> {
        let mut state = self.state(number);
        match mem::take(&mut *state) {
            PermitState::Waiting(waker) => {
                *state = PermitState::Settled(settled);
                Some(waker)
            }
            PermitState::Abandoned => {
                drop(state);
                let buf = settled.buf;
                self.release(CallPermit { number, buf });
                None
            }
            // A caller found that its poller had ended, and settled the call itself.
            other @ (PermitState::Idle | PermitState::Settled(_)) => {
                *state = other;
                None
            }
        }
    }

    /// Returns the number of permits in use.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn in_use(&self) -> usize {
        self.count() - self.queue().free.len()
    }

    fn state(&self, number: u32) -> MutexGuard<'_, PermitState> {
        // Under these locks only the allocator can panic.
        self.states[number as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, PermitQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of [`CallPermits::maintain_queue`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueState {
    /// True if there are calls that wait, woken or not.
    pub(crate) any: bool,
    /// True if a call waits for a permit and may still take one. Excludes woken waiters that were
    /// skipped.
    pub(crate) is_waiting: bool,
    pub(crate) next_deadline: Option<Instant>,
}

impl PermitQueue {
    /// Takes a free permit if no other call comes first.
    fn take(&mut self, waiter: Option<WaiterKey>) -> Option<CallPermit> {
        let is_turn = match waiter {
            Some(waiter) => self.waiters.is_turn_of(waiter),
            None => self.waiters.is_empty(),
        };
        if is_turn { self.free.pop() } else { None }
    }

    /// Removes a waiter. The returned value must be dropped without holding the lock.
    fn leave(&mut self, waiter: WaiterKey) -> RemovedWaiter {
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

    fn permits_of(count: u32) -> CallPermits {
        CallPermits::new(count, &Arc::default())
    }

    fn permit(outcome: AcquireOutcome) -> CallPermit {
        match outcome {
            AcquireOutcome::Acquired(permit) => permit,
            AcquireOutcome::Waiting { waiter, .. } => {
                panic!("{waiter:?} has to wait")
            }
        }
    }

    fn waiter(outcome: AcquireOutcome) -> WaiterKey {
        match outcome {
            AcquireOutcome::Waiting { waiter, .. } => waiter,
            AcquireOutcome::Acquired(permit) => panic!("there was {permit:?}"),
        }
    }

    fn settled() -> Settled {
        Settled {
            long: None,
            buf: vec![7],
            outcome: Ok(ResponseHead {
                pushback_us: 0,
                code: 0,
                metadata_len: 0,
                has_initial: false,
            }),
        }
    }

    #[test]
    fn whoever_waits_for_a_permit_gets_the_next_one_in_turn() {
        let (permits, waker) = (permits_of(1), Waker::noop());
        let first = permit(permits.acquire(None, None, waker));
        let [a, b] = [(); 2].map(|()| waiter(permits.acquire(None, None, waker)));
        permits.release(first);
        assert_eq!(waiter(permits.acquire(Some(b), None, waker)), b);
        let second = permit(permits.acquire(Some(a), None, waker));
        permits.release(second);
        let third = permit(permits.acquire(Some(b), None, waker));
        permits.release(third);
        assert_eq!(permits.in_use(), 0);
    }

    #[test]
    fn one_that_gives_up_in_its_turn_lets_the_next_one_in() {
        let (permits, waker) = (permits_of(1), Waker::noop());
        let first = permit(permits.acquire(None, None, waker));
        let [a, b] = [(); 2].map(|()| waiter(permits.acquire(None, None, waker)));
        permits.release(first);
        permits.leave_queue(a);
        permit(permits.acquire(Some(b), None, waker));
    }

    #[test]
    fn an_answer_reaches_its_caller_and_a_permit_without_one_comes_back() {
        let (permits, waker) = (permits_of(2), Waker::noop());
        let [a, b] = [(); 2].map(|()| permit(permits.acquire(None, None, waker)).number);
        permits.submit(a, waker);
        permits.submit(b, waker);
        assert!(permits.take(a, waker).is_none());
        let _ = permits.settle(a, settled());
        assert_eq!(permits.take(a, waker).unwrap().buf, [7]);
        assert!(permits.abandon(b));
        assert!(permits.is_abandoned(b));
        assert_eq!(permits.in_use(), 2);
        let _ = permits.settle(b, settled());
        assert_eq!(permits.in_use(), 1, "a's caller has not given it back");
        permits.submit(a, waker);
        let _ = permits.settle(a, settled());
        let _ = permits.settle(a, settled());
        assert!(!permits.abandon(a), "the poller is done with it");
        assert_eq!(permits.in_use(), 0);
    }

    #[test]
    fn a_deadline_that_passes_in_the_queue_is_found() {
        let (permits, waker) = (permits_of(1), Waker::noop());
        let now = Instant::now();
        let _held = permit(permits.acquire(None, None, waker));
        assert!(!permits.maintain_queue(now).is_waiting);
        let deadline = now + Duration::from_millis(5);
        let waiting = waiter(permits.acquire(None, Some(deadline), waker));
        let state = permits.maintain_queue(now);
        assert_eq!(state.next_deadline, Some(deadline));
        assert_eq!(permits.maintain_queue(deadline).next_deadline, None);
        permits.leave_queue(waiting);
        assert!(!permits.maintain_queue(deadline).is_waiting);
    }
}
