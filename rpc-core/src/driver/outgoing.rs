//! The client's part of the driver: from a call to its response.
//!
//! The types of messages are erased here, and the types of the transport are erased for the
//! callers: a call's future ([`crate::client`]) only uses its poller through [`Poller`].

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use prost::Message;

use super::block_on_waker::BlockOnWaker;
use super::call_origin::{CallOrigin, CallingFuture};
use super::call_table::{ResponseFrame, TakeOutcome};
use super::handle::{BeginOutcome, ConnectedLink, Outgoing, PollOutcome, Poller};
use super::link::LinkKey;
use super::waiters::WaiterKey;
use super::{Driver, State, TimerTarget};
use crate::call_error::{CallError, Cause, Execution};
use crate::limits::Limits;
use crate::protocol::connection::Connection;
use crate::protocol::frame::{CallId, FrameKind, HEADER_LEN, timeout_us};
use crate::protocol::session::{ClientSession, ServerSession, VERSION, clamp_in_flight};
use crate::stats::{Counter, PollerCounters};
use crate::transport::{CloseReason, ConnectError, Connected, Counters, ReserveError, Transport};

impl<T: Transport> Driver<T> {
    /// Encodes this side's session parameters for a handshake.
    pub(crate) fn client_session(&self) -> Vec<u8> {
        let max_in_flight = self.state.borrow().transport.limits().max_in_flight;
        ClientSession {
            version: VERSION,
            max_in_flight: clamp_in_flight(max_in_flight),
        }
        .encode_to_vec()
    }

    /// Adds a connection. `connect` performs its handshake, or has already performed it.
    pub(crate) fn establish(
        &self,
        address: &str,
        connect: impl FnOnce(&mut T) -> Result<Connected, ConnectError>,
    ) -> Result<ConnectedLink, ConnectError> {
        let state = &mut *self.state.borrow_mut();
        // The receive for the server's credit frame.
        if !state.promise_receive() {
            return Err(no_receive_left(address));
        }
        let connected = match connect(&mut state.transport) {
            Ok(connected) => connected,
            Err(error) => {
                state.budget.release(1);
                return Err(error);
            }
        };
        let session = match ServerSession::accept(&connected.session) {
            Ok(session) => session,
            Err(reason) => {
                // The close event will find no link for this connection, so the promise is released
                // here.
                state.budget.release(1);
                state.transport.close(connected.connection);
                return Err(ConnectError::NotVerbline {
                    address: address.to_owned(),
                    reason,
                });
            }
        };
        let max_in_flight = clamp_in_flight(state.transport.limits().max_in_flight);
        let in_flight = session.max_in_flight.min(max_in_flight);
        let connection = Connection::client(session.initial_credits, in_flight);
        let link = state.add_client(connected.connection, connection);
        Ok(ConnectedLink { link, session })
    }

