//! [`Poller`]: a driver with the type of its transport erased, as used by the code that makes
//! calls.

use std::cell::Cell;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::block_on_waker::BlockOnWaker;
use super::body::BodyRef;
use super::link::LinkKey;
use super::waiters::WaiterKey;
use crate::call_error::CallError;
use crate::codec::{Chunks, MessageBuf};
use crate::limits::{Limits, MessageLimit};
use crate::method::MethodSpec;
use crate::protocol::frame::{CallId, HEADER_LEN, ResponseHead};
use crate::protocol::session::ServerSession;
use crate::stats::{CalledStream, ConnectionMemory, PollerCounters};
use crate::stream::core::StreamCore;
use crate::stream::turns::{LocalTurns, LoneMessage};
use crate::transport::{ConnectError, MessageMemory};

/// A request to send, apart from its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHead {
    /// The method's number on this connection.
    pub(crate) method: u16,
    pub(crate) deadline: Option<Instant>,
    pub(crate) metadata_len: usize,
    pub(crate) message_len: usize,
}

impl RequestHead {
    /// Returns the length of the whole frame.
    #[inline]
    pub(crate) fn frame_len(&self) -> usize {
        HEADER_LEN + self.metadata_len + self.message_len
    }
}

/// A request that opens a stream.
pub(crate) struct StreamRequest {
    pub(crate) spec: &'static MethodSpec,
    /// The method's number on the connection that opens the stream, which sets it.
    pub(crate) method: u16,
    /// Set with the method's number: only the poller's thread counts.
    pub(crate) counters: CalledStream,
    pub(crate) deadline: Option<Instant>,
    /// `None`: as the channel says.
    pub(crate) waits_for_ready: Option<bool>,
    /// The client sends messages after the request, which has none itself.
    pub(crate) sends_messages: bool,
    pub(crate) metadata_len: usize,
    /// The frame: room for the header, metadata, message. Complete but for its header.
    pub(crate) frame: Vec<u8>,
    /// The message, if it was encoded in parts. The frame has none then.
    pub(crate) message: Chunks,
}

/// The outcome of an attempt to send a call.
///
/// `W` is what a call that has to wait gets, which depends on its origin: see
/// [`CallOrigin::Waiting`](super::call_origin::CallOrigin::Waiting).
#[derive(Debug)]
pub(crate) enum BeginOutcome<W> {
    /// The call was sent. Its origin is notified when the response arrives.
    Sent(CallId),
    /// There is no capacity yet.
    Waiting(W),
    /// The call will never be sent.
    Failed(CallError),
}

/// The result of polling a call in flight.
#[derive(Debug)]
pub(crate) enum PollOutcome {
    /// There is no response yet. The origin is notified when there is.
    Pending,
    /// The response has arrived. Its body, of this length, was copied or passed on.
    Received { head: ResponseHead, len: usize },
    /// The response has arrived, but its body is longer than the memory for it.
    Long,
    /// The call has ended without a response.
    Failed(CallError),
}

/// The greatest lengths in bytes that may be sent on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendLimits {
    /// Length of the longest frame.
    pub(crate) frame: usize,
    /// The limit of a message.
    pub(crate) message: MessageLimit,
}

impl SendLimits {
    /// Returns the limit of a method's requests.
    pub(crate) fn message_of(&self, method: &MethodSpec) -> MessageLimit {
        self.message.and_method(method.max_request_len)
    }
}

/// A new connection, from which a channel is built.
#[derive(Debug)]
pub(crate) struct ConnectedLink {
    pub(crate) link: LinkKey,
    pub(crate) session: ServerSession,
    pub(crate) lengths: SendLimits,
}

