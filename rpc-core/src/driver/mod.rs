//! [`Driver`]: the work of one poller's thread, turn by turn ([`turn`]).
//!
//! The state is never borrowed across application code: encoding, decoding, handlers, wakers and
//! destructors all run while nothing is borrowed, so they may reenter the poller.

pub(crate) mod age;
pub(crate) mod block_on_waker;
mod bodies;
pub(crate) mod body;
pub(crate) mod call_origin;
pub(crate) mod call_table;
mod connect;
mod credits;
mod deferred;
mod endings;
mod entries;
mod erased;
mod frames;
pub(crate) mod handle;
mod handlers;
mod held_memory;
pub(crate) mod held_permit;
mod incoming;
#[cfg(feature = "test-util")]
mod leftovers;
pub(crate) mod link;
mod link_bodies;
mod link_streams;
mod links;
mod long_messages;
mod outbox;
pub(crate) mod outgoing;
mod ready;
mod request_permit;
mod request_queue;
mod respond;
mod responses;
mod resume;
mod room;
mod run_queue;
pub(crate) mod running_handler;
mod served_streams;
mod sleep;
pub(crate) mod streams;
#[cfg(debug_assertions)]
mod sums;
mod table;
pub(crate) mod tasks;
pub(crate) mod timers;
pub(crate) mod turn;
mod upkeep;
mod visits;
pub(crate) mod waiters;
mod waiting;
pub(crate) mod wakeup;

use std::cell::{Cell, RefCell, RefMut};
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use self::age::ConnectionAge;
use self::block_on_waker::BlockOnWaker;
use self::bodies::Bodies;
use self::call_table::WakeTarget;
use self::endings::Endings;
use self::handle::SendLimits;
use self::handlers::LentTask;
use self::link::{Link, LinkKey, LinkState};
use self::link_bodies::{IncomingKey, TransferKey};
use self::link_streams::StreamKey;
use self::links::Links;
use self::ready::ReadyQueue;
use self::responses::Responses;
use self::run_queue::RunQueue;
use self::running_handler::RunningHandler;
use self::streams::Streams;
use self::tasks::{TaskKey, Tasks};
use self::waiters::WaiterKey;
use self::wakeup::Wakeup;
use crate::clock::Clock;
use crate::codec::MessageBuf;
use crate::protocol::frame::CallId;
use crate::protocol::inline_frame::{INLINE_FRAME_LEN, SpareFrame};
use crate::protocol::shares::Shares;
use crate::service::dispatch::Methods;
use crate::stats::{ConnectionMemory, PollerCounters};
use crate::stream::wakers::wake_all;
use crate::transport::{CloseReason, Transport};

/// The connections, calls and tasks of one poller, over its transport.
pub(crate) struct Driver<T: Transport> {
    pub(crate) state: RefCell<State<T>>,
    pub(crate) methods: RefCell<Methods>,
    pub(crate) tasks: RefCell<Tasks>,
    pub(crate) clock: Clock,
    /// The waker of `block_on`.
    pub(crate) block_on_waker: BlockOnWaker,
    /// Notified by other threads that have work for this poller.
    pub(crate) wakeup: Arc<Wakeup>,
    /// Read by the server's watchdog.
    pub(crate) running_handler: Arc<RunningHandler>,
    /// This poller's counters, readable from any thread.
    pub(crate) counters: Arc<PollerCounters>,
    /// The same queue as in `tasks`, because every turn checks it.
    pub(crate) ready: Arc<ReadyQueue>,
    /// A spare frame, for responses.
    inline_frame: SpareFrame,
    /// A spare frame, for messages of streams: a handler that sends one has the other frame.
    lone_frame: SpareFrame,
    /// Length of the longest frame that is sent inline.
    longest_inline: usize,
    /// True if the server has rules for deadlines, so that every request needs the time.
    has_deadline_policy: Cell<bool>,
    /// The task whose waker the next handler is polled with for the first time.
    lent_task: Cell<Option<LentTask>>,
    turning: Cell<bool>,
    /// True if the previous turn handled an event.
    was_busy: Cell<bool>,
    turns: Cell<u32>,
    /// When the poller last took all events that there were: requests that it finds from now on have
    /// arrived since. `None` after a turn that found nothing, and while the clock is not read.
    looked_at: Cell<Option<Instant>>,
}

