//! A turn: from the events of the transport to the calls and handlers that they belong to.
//!
//! The steps, in their order:
//!
//! 1. [`Driver::turn`] sends the messages of streams that the application has queued since the last
//!    turn, flushes, and polls the transport. Most turns of a busy poller find nothing and end here.
//! 2. Blocked responses are the first to use the send slots that this poll freed.
//! 3. The event's frame is checked and routed ([`Driver::receive`]): a response to the call that
//!    waits for it, a request to its handler (`incoming.rs`). A turn that follows a busy one expects
//!    more: it takes further events, and their requests go through the run queue (`run_queue.rs`).
//! 4. A woken handler is polled; several wait in the run queue (`resume.rs`).
//! 5. Streams that have work send their messages (`streams/`).
//! 6. One flush.
//! 7. Waiting work is retried (`deferred.rs`): calls without a credit, credits that no response
//!    carried, and deadlines.

use std::cell::Cell;
use std::time::Instant;

use super::body::Body;
use super::link::LinkKey;
#[cfg(doc)]
use super::outbox::{Missing, Outbox};
use super::run_queue::TURN_TIME;
use super::streams::{OwnFutures, Reader};
use super::tasks::TaskKey;
use super::visits::CALLS_PER_TURN;
use super::{Driver, State};
use crate::protocol::frame::{Flags, FrameHeader, FrameKind};
use crate::stats::TURNS_PER_GAUGE_UPDATE;
use crate::stream::wakers::wake_all;
use crate::transport::{ConnectionId, Event, RoomMade, RoomWanted, Transport};

/// The flags after which the link may have a control frame to send.
const RARE_FLAGS: Flags = Flags::GOING_AWAY.with(Flags::ACK);

/// The flags of the frames that few calls have.
const RARE_CALLS: Flags = Flags::STREAM.with(Flags::LONG);

/// Events that a poller takes before it visits the next connection.
const EVENTS_PER_LOOK: u32 = 64;

/// Turns that took [`TURN_TIME`] until the gauges are updated.
const LONG_TURNS_PER_GAUGE_UPDATE: u64 = 16;

/// The most looks for events before connections are ended. Requests are only queued meanwhile, and what
/// peers may send is bounded by the credits that they have, so the looks mostly find the end of it.
const LOOKS_FOR_EVENTS: u32 = 64;

