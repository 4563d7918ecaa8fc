//! [`Driver`]: the work of one poller's thread, turn by turn.
//!
//! The steps of a turn, in order:
//!
//! 1. [`Driver::turn`] flushes what was sent since the last turn and polls the transport. Responses
//!    that waited for a send slot get the slots that this poll freed first;
//! 2. each frame is validated and routed ([`Driver::receive`]): a response to its waiting call, a
//!    request to its handler (`serve.rs`);
//! 3. woken handlers are polled (`serve.rs`);
//! 4. deferred work is retried: calls without a credit, credits that no response carried,
//!    deadlines;
//! 5. one flush.
//!
//! The state is borrowed only between calls of application code, never across one: decoding,
//! handlers, wakers and destructors all run while nothing is borrowed, so they may call back into
//! the poller.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use slab::Slab;

use crate::call::{Answer, Arrival, CallTable, WhoWaits};
use crate::call_error::{CallError, Cause, Execution};
use crate::clock::Clock;
use crate::connection::{Connection, ProtocolError};
use crate::credit::ReceiveBudget;
use crate::dispatch::Methods;
use crate::doorbell::Doorbell;
use crate::frame::{CallId, FrameHeader, FrameKind, HEADER_LEN};
use crate::poller::OwnWaker;
use crate::serve::Blocked;
use crate::server::Shares;
use crate::stats::{PollerTally, TURNS_PER_PUBLICATION};
use crate::task::{ReadyQueue, TaskKey, Tasks};
use crate::timers::Timers;
use crate::transport::{
    Admitted, CloseReason, ConnectionId, Event, Permit, ReserveError, Transport,
};
use crate::waiters::{WaiterKey, Waiters};
use crate::watchdog::AtWork;

/// Identifies a connection in the driver for as long as a channel to it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkKey(pub(crate) u32);

/// The state of a link, which determines the operations it permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkStanding {
    /// It accepts calls.
    Up,
    /// Calls in flight continue; it accepts no new ones.
    GoingAway,
    /// It has ended, and its calls have ended or are about to.
    Ended,
}

/// Turns between two clock reads while deadlines are pending. A read costs about as much as an
/// empty poll, and a busy poller takes 64 turns in a few microseconds.
const TURNS_PER_CLOCK: u32 = 64;

/// The connections, calls and tasks of one poller, over its transport.
pub(crate) struct Driver<T: Transport> {
    pub(crate) state: RefCell<State<T>>,
    pub(crate) methods: RefCell<Methods>,
    pub(crate) tasks: RefCell<Tasks>,
    pub(crate) clock: Clock,
    /// The waker of `block_on`.
    pub(crate) own: OwnWaker,
    /// Notified by other threads that have work for this poller.
    pub(crate) bell: Arc<Doorbell>,
    /// Read by the server's watchdog.
    pub(crate) at_work: Arc<AtWork>,
    /// This poller's counters, readable from any thread.
    pub(crate) tally: Arc<PollerTally>,
    /// The same queue as in `tasks`, because every turn checks it.
    pub(crate) ready: Arc<ReadyQueue>,
    turning: Cell<bool>,
    turns: Cell<u32>,
    /// When the current batch was polled, if a frame of this batch or the previous one has a
    /// deadline.
    polled_at: Cell<Option<Instant>>,
    saw_deadline: Cell<bool>,
}