    /// Sends a call or, if it cannot be sent now, queues it as its origin specifies.
    #[inline]
    pub(crate) fn begin_from<A: CallOrigin>(
        &self,
        link: LinkKey,
        call: Outgoing<'_>,
        origin: A,
    ) -> BeginOutcome<A::Waiting> {
        let now = call.deadline.map(|_| self.clock.now());
        let metadata_len = call.metadata_len;
        let frame_len = HEADER_LEN + metadata_len + call.message_len;
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let Some(entry) = state.links.get_mut(link.index()) else {
            return BeginOutcome::Failed(never_sent(Cause::Disconnected(CloseReason::Local)));
        };
        let failure = if let Some(reason) = &entry.ended {
            Some(Cause::Disconnected(reason.clone()))
        } else if entry.going_away {
            Some(Cause::Disconnected(CloseReason::GoingAway))
        } else if now
            .zip(call.deadline)
            .is_some_and(|(now, deadline)| deadline <= now)
        {
            Some(Cause::DeadlineExceeded)
        } else if metadata_len > usize::from(u16::MAX) {
            let limit = usize::from(u16::MAX);
            Some(Cause::RequestTooLong {
                message_len: metadata_len,
                limit,
            })
        } else {
            None
        };
        if let Some(cause) = failure {
            state.leave(link, origin.waiter());
            return BeginOutcome::Failed(never_sent(cause));
        }
        // First come, first served: a new call must not overtake waiting ones.
        let is_turn = origin.is_turn(&mut entry.waiters);
        let stalls = &self.counters.stalls;
        if !is_turn {
            return origin.wait(state, link, call.deadline, &stalls.queued);
        }
        if !entry.connection.take_request() {
            return origin.wait(state, link, call.deadline, &stalls.no_credit);
        }
        let id = entry.id;
        if !state.promise_receive() {
            state.links[link.index()].connection.return_request_credit();
            return origin.wait(state, link, call.deadline, &stalls.no_receive);
        }
        let mut buf = match state.transport.reserve(id, frame_len) {
            Ok(buf) => buf,
            Err(error) => {
                state.budget.release(1);
                state.links[link.index()].connection.return_request_credit();
                let cause = match error {
                    ReserveError::NoSlot => {
                        return origin.wait(state, link, call.deadline, &stalls.no_send_slot);
                    }
                    ReserveError::Closed => Cause::Disconnected(CloseReason::PeerGone),
                    ReserveError::TooLong { limit, .. } => Cause::RequestTooLong {
                        message_len: call.message_len,
                        limit: limit.saturating_sub(HEADER_LEN + metadata_len),
                    },
                };
                state.leave(link, origin.waiter());
                return BeginOutcome::Failed(never_sent(cause));
            }
        };
        drop(borrowed);

        // The message's own code runs here: nothing is borrowed, and if it panics, nothing is lost.
        let body = &mut buf.as_mut()[HEADER_LEN..];
        let written = catch_unwind(AssertUnwindSafe(|| (call.write)(body)));

        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        // The call's future holds its channel, so the link still exists, although it may have
        // ended.
        let entry = &mut state.links[link.index()];
        let begun = (written.is_ok() && entry.ended.is_none())
            .then(|| entry.calls.begin(origin.wake_target(&self.block_on_waker)))
            .flatten();
        let Some(call_id) = begun else {
            entry.connection.return_request_credit();
            state.transport.cancel(buf);
            state.budget.release(1);
            if let Err(panic) = written {
                drop(borrowed);
                resume_unwind(panic);
            }
            return origin.wait(state, link, call.deadline, &stalls.no_credit);
        };
        let mut header = entry
            .connection
            .next_header(FrameKind::Request, call_id, call.method);
        header.metadata_len = metadata_len as u16;
        if let Some((now, deadline)) = now.zip(call.deadline) {
            header.timeout_us = timeout_us(Some(deadline.saturating_duration_since(now)));
            let timer = state
                .timers
                .insert(deadline, TimerTarget::Call(link, call_id));
            entry.calls.set_timer(call_id, timer);
        }
        header.encode(buf.as_mut());
        // If the connection has ended, the next event reports it and fails this call.
        let _ = state.transport.send(entry.id, buf);
        state.leave(link, origin.waiter());
        BeginOutcome::Sent(call_id)
    }

    /// Takes the response of a call, if it has arrived, and passes the frame to `receive`.
    #[inline]
    pub(crate) fn poll_response_from(
        &self,
        link: LinkKey,
        call: CallId,
        deadline: Option<Instant>,
        origin: impl CallOrigin,
        receive: &mut dyn FnMut(&[u8]),
    ) -> PollOutcome {
        let mut state = self.state.borrow_mut();
        let Some(entry) = state.links.get_mut(link.index()) else {
            // The link has ended, and the call had been sent.
            let cause = Cause::Disconnected(CloseReason::Local);
            return PollOutcome::Failed(CallError::new(cause, Execution::MayHaveRun));
        };
        match entry
            .calls
            .take(call, || origin.wake_target(&self.block_on_waker))
        {
            TakeOutcome::Pending => {
                if deadline.is_some_and(|deadline| deadline <= self.clock.now()) {
                    drop(state);
                    self.abandon(link, call);
                    let error = CallError::new(Cause::DeadlineExceeded, Execution::MayHaveRun);
                    return PollOutcome::Failed(error);
                }
                PollOutcome::Pending
            }
            TakeOutcome::Failed(error) => PollOutcome::Failed(error),
            TakeOutcome::Responded(response) => {
                drop(state);
                match response {
                    ResponseFrame::Slot(buf) => {
                        // Decoding runs the message's own code: a panic must not leak the slot.
                        let received = catch_unwind(AssertUnwindSafe(|| receive(buf.as_ref())));
                        self.state.borrow_mut().release_response(buf);
                        if let Err(panic) = received {
                            resume_unwind(panic);
                        }
                    }
                    ResponseFrame::Copied(frame) => receive(&frame),
                }
                PollOutcome::Received
            }
        }
    }
}