/// A driver with the type of its transport erased.
pub(crate) trait Poller {
    fn connect(&self, address: &str, timeout: Duration) -> Result<ConnectedLink, ConnectError>;
    /// Sends the call of a future that is polled with `waker`, unless something is in its way:
    /// [`begin_inline`](Self::begin_inline) tries again, and says what. `frame` is complete but for
    /// its header.
    fn send_inline(
        &self,
        link: LinkKey,
        request: &RequestHead,
        frame: &mut [u8],
        waker: &Waker,
    ) -> Option<CallId>;
    /// Sends the call of a future that is polled with `waker`, or queues it. `frame` is complete but
    /// for its header. `waiter` is the call's queue entry if it has waited.
    fn begin_inline(
        &self,
        link: LinkKey,
        request: &RequestHead,
        frame: &mut [u8],
        waker: &Waker,
        waiter: Option<WaiterKey>,
    ) -> BeginOutcome<WaiterKey>;
    /// Like [`begin_inline`](Self::begin_inline), for a request that is too long for an inline frame.
    /// `write` encodes metadata and message, in this order, into a buffer of their total length.
    fn begin_long(
        &self,
        link: LinkKey,
        request: &RequestHead,
        write: &mut dyn FnMut(&mut [u8]),
        waker: &Waker,
        waiter: Option<WaiterKey>,
    ) -> BeginOutcome<WaiterKey>;
    /// Like [`begin_inline`](Self::begin_inline), for a request whose message does not fit a frame.
    /// Takes the message if the call is sent.
    fn begin_chunks(
        &self,
        link: LinkKey,
        request: &RequestHead,
        metadata: &[u8],
        message: &mut Chunks,
        waker: &Waker,
        waiter: Option<WaiterKey>,
    ) -> BeginOutcome<WaiterKey>;
    /// Returns memory for encoding a long message, if it serves better than the heap.
    fn allocate_for(&self, link: LinkKey, len: usize) -> Option<Box<dyn MessageMemory>>;
    /// Takes the response of a call, if it has arrived, and copies its body into `body` if it fits.
    /// If there is none yet, registers `waker`.
    fn take_response(
        &self,
        link: LinkKey,
        call: CallId,
        deadline: Option<Instant>,
        waker: &Waker,
        body: &mut [u8],
    ) -> PollOutcome;
    /// Takes the response of a call, if it has arrived, and passes its body to `receive`. If there is
    /// none yet, registers `waker`.
    fn read_response(
        &self,
        link: LinkKey,
        call: CallId,
        deadline: Option<Instant>,
        waker: &Waker,
        receive: &mut dyn FnMut(ResponseHead, BodyRef<'_>),
    ) -> PollOutcome;
    /// Tells the driver how its streams reach it on this thread.
    fn set_local_turns(&self, turns: LocalTurns);
    /// Creates the state of a client's stream.
    fn new_stream(&self) -> Arc<StreamCore>;
    /// Opens a stream: see [`Driver::open_stream`](super::Driver::open_stream).
    fn open_stream(&self, link: LinkKey, core: Arc<StreamCore>, request: StreamRequest);
    /// Sends a message of a stream: see [`Driver::send_alone`](super::Driver::send_alone).
    fn send_alone(&self, message: &mut LoneMessage<'_>) -> bool;
    /// Abandons a call whose future is dropped.
    fn abandon(&self, link: LinkKey, call: CallId);
    /// Removes a waiting call whose future is dropped.
    fn leave(&self, link: LinkKey, waiter: WaiterKey);
    fn acquire_ref(&self, link: LinkKey);
    fn release_ref(&self, link: LinkKey);
    fn deadline_after(&self, timeout: Duration) -> Option<Instant>;
    /// Takes a turn. Returns true if any event arrived.
    fn turn(&self) -> bool;
    /// Takes turns until peers have been told which of their messages were read.
    fn send_releases(&self);
    /// Sleeps until there is work: see [`Driver::sleep`](super::Driver::sleep).
    fn sleep(&self, how_long: &dyn Fn() -> Option<Duration>);
    /// Returns whether this thread is inside a turn.
    fn turning(&self) -> &Cell<bool>;
    /// Returns the waker of `block_on`.
    fn block_on_waker(&self) -> &BlockOnWaker;
    /// Returns the length of the longest frame that is sent inline.
    fn longest_inline(&self) -> usize;
    /// Allocates memory for a message: registered, if there is some.
    fn allocate(&self, len: usize) -> MessageBuf;
    fn limits(&self) -> Limits;
    /// Returns the poller's counters.
    fn poller_counters(&self) -> &Arc<PollerCounters>;
    /// See [`Driver::update_gauges`](super::Driver::update_gauges).
    fn update_gauges(&self);
    /// See [`Driver::memory_by_connection`](super::Driver::memory_by_connection).
    fn memory_by_connection(&self) -> Vec<ConnectionMemory>;
}
