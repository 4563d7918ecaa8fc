//! [`Poller`]: a driver with the type of its transport erased, as used by the code that makes
//! calls.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::block_on_waker::BlockOnWaker;
use super::link::LinkKey;
use super::waiters::WaiterKey;
use crate::call_error::CallError;
use crate::limits::Limits;
use crate::protocol::frame::CallId;
use crate::protocol::session::ServerSession;
use crate::stats::PollerCounters;
use crate::transport::{ConnectError, Counters};

/// A call to send.
pub(crate) struct Outgoing<'a> {
    /// The method's number on this connection.
    pub(crate) method: u16,
    pub(crate) deadline: Option<Instant>,
    pub(crate) metadata_len: usize,
    pub(crate) message_len: usize,
    /// Writes metadata and message, in this order, to a buffer of their total length.
    pub(crate) write: &'a mut dyn FnMut(&mut [u8]),
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
    /// The response was passed to `receive`.
    Received,
    /// The call has ended without a response.
    Failed(CallError),
}

/// A new connection, from which a channel is built.
#[derive(Debug)]
pub(crate) struct ConnectedLink {
    pub(crate) link: LinkKey,
    pub(crate) session: ServerSession,
}

/// A driver with the type of its transport erased.
pub(crate) trait Poller {
    fn connect(&self, address: &str, timeout: Duration) -> Result<ConnectedLink, ConnectError>;
    /// Sends the call of a future that is polled with `waker`, or queues it. `waiter` is its queue
    /// entry if it has waited.
    fn begin(
        &self,
        link: LinkKey,
        call: Outgoing<'_>,
        waker: &Waker,
        waiter: Option<WaiterKey>,
    ) -> BeginOutcome<WaiterKey>;
    /// Takes the response of a call, if it has arrived, and passes the frame to `receive`.
    /// Otherwise registers `waker`.
    fn poll_response(
        &self,
        link: LinkKey,
        call: CallId,
        deadline: Option<Instant>,
        waker: &Waker,
        receive: &mut dyn FnMut(&[u8]),
    ) -> PollOutcome;
    /// Abandons a call whose future is dropped.
    fn abandon(&self, link: LinkKey, call: CallId);
    /// Removes a waiting call whose future is dropped.
    fn leave(&self, link: LinkKey, waiter: WaiterKey);
    fn acquire_ref(&self, link: LinkKey);
    fn release_ref(&self, link: LinkKey);
    fn deadline_after(&self, timeout: Duration) -> Option<Instant>;
    /// Takes a turn. Returns true if any event arrived.
    fn turn(&self) -> bool;
    /// Sleeps until there is work: see [`Driver::sleep`](super::Driver::sleep).
    fn sleep(&self, how_long: &dyn Fn() -> Option<Duration>);
    fn is_turning(&self) -> bool;
    /// Returns the waker of `block_on`.
    fn block_on_waker(&self) -> &BlockOnWaker;
    /// Runs `work` as a part of a turn: see [`Driver::run_in_turn`](super::Driver::run_in_turn).
    fn run_in_turn(&self, work: &mut dyn FnMut());
    fn limits(&self) -> Limits;
    fn transport_counters(&self) -> Counters;
    /// Returns the poller's counters.
    fn poller_counters(&self) -> &Arc<PollerCounters>;
    /// See [`Driver::update_gauges`](super::Driver::update_gauges).
    fn update_gauges(&self);
}
