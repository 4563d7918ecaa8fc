//! [`Driver`]: the work of one poller's thread, turn by turn ([`turn`]).
//!
//! The state is never borrowed across application code: encoding, decoding, handlers, wakers and
//! destructors all run while nothing is borrowed, so they may reenter the poller.

pub(crate) mod age;
pub(crate) mod block_on_waker;
pub(crate) mod call_origin;
pub(crate) mod call_table;
mod connect;
mod credits;
mod deferred;
mod erased;
pub(crate) mod handle;
mod held_memory;
pub(crate) mod held_permit;
mod incoming;
#[cfg(feature = "test-util")]
mod leftovers;
pub(crate) mod link;
mod link_streams;
mod link_transfers;
mod links;
mod long_responses;
pub(crate) mod outgoing;
mod ready;
mod request_permit;
mod request_queue;
pub(crate) mod response;
mod responses;
mod resume;
mod room;
mod run_queue;
pub(crate) mod running_handler;
mod sleep;
pub(crate) mod streams;
pub(crate) mod tasks;
pub(crate) mod timers;
mod transfers;
pub(crate) mod turn;
mod visits;
pub(crate) mod waiters;
pub(crate) mod wakeup;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use slab::Slab;

use self::age::ConnectionAge;
use self::block_on_waker::BlockOnWaker;
use self::held_permit::HeldPermit;
use self::incoming::LentTask;
use self::link::{Link, LinkKey};
use self::link_streams::StreamKey;
use self::link_transfers::{IncomingKey, TransferKey};
use self::ready::ReadyQueue;
use self::responses::Blocked;
use self::run_queue::RunQueue;
use self::running_handler::RunningHandler;
use self::streams::Streams;
use self::tasks::{TaskKey, Tasks};
use self::timers::Timers;
use self::transfers::Transfers;
use self::waiters::WaiterKey;
use self::wakeup::Wakeup;
use crate::clock::Clock;
use crate::codec::MessageBuf;
use crate::protocol::credit::ReceiveBudget;
use crate::protocol::frame::CallId;
use crate::protocol::inline_frame::{INLINE_FRAME_LEN, SpareFrame};
use crate::protocol::shares::Shares;
use crate::service::dispatch::Methods;
use crate::stats::PollerCounters;
use crate::transport::{ConnectionId, Transport};

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

/// The state that is borrowed between calls of application code.
pub(crate) struct State<T: Transport> {
    pub(crate) transport: T,
    /// True if a frame was sent since the last flush.
    unflushed: bool,
    /// Shared with the driver.
    pub(crate) counters: Arc<PollerCounters>,
    pub(crate) links: Slab<Link<T::RecvBuf>>,
    /// Maps the transport's connection index to the link.
    routes: Vec<Option<(ConnectionId, LinkKey)>>,
    pub(crate) budget: ReceiveBudget,
    /// Receives that the transport keeps posted, for promises and for those that are set aside.
    posted_for: u32,
    /// The number of promises up to which those receives suffice.
    promisable: u32,
    /// The last receives, which are kept for links with fewer unary calls than `link_share`: so that a
    /// server that does not answer leaves some to the others. 0 unless links are shared out.
    kept_receives: u32,
    link_share: u32,
    /// Links of which this side is the client.
    client_links: u32,
    clock: Clock,
    pub(crate) timers: Timers<TimerTarget>,
    pub(super) streams: Streams,
    pub(super) transfers: Transfers<T::Memory>,
    /// The queue through which streams tell this poller that they have work.
    signals: Arc<ReadyQueue>,
    longest_inline: usize,
    /// Links with requests that have been received and not begun.
    run_queue: RunQueue,
    /// Responses that found no free send slot, oldest first.
    pub(crate) blocked: VecDeque<Blocked>,
    /// Links that owe credits that no response carried, each at most once.
    pub(crate) owing: Vec<LinkKey>,
    /// Connections that the admission may still accept, and the initial window of each. Growing
    /// windows leave this part of the budget free.
    expected_connections: u32,
    initial_window: u32,
    /// Links with waiting calls.
    pub(crate) waiting: Vec<LinkKey>,
    /// Time of the latest check by [`Driver::on_idle`].
    pub(crate) idle_checked_at: Option<Instant>,
    /// True once the server has begun to shut down.
    pub(crate) going_away: bool,
    /// How old the connections of clients may be.
    pub(super) connection_age: Option<ConnectionAge>,
    /// Wakers to call as soon as the state is no longer borrowed.
    wakers: Vec<Waker>,
    /// Permits of shared channels whose calls have to be polled.
    pub(crate) settled: Vec<HeldPermit>,
    /// True if the server of a link has begun to shut down, or if a link has ended, since a poller
    /// of shared channels last looked.
    pub(crate) links_changed: bool,
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
        let budget = ReceiveBudget::new(transport.limits().promisable_receives());
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
                transport,
                unflushed: false,
                counters,
                links: Slab::new(),
                routes: Vec::new(),
                budget,
                posted_for: 0,
                promisable: 0,
                kept_receives: 0,
                link_share: 0,
                client_links: 0,
                clock: clock.clone(),
                timers: Timers::default(),
                streams: Streams::default(),
                transfers: Transfers::default(),
                signals: tasks.ready(),
                longest_inline,
                run_queue: RunQueue::default(),
                blocked: VecDeque::new(),
                owing: Vec::new(),
                expected_connections,
                initial_window: shares.initial_window,
                waiting: Vec::new(),
                idle_checked_at: None,
                going_away: false,
                connection_age: None,
                wakers: Vec::new(),
                settled: Vec::new(),
                links_changed: false,
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
        match self.state.borrow_mut().transport.allocate(len) {
            Ok(memory) => MessageBuf::registered(Box::new(memory), len),
            Err(_) => MessageBuf::heap(len),
        }
    }

    /// Returns true if a client is still owed a response.
    pub(crate) fn is_serving(&self) -> bool {
        let state = self.state.borrow();
        self.tasks.borrow().parked() > 0
            || !state.blocked.is_empty()
            || !state.run_queue.is_empty()
            || state.streams.serves_any()
            || !state.transfers.is_empty()
    }
}
