//! Connections end, and calls that their clients have cancelled: some in each turn.
//!
//! A client may leave, or cancel, with all the streams and calls that it may have. Each of them ends a
//! handler, whose destructor is the application's. So a turn ends some, and the other connections go
//! on in between. The connections that wait take turns.

use std::collections::HashSet;
use std::mem;

use super::connections::Connections;
use super::link::LinkKey;
use super::responses::{Blocked, Started};
use super::serving::Serving;
use super::streams::LeftStream;
use super::tasks::Task;
use super::waiting::ReadySet;
use crate::protocol::frame::{CallId, Flags};
use crate::status::Status;
use crate::transport::{CloseReason, ConnectionId, Transport};

/// Calls that a turn ends as they come, and as many again of those that wait.
const ENDS_PER_TURN: usize = 64;

/// The connections with calls to end.
#[derive(Debug)]
pub(super) struct Endings {
    links: ReadySet<LinkKey>,
    /// Calls that may still be ended until the next turn that ends some of those that wait.
    left: usize,
}

impl Default for Endings {
    fn default() -> Self {
        Self {
            links: ReadySet::default(),
            left: ENDS_PER_TURN,
        }
    }
}

impl Endings {
    /// Returns true if no connection waits.
    pub(super) fn is_empty(&self) -> bool {
        self.links.len() == 0
    }

    #[cfg(debug_assertions)]
    pub(super) fn links(&self) -> impl Iterator<Item = LinkKey> {
        self.links.keys()
    }
}

impl Serving {
    /// Ends a connection that the transport has closed. Its handlers and streams may follow in later
    /// turns: until then it keeps its place among the connections.
    pub(super) fn close<T: Transport>(
        &self,
        connections: &Connections<T>,
        id: ConnectionId,
        reason: CloseReason,
    ) {
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let block_on_waker = connections.block_on_waker.waker();
        let Some(link) = state.links.close(id, reason, block_on_waker) else {
            return;
        };
        if !state.bodies.is_empty() {
            state.bodies.end_all_of(&mut state.links, link);
            state.streams.forget_bodies_of(link);
        }
        let blocked = state.responses.take_blocked_of(link);
        state.endings.left = state.endings.left.saturating_sub(blocked.len());
        drop(borrowed);
        for blocked in blocked {
            connections.counters.dropped(blocked.call.served.method);
            self.handlers.discard_response(blocked);
        }
        self.discard_queued(connections, link);
        self.end_some_of(connections, link);
        connections.wake_collected();
    }

    /// Ends the calls that a client has cancelled.
    #[cold]
    #[inline(never)]
    pub(super) fn cancel_calls<T: Transport>(
        &self,
        connections: &Connections<T>,
        link: LinkKey,
        calls: &[CallId],
    ) {
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let entry = &mut state.links[link];
        if !entry.is_ending && calls.len() < state.endings.left {
            state.endings.left -= calls.len();
            drop(borrowed);
            for &call in calls {
                self.cancel_served(connections, link, call);
            }
            return;
        }
        entry.cancelled.extend(calls);
        let is_long = entry.cancelled.len() > entry.connection.most_calls();
        drop(borrowed);
        if is_long {
            self.forget_vain_cancels(connections, link);
        }
        self.end_some_of(connections, link);
    }

    /// Forgets cancels of calls that are not under way, and those that came twice: what is left are no more
    /// than the calls that the connection may have.
    #[cold]
    fn forget_vain_cancels<T: Transport>(&self, connections: &Connections<T>, link: LinkKey) {
        let state = &mut *connections.state.borrow_mut();
        let mut cancelled = mem::take(&mut state.links[link].cancelled);
        let all = cancelled.len();
        let mut seen = HashSet::new();
        cancelled.retain(|&call| {
            let entry = &state.links[link];
            let is_under_way = entry.streams.served.contains_key(&call)
                || entry.bodies.incoming_of(call).is_some()
                || entry.requests.contains(call)
                || self.handlers.tasks.borrow().has_call(link, call);
            is_under_way && seen.insert(call)
        });
        let vain = all - cancelled.len();
        connections.counters.cancels.too_late.add(vain as u64);
        state.links[link].cancelled = cancelled;
    }

    /// Ends some of the calls that wait for their end.
    pub(super) fn end_some<T: Transport>(&self, connections: &Connections<T>) {
        let mut state = connections.state.borrow_mut();
        state.endings.left = ENDS_PER_TURN;
        for _ in 0..state.endings.links.len() {
            if state.endings.left == 0 {
                break;
            }
            let Some(link) = state.endings.links.pop() else {
                break;
            };
            drop(state);
            self.end_some_of(connections, link);
            state = connections.state.borrow_mut();
        }
    }