/// The state that is borrowed between calls of application code.
pub(crate) struct State<T: Transport> {
    pub(crate) transport: T,
    /// Shared with the driver.
    pub(crate) tally: Arc<PollerTally>,
    /// The events of the latest poll; kept to reuse the allocation.
    events: Vec<Event<T::RecvBuf>>,
    pub(crate) links: Slab<Link<T::RecvBuf>>,
    /// Maps the transport's connection index to the link.
    routes: Vec<Option<(ConnectionId, LinkKey)>>,
    pub(crate) budget: ReceiveBudget,
    pub(crate) timers: Timers<TimerTarget>,
    /// Responses that found no free send slot, oldest first.
    pub(crate) blocked: VecDeque<Blocked>,
    /// Links that owe credits that no response carried, each at most once.
    pub(crate) owing: Vec<LinkKey>,
    /// Connections that the admission may still accept, and the initial window of each. Growing
    /// windows leave this part of the budget free.
    expected: u32,
    initial_window: u32,
    /// Links with waiting calls.
    pub(crate) waiting: Vec<LinkKey>,
    /// Time of the latest check by [`Driver::on_idle`].
    pub(crate) idle_looked_at: Option<Instant>,
    /// The server has begun to shut down.
    pub(crate) going_away: bool,
    /// Wakers to call as soon as the state is no longer borrowed.
    wakers: Vec<Waker>,
    /// Permits of a shared channel whose calls have to be polled.
    pub(crate) settled: Vec<u32>,
}

/// A connection with its calls.
pub(crate) struct Link<B> {
    pub(crate) id: ConnectionId,
    pub(crate) connection: Connection,
    pub(crate) calls: CallTable<B>,
    pub(crate) waiters: Waiters,
    /// Number of channels that use this link. Zero on the server's side.
    pub(crate) handles: u32,
    /// Client: the server has announced its shutdown, so no more calls are started.
    pub(crate) going_away: bool,
    /// Since when no call has been started, as far as [`Driver::on_idle`] has observed.
    pub(crate) idle_since: Option<Instant>,
    /// Set when this side has decided to close the connection, or when the transport has closed it.
    pub(crate) ended: Option<CloseReason>,
    closed: bool,
    /// True if the link is in `State::owing`.
    pub(crate) owes: bool,
    permit: Option<Permit>,
}

/// The object of a deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimerTarget {
    Call(LinkKey, CallId),
    Waiter(LinkKey, WaiterKey),
    Task(TaskKey),
    /// A call of a shared channel that has not been sent yet.
    Ticket(u32),
}

impl<T: Transport> Driver<T> {
    pub(crate) fn new(transport: T, methods: Methods, clock: Clock) -> Self {
        let budget = ReceiveBudget::new(transport.limits().promisable_receives());
        let shares = Shares::of(transport.limits());
        let bell = Arc::new(Doorbell::new(transport.waker()));
        let tasks = Tasks::new(Arc::clone(&bell), methods.max_concurrent_calls());
        let tally = Arc::new(PollerTally::new(
            methods.numbered().map(|(_, spec)| spec.path),
            clock.clone(),
            transport.limits().device.clone(),
            transport.meter(),
        ));
        Self {
            ready: tasks.ready(),
            own: OwnWaker::new(Arc::clone(&bell)),
            bell,
            at_work: Arc::default(),
            tally: Arc::clone(&tally),
            tasks: RefCell::new(tasks),
            state: RefCell::new(State {
                transport,
                tally,
                events: Vec::new(),
                links: Slab::new(),
                routes: Vec::new(),
                budget,
                timers: Timers::default(),
                blocked: VecDeque::new(),
                owing: Vec::new(),
                expected: shares.connections,
                initial_window: shares.initial_window,
                waiting: Vec::new(),
                idle_looked_at: None,
                going_away: false,
                wakers: Vec::new(),
                settled: Vec::new(),
            }),
            methods: RefCell::new(methods),
            clock,
            turning: Cell::new(false),
            turns: Cell::new(0),
            polled_at: Cell::new(None),
            saw_deadline: Cell::new(false),
        }
    }

    /// Returns true if this thread is inside a turn, or inside `block_on`, which takes the turns
    /// itself.
    pub(crate) fn is_turning(&self) -> bool {
        self.turning.get()
    }

    /// Runs `work` as a part of a turn: calls that are polled in it register and wait.
    pub(crate) fn as_part_of_a_turn<R>(&self, work: impl FnOnce() -> R) -> R {
        let _mark = TurnMark::set(&self.turning);
        work()
    }

