//! [`Poller`] is a driver with the type of its transport erased, for those who make calls.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::call_table::WhoWaits;
use super::link::LinkKey;
use super::own_waker::OwnWaker;
use super::waiters::WaiterKey;
use crate::call_error::CallError;
use crate::limits::Limits;
use crate::protocol::frame::CallId;
use crate::protocol::session::ServerSession;
use crate::stats::PollerTally;
use crate::transport::{ConnectError, Counters};

/// A call that is to be sent.
pub(crate) struct Outgoing<'a> {
    /// The method's number on this connection.
    pub(crate) method: u16,
    pub(crate) deadline: Option<Instant>,
    pub(crate) metadata_len: usize,
    pub(crate) message_len: usize,
    /// Writes metadata and message, one behind the other, to a buffer of both lengths.
    pub(crate) write: &'a mut dyn FnMut(&mut [u8]),
}

/// Who makes a call, and is told of its end.
#[derive(Clone, Copy)]
pub(crate) enum Asker<'a> {
    /// A future, polled with this waker; with its place in the queue if it has waited.
    Future(&'a Waker, Option<WaiterKey>),
    /// The holder of a ticket of the shared channel.
    Ticket(u32),
}

/// What became of an attempt to send a call.
#[derive(Debug)]
pub(crate) enum Begun {
    /// It is on its way, and is woken when its answer has come.
    Sent(CallId),
    /// It has to wait, under this key, and is woken.
    Waiting(WaiterKey),
    /// It has no room yet: the shared channel's own queue keeps it.
    NoRoom,
    /// It will never be sent.
    Failed(CallError),
}

/// What there is for a call on its way.
#[derive(Debug)]
pub(crate) enum Polled {
    /// Nothing yet; it is woken.
    Pending,
    /// Its answer was handed to `receive`.
    Received,
    /// It has ended without one.
    Failed(CallError),
}

/// What a connected channel is made of.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) link: LinkKey,
    pub(crate) session: ServerSession,
}

/// A driver, with the type of its transport erased.
pub(crate) trait Poller {
    fn connect(&self, address: &str, timeout: Duration) -> Result<Joined, ConnectError>;
    /// Sends a call, or queues it.
    fn begin(&self, link: LinkKey, call: Outgoing<'_>, asker: Asker<'_>) -> Begun;
    /// Takes the answer of a call, if it has come, and hands the frame to `receive`.
    fn poll_answer(
        &self,
        link: LinkKey,
        call: CallId,
        deadline: Option<Instant>,
        asker: Asker<'_>,
        receive: &mut dyn FnMut(&[u8]),
    ) -> Polled;
    /// A call's future goes away.
    fn abandon(&self, link: LinkKey, call: CallId);
    /// A waiting call's future goes away.
    fn leave(&self, link: LinkKey, waiter: WaiterKey);
    fn hold(&self, link: LinkKey);
    fn let_go(&self, link: LinkKey);
    fn deadline_after(&self, timeout: Duration) -> Option<Instant>;
    /// Takes a turn; whether it found anything to do.
    fn turn(&self) -> bool;
    /// Sleeps until something comes; see [`Driver::sleep`](super::Driver::sleep).
    fn sleep(&self, how_long: &dyn Fn() -> Option<Duration>);
    fn is_turning(&self) -> bool;
    /// What `block_on` waits with.
    fn own_waker(&self) -> &OwnWaker;
    /// Runs `work` as a part of a turn.
    fn inside_turn(&self, work: &mut dyn FnMut());
    fn limits(&self) -> Limits;
    fn counters(&self) -> Counters;
    /// What it counts.
    fn tally(&self) -> &Arc<PollerTally>;
    /// See [`Driver::publish`](super::Driver::publish).
    fn publish(&self);
}

impl Asker<'_> {
    pub(super) fn waiter(self) -> Option<WaiterKey> {
        match self {
            Asker::Future(_, waiter) => waiter,
            Asker::Ticket(_) => None,
        }
    }

    pub(super) fn waits(self, own: &OwnWaker) -> WhoWaits {
        match self {
            Asker::Future(waker, _) => own.waiting(waker),
            Asker::Ticket(ticket) => WhoWaits::Ticket(ticket),
        }
    }
}
