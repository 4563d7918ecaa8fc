//! What has arrived at a poller: events are routed, and a turn visits the connections that have requests or
//! woken handlers, one after the other, as the run queue says (`run_queue.rs`).

use std::time::Instant;

use super::Driver;
use super::body::Body;
use super::link::LinkKey;
use super::request_queue::{Fate, QueuedRequest};
use super::responses::Started;
use super::run_queue::TURN_TIME;
use super::run_queue::Visit;
use super::streams::{OwnFutures, Reader};
use super::tasks::TaskKey;
use crate::protocol::frame::{Flags, FrameHeader, FrameKind};
use crate::status::Status;
use crate::stream::wakers::wake_all;
use crate::transport::{ConnectionId, Transport};
use crate::transport::{Event, RoomMade, RoomWanted};

/// The flags after which the link may have a control frame to send.
const RARE_FLAGS: Flags = Flags::GOING_AWAY.with(Flags::ACK);

/// The flags of the frames that few calls have.
const RARE_CALLS: Flags = Flags::STREAM.with(Flags::LONG);

/// Turns between two clock reads while deadlines are pending. A read costs about as much as an
/// empty poll, and a busy poller takes 64 turns in a few microseconds.
pub(super) const TURNS_PER_CLOCK: u32 = 64;

/// What an event leaves to do, now that nothing is borrowed.
pub(super) enum Arrival<B> {
    Handled,
    /// A request whose header has been validated and accounted, in its receive slot.
    Request(LinkKey, FrameHeader, B),
    /// The handler that waited for a message of its stream.
    Reader(LinkKey, TaskKey),
}

/// Events that a poller takes before it visits the next connection.
const EVENTS_PER_LOOK: u32 = 64;

/// Turns that took [`TURN_TIME`] until the gauges are updated.
const LONG_TURNS_PER_GAUGE_UPDATE: u64 = 16;

/// The most looks for events before connections are ended. Requests are only queued meanwhile, and what
/// peers may send is bounded by the credits that they have, so the looks mostly find the end of it.
const LOOKS_FOR_EVENTS: u32 = 64;

/// Requests that a turn begins, and handlers that it resumes, before it flushes.
pub(super) const CALLS_PER_TURN: u32 = 64;

/// Requests that a visit refuses or answers as expired.
const REFUSALS_PER_VISIT: u32 = 16;

impl<T: Transport> Driver<T> {
    /// Handles an event. Returns what it leaves to do.
    #[inline(always)]
    pub(super) fn handle(&self, event: Event<T::RecvBuf>) -> Arrival<T::RecvBuf> {
        match event {
            Event::Received { connection, buf } => return self.receive(connection, buf),
            Event::Accepted {
                connection,
                admitted,
            } => self
                .connections
                .state
                .borrow_mut()
                .links
                .accept(connection, *admitted),
            Event::Fetched { fetch, len, .. } => {
                self.serving.fetched(&self.connections, fetch, len)
            }
            Event::FetchCancelled { fetch, .. } => {
                let state = &mut *self.connections.state.borrow_mut();
                let receiving = &mut state.bodies.receiving;
                receiving.fetch_cancelled(&mut state.links, fetch);
            }
            Event::Closed { connection, reason } => {
                self.serving.close(&self.connections, connection, reason)
            }
            Event::RoomWanted(wanted) => self.make_room(*wanted),
        }
        Arrival::Handled
    }