    /// Takes one turn. Returns true if the poll returned any events; woken handlers alone do not
    /// count. Returns false at once if this thread is already inside a turn.
    pub(crate) fn turn(&self) -> bool {
        !self.turning.get() && self.as_part_of_a_turn(|| self.take_turn())
    }

    // Inlined into each caller, because a busy poller mostly takes turns that find nothing.
    #[inline(always)]
    fn take_turn(&self) -> bool {
        let turns = self.tally.turns.taken.add(1);
        if turns.is_multiple_of(TURNS_PER_PUBLICATION) {
            self.publish();
            // Also done before a sleep, but a busy poller never sleeps.
            self.on_idle(self.clock.now());
        }
        let (mut events, any_blocked) = {
            let state = &mut *self.state.borrow_mut();
            state.transport.flush();
            state.transport.poll(&mut state.events);
            // Most turns of a busy poller end here. Their duration is a part of every response's
            // latency, because a frame that arrives just after a poll waits for the next one.
            if state.has_nothing_to_do() && !self.ready.is_any() {
                return false;
            }
            (std::mem::take(&mut state.events), !state.blocked.is_empty())
        };
        if any_blocked {
            // Before the new requests: the slots that this poll freed belong to the oldest
            // responses.
            self.retry_blocked_responses();
        }
        let found_any = !events.is_empty();
        if found_any || self.ready.is_any() {
            self.tally.turns.busy.add(1);
        }
        if found_any {
            // The previous batch needed the time, so this one probably does too: read it now.
            let timed = self.polled_at.get().is_some();
            self.polled_at.set(None);
            if timed && self.saw_deadline.take() {
                self.arrival();
            }
        }
        for event in events.drain(..) {
            match event {
                Event::Received { connection, buf } => self.receive(connection, buf),
                Event::Accepted {
                    connection,
                    admitted,
                } => {
                    self.state.borrow_mut().accept(connection, *admitted);
                }
                Event::Closed { connection, reason } => self.close(connection, reason),
            }
        }
        self.state.borrow_mut().events = events;
        self.run_ready_tasks();
        self.retry_what_waited();
        self.state.borrow_mut().transport.flush();
        found_any
    }

    /// Returns the approximate arrival time of the current frame, which has a deadline.
    pub(crate) fn arrival_of_timed(&self) -> Instant {
        self.saw_deadline.set(true);
        self.arrival()
    }

    pub(crate) fn arrival(&self) -> Instant {
        self.polled_at.get().unwrap_or_else(|| {
            let now = self.clock.now();
            self.polled_at.set(Some(now));
            now
        })
    }

