//! A turn: from the events of the transport to the calls and handlers that they belong to.
//!
//! The steps, in their order:
//!
//! 1. [`Driver::turn`] sends the messages of streams that the application has queued since the last
//!    turn, flushes, and polls the transport. Most turns of a busy poller find nothing and end here.
//! 2. Blocked responses are the first to use the send slots that this poll freed.
//! 3. The event's frame is checked and routed ([`Driver::receive`]): a response to the call that
//!    waits for it, a request to its handler (`serving.rs`). A turn that follows a busy one expects
//!    more: it takes further events, and their requests go through the run queue (`run_queue.rs`).
//! 4. A woken handler is polled; several wait in the run queue (`serving.rs`).
//! 5. Streams that have work send their messages (`streams/`).
//! 6. One flush.
//! 7. Waiting work is retried ([`Driver::retry_waiting`]): calls without a credit, credits that no response
//!    carried, and deadlines.

use std::cell::Cell;

use super::arrivals::{Arrival, TURNS_PER_CLOCK};
#[cfg(doc)]
use super::outbox::{Missing, Outbox};
use super::{Driver, DriverState, TimerTarget};
use crate::stats::TURNS_PER_GAUGE_UPDATE;
use crate::transport::{Event, Transport};

/// The most calls, streams and messages that a turn ends because their deadlines have passed.
const EXPIRED_PER_TURN: u32 = 128;

impl<T: Transport> Driver<T> {
    /// Runs `work` as a part of a turn: calls that are polled in it register and wait.
    pub(crate) fn run_in_turn<R>(&self, work: impl FnOnce() -> R) -> R {
        let _mark = TurnMark::set(&self.turning);
        work()
    }

    /// Takes one turn. Returns true if the poll returned any events; woken handlers alone do not
    /// count. Returns false at once if this thread is already inside a turn.
    pub(crate) fn turn(&self) -> bool {
        !self.turning.get() && self.run_in_turn(|| self.take_turn())
    }

    // Inlined into each caller, because a busy poller mostly takes turns that find nothing.
    #[inline(always)]
    fn take_turn(&self) -> bool {
        let turns = self.connections.counters.turns.taken.add(1);
        if turns.is_multiple_of(TURNS_PER_GAUGE_UPDATE) {
            self.maintain();
        }
        let any_ready = self.connections.ready.has_any();
        if any_ready {
            // Messages that the application has sent since the last turn, as its calls do at once.
            self.serving.look_at_streams(&self.connections);
        }
        let any_woken = any_ready && self.connections.ready.has_any();
        let mut borrowed = self.connections.state.borrow_mut();
        let state = &mut *borrowed;
        state.links.flush();
        let first = state.links.transport.poll();
        // Most turns of a busy poller end here. Their duration is a part of every response's
        // latency, because a frame that arrives just after a poll waits for the next one.
        if first.is_none() && !state.has_deferred_work() && !any_woken {
            self.was_busy.set(false);
            return false;
        }
        let any_blocked = !state.responses.blocked.is_empty();
        let any_queued = !state.run_queue.is_empty();
        drop(borrowed);
        self.take_busy_turn(first, any_blocked, any_queued)
    }

    /// Updates the gauges. Also returns the credits of idle connections, which is done before a sleep
    /// too, but a busy poller never sleeps.
    #[cold]
    #[inline(never)]
    fn maintain(&self) {
        self.update_gauges();
        self.connections
            .state
            .borrow_mut()
            .on_idle(self.connections.clock.now());
        self.connections.state.borrow_mut().links.post_fewer();
    }

    #[inline(never)]
    fn take_busy_turn(
        &self,
        first: Option<Event<T::RecvBuf>>,
        any_blocked: bool,
        any_queued: bool,
    ) -> bool {
        let found_any = first.is_some();
        let has_work = found_any || any_queued;
        if has_work || self.connections.ready.has_any() {
            self.connections.counters.turns.busy.add(1);
        }
        // A lone call has empty turns between its frames. After a busy turn, more frames probably
        // wait. Handled in this turn, they share its flush, and their connections take turns.
        let was_busy = self.was_busy.replace(found_any);
        let expects_more = any_queued || (was_busy && found_any);
        if !was_busy && !any_queued {
            self.serving.looked_at.set(None);
        }
        if any_blocked {
            // Before the new requests: the slots that this poll freed belong to the oldest
            // responses.
            self.serving
                .handlers
                .retry_blocked_responses(&self.connections);
        }
        if expects_more {
            self.serve_in_turn(first);
        } else if let Some(event) = first {
            match self.handle(event) {
                Arrival::Handled => {}
                Arrival::Request(link, header, buf) => {
                    self.serving
                        .serve_received(&self.connections, link, &header, buf)
                }
                Arrival::Reader(_, task) => self.serving.resume_reader(&self.connections, task),
            }
        }
        if self.connections.ready.has_any() {
            self.serving.resume_woken(&self.connections);
        }
        let mut state = self.connections.state.borrow_mut();
        if self.connections.ready.has_any() || state.streams.wait(&state.links) {
            drop(state);
            self.serving.look_at_streams(&self.connections);
            state = self.connections.state.borrow_mut();
        }
        state.links.flush();
        // A poller that is always busy looks at the ages like this.
        let has_deferred_work = state.has_deferred_work() || state.links.connection_age.is_some();
        drop(state);
        if has_deferred_work {
            self.retry_waiting();
        }
        #[cfg(debug_assertions)]
        self.connections
            .state
            .borrow()
            .assert_sums(self.connections.counters.turns.taken.get());
        has_work
    }