    /// Checks a frame and routes it: a response to its call. Returns what it leaves to do.
    #[inline(always)]
    fn receive(&self, id: ConnectionId, buf: T::RecvBuf) -> Arrival<T::RecvBuf> {
        let mut borrowed = self.connections.state.borrow_mut();
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
                self.connections.wake_caller(borrowed, caller);
                Arrival::Handled
            }
            FrameKind::Message if !is_rare => {
                // The block ends the borrow of the tasks: a waker that is called may want them.
                let reader = {
                    let own = OwnFutures {
                        block_on: &self.connections.block_on_waker,
                        tasks: &self.serving.handlers.tasks.borrow(),
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
        self.connections.ready.enter();
        if header.flags.contains(Flags::LONG) || header.kind == FrameKind::Continuation {
            self.serving
                .receive_long(&self.connections, key, &header, buf);
            return None;
        }
        let mut borrowed = self.connections.state.borrow_mut();
        let state = &mut *borrowed;
        match header.kind {
            FrameKind::Request => {
                let spec = self.serving.handlers.methods.borrow().spec(header.selector);
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
                self.connections.wake_collected();
            }
            FrameKind::Control => {
                let cancelled = state.handle_control(key, &header, buf);
                drop(borrowed);
                if !cancelled.is_empty() {
                    self.serving
                        .cancel_calls(&self.connections, key, &cancelled);
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
            Reader::BlockOn => self.connections.block_on_waker.wake(),
            Reader::Handler(task) => return Arrival::Reader(link, task),
            Reader::Other(waker) => {
                self.connections.ready.enter();
                wake_all([waker]);
            }
        }
        Arrival::Handled
    }

    /// Makes this turn check the deadlines: its handlers took so long that some may have passed.
    pub(super) fn check_clock_in_this_turn(&self) {
        self.turns.set(TURNS_PER_CLOCK - 1);
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
            let is_alone = self.connections.state.borrow().run_queue.waiting() < 2;
            if is_alone && started.is_none() {
                self.serving.looked_at.set(None);
                return self.serve_only();
            }
            // The time before this look, or, for the first one, after it.
            let before = now.unwrap_or_else(|| self.connections.clock.now());
            if has_looked {
                self.serving.looked_at.set(Some(before));
            }
            let since = *started.get_or_insert(before);
            if before.saturating_duration_since(since) >= TURN_TIME {
                return self.end_long_turn();
            }
            // None may be left, after a visit that served the last one.
            if begun >= CALLS_PER_TURN || self.connections.state.borrow().run_queue.is_empty() {
                return;
            }
            let visit = self.visit_next(before);
            if !self.connections.state.borrow().bodies.is_empty() {
                // The next polls may read long messages, which takes this thread's time.
                self.connections.state.borrow_mut().links.flush();
            }
            begun += visit.as_ref().map_or(0, |visit| visit.begun);
            now = visit.map(|visit| visit.now);
        }
    }

    /// Ends a turn in which handlers took long: deadlines may have passed, and gauges may be old.
    #[cold]
    pub(super) fn end_long_turn(&self) {
        self.check_clock_in_this_turn();
        let turns = self.connections.counters.turns.taken.get();
        if turns.is_multiple_of(LONG_TURNS_PER_GAUGE_UPDATE) {
            self.update_gauges();
        }
    }

    /// Takes the events that the transport has. Returns false if there may be more.
    pub(super) fn take_events(&self) -> bool {
        let mut events = 0;
        let has_all = loop {
            if events == EVENTS_PER_LOOK {
                break false;
            }
            // The next events may be about long messages, which can wait: the application, which has
            // its response, often makes the next call.
            if self.connections.block_on_waker.is_woken()
                && !self.connections.state.borrow().bodies.is_empty()
            {
                break true;
            }
            let event = self.connections.state.borrow_mut().links.transport.poll();
            let Some(event) = event else {
                break true;
            };
            self.receive_or_queue(event);
            events += 1;
        };
        // Before the requests of this look: the slots that its polls have freed belong to the oldest
        // responses.
        if events > 0 && !self.connections.state.borrow().responses.blocked.is_empty() {
            self.serving
                .handlers
                .retry_blocked_responses(&self.connections);
        }
        has_all
    }

    // Always inlined: an event that is passed in memory is moved as a whole, and the processor waits for
    // that until its fields have been stored.
    #[inline(always)]
    pub(super) fn receive_or_queue(&self, event: Event<T::RecvBuf>) {
        match self.handle(event) {
            Arrival::Handled => {}
            Arrival::Request(link, header, buf) => {
                let served = self
                    .connections
                    .counters
                    .received(header.selector, || self.connections.clock.now());
                self.serving.queue_request(
                    &self.connections,
                    link,
                    header,
                    served,
                    Body::Slot(buf),
                );
            }
            Arrival::Reader(link, task) => {
                self.serving.queue_woken(&self.connections, link, task.0)
            }
        }
    }

    /// Ends connections for new clients, and tells how many.
    #[cold]
    pub(super) fn make_room(&self, wanted: RoomWanted) {
        // This thread may have been stopped, or in a handler, for long: what has arrived meanwhile tells
        // which connections are in use.
        if (0..LOOKS_FOR_EVENTS).any(|_| self.take_events()) {
            return self.connections.state.borrow_mut().links.make_room(wanted);
        }
        let (ended, may_follow) = (0, true);
        wanted.answer(RoomMade { ended, may_follow });
    }

    /// Serves the request that is alone, or resumes the handler, if there is one.
    pub(super) fn serve_only(&self) {
        let next = self
            .connections
            .state
            .borrow()
            .run_queue
            .round
            .front()
            .copied();
        if next.is_none_or(|link| self.discard_if_ended(link)) {
            return;
        }
        let mut borrowed = self.connections.state.borrow_mut();
        let state = &mut *borrowed;
        let Some(link) = state.run_queue.round.pop_front() else {
            return;
        };
        if let Some(task) = state.run_queue.take_woken(&mut state.links, link) {
            drop(borrowed);
            return self.serving.resume(&self.connections, task);
        }
        let only = state.run_queue.take_only_request(&mut state.links, link);
        drop(borrowed);
        if let Some(request) = only {
            self.serving.serve(
                &self.connections,
                link,
                &request.header,
                request.served,
                request.body,
            );
        }
    }

    /// Serves requests of the connection whose turn it is, until it has used its time. Returns `None`
    /// if there was none to serve.
    pub(super) fn visit_next(&self, now: Instant) -> Option<Visit> {
        self.refuse_late(now);
        let mut borrowed = self.connections.state.borrow_mut();
        let state = &mut *borrowed;
        let link = state.run_queue.next_visit(&mut state.links, now)?;
        drop(borrowed);
        if self.discard_if_ended(link) {
            return None;
        }
        let mut visit = Visit {
            link,
            began_at: now,
            now,
            begun: 0,
            unmeasured: 0,
            has_resumed: false,
            refused: 0,
        };
        while visit.refused < REFUSALS_PER_VISIT && visit.begun < CALLS_PER_TURN {
            let mut borrowed = self.connections.state.borrow_mut();
            let state = &mut *borrowed;
            if let Some(task) = state.run_queue.take_woken(&mut state.links, link) {
                drop(borrowed);
                self.serving.resume(&self.connections, task);
                visit.begun += 1;
                visit.unmeasured += 1;
                visit.has_resumed = true;
            } else if let Some((request, fate)) =
                state
                    .run_queue
                    .take_request(&mut state.links, link, visit.now)
            {
                drop(borrowed);
                if fate == Fate::Begin {
                    self.serving.serve(
                        &self.connections,
                        link,
                        &request.header,
                        request.served,
                        request.body,
                    );
                    visit.begun += 1;
                    visit.unmeasured += 1;
                } else {
                    visit.refused += 1;
                    self.refuse_queued(link, request, fate);
                }
            } else {
                break;
            }
            let readings = self
                .connections
                .state
                .borrow()
                .run_queue
                .calls_per_reading(visit.now);
            if visit.unmeasured >= readings && !self.charge(&mut visit) {
                break;
            }
        }
        self.charge(&mut visit);
        let state = &mut *self.connections.state.borrow_mut();
        state.run_queue.end_visit(&mut state.links, link);
        Some(visit)
    }

    /// Charges a connection for the time since the latest reading of the clock. Returns true if it
    /// has time left.
    fn charge(&self, visit: &mut Visit) -> bool {
        let now = self.connections.clock.now();
        let took = now.saturating_duration_since(visit.now);
        let state = &mut *self.connections.state.borrow_mut();
        let has_time = state.run_queue.charge(&mut state.links, visit, took, now);
        visit.now = now;
        visit.unmeasured = 0;
        visit.has_resumed = false;
        has_time
    }

    /// In an overload of all connections together: refuses late requests of those that have waited
    /// longest.
    fn refuse_late(&self, now: Instant) {
        for _ in 0..REFUSALS_PER_VISIT {
            let mut borrowed = self.connections.state.borrow_mut();
            let state = &mut *borrowed;
            let late = state.run_queue.take_late(&mut state.links, now);
            drop(borrowed);
            let Some((link, request, fate)) = late else {
                return;
            };
            self.refuse_queued(link, request, fate);
        }
    }

    /// Answers a request that is not worth beginning, or that has expired.
    #[cold]
    fn refuse_queued(&self, link: LinkKey, request: QueuedRequest<T::RecvBuf>, fate: Fate) {
        let QueuedRequest {
            header,
            served,
            body,
            ..
        } = request;
        if fate == Fate::Expire {
            return self
                .serving
                .serve(&self.connections, link, &header, served, body);
        }
        self.connections.counters.handlers.refused.add(1);
        let state = self.connections.state.borrow();
        let pushback = state.run_queue.pushback(&state.links, link);
        drop(state);
        // Short, and always the same: an overloaded server has no time to spare.
        let status = Status::resource_exhausted("the server is overloaded; the call did not run");
        let started = Started::Not { pushback };
        self.connections.release_request(link, body);
        self.serving
            .refuse(&self.connections, link, &header, served, status, started);
    }

    /// Discards the requests of a connection that this side has closed, so that no handler runs for
    /// it. Returns true if it has.
    fn discard_if_ended(&self, link: LinkKey) -> bool {
        let state = self.connections.state.borrow();
        if state.links[link].ended.is_none() {
            return false;
        }
        drop(state);
        self.serving.discard_queued(&self.connections, link);
        true
    }
}