/// The state that is borrowed between calls of application code. Each part changes only those before
/// it: what one part has to tell a later one, it returns.
pub(crate) struct State<T: Transport> {
    pub(crate) links: Links<T>,
    pub(super) bodies: Bodies<T>,
    pub(super) streams: Streams,
    /// Links with requests that have been received and not begun.
    run_queue: RunQueue,
    responses: Responses,
    endings: Endings,
}

/// The target of a deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimerTarget {
    Call(LinkKey, CallId),
    Waiter(LinkKey, WaiterKey),
    Task(TaskKey),
    Stream(StreamKey),
    /// A long message of this side whose receiver has to release it.
    Release(TransferKey),
    /// A long message that has not arrived in full.
    Incoming(IncomingKey),
}

impl<T: Transport> Driver<T> {
    pub(crate) fn new(transport: T, methods: Methods, clock: Clock) -> Self {
        let shares = Shares::from_limits(transport.limits());
        let wakeup = Arc::new(Wakeup::new(transport.waker()));
        let longest_inline = transport.limits().max_inline_len.min(INLINE_FRAME_LEN);
        let tasks = Tasks::new(Arc::clone(&wakeup), methods.max_concurrent_calls());
        // Without methods, nobody connects to this poller.
        let expected_connections = if methods.is_empty() {
            0
        } else {
            shares.connections
        };
        let counters = Arc::new(PollerCounters::new(
            methods.numbered().map(|(_, spec)| spec.path),
            clock.clone(),
            transport.limits(),
            transport.counter_reader(),
        ));
        Self {
            ready: tasks.ready(),
            block_on_waker: BlockOnWaker::new(Arc::clone(&wakeup)),
            wakeup,
            running_handler: Arc::default(),
            counters: Arc::clone(&counters),
            state: RefCell::new(State {
                links: Links::new(transport, counters, clock.clone(), expected_connections),
                bodies: Bodies::default(),
                streams: Streams::new(tasks.ready()),
                run_queue: RunQueue::default(),
                responses: Responses::default(),
                endings: Endings::default(),
            }),
            tasks: RefCell::new(tasks),
            has_deadline_policy: Cell::new(!methods.deadline_policy().is_empty()),
            methods: RefCell::new(methods),
            clock,
            inline_frame: SpareFrame::default(),
            lone_frame: SpareFrame::default(),
            longest_inline,
            lent_task: Cell::new(None),
            turning: Cell::new(false),
            was_busy: Cell::new(false),
            turns: Cell::new(0),
            looked_at: Cell::new(None),
        }
    }

    /// Allocates memory for a message: registered, if there is some, or the heap's.
    pub(crate) fn allocate_message(&self, len: usize) -> MessageBuf {
        match self.state.borrow_mut().links.transport.allocate(len) {
            Ok(memory) => MessageBuf::registered(Box::new(memory), len),
            Err(_) => MessageBuf::heap(len),
        }
    }

    /// Returns true if a client is still owed a response.
    pub(crate) fn is_serving(&self) -> bool {
        let state = self.state.borrow();
        self.tasks.borrow().parked() > 0
            || !state.responses.blocked.is_empty()
            || !state.run_queue.is_empty()
            || state.streams.serves_any()
            || !state.bodies.is_empty()
    }

