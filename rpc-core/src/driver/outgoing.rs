//! The client's part of the driver: from a call to its response.
//!
//! A request passes these steps: [`admit`](super::links::Links::admit) takes what it needs, the request is
//! encoded, and it is sent. A short request is encoded before it is admitted, so that all of this is
//! one borrow of the state. A longer one is encoded into its slot, while nothing is borrowed.
//!
//! The types of messages are erased here, and the types of the transport are erased for the
//! callers: a call's future ([`crate::client`]) only uses its poller through
//! [`Poller`](super::handle::Poller).

use std::sync::Arc;
use std::time::Instant;

use super::body::{Body, BodyRef, Response};
use super::call_origin::{CallOrigin, CallingFuture};
use super::call_table::TakeOutcome;
use super::connections::Connections;
use super::handle::{BeginOutcome, PollOutcome, RequestHead, StreamRequest};
use super::link::{Link, LinkKey};
use super::request_permit::LongRequest;
use super::streams::StreamCapacity;
use crate::call_error::{CallError, Cause, Execution};
use crate::protocol::frame::{CallId, HEADER_LEN, ResponseHead};
use crate::stream::core::StreamCore;
use crate::stream::end::StreamEnd;
use crate::stream::turns::LoneMessage;
use crate::stream::wakers::wake_all;
use crate::transport::{Chunks, CloseReason, MessageMemory, Transport};

impl<T: Transport> Connections<T> {
    /// Sends the request in `frame`, which is complete but for its header, unless something is in its
    /// way: then the call holds nothing.
    #[inline]
    pub(crate) fn send_inline_from(
        &self,
        link: LinkKey,
        request: &RequestHead,
        frame: &mut [u8],
        origin: CallingFuture<'_>,
    ) -> Option<CallId> {
        let now = request.deadline.map(|_| self.clock.now());
        // Declared before the borrow, so that a waker that is not used is dropped after it.
        let mut wake = origin.wake_target(&self.block_on_waker);
        let mut state = self.state.borrow_mut();
        state
            .links
            .admit(link, request, now, |link| origin.is_turn(&link.waiters))
            .and_then(|permit| permit.send_inline(request, now, frame, &mut wake))
            .ok()
    }

    /// Sends the request in `frame`, which is complete but for its header, or keeps the call waiting
    /// as its origin specifies.
    #[inline]
    pub(crate) fn begin_inline_from<A: CallOrigin>(
        &self,
        link: LinkKey,
        request: &RequestHead,
        frame: &mut [u8],
        origin: A,
    ) -> BeginOutcome<A::Waiting> {
        let now = request.deadline.map(|_| self.clock.now());
        // Declared before the borrow, so that a waker that is not used is dropped after it.
        let mut wake = origin.wake_target(&self.block_on_waker);
        let mut state = self.state.borrow_mut();
        let sent = state
            .links
            .admit(link, request, now, |link| origin.is_turn(&link.waiters))
            .and_then(|permit| permit.send_inline(request, now, frame, &mut wake));
        match (sent, origin.waiter()) {
            (Ok(call), None) => BeginOutcome::Sent(call),
            (sent, _) => {
                let stalls = &self.counters.stalls;
                let (outcome, left) = state
                    .links
                    .after_attempt(link, request, sent, origin, stalls, &mut wake);
                drop(state);
                drop(left);
                outcome
            }
        }
    }

    /// Like [`begin_inline_from`](Self::begin_inline_from), for a request that is too long for an
    /// inline frame. `write` encodes its body.
    pub(crate) fn begin_long_from<A: CallOrigin>(
        &self,
        link: LinkKey,
        request: &RequestHead,
        write: &mut dyn FnMut(&mut [u8]),
        origin: A,
    ) -> BeginOutcome<A::Waiting> {
        let now = request.deadline.map(|_| self.clock.now());
        let mut wake = origin.wake_target(&self.block_on_waker);
        let reserved = self
            .state
            .borrow_mut()
            .links
            .admit(link, request, now, |link| origin.is_turn(&link.waiters))
            .and_then(|permit| permit.reserve(request));
        let sent = reserved.and_then(|buf| {
            let mut long = LongRequest::new(self, link, buf);
            // The message's own code runs here.
            write(long.body_mut());
            long.send(request, now, &mut wake)
        });
        let mut state = self.state.borrow_mut();
        let stalls = &self.counters.stalls;
        let (outcome, left) = state
            .links
            .after_attempt(link, request, sent, origin, stalls, &mut wake);
        drop(state);
        drop(left);
        outcome
    }

