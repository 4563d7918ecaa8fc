//! [`Driver`]: the work of one poller's thread, turn by turn ([`turn`]).
//!
//! The state is never borrowed across application code: encoding, decoding, handlers, wakers and
//! destructors all run while nothing is borrowed, so they may reenter the poller.

pub(crate) mod age;
mod arrivals;
pub(crate) mod block_on_waker;
mod bodies;
pub(crate) mod body;
pub(crate) mod call_origin;
pub(crate) mod call_table;
pub(crate) mod connections;
mod credits;
mod endings;
mod entries;
mod frames;
pub(crate) mod handle;
mod handlers;
mod held_memory;
pub(crate) mod held_permit;
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
mod room;
mod run_queue;
pub(crate) mod running_handler;
mod served_streams;
mod serving;
mod sleep;
pub(crate) mod streams;
#[cfg(debug_assertions)]
mod sums;
mod table;
pub(crate) mod tasks;
pub(crate) mod timers;
pub(crate) mod turn;
mod upkeep;
pub(crate) mod waiters;
mod waiting;
pub(crate) mod wakeup;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use self::block_on_waker::BlockOnWaker;
use self::bodies::Bodies;
use self::body::BodyRef;
use self::call_origin::CallingFuture;
use self::connections::Connections;
use self::endings::Endings;
use self::handle::{BeginOutcome, ConnectedLink, PollOutcome, Poller, RequestHead, StreamRequest};
use self::handlers::Handlers;
use self::link::LinkKey;
use self::link_bodies::{IncomingKey, TransferKey};
use self::link_streams::StreamKey;
use self::links::Links;
use self::responses::Responses;
use self::run_queue::RunQueue;
use self::serving::Serving;
use self::streams::Streams;
use self::tasks::{TaskKey, Tasks};
use self::waiters::WaiterKey;
use self::wakeup::Wakeup;
use crate::clock::Clock;
use crate::codec::MessageBuf;
use crate::limits::Limits;
use crate::protocol::frame::{CallId, ResponseHead};
use crate::protocol::inline_frame::{INLINE_FRAME_LEN, SpareFrame};
use crate::protocol::shares::Shares;
use crate::service::dispatch::Methods;
use crate::stats::{ConnectionMemory, PollerCounters};
use crate::stream::core::StreamCore;
use crate::stream::turns::{LocalTurns, LoneMessage};
use crate::transport::{Chunks, ConnectError, MessageMemory, Transport};

/// The connections, calls and tasks of one poller, over its transport.
pub(crate) struct Driver<T: Transport> {
    pub(crate) connections: Connections<T>,
    pub(crate) serving: Serving,
    turning: Cell<bool>,
    /// True if the previous turn handled an event.
    was_busy: Cell<bool>,
    turns: Cell<u32>,
}

/// The state that is borrowed between calls of application code. Each part changes only those before
/// it: what one part has to tell a later one, it returns.
pub(crate) struct DriverState<T: Transport> {
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
        let state = DriverState {
            links: Links::new(
                transport,
                Arc::clone(&counters),
                clock.clone(),
                expected_connections,
            ),
            bodies: Bodies::default(),
            streams: Streams::new(tasks.ready()),
            run_queue: RunQueue::default(),
            responses: Responses::default(),
            endings: Endings::default(),
        };
        Self {
            connections: Connections {
                state: RefCell::new(state),
                clock: clock.clone(),
                block_on_waker: BlockOnWaker::new(Arc::clone(&wakeup)),
                wakeup,
                counters: Arc::clone(&counters),
                ready: tasks.ready(),
                lone_frame: SpareFrame::default(),
                longest_inline,
            },
            serving: Serving::new(Handlers::new(
                methods,
                tasks,
                longest_inline,
                counters,
                clock,
            )),
            turning: Cell::new(false),
            was_busy: Cell::new(false),
            turns: Cell::new(0),
        }
    }

    /// Returns true if a client is still owed a response.
    pub(crate) fn is_serving(&self) -> bool {
        let state = self.connections.state.borrow();
        self.serving.handlers.tasks.borrow().parked() > 0
            || !state.responses.blocked.is_empty()
            || !state.run_queue.is_empty()
            || state.streams.serves_any()
            || !state.bodies.is_empty()
    }

    /// Describes everything that is in flight: empty when all calls have ended.
    #[cfg(feature = "test-util")]
    pub(crate) fn leftovers(&self) -> Vec<String> {
        self.connections.leftovers(&self.serving.handlers)
    }

    /// Updates the gauges for other threads: the values that are not counted per call.
    pub(crate) fn update_gauges(&self) {
        let parked = self.serving.handlers.tasks.borrow().parked();
        self.connections.update_gauges(parked);
    }
}

impl<T: Transport> Poller for Driver<T> {
    fn connect(&self, address: &str, timeout: Duration) -> Result<ConnectedLink, ConnectError> {
        let session = self.connections.client_session();
        let connected = self.connections.establish(address, |transport| {
            transport.connect(address, &session, timeout)
        });
        connected.inspect_err(|_| {
            self.connections.counters.connections.not_connected.add(1);
        })
    }

