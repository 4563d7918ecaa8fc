//! Idle time: the periodic maintenance of connections, and how a poller sleeps.
//!
//! A poller sleeps in three steps, so that it misses no work: it arms the notification, polls once
//! more, and waits. This happens at two levels:
//!
//! * Other threads (callers that submit, wakers of handlers, a shutdown) store their work where the
//!   poller looks, and then notify it (`wakeup.rs`). A notification costs a fence and a load while
//!   the poller is awake, and one system call while it sleeps.
//! * The device notifies through the completion channels of the lanes. The control thread and the
//!   event threads notify through an eventfd, on which the poller waits together with the channels
//!   (`rpc-transport-verbs/src/transport/sleep.rs`).
//!
//! The code of each handshake draws it, with the interleaving that each fence prevents. Loom models
//! check both.

use std::time::{Duration, Instant};

use super::age::{Ageing, LOOK_EVERY};
use super::link::Link;
use super::{Driver, State};
use crate::stats::ConnectionMemory;
use crate::transport::Transport;

/// Longest sleep of a poller on which calls or responses wait for capacity.
const SHORT_SLEEP: Duration = Duration::from_millis(1);

/// Longest sleep of any poller, so that idle connections are maintained periodically.
const LONG_SLEEP: Duration = Duration::from_secs(1);

/// Time without new calls after which a connection's credits are returned, and after which it may be
/// given to a client of another host if the server has none left: long enough that a client that calls
/// more often does not lose its window, or its connection, between two calls.
pub(super) const IDLE_TIME: Duration = Duration::from_secs(1);

impl<T: Transport> Driver<T> {
    /// Ends the connections that are old, and gives the surplus credits of idle ones back to their
    /// peers: a client connection on which no call has started for a while returns its credits above
    /// the initial window, so that other clients can use them. A server's connection on which no stream
    /// was open for a while returns all of its credits. Called before a sleep, and periodically
    /// otherwise; extra calls are cheap.
    pub(crate) fn on_idle(&self, now: Instant) {
        let state = &mut *self.state.borrow_mut();
        // Limits the rate, because there may be thousands of links and thousands of sleeps a
        // second.
        let is_soon = |before: Instant| now.duration_since(before) < LOOK_EVERY;
        if state.links.idle_checked_at.is_some_and(is_soon) {
            return;
        }
        state.links.idle_checked_at = Some(now);
        state.streams.trim();
        let owing_before = state.links.outbox.control.len();
        for (key, link) in state.links.table.iter_mut() {
            link.note_use(now);
            match link.grow_old(now) {
                Ageing::Nothing => {}
                Ageing::GoAway => {
                    state.links.outbox.control.insert(key);
                }
                Ageing::Close => state.links.transport.close(link.id),
            }
            if link.ended.is_some() || link.connection.take_was_used() {
                link.idle_since = None;
                continue;
            }
            let since = *link.idle_since.get_or_insert(now);
            if now.duration_since(since) < IDLE_TIME {
                continue;
            }
            link.connection.become_idle();
            state.links.budget.release(link.connection.take_freed());
            if link.connection.wants_control_frame() {
                state.links.outbox.control.insert(key);
            }
        }
        if state.links.outbox.control.len() > owing_before {
            state.send_control_frames();
            state.links.flush();
        }
    }

    /// Sleeps until the device has an event, a deadline passes, or another thread notifies the
    /// poller. Does not sleep if there is something to do already. `how_long` returns the caller's
    /// limit on the sleep, or `None` if the caller has work and the poller must not sleep. Returns
    /// true if it did not sleep.
    pub(crate) fn sleep(&self, how_long: &dyn Fn() -> Option<Duration>) -> bool {
        self.on_idle(self.clock.now());
        self.wakeup.prepare_sleep();
        self.state.borrow_mut().links.transport.arm();
        // This turn finds events that arrived before the device was armed, and work that other
        // threads queued before they could see that this poller sleeps.
        let found_any =
            self.turn() || self.ready.has_any() || self.state.borrow().has_undone_work();
        // Called after `prepare_sleep`: a thread that queues something from now on notifies the
        // poller.
        let at_most = how_long().filter(|_| !found_any);
        if let Some(at_most) = at_most {
            self.update_gauges();
            let state = &mut *self.state.borrow_mut();
            let asleep_since = self.clock.now();
            let timeout = at_most.min(state.longest_sleep(asleep_since));
            self.counters.turns.slept.add(1);
            state.links.transport.wait(Some(timeout));
            let asleep = self.clock.now().saturating_duration_since(asleep_since);
            self.counters.turns.woken.add(1);
            self.counters.turns.asleep_ns.add(asleep.as_nanos() as u64);
        }
        self.wakeup.resume();
        if !self.state.borrow().links.timers.is_empty() {
            self.run_in_turn(|| self.expire_deadlines());
            self.wake_collected();
        }
        at_most.is_none()
    }