    /// Like [`begin_inline_from`](Self::begin_inline_from), for a request whose message does not fit a
    /// frame. Takes the message if the call is sent.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin_chunks_from<A: CallOrigin>(
        &self,
        link: LinkKey,
        request: &RequestHead,
        metadata: &[u8],
        message: &mut Chunks,
        origin: A,
    ) -> BeginOutcome<A::Waiting> {
        let now = request.deadline.map(|_| self.clock.now());
        let mut wake = origin.wake_target(&self.block_on_waker);
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let (sending, wake) = (&mut state.bodies.sending, &mut wake);
        let body = (metadata, message);
        let is_turn = |link: &Link<_>| origin.is_turn(&link.waiters);
        let links = &mut state.links;
        let sent = links.send_long_request(sending, link, request, now, body, wake, is_turn);
        let stalls = &self.counters.stalls;
        let (outcome, left) = state
            .links
            .after_attempt(link, request, sent, origin, stalls, wake);
        drop(borrowed);
        drop(left);
        self.drop_spent();
        outcome
    }

    /// Returns memory for encoding a message of `len` bytes, if it serves better than the heap: memory
    /// that the peers of a link read.
    #[cold]
    pub(crate) fn allocate_for(&self, link: LinkKey, len: usize) -> Option<Box<dyn MessageMemory>> {
        let state = &mut *self.state.borrow_mut();
        state
            .bodies
            .sending
            .memory_to_encode(&mut state.links, link, len)
    }

    /// Takes the response of a call, if it has arrived. Copies its body into `body` if it fits, and
    /// leaves a longer one for [`read_response_from`](Self::read_response_from).
    #[inline]
    pub(crate) fn take_response_from(
        &self,
        link: LinkKey,
        call: CallId,
        deadline: Option<Instant>,
        origin: impl CallOrigin,
        body: &mut [u8],
    ) -> PollOutcome {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let Some(entry) = state.links.table.get_mut(link) else {
            return link_gone();
        };
        if let Some((head, from)) = entry.calls.short_response(call, body.len()) {
            let len = from.len();
            body[..len].copy_from_slice(from);
            if let Some(Body::Slot(buf)) = entry.calls.end(call) {
                state.links.release_response(buf);
            }
            return PollOutcome::Received { head, len };
        }
        if entry.calls.has_responded(call) {
            return PollOutcome::Long;
        }
        drop(borrowed);
        // There is no response to read: the call has failed, or its origin waits.
        self.read_response_from(link, call, deadline, origin, |_, _| ())
    }

    /// Takes the response of a call, if it has arrived, and passes its body to `receive`.
    #[inline]
    pub(crate) fn read_response_from(
        &self,
        link: LinkKey,
        call: CallId,
        deadline: Option<Instant>,
        origin: impl CallOrigin,
        receive: impl FnOnce(ResponseHead, BodyRef<'_>),
    ) -> PollOutcome {
        let mut state = self.state.borrow_mut();
        let Some(entry) = state.links.table.get_mut(link) else {
            return link_gone();
        };
        let taken = entry.calls.take(call);
        if let TakeOutcome::Responded(response) = &taken
            && let Body::Slot(_) = response.body
        {
            state.links.lend_receive();
        }
        drop(state);
        match taken {
            TakeOutcome::Responded(response) => {
                let taken = TakenResponse {
                    connections: self,
                    response: Some(response),
                };
                taken.read(receive)
            }
            TakeOutcome::Failed(error) => PollOutcome::Failed(error),
            TakeOutcome::Pending => self.keep_waiting(link, call, deadline, origin),
        }
    }

    /// Registers the target to wake for a call that has no response yet, or ends the call if its
    /// deadline has passed.
    #[cold]
    fn keep_waiting(
        &self,
        link: LinkKey,
        call: CallId,
        deadline: Option<Instant>,
        origin: impl CallOrigin,
    ) -> PollOutcome {
        if deadline.is_some_and(|deadline| deadline <= self.clock.now()) {
            self.abandon_call(link, call);
            let error = CallError::new(
                Cause::DeadlineExceeded { latest: None },
                Execution::MayHaveRun,
            );
            return PollOutcome::Failed(error);
        }
        let target = origin.wake_target(&self.block_on_waker);
        let mut state = self.state.borrow_mut();
        let entry = state.links.table.get_mut(link);
        let replaced = entry.map(|entry| entry.calls.set_wake_target(call, target));
        drop(state);
        drop(replaced);
        PollOutcome::Pending
    }

    /// Abandons a call whose future is dropped or gives up.
    pub(crate) fn abandon_call(&self, link: LinkKey, call: CallId) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let Some(entry) = state.links.table.get_mut(link) else {
            return;
        };
        let abandoned = entry.calls.abandon(call);
        if let Some(timer) = abandoned.timer {
            state.links.timers.cancel(timer);
        }
        if let Some(response) = abandoned.response {
            state.links.discard_response(response);
        }
        if abandoned.was_in_flight {
            state.links.cancel_call(link, call);
        }
        if !state.bodies.is_empty() {
            state
                .bodies
                .sending
                .abandon_request(&mut state.links, link, call);
            if abandoned.was_receiving {
                state
                    .bodies
                    .receiving
                    .stop_response(&mut state.links, link, call);
            }
            drop(borrowed);
            self.drop_spent();
        } else {
            drop(borrowed);
        }
        drop(abandoned.waiting);
    }

    /// Opens a stream as soon as its connection has a credit and room for it. If it cannot be
    /// opened, `core` ends.
    pub(crate) fn open_stream(&self, link: LinkKey, core: Arc<StreamCore>, request: StreamRequest) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let opened = state
            .streams
            .open_new(&mut state.links, link, &core, request);
        drop(borrowed);
        match opened {
            Ok(sender) => wake_all(sender),
            Err(error) => {
                let wakers = core.lock().end(StreamEnd::Failed(error));
                wake_all(wakers.into_iter().flatten());
            }
        }
    }

    /// Returns what would happen to a stream that is opened now.
    pub(crate) fn stream_capacity(&self, link: LinkKey) -> StreamCapacity {
        let mut state = self.state.borrow_mut();
        let link = state.links.table.get_mut(link);
        link.map_or(StreamCapacity::None, StreamCapacity::of)
    }

    /// Sends a message of a stream at once, if nothing of its stream waits and everything is there that
    /// it needs: it goes straight to a frame. Returns true if it was sent. If not, nothing has changed,
    /// and it goes the way of many messages (`streams/look.rs`).
    pub(super) fn send_alone(&self, message: &mut LoneMessage<'_>) -> bool {
        let len = message.len;
        if HEADER_LEN + len > self.longest_inline {
            return false;
        }
        let mut memory = self.lone_frame.take();
        let frame = memory.frame_mut(len);
        // The message's own code runs here.
        let is_encoded = (message.encode)(&mut frame[HEADER_LEN..]);
        let is_sent = is_encoded && {
            let state = &mut *self.state.borrow_mut();
            let links = &mut state.links;
            let (index, core) = (message.index, message.core);
            state.streams.send_alone(links, index, core, frame)
        };
        self.lone_frame.put_back(memory);
        is_sent
    }
}