    fn receive(&self, id: ConnectionId, buf: T::RecvBuf) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let Some(key) = state
            .route(id)
            .filter(|key| state.links[key.index()].ended.is_none())
        else {
            // This side has closed the connection, and the peer does not know yet.
            state.transport.release(buf);
            return;
        };
        let link = &mut state.links[key.index()];
        let header = match FrameHeader::parse(buf.as_ref()) {
            Ok((header, ..)) => header,
            Err(error) => return state.violate(key, buf, error.into()),
        };
        if let Err(error) = link.connection.handle_header(&header) {
            return state.violate(key, buf, error);
        }
        if header.going_away && !std::mem::replace(&mut link.going_away, true) {
            // Waiting calls are woken so that they fail, and the credits are returned.
            tracing::debug!(connection = %id, "the server is shutting down");
            if !std::mem::replace(&mut link.owes, true) {
                state.owing.push(key);
            }
        }
        match header.kind {
            FrameKind::Request => {
                drop(borrowed);
                self.serve(key, &header, buf);
            }
            FrameKind::Response => match link.calls.answer(header.call, buf) {
                Arrival::Kept { waiting, timer } => {
                    if let Some(timer) = timer {
                        state.timers.cancel(timer);
                    }
                    match waiting {
                        WhoWaits::BlockOn => self.own.wake(),
                        WhoWaits::Task(waker) => {
                            drop(borrowed);
                            waker.wake();
                        }
                        WhoWaits::Ticket(ticket) => state.settled.push(ticket),
                        WhoWaits::Nobody => {}
                    }
                }
                Arrival::NotWanted(buf) => state.release_answer(buf),
                Arrival::Unknown(buf) => {
                    state.violate(key, buf, ProtocolError::UnknownCall { call: header.call });
                }
            },
            FrameKind::Credit => {
                state.budget.give_back(link.connection.take_freed());
                state.transport.release(buf);
            }
        }
    }

    fn close(&self, id: ConnectionId, reason: CloseReason) {
        let own = self.own.waker();
        let Some(key) = self.state.borrow_mut().close(id, reason, own) else {
            return;
        };
        self.discard_tasks_of(key);
        let reaped = self.state.borrow_mut().reap(key);
        drop(reaped);
        self.wake_collected();
    }

    pub(crate) fn wake_collected(&self) {
        let mut wakers = std::mem::take(&mut self.state.borrow_mut().wakers);
        for waker in wakers.drain(..) {
            waker.wake();
        }
        let mut state = self.state.borrow_mut();
        if state.wakers.is_empty() {
            state.wakers = wakers;
        }
    }

    fn retry_what_waited(&self) {
        let turns = self.turns.get().wrapping_add(1);
        self.turns.set(turns);
        let mut state = self.state.borrow_mut();
        state.call_waiters_up();
        state.send_owed_credits();
        let look_at_clock = turns.is_multiple_of(TURNS_PER_CLOCK) && !state.timers.is_empty();
        let any_woken = !state.wakers.is_empty();
        drop(state);
        if look_at_clock {
            self.expire_deadlines();
        }
        if any_woken || look_at_clock {
            self.wake_collected();
        }
    }

    /// Ends everything whose deadline has passed.
    pub(crate) fn expire_deadlines(&self) {
        let now = self.clock.now();
        loop {
            let mut borrowed = self.state.borrow_mut();
            let state = &mut *borrowed;
            let Some(target) = state.timers.pop_expired(now) else {
                break;
            };
            match target {
                TimerTarget::Call(key, call) => {
                    if let Some(link) = state.links.get_mut(key.index()) {
                        let waiting = link.calls.expire(call);
                        collect(
                            waiting,
                            self.own.waker(),
                            &mut state.wakers,
                            &mut state.settled,
                        );
                    }
                }
                TimerTarget::Waiter(key, waiter) => {
                    let waker = state
                        .links
                        .get_mut(key.index())
                        .and_then(|link| link.waiters.expire(waiter));
                    state.wakers.extend(waker);
                }
                TimerTarget::Ticket(ticket) => state.settled.push(ticket),
                TimerTarget::Task(task) => {
                    drop(borrowed);
                    self.expire_task(task);
                }
            }
        }
    }

    /// Closes a link, because its last channel was dropped. It is removed when its calls have
    /// ended.
    pub(crate) fn close_link(&self, key: LinkKey) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        if let Some(link) = state.links.get_mut(key.index())
            && link.ended.is_none()
        {
            link.ended = Some(CloseReason::Local);
            state.transport.close(link.id);
        }
        let reaped = state.reap(key);
        drop(borrowed);
        drop(reaped);
    }

    /// Returns the state of a link.
    pub(crate) fn standing_of(&self, key: LinkKey) -> LinkStanding {
        match self.state.borrow().links.get(key.index()) {
            Some(link) if link.ended.is_none() && link.going_away => LinkStanding::GoingAway,
            Some(link) if link.ended.is_none() => LinkStanding::Up,
            _ => LinkStanding::Ended,
        }
    }

    /// Returns the reason that a link has ended, if it has.
    pub(crate) fn end_of(&self, key: LinkKey) -> Option<CloseReason> {
        let state = self.state.borrow();
        state.links.get(key.index())?.ended.clone()
    }

    /// Returns the number of a link's calls whose response has not arrived or has not been taken.
    pub(crate) fn calls_under_way(&self, key: LinkKey) -> usize {
        let state = self.state.borrow();
        state
            .links
            .get(key.index())
            .map_or(0, |link| link.calls.len())
    }

    /// Begins the server's shutdown: announces it to current clients and to any accepted later.
    pub(crate) fn go_away(&self) {
        let state = &mut *self.state.borrow_mut();
        state.going_away = true;
        let connections = state.links.len();
        tracing::info!(
            connections,
            "shutting down: clients are told to begin no more calls"
        );
        for (index, link) in &mut state.links {
            if link.is_server() {
                link.connection.go_away();
                if !std::mem::replace(&mut link.owes, true) {
                    state.owing.push(LinkKey(index as u32));
                }
            }
        }
        state.send_owed_credits();
        state.transport.flush();
    }

    /// Returns true if no client can send further requests or still expects a response.
    pub(crate) fn are_clients_finished(&self) -> bool {
        let state = self.state.borrow();
        let mut links = state.links.iter();
        links.all(|(_, link)| {
            !link.is_server() || link.ended.is_some() || link.connection.is_finished()
        })
    }

    /// Closes all connections, for a poller that stops.
    pub(crate) fn close_all(&self) {
        let state = &mut *self.state.borrow_mut();
        for (_, link) in &mut state.links {
            if link.ended.is_none() {
                link.ended = Some(CloseReason::Local);
                state.transport.close(link.id);
            }
        }
    }

    /// Returns true if no connection is open.
    pub(crate) fn is_closed(&self) -> bool {
        self.state
            .borrow()
            .links
            .iter()
            .all(|(_, link)| link.closed)
    }

    /// Describes everything that is in flight: empty when all calls have ended.
    #[cfg(feature = "test-util")]
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let state = self.state.borrow();
        let mut left = Vec::new();
        let mut note = |what: &str, count: usize| {
            if count > 0 {
                left.push(format!("{count} {what}"));
            }
        };
        for (_, link) in &state.links {
            note("calls", link.calls.len());
            note("waiting calls", link.waiters.len());
        }
        note("tasks", self.tasks.borrow().in_use());
        note(
            "futures and responses of handlers",
            self.methods.borrow().in_use(),
        );
        note("blocked responses", state.blocked.len());
        note("timers", state.timers.len());
        let promised: u32 = state.links.iter().map(|(_, link)| link.promised()).sum();
        note(
            "promises too many",
            state.budget.promised().saturating_sub(promised) as usize,
        );
        note(
            "promises too few",
            promised.saturating_sub(state.budget.promised()) as usize,
        );
        left
    }

    /// Returns true if a client is still owed a response.
    pub(crate) fn is_serving(&self) -> bool {
        self.tasks.borrow().parked() > 0 || !self.state.borrow().blocked.is_empty()
    }
}