    fn send_inline(
        &self,
        link: LinkKey,
        request: &RequestHead,
        frame: &mut [u8],
        waker: &Waker,
    ) -> Option<CallId> {
        self.connections
            .send_inline_from(link, request, frame, CallingFuture::new(waker))
    }

    fn begin_inline(
        &self,
        link: LinkKey,
        request: &RequestHead,
        frame: &mut [u8],
        waker: &Waker,
        waiter: Option<WaiterKey>,
    ) -> BeginOutcome<WaiterKey> {
        self.connections
            .begin_inline_from(link, request, frame, CallingFuture { waker, waiter })
    }

    fn begin_long(
        &self,
        link: LinkKey,
        request: &RequestHead,
        write: &mut dyn FnMut(&mut [u8]),
        waker: &Waker,
        waiter: Option<WaiterKey>,
    ) -> BeginOutcome<WaiterKey> {
        self.connections
            .begin_long_from(link, request, write, CallingFuture { waker, waiter })
    }

    fn begin_chunks(
        &self,
        link: LinkKey,
        request: &RequestHead,
        metadata: &[u8],
        message: &mut Chunks,
        waker: &Waker,
        waiter: Option<WaiterKey>,
    ) -> BeginOutcome<WaiterKey> {
        let origin = CallingFuture { waker, waiter };
        self.connections
            .begin_chunks_from(link, request, metadata, message, origin)
    }

    fn allocate_for(&self, link: LinkKey, len: usize) -> Option<Box<dyn MessageMemory>> {
        self.connections.allocate_for(link, len)
    }

    fn take_response(
        &self,
        link: LinkKey,
        call: CallId,
        deadline: Option<Instant>,
        waker: &Waker,
        body: &mut [u8],
    ) -> PollOutcome {
        self.connections
            .take_response_from(link, call, deadline, CallingFuture::new(waker), body)
    }

    fn read_response(
        &self,
        link: LinkKey,
        call: CallId,
        deadline: Option<Instant>,
        waker: &Waker,
        receive: &mut dyn FnMut(ResponseHead, BodyRef<'_>),
    ) -> PollOutcome {
        self.connections.read_response_from(
            link,
            call,
            deadline,
            CallingFuture::new(waker),
            receive,
        )
    }

    fn set_local_turns(&self, turns: LocalTurns) {
        self.connections.state.borrow_mut().streams.poller = Some(turns);
    }

    fn new_stream(&self) -> Arc<StreamCore> {
        self.connections.state.borrow_mut().streams.new_core()
    }

    fn open_stream(&self, link: LinkKey, core: Arc<StreamCore>, request: StreamRequest) {
        self.connections.open_stream(link, core, request);
    }

    fn send_alone(&self, message: &mut LoneMessage<'_>) -> bool {
        self.connections.send_alone(message)
    }

    fn abandon(&self, link: LinkKey, call: CallId) {
        self.connections.abandon_call(link, call);
    }

    fn leave(&self, link: LinkKey, waiter: WaiterKey) {
        self.connections.counters.cancels.never_sent.add(1);
        let left = self
            .connections
            .state
            .borrow_mut()
            .links
            .leave(link, Some(waiter));
        drop(left);
    }

    fn acquire_ref(&self, link: LinkKey) {
        self.connections.state.borrow_mut().links[link].handles += 1;
    }

    fn release_ref(&self, link: LinkKey) {
        let mut state = self.connections.state.borrow_mut();
        let entry = &mut state.links[link];
        entry.handles -= 1;
        let last = entry.handles == 0;
        drop(state);
        if last {
            self.connections.close_unused_link(link);
        }
    }

    fn deadline_after(&self, timeout: Duration) -> Option<Instant> {
        crate::clock::deadline_after(self.connections.clock.now(), timeout)
    }

    fn send_releases(&self) {
        Self::send_releases(self);
    }

    fn turn(&self) -> bool {
        Self::turn(self)
    }

    fn sleep(&self, how_long: &dyn Fn() -> Option<Duration>) {
        Self::sleep(self, how_long);
    }

    fn turning(&self) -> &Cell<bool> {
        &self.turning
    }

    fn block_on_waker(&self) -> &BlockOnWaker {
        &self.connections.block_on_waker
    }

    fn longest_inline(&self) -> usize {
        self.connections.longest_inline
    }

    fn allocate(&self, len: usize) -> MessageBuf {
        self.connections.allocate_message(len)
    }

    fn limits(&self) -> Limits {
        self.connections
            .state
            .borrow()
            .links
            .transport
            .limits()
            .clone()
    }

    fn poller_counters(&self) -> &Arc<PollerCounters> {
        &self.connections.counters
    }

    fn update_gauges(&self) {
        Self::update_gauges(self);
    }

    fn memory_by_connection(&self) -> Vec<ConnectionMemory> {
        self.connections.memory_by_connection()
    }
}