/// A response that was taken from the call table and is being read while nothing is borrowed. Its
/// slot is released when it is dropped, even if the message's own code panics.
struct TakenResponse<'a, T: Transport> {
    connections: &'a Connections<T>,
    response: Option<Response<T::RecvBuf>>,
}

impl<T: Transport> TakenResponse<'_, T> {
    #[inline]
    fn read(self, receive: impl FnOnce(ResponseHead, BodyRef<'_>)) -> PollOutcome {
        let Some(response) = &self.response else {
            return PollOutcome::Pending;
        };
        let (head, body) = (response.head, response.body.as_ref());
        let len = match body {
            BodyRef::Frame(body) => body.len(),
            BodyRef::Long(long) => long.metadata.len() + long.message.len(),
        };
        receive(head, body);
        PollOutcome::Received { head, len }
    }
}

impl<T: Transport> Drop for TakenResponse<'_, T> {
    fn drop(&mut self) {
        if let Some(response) = self.response.take() {
            let links = &mut self.connections.state.borrow_mut().links;
            if let Body::Slot(_) = response.body {
                links.take_receive_back();
            }
            links.discard_response(response);
        }
    }
}

/// Returns the outcome of a call that was sent on a link that has ended since.
#[cold]
fn link_gone() -> PollOutcome {
    let cause = Cause::Disconnected(CloseReason::Local);
    PollOutcome::Failed(CallError::new(cause, Execution::MayHaveRun))
}