impl<T: Transport> State<T> {
    /// Returns true if a turn may end after its poll, because nothing has arrived and nothing
    /// waits.
    #[inline]
    fn has_nothing_to_do(&self) -> bool {
        self.events.is_empty()
            && self.blocked.is_empty()
            && self.waiting.is_empty()
            && self.owing.is_empty()
            && self.wakers.is_empty()
            && self.timers.is_empty()
    }

    fn route(&self, id: ConnectionId) -> Option<LinkKey> {
        let (known, key) = (*self.routes.get(id.index as usize)?)?;
        (known == id).then_some(key)
    }

    fn add(&mut self, id: ConnectionId, connection: Connection, permit: Option<Permit>) -> LinkKey {
        let key = LinkKey(self.links.insert(Link {
            id,
            connection,
            calls: CallTable::default(),
            waiters: Waiters::default(),
            handles: 0,
            going_away: false,
            idle_since: None,
            ended: None,
            closed: false,
            owes: false,
            permit,
        }) as u32);
        let index = id.index as usize;
        if self.routes.len() <= index {
            self.routes.resize(index + 1, None);
        }
        self.routes[index] = Some((id, key));
        key
    }

    /// Adds the client's side of a connection that the transport has established.
    pub(crate) fn add_client(&mut self, id: ConnectionId, connection: Connection) -> LinkKey {
        self.tally.connections.connected.add(1);
        self.add(id, connection, None)
    }