    /// Closes a link, because its last channel was dropped. It is removed when its calls have
    /// ended.
    pub(crate) fn close_link(&self, key: LinkKey) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        if let Some(link) = state.links.table.get_mut(key)
            && link.ended.is_none()
        {
            link.ended = Some(CloseReason::Local);
            state.links.transport.close(link.id);
        }
        let reaped = state.links.reap(key);
        drop(borrowed);
        drop(reaped);
    }

    /// Closes a link whose last channel was dropped, as soon as it has no streams.
    pub(crate) fn close_unused_link(&self, key: LinkKey) {
        let mut state = self.state.borrow_mut();
        let link = state.links.table.get_mut(key);
        if let Some(link) = link.filter(|link| link.streams.open > 0) {
            link.streams.is_orphaned = true;
            return;
        }
        drop(state);
        self.close_link(key);
    }

    /// Returns the state of a link.
    pub(crate) fn link_state(&self, key: LinkKey) -> LinkState {
        match self.state.borrow().links.table.get(key) {
            Some(link) if link.ended.is_none() && link.going_away => LinkState::GoingAway,
            Some(link) if link.ended.is_none() => LinkState::Up,
            _ => LinkState::Ended,
        }
    }

    /// Returns what may be sent on a link.
    pub(crate) fn send_limits(&self, key: LinkKey) -> SendLimits {
        self.state.borrow().links.send_limits(key)
    }

    /// Returns the reason that a link has ended, or is about to.
    pub(crate) fn close_reason(&self, key: LinkKey) -> Option<CloseReason> {
        let state = self.state.borrow();
        state.links.table.get(key)?.end()
    }

    /// Returns true if a call of a link has got its response.
    pub(crate) fn has_served(&self, key: LinkKey) -> bool {
        let state = self.state.borrow();
        let link = state.links.table.get(key);
        link.is_some_and(|link| match link.closed {
            true => link.has_served,
            false => link.calls.has_completed(),
        })
    }

    /// Returns the number of a link's calls whose response has not arrived or has not been taken.
    pub(crate) fn calls_in_flight(&self, key: LinkKey) -> usize {
        let state = self.state.borrow();
        state
            .links
            .table
            .get(key)
            .map_or(0, |link| link.calls.len())
    }

    /// Returns the number of a link's streams that have not ended on both sides.
    pub(crate) fn streams_open(&self, key: LinkKey) -> u32 {
        let state = self.state.borrow();
        let link = state.links.table.get(key);
        link.map_or(0, |link| link.streams.open)
    }

    /// Ends the connections of clients that connect from now on at this age.
    pub(crate) fn limit_connection_age(&self, age: ConnectionAge) {
        self.state.borrow_mut().links.connection_age = Some(age);
    }

    /// Begins the server's shutdown: announces it to current clients and to any accepted later.
    pub(crate) fn go_away(&self) {
        let state = &mut *self.state.borrow_mut();
        state.links.going_away = true;
        let connections = state.links.table.len();
        tracing::info!(
            connections,
            "shutting down: notifying clients to start no more calls"
        );
        for (key, link) in state.links.table.iter_mut() {
            if link.is_server() {
                link.connection.go_away();
                state.links.outbox.control.insert(key);
                state.links.outbox.note_any();
            }
        }
        state.send_control_frames();
        state.links.flush();
    }

    /// Returns true if no client can send further requests or still expects a response.
    pub(crate) fn are_clients_finished(&self) -> bool {
        let state = self.state.borrow();
        let mut links = state.links.table.values();
        links.all(|link| !link.is_server() || link.ended.is_some() || link.is_finished())
    }

    /// Closes all connections, for a poller that stops.
    pub(crate) fn close_all(&self) {
        let state = &mut *self.state.borrow_mut();
        for link in state.links.table.values_mut() {
            if link.ended.is_none() {
                link.ended = Some(CloseReason::Local);
                state.links.transport.close(link.id);
            }
        }
    }

    /// Returns true if no connection is open, or still ends.
    pub(crate) fn is_closed(&self) -> bool {
        let state = self.state.borrow();
        state.endings.is_empty() && state.links.table.values().all(|link| link.closed)
    }

    /// Drops the parts of messages that have been sent, while nothing is borrowed.
    pub(super) fn drop_spent(&self) {
        let mut spent = mem::take(&mut self.state.borrow_mut().bodies.sending.spent);
        spent.clear();
        let mut state = self.state.borrow_mut();
        if state.bodies.sending.spent.is_empty() {
            state.bodies.sending.spent = spent;
        }
    }

    /// Wakes the caller of a call that has ended.
    #[inline(always)]
    pub(super) fn wake_caller(&self, mut state: RefMut<'_, State<T>>, caller: WakeTarget) {
        match caller {
            WakeTarget::BlockOn => self.block_on_waker.wake(),
            WakeTarget::Permit(permit) => state.links.settled.push(permit),
            WakeTarget::None | WakeTarget::Stream(_) => {}
            WakeTarget::Task(waker) => {
                drop(state);
                waker.wake();
            }
        }
    }

    pub(crate) fn wake_collected(&self) {
        let mut wakers = mem::take(&mut self.state.borrow_mut().links.wakers);
        wake_all(wakers.drain(..));
        let mut state = self.state.borrow_mut();
        if state.links.wakers.is_empty() {
            state.links.wakers = wakers;
        }
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
        stalls
            .responses_waiting
            .set(state.responses.blocked.len() as u64);
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