/// What an event leaves to do, now that nothing is borrowed.
pub(super) enum Arrival<B> {
    Handled,
    /// A request whose header has been validated and accounted, in its receive slot.
    Request(LinkKey, FrameHeader, B),
    /// The handler that waited for a message of its stream.
    Reader(LinkKey, TaskKey),
}

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
        let turns = self.counters.turns.taken.add(1);
        if turns.is_multiple_of(TURNS_PER_GAUGE_UPDATE) {
            self.maintain();
        }
        let any_ready = self.ready.has_any();
        if any_ready {
            // Messages that the application has sent since the last turn, as its calls do at once.
            self.look_at_streams();
        }
        let any_woken = any_ready && self.ready.has_any();
        let mut borrowed = self.state.borrow_mut();
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
        self.state.borrow_mut().on_idle(self.clock.now());
        self.state.borrow_mut().links.post_fewer();
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
        if has_work || self.ready.has_any() {
            self.counters.turns.busy.add(1);
        }
        // A lone call has empty turns between its frames. After a busy turn, more frames probably
        // wait. Handled in this turn, they share its flush, and their connections take turns.
        let was_busy = self.was_busy.replace(found_any);
        let expects_more = any_queued || (was_busy && found_any);
        if !was_busy && !any_queued {
            self.looked_at.set(None);
        }
        if any_blocked {
            // Before the new requests: the slots that this poll freed belong to the oldest
            // responses.
            self.retry_blocked_responses();
        }
        if expects_more {
            self.serve_in_turn(first);
        } else if let Some(event) = first {
            match self.handle(event) {
                Arrival::Handled => {}
                Arrival::Request(link, header, buf) => self.serve_received(link, &header, buf),
                Arrival::Reader(_, task) => self.resume_reader(task),
            }
        }
        if self.ready.has_any() {
            self.resume_woken();
        }
        let mut state = self.state.borrow_mut();
        if self.ready.has_any() || state.streams.wait(&state.links) {
            drop(state);
            self.look_at_streams();
            state = self.state.borrow_mut();
        }
        state.links.flush();
        // A poller that is always busy looks at the ages like this.
        let has_deferred_work = state.has_deferred_work() || state.links.connection_age.is_some();
        drop(state);
        if has_deferred_work {
            self.retry_waiting();
        }
        #[cfg(debug_assertions)]
        self.state
            .borrow()
            .assert_sums(self.counters.turns.taken.get());
        has_work
    }

    /// Handles an event. Returns what it leaves to do.
    #[inline(always)]
    pub(super) fn handle(&self, event: Event<T::RecvBuf>) -> Arrival<T::RecvBuf> {
        match event {
            Event::Received { connection, buf } => return self.receive(connection, buf),
            Event::Accepted {
                connection,
                admitted,
            } => self.state.borrow_mut().links.accept(connection, *admitted),
            Event::Fetched { fetch, len, .. } => self.fetched(fetch, len),
            Event::FetchCancelled { fetch, .. } => {
                let state = &mut *self.state.borrow_mut();
                let receiving = &mut state.bodies.receiving;
                receiving.fetch_cancelled(&mut state.links, fetch);
            }
            Event::Closed { connection, reason } => self.close(connection, reason),
            Event::RoomWanted(wanted) => self.make_room(*wanted),
        }
        Arrival::Handled
    }

    /// Checks a frame and routes it: a response to its call. Returns what it leaves to do.
    #[inline(always)]
    fn receive(&self, id: ConnectionId, buf: T::RecvBuf) -> Arrival<T::RecvBuf> {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let Some((key, link)) = state.links.open_link(id) else {
            // This side has closed the connection, but the peer has not noticed yet.
            state.links.release_slot(buf);
            return Arrival::Handled;
        };
        let header = match FrameHeader::parse(buf.as_ref()) {
            Ok((header, ..)) => header,
            Err(error) => {
                state.links.close_for_violation(key, buf, error.into());
                return Arrival::Handled;
            }
        };
        if let Err(error) = link.connection.handle_header(&header) {
            state.links.close_for_violation(key, buf, error);
            return Arrival::Handled;
        }
        if header.flags.intersects(RARE_FLAGS) {
            state.handle_rare_flags(key, header.flags, header.kind, header.selector);
        }
        let is_rare = header.flags.intersects(RARE_CALLS);
        match header.kind {
            FrameKind::Request if !is_rare => Arrival::Request(key, header, buf),
            FrameKind::Response if !is_rare => {
                let caller = state.complete_call(key, &header, Body::Slot(buf));
                self.wake_caller(borrowed, caller);
                Arrival::Handled
            }
            FrameKind::Message if !is_rare => {
                // The block ends the borrow of the tasks: a waker that is called may want them.
                let reader = {
                    let own = OwnFutures {
                        block_on: &self.block_on_waker,
                        tasks: &self.tasks.borrow(),
                    };
                    state
                        .streams
                        .receive_messages(&mut state.links, key, header, buf, &own)
                };
                drop(borrowed);
                self.wake_reader(key, reader)
            }
            _ => {
                drop(borrowed);
                match self.receive_rare_frame(key, header, buf) {
                    Some(buf) => Arrival::Request(key, header, buf),
                    None => Arrival::Handled,
                }
            }
        }
    }

    /// Routes the frames that unary calls seldom or never have, except messages that fit a frame. Returns
    /// the frame of a request that opens a stream.
    #[inline(never)]
    fn receive_rare_frame(
        &self,
        key: LinkKey,
        header: FrameHeader,
        buf: T::RecvBuf,
    ) -> Option<T::RecvBuf> {
        self.ready.enter();
        if header.flags.contains(Flags::LONG) || header.kind == FrameKind::Continuation {
            self.receive_long(key, &header, buf);
            return None;
        }
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        match header.kind {
            FrameKind::Request => {
                let spec = self.methods.borrow().spec(header.selector);
                let accepted = state.streams.accept(&mut state.links, key, &header, spec);
                match accepted {
                    Ok(_) => return Some(buf),
                    Err(error) => state.links.close_for_violation(key, buf, error),
                }
            }
            FrameKind::Response => {
                let (links, bodies) = (&mut state.links, &mut state.bodies);
                state.streams.complete(links, bodies, key, &header, buf);
                drop(borrowed);
                self.wake_collected();
            }
            FrameKind::Control => {
                let cancelled = state.handle_control(key, &header, buf);
                drop(borrowed);
                if !cancelled.is_empty() {
                    self.cancel_calls(key, &cancelled);
                }
            }
            FrameKind::Acknowledgement => state.links.release_slot(buf),
            FrameKind::Message | FrameKind::Continuation => {
                unreachable!("messages that fit a frame, and long ones, are handled before")
            }
        }
        None
    }

    /// Wakes the reader of messages that have arrived on a link. A handler is left to the caller.
    #[inline(always)]
    fn wake_reader(&self, link: LinkKey, reader: Reader) -> Arrival<T::RecvBuf> {
        match reader {
            Reader::Nobody => {}
            Reader::BlockOn => self.block_on_waker.wake(),
            Reader::Handler(task) => return Arrival::Reader(link, task),
            Reader::Other(waker) => {
                self.ready.enter();
                wake_all([waker]);
            }
        }
        Arrival::Handled
    }

    /// Serves the requests that wait, and those that arrive meanwhile, one connection after the
    /// other. `first` is the event that this turn has found.
    #[inline(never)]
    pub(super) fn serve_in_turn(&self, first: Option<Event<T::RecvBuf>>) {
        if let Some(event) = first {
            self.receive_or_queue(event);
        }
        let mut begun = 0;
        let mut started: Option<Instant> = None;
        let mut now: Option<Instant> = None;
        loop {
            let has_looked = self.take_events();
            let is_alone = self.state.borrow().run_queue.waiting() < 2;
            if is_alone && started.is_none() {
                self.looked_at.set(None);
                return self.serve_only();
            }
            // The time before this look, or, for the first one, after it.
            let before = now.unwrap_or_else(|| self.clock.now());
            if has_looked {
                self.looked_at.set(Some(before));
            }
            let since = *started.get_or_insert(before);
            if before.saturating_duration_since(since) >= TURN_TIME {
                return self.end_long_turn();
            }
            // None may be left, after a visit that served the last one.
            if begun >= CALLS_PER_TURN || self.state.borrow().run_queue.is_empty() {
                return;
            }
            let visit = self.visit_next(before);
            if !self.state.borrow().bodies.is_empty() {
                // The next polls may read long messages, which takes this thread's time.
                self.state.borrow_mut().links.flush();
            }
            begun += visit.as_ref().map_or(0, |visit| visit.begun);
            now = visit.map(|visit| visit.now);
        }
    }

    /// Ends a turn in which handlers took long: deadlines may have passed, and gauges may be old.
    #[cold]
    pub(super) fn end_long_turn(&self) {
        self.check_clock_in_this_turn();
        let turns = self.counters.turns.taken.get();
        if turns.is_multiple_of(LONG_TURNS_PER_GAUGE_UPDATE) {
            self.update_gauges();
        }
    }

    /// Takes the events that the transport has. Returns false if there may be more.
    pub(super) fn take_events(&self) -> bool {
        for _ in 0..EVENTS_PER_LOOK {
            // The next events may be about long messages, which can wait: the application, which has
            // its response, often makes the next call.
            if self.block_on_waker.is_woken() && !self.state.borrow().bodies.is_empty() {
                return true;
            }
            let event = self.state.borrow_mut().links.transport.poll();
            // A blocked response is the first to use the slots that this poll freed.
            if event.is_some() && !self.state.borrow().responses.blocked.is_empty() {
                self.retry_blocked_responses();
            }
            let Some(event) = event else {
                return true;
            };
            self.receive_or_queue(event);
        }
        false
    }

    // Always inlined: an event that is passed in memory is moved as a whole, and the processor waits for
    // that until its fields have been stored.
    #[inline(always)]
    pub(super) fn receive_or_queue(&self, event: Event<T::RecvBuf>) {
        match self.handle(event) {
            Arrival::Handled => {}
            Arrival::Request(link, header, buf) => {
                let served = self.counters.received(header.selector, || self.clock.now());
                self.queue_request(link, header, served, Body::Slot(buf));
            }
            Arrival::Reader(link, task) => self.queue_woken(link, task.0),
        }
    }

    /// Ends connections for new clients, and tells how many.
    #[cold]
    pub(super) fn make_room(&self, wanted: RoomWanted) {
        // This thread may have been stopped, or in a handler, for long: what has arrived meanwhile tells
        // which connections are in use.
        if (0..LOOKS_FOR_EVENTS).any(|_| self.take_events()) {
            return self.state.borrow_mut().links.make_room(wanted);
        }
        let (ended, may_follow) = (0, true);
        wanted.answer(RoomMade { ended, may_follow });
    }
}

impl<T: Transport> State<T> {
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