    fn accept(&mut self, id: ConnectionId, admitted: Admitted) {
        // These are this side's own bytes, so they decode.
        let Ok(session) = crate::session::ServerSession::accept(&admitted.server_session) else {
            return self.transport.close(id);
        };
        // The window, and one receive for the client's credit frame.
        if !self.budget.take(session.initial_credits + 1) {
            tracing::error!(connection = %id, "admitted a connection for which no receives are left");
            return self.transport.close(id);
        }
        let connection = Connection::server(session.initial_credits, session.max_in_flight);
        let key = self.add(id, connection, Some(admitted.permit));
        self.tally.connections.accepted.add(1);
        if self.going_away {
            // The client was admitted just before the listener was closed.
            self.links[key.index()].connection.go_away();
            self.owe(key);
        }
        self.expected = self.expected.saturating_sub(1);
        tracing::debug!(connection = %id, window = session.initial_credits, "accepted a client");
    }

    /// Closes the connection of a peer that violated the protocol. Other connections are
    /// unaffected.
    fn violate(&mut self, key: LinkKey, buf: T::RecvBuf, error: ProtocolError) {
        self.transport.release(buf);
        let link = &mut self.links[key.index()];
        tracing::warn!(connection = %link.id, %error, "ending a connection whose peer broke a rule");
        link.ended = Some(CloseReason::Failed(Arc::new(error)));
        self.transport.close(link.id);
    }

    /// Ends all calls of a connection that the transport has closed. Collects the wakers to call.
    fn close(&mut self, id: ConnectionId, reason: CloseReason, own: &Waker) -> Option<LinkKey> {
        let key = self.route(id)?;
        self.routes[id.index as usize] = None;
        let link = &mut self.links[key.index()];
        link.closed = true;
        let reason = match reason {
            CloseReason::PeerGone if link.going_away => CloseReason::GoingAway,
            reason => reason,
        };
        let reason = link.ended.get_or_insert(reason).clone();
        tracing::debug!(connection = %id, %reason, "a connection is closed");
        self.tally.closed(&reason);
        let error = CallError::new(Cause::Disconnected(reason), Execution::MayHaveRun);
        let (timers, wakers, settled) = (&mut self.timers, &mut self.wakers, &mut self.settled);
        let unanswered = link.calls.fail_all(&error, |waiting, timer| {
            collect(waiting, own, wakers, settled);
            if let Some(timer) = timer {
                timers.cancel(timer);
            }
        });
        // One for the credit frame, on either side.
        self.budget
            .give_back(unanswered + link.connection.window_len() + 1);
        Some(key)
    }

    /// Removes a link that has ended in the transport and that no channel uses. The caller must
    /// drop the returned link while nothing is borrowed, because it contains wakers.
    #[must_use]
    fn reap(&mut self, key: LinkKey) -> Option<Link<T::RecvBuf>> {
        let link = self.links.get(key.index())?;
        if !(link.closed && link.handles == 0) {
            return None;
        }
        let mut link = self.links.remove(key.index());
        // The remaining entries belong to leaked futures: a call's future holds its channel, so no
        // future can poll them any more.
        for timer in link.waiters.timers() {
            self.timers.cancel(timer);
        }
        link.calls.copy_answers_out(|buf| {
            self.transport.release(buf);
            self.budget.give_back(1);
        });
        if link.is_server() {
            self.expected += 1;
        }
        Some(link)
    }

    /// Returns the receives by which windows may grow: those not set aside for future connections.
    pub(crate) fn free_for_growth(&self) -> u32 {
        let set_aside = self.expected.saturating_mul(self.initial_window + 1);
        self.budget.left().saturating_sub(set_aside)
    }

    /// Records that the credit of a request is owed and that no response carries it now.
    pub(crate) fn owe(&mut self, key: LinkKey) {
        if let Some(link) = self.links.get_mut(key.index())
            && !std::mem::replace(&mut link.owes, true)
        {
            self.owing.push(key);
        }
    }