    /// Ends calls of a connection, as many as may end in this turn. If there may be more, the connection
    /// waits for the next one.
    fn end_some_of<T: Transport>(&self, connections: &Connections<T>, link: LinkKey) {
        let most = connections.state.borrow().endings.left;
        let is_closed = connections.state.borrow().links[link].closed;
        let ended = match is_closed {
            false => self.cancel_some_of(connections, link, most),
            true => self.discard_some_of(connections, link, most),
        };
        let mut state = connections.state.borrow_mut();
        state.endings.left -= ended;
        let is_ending = ended == most;
        state.links[link].is_ending = is_ending;
        if is_ending {
            state.endings.links.insert(link);
            state.links.outbox.note_any();
            return;
        }
        state.endings.links.remove(link);
        if is_closed {
            // Handlers that were woken before they were dropped.
            drop(state);
            self.discard_queued(connections, link);
            let mut state = connections.state.borrow_mut();
            let reaped = state.links.reap(link);
            drop(state);
            drop(reaped);
        }
    }

    /// Ends calls that their client has cancelled. Returns their number.
    fn cancel_some_of<T: Transport>(
        &self,
        connections: &Connections<T>,
        link: LinkKey,
        most: usize,
    ) -> usize {
        let mut state = connections.state.borrow_mut();
        let cancelled = &mut state.links[link].cancelled;
        let most = most.min(cancelled.len());
        let cancelled: Vec<_> = cancelled.drain(..most).collect();
        drop(state);
        for &call in &cancelled {
            self.cancel_served(connections, link, call);
        }
        cancelled.len()
    }

    /// Drops handlers and streams of a connection that is closed. Returns their number.
    fn discard_some_of<T: Transport>(
        &self,
        connections: &Connections<T>,
        link: LinkKey,
        most: usize,
    ) -> usize {
        let reason = connections.close_reason(link).unwrap_or(CloseReason::Local);
        let streams = connections.state.borrow().streams.keys_of(link, most);
        let ended = streams.len();
        for key in streams {
            let mut borrowed = connections.state.borrow_mut();
            let state = &mut *borrowed;
            let (links, bodies) = (&mut state.links, &mut state.bodies);
            let left = state
                .streams
                .end_with_connection(key, links, bodies, &reason);
            drop(borrowed);
            self.drop_left(connections, left);
        }
        // Handlers of unary calls.
        let of_link = |task: &Task| task.call.link == link;
        let tasks = self
            .handlers
            .tasks
            .borrow_mut()
            .remove_where(of_link, most - ended);
        let ended = ended + tasks.len();
        for task in &tasks {
            self.drop_task(connections, task);
        }
        ended
    }

    /// Drops what a stream has left whose connection has ended.
    fn drop_left<T: Transport>(&self, connections: &Connections<T>, left: LeftStream) {
        let task = left.task;
        let task = task.and_then(|task| self.handlers.tasks.borrow_mut().expire(task));
        if let Some(task) = task {
            return self.drop_task(connections, &task);
        }
        // Its handler has ended, or its request had not arrived in full, or has not been counted.
        let Some(call) = left.call else { return };
        connections.counters.dropped(call.served.method);
        if let Some(response) = left.answer {
            self.handlers.discard_response(Blocked { call, response });
        }
    }

    fn drop_task<T: Transport>(&self, connections: &Connections<T>, task: &Task) {
        connections.counters.dropped(task.call.served.method);
        self.discard_task(connections, task);
    }

    /// Ends a call that its client has cancelled, wherever it is.
    fn cancel_served<T: Transport>(
        &self,
        connections: &Connections<T>,
        link: LinkKey,
        call: CallId,
    ) {
        let cancels = &connections.counters.cancels;
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        if let Some(request) =
            state
                .run_queue
                .take_queued(&mut state.links, link, call, Flags::NONE)
        {
            drop(borrowed);
            cancels.before_start.add(1);
            connections.release_request(link, request.body);
            return self.refuse_cancelled(connections, link, &request.header, request.served);
        }
        let receiving = &mut state.bodies.receiving;
        if let Some((header, served)) = receiving.cancel_request(&mut state.links, link, call) {
            drop(borrowed);
            cancels.before_start.add(1);
            return self.refuse_cancelled(connections, link, &header, served);
        }
        let stream = state.streams.stream_of(&mut state.links, link, call);
        drop(borrowed);
        let status = || Status::cancelled("the client cancelled the call");
        if let Some(key) = stream {
            cancels.running.add(1);
            return self.end_handler(connections, key, status(), Started::Maybe);
        }
        let task = self.handlers.tasks.borrow_mut().take_call(link, call);
        let Some(task) = task else {
            // The response has crossed the cancel.
            cancels.too_late.add(1);
            return;
        };
        cancels.running.add(1);
        self.discard_task(connections, &task);
        self.handlers
            .respond_status(connections, &task.call, status());
    }
}