    #[cold]
    pub(super) fn retry_waiting(&self) {
        let turns = self.turns.get().wrapping_add(1);
        self.turns.set(turns);
        let mut state = self.connections.state.borrow_mut();
        state.links.wake_waiters();
        let outbox = &state.links.outbox;
        if state.bodies.waiting() | outbox.pieces.len() | outbox.windows.len() != 0 {
            drop(state);
            self.serving.advance_bodies(&self.connections);
            state = self.connections.state.borrow_mut();
        }
        if state.links.outbox.awaiting_reader.len() != 0 {
            let state = &mut *state;
            state.streams.resume_awaiting_reader(&mut state.links);
        }
        if !state.endings.is_empty() {
            drop(state);
            self.serving.end_some(&self.connections);
            state = self.connections.state.borrow_mut();
        }
        state.send_control_frames();
        let any_end = !state.endings.is_empty();
        state.links.outbox.note_what_is_left(any_end);
        let check_clock = turns.is_multiple_of(TURNS_PER_CLOCK) && state.links.awaits_time();
        state.links.flush();
        let any_woken = !state.links.wakers.is_empty();
        drop(state);
        if check_clock {
            self.expire_deadlines();
        }
        if any_woken || check_clock {
            self.connections.wake_collected();
            // Responses of handlers that have expired, and calls of the tasks that were woken.
            self.connections.state.borrow_mut().links.flush();
        }
    }

    /// Ends calls, streams and messages whose deadlines have passed, and the connections that are old. If there
    /// are many, the rest follows in the next turn: a client may choose the same deadline for all of its calls.
    pub(crate) fn expire_deadlines(&self) {
        let now = self.connections.clock.now();
        for expired in 0.. {
            if expired == EXPIRED_PER_TURN {
                self.check_clock_in_this_turn();
                break;
            }
            let mut borrowed = self.connections.state.borrow_mut();
            let state = &mut *borrowed;
            let Some(target) = state.links.timers.pop_expired(now) else {
                break;
            };
            match target {
                TimerTarget::Call(key, call) => {
                    let waiting = state.links[key].calls.expire(call);
                    let waker = self.connections.block_on_waker.waker();
                    let links = &mut state.links;
                    waiting.collect(waker, &mut links.wakers, &mut links.settled);
                }
                TimerTarget::Waiter(key, waiter) => {
                    let waker = state.links[key].waiters.expire(waiter);
                    state.links.wakers.extend(waker);
                }
                TimerTarget::Task(task) => {
                    drop(borrowed);
                    self.serving.expire_task(&self.connections, task);
                }
                TimerTarget::Release(key) => {
                    state.bodies.sending.check_receiver(&mut state.links, key);
                }
                TimerTarget::Incoming(key) => {
                    let receiving = &mut state.bodies.receiving;
                    let completed = receiving.expire(&mut state.links, key, now);
                    drop(borrowed);
                    if let Some(completed) = completed {
                        self.serving.conclude(&self.connections, completed);
                    }
                }
                TimerTarget::Stream(stream) => {
                    drop(borrowed);
                    self.serving.expire_stream(&self.connections, stream);
                }
            }
        }
        if self
            .connections
            .state
            .borrow()
            .links
            .connection_age
            .is_some()
        {
            self.connections.state.borrow_mut().on_idle(now);
        }
    }
}

impl<T: Transport> DriverState<T> {
    /// Returns true if anything waits for a turn besides the events of the transport.
    #[inline]
    fn has_deferred_work(&self) -> bool {
        // One test for all of them, because every turn makes it.
        self.responses.blocked.len()
            | usize::from(self.links.outbox.any())
            | self.links.wakers.len()
            | self.links.timers.len()
            | self.run_queue.waiting()
            | self.streams.waiting()
            | self.bodies.waiting()
            != 0
    }
}

/// Marks this thread as inside a turn until dropped, even by a panic.
pub(crate) struct TurnMark<'a> {
    turning: &'a Cell<bool>,
    before: bool,
}

impl<'a> TurnMark<'a> {
    #[inline]
    pub(crate) fn set(turning: &'a Cell<bool>) -> Self {
        Self {
            turning,
            before: turning.replace(true),
        }
    }
}

impl Drop for TurnMark<'_> {
    fn drop(&mut self) {
        self.turning.set(self.before);
    }
}