impl<T: Transport> Poller for Driver<T> {
    fn connect(&self, address: &str, timeout: Duration) -> Result<ConnectedLink, ConnectError> {
        let session = self.client_session();
        let connected = self.establish(address, |transport| {
            transport.connect(address, &session, timeout)
        });
        connected.inspect_err(|_| {
            self.counters.connections.not_connected.add(1);
        })
    }

    fn begin(
        &self,
        link: LinkKey,
        call: Outgoing<'_>,
        waker: &Waker,
        waiter: Option<WaiterKey>,
    ) -> BeginOutcome<WaiterKey> {
        self.begin_from(link, call, CallingFuture { waker, waiter })
    }

    fn poll_response(
        &self,
        link: LinkKey,
        call: CallId,
        deadline: Option<Instant>,
        waker: &Waker,
        receive: &mut dyn FnMut(&[u8]),
    ) -> PollOutcome {
        let waiter = None;
        self.poll_response_from(
            link,
            call,
            deadline,
            CallingFuture { waker, waiter },
            receive,
        )
    }

    fn abandon(&self, link: LinkKey, call: CallId) {
        let state = &mut *self.state.borrow_mut();
        let Some(entry) = state.links.get_mut(link.index()) else {
            return;
        };
        let (response, timer) = entry.calls.abandon(call);
        if let Some(timer) = timer {
            state.timers.cancel(timer);
        }
        if let Some(response) = response {
            state.discard_response(response);
        }
    }

    fn leave(&self, link: LinkKey, waiter: WaiterKey) {
        self.state.borrow_mut().leave(link, Some(waiter));
    }

    fn acquire_ref(&self, link: LinkKey) {
        if let Some(entry) = self.state.borrow_mut().links.get_mut(link.index()) {
            entry.handles += 1;
        }
    }

    fn release_ref(&self, link: LinkKey) {
        let mut state = self.state.borrow_mut();
        let Some(entry) = state.links.get_mut(link.index()) else {
            return;
        };
        entry.handles -= 1;
        let last = entry.handles == 0;
        drop(state);
        if last {
            self.close_link(link);
        }
    }

    fn deadline_after(&self, timeout: Duration) -> Option<Instant> {
        crate::clock::deadline_after(self.clock.now(), timeout)
    }

    fn turn(&self) -> bool {
        Self::turn(self)
    }

    fn sleep(&self, how_long: &dyn Fn() -> Option<Duration>) {
        Self::sleep(self, how_long);
    }

    fn is_turning(&self) -> bool {
        Self::is_turning(self)
    }

    fn block_on_waker(&self) -> &BlockOnWaker {
        &self.block_on_waker
    }

    fn run_in_turn(&self, work: &mut dyn FnMut()) {
        Self::run_in_turn(self, work);
    }

    fn limits(&self) -> Limits {
        self.state.borrow().transport.limits().clone()
    }

    fn transport_counters(&self) -> Counters {
        self.state.borrow().transport.counters()
    }

    fn poller_counters(&self) -> &Arc<PollerCounters> {
        &self.counters
    }

    fn update_gauges(&self) {
        Self::update_gauges(self);
    }
}

impl<T: Transport> State<T> {
    /// Queues the call of a future. `stall` counts the reason.
    pub(super) fn wait(
        &mut self,
        link: LinkKey,
        CallingFuture { waker, waiter }: CallingFuture<'_>,
        deadline: Option<Instant>,
        stall: &Counter,
    ) -> WaiterKey {
        let waiters = &mut self.links[link.index()].waiters;
        let key = match waiter {
            Some(key) => {
                waiters.requeue(key);
                key
            }
            None => {
                stall.add(1);
                let key = waiters.enqueue(waker.clone());
                if let Some(deadline) = deadline {
                    waiters.set_timer(
                        key,
                        self.timers.insert(deadline, TimerTarget::Waiter(link, key)),
                    );
                }
                key
            }
        };
        if !self.waiting.contains(&link) {
            self.waiting.push(link);
        }
        key
    }

    fn leave(&mut self, link: LinkKey, waiter: Option<WaiterKey>) {
        if let Some(waiter) = waiter
            && let Some(entry) = self.links.get_mut(link.index())
            && let Some(timer) = entry.waiters.leave(waiter).timer
        {
            self.timers.cancel(timer);
        }
    }
}

fn never_sent(cause: Cause) -> CallError {
    CallError::new(cause, Execution::NeverSent)
}

fn no_receive_left(address: &str) -> ConnectError {
    ConnectError::Refused {
        address: address.to_owned(),
        reason: "no receive is left on this side, all are promised to other connections: raise `connections`"
            .to_owned(),
    }
}