    /// Releases the slot of a response, and the promise made for it.
    pub(crate) fn release_answer(&mut self, buf: T::RecvBuf) {
        self.transport.release(buf);
        self.budget.give_back(1);
    }

    pub(crate) fn discard_answer(&mut self, answer: Answer<T::RecvBuf>) {
        if let Answer::Slot(buf) = answer {
            self.release_answer(buf);
        }
    }

    /// Promises a receive for a response. If none is left, first copies responses that have not
    /// been taken yet out of their slots.
    pub(crate) fn promise_receive(&mut self) -> bool {
        if self.budget.take(1) {
            return true;
        }
        let mut slots = Vec::new();
        for (_, link) in &mut self.links {
            link.calls.copy_answers_out(|buf| slots.push(buf));
        }
        for buf in slots {
            self.release_answer(buf);
        }
        self.budget.take(1)
    }

    fn call_waiters_up(&mut self) {
        let (links, wakers) = (&mut self.links, &mut self.wakers);
        self.waiting.retain(|key| {
            let Some(link) = links.get_mut(key.index()) else {
                return false;
            };
            // On a link that has ended or is about to, wake all waiters, so that they fail as never
            // sent.
            let room = if link.ended.is_some() || link.going_away {
                u32::MAX
            } else {
                link.connection.requests_allowed()
            };
            link.waiters.call_up(room, |waker| wakers.push(waker));
            !link.waiters.is_empty()
        });
    }

    pub(crate) fn send_owed_credits(&mut self) {
        let (links, transport) = (&mut self.links, &mut self.transport);
        // Each is tried once: a link whose peer receives nothing must not hold up the others.
        self.owing.retain(|key| {
            let Some(link) = links.get_mut(key.index()) else {
                return false;
            };
            link.owes = false;
            if link.ended.is_some() {
                return false;
            }
            if !link.connection.wants_credit_frame() {
                // If a client has yet to be notified of the shutdown and cannot be now, keep the
                // link.
                link.owes = link.connection.has_to_tell();
                return link.owes;
            }
            match transport.reserve(link.id, HEADER_LEN) {
                Ok(mut buf) => {
                    let header = link.connection.poll_header(FrameKind::Credit, CallId(0), 0);
                    header.emit(buf.as_mut());
                    self.tally.credits.frames_sent.add(1);
                    // If the connection has ended, its credits no longer matter.
                    let _ = transport.send(link.id, buf);
                }
                Err(ReserveError::NoSlot) => link.owes = true,
                Err(_) => {}
            }
            link.owes
        });
    }
}

/// Records the target to notify of the end of a call, for when nothing is borrowed.
fn collect(waiting: WhoWaits, own: &Waker, wakers: &mut Vec<Waker>, settled: &mut Vec<u32>) {
    match waiting {
        WhoWaits::Nobody => {}
        WhoWaits::BlockOn => wakers.push(own.clone()),
        WhoWaits::Task(waker) => wakers.push(waker),
        WhoWaits::Ticket(ticket) => settled.push(ticket),
    }
}

impl<B> Link<B> {
    /// Returns true if this is the server's side. Only that side holds a permit of the admission.
    pub(crate) fn is_server(&self) -> bool {
        self.permit.is_some()
    }
}

#[cfg(feature = "test-util")]
impl<B> Link<B> {
    /// Returns the number of receives promised to the peer while no call is in flight.
    fn promised(&self) -> u32 {
        if self.closed {
            0
        } else {
            self.connection.window_len() + 1
        }
    }
}

impl LinkKey {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    #[cfg(test)]
    pub(crate) fn test(index: u32) -> Self {
        Self(index)
    }
}

/// Marks this thread as inside a turn until dropped, even by a panic.
struct TurnMark<'a> {
    turning: &'a Cell<bool>,
    before: bool,
}

impl<'a> TurnMark<'a> {
    fn set(turning: &'a Cell<bool>) -> Self {
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