    /// Returns the memory of the long messages of each connection that has any.
    pub(crate) fn memory_by_connection(&self) -> Vec<ConnectionMemory> {
        let state = &*self.state.borrow();
        let of_link = |link: &Link<T::RecvBuf>| {
            let transfers = &link.bodies;
            let (in_flight, pinned) = state.bodies.sending.exposed_on(transfers);
            ConnectionMemory {
                connection: link.id,
                posted: transfers.receiving,
                in_flight,
                held: transfers
                    .account
                    .as_ref()
                    .map_or(0, |account| account.held()),
                pinned,
            }
        };
        let links = state.links.table.values().map(of_link);
        links.filter(ConnectionMemory::is_any).collect()
    }

    /// Updates the gauges for other threads: the values that are not counted per call.
    pub(crate) fn update_gauges(&self) {
        let state = &*self.state.borrow();
        let (mut windows, mut available, mut waiting) = (0, 0, 0);
        for link in state.links.table.values() {
            waiting += link.waiters.len() as u64;
            if link.ended.is_none() {
                windows += u64::from(link.connection.window_len());
                available += u64::from(link.connection.requests_allowed());
            }
        }
        let open = state.streams.len() as u64;
        self.counters.streams.open.set(open);
        let (credits, stalls) = (&self.counters.credits, &self.counters.stalls);
        credits.windows.set(windows);
        credits.available.set(available);
        let promised = state.links.budget.promised();
        credits.promised.set(promised.into());
        credits
            .budget
            .set((promised + state.links.budget.left()).into());
        stalls.calls_waiting.set(waiting);
        stalls.responses_waiting.set(state.blocked.len() as u64);
        let parked = self.tasks.borrow().parked();
        self.counters.handlers.parked.set(parked.into());
        self.counters
            .handlers
            .queued
            .set(state.run_queue.len() as u64);
        let memory = &self.counters.memory;
        let (posted, held) = state.bodies.receiving.bytes();
        let (in_flight, pinned) = state.bodies.sending.exposed();
        memory
            .registered
            .set(state.links.transport.memory_by_owner().registered);
        memory.posted.set(posted);
        memory.held.set(held);
        memory.in_flight.set(in_flight);
        memory.pinned.set(pinned);
        let slots = state.links.transport.slots_by_state();
        self.counters.slots.set(&slots);
    }
}

impl<T: Transport> State<T> {
    /// Returns true if this poller has work for which nothing will wake it.
    pub(crate) fn has_undone_work(&self) -> bool {
        !(self.links.settled.is_empty() && self.run_queue.is_empty())
            || self.streams.has_more()
            || self.bodies.sending.has_more()
    }

    /// Returns how long the poller may sleep if nothing arrives.
    fn longest_sleep(&self, now: Instant) -> Duration {
        // Some work needs turns even if the device reports no event: woken waiters that do not
        // retry are skipped, and calls and responses that found no slot are retried.
        let waiting = self.blocked.len()
            | self.links.waiting()
            | self.streams.waiting()
            | self.bodies.waiting();
        let longest = match self.links.connection_age {
            _ if waiting != 0 => SHORT_SLEEP,
            Some(_) => LOOK_EVERY,
            None => LONG_SLEEP,
        };
        let until_deadline = self
            .links
            .timers
            .next_deadline()
            .map_or(longest, |deadline| deadline.saturating_duration_since(now));
        until_deadline.min(longest)
    }
}
