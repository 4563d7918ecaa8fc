//! Streams, as far as the application's code has to run: their handlers begin, answer and are dropped.
//!
//! An answer takes a credit of the connection, so that idle streams cost their clients no receives. It
//! follows all messages of its stream.
//!
//! Cancels of many calls share a control frame. A call that is cancelled still ends with exactly one
//! response: `CANCELLED`, or the response that has crossed the cancel.

use std::rc::Rc;
use std::time::Instant;

use super::body::Body;
use super::connections::Connections;
use super::handlers::{LentTask, RequestParts};
use super::link::LinkKey;
use super::link_streams::StreamKey;
use super::responses::{Blocked, BlockedResponse, Started};
use super::serving::Serving;
use super::streams::{FailedHandler, Next, ToServe};
use super::tasks::Task;
use crate::method::MethodKind;
use crate::protocol::frame::{Flags, FrameHeader, HEADER_LEN};
use crate::service::handler::{Handler, RawRequest, Served};
use crate::stats::ServedCall;
use crate::status::Status;
use crate::stream::end::no_memory;
use crate::transport::Transport;

impl Serving {
    /// Looks at the streams that have work.
    #[inline(never)]
    pub(super) fn look_at_streams<T: Transport>(&self, connections: &Connections<T>) {
        connections.ready.enter();
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let count = state.streams.begin_looks(&mut state.links);
        drop(borrowed);
        let mut memory = self.handlers.inline_frame.take();
        for _ in 0..count {
            let mut borrowed = connections.state.borrow_mut();
            let state = &mut *borrowed;
            let (links, bodies) = (&mut state.links, &mut state.bodies);
            let looked = state.streams.look(links, bodies, &mut memory);
            drop(borrowed);
            match looked {
                None => break,
                Some((_, Next::Nothing)) => {}
                Some((key, Next::Answer)) => self.send_answer(connections, key),
                Some((key, Next::Fail(status))) => self.fail_receiving(connections, key, status),
            }
        }
        self.handlers.inline_frame.put_back(memory);
        if !connections.state.borrow().links.wakers.is_empty() {
            connections.wake_collected();
        }
    }

    /// Serves the request in `body`, which opens a stream, or rejects it.
    #[inline(never)]
    pub(super) fn serve_stream<T: Transport>(
        &self,
        connections: &Connections<T>,
        link: LinkKey,
        header: &FrameHeader,
        served: ServedCall,
        body: Body<T::RecvBuf>,
    ) {
        let parts = self.handlers.request_parts(connections, link, header);
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let key = state.streams.stream_of(&mut state.links, link, header.call);
        // A stream whose request waits for its turn ends together with the request.
        let Some(key) = key else {
            unreachable!("a request that opens a stream has added it");
        };
        let to_serve = state.streams.set_served(key, served);
        drop(borrowed);
        let core = match to_serve {
            ToServe::Begins(core) => core,
            ToServe::HasAnswer => return connections.release_request(link, body),
            ToServe::HasNoMemory => {
                connections.release_request(link, body);
                return self.fail_stream(connections, key, no_memory(), Started::NOT);
            }
        };
        let Some(handler) = handler_of(&parts) else {
            connections.release_request(link, body);
            return self.reject_stream(connections, key, header, &parts);
        };
        let (metadata, message) = body.split(header.metadata_len);
        let request = RawRequest {
            metadata,
            message,
            long: body.long(),
            deadline: parts.deadline,
            stream: Some(&core),
            peer: &parts.peer,
        };
        let (task, mut frame) = (self.handlers.lend_task(), self.handlers.inline_frame.take());
        let outcome =
            self.handlers
                .poll_handler(header.selector, &task.1, &mut frame, |cx, out| {
                    handler.serve(request, cx, out)
                });
        connections.release_request(link, body);
        let frame_bytes = frame.bytes_mut();
        self.after_begin(connections, key, parts.deadline, task, outcome, frame_bytes);
        self.handlers.inline_frame.put_back(frame);
    }

    /// Answers a stream whose handler does not begin.
    #[cold]
    fn reject_stream<T: Transport>(
        &self,
        connections: &Connections<T>,
        key: StreamKey,
        header: &FrameHeader,
        parts: &RequestParts,
    ) {
        let status = if parts.is_expired || !parts.may_start || parts.handler.is_none() {
            self.handlers
                .rejection(header, parts.is_expired, connections.is_going_away())
        } else {
            Status::unimplemented(
                "the server's method is unary, or has another number: client and server use different versions of the service",
            )
        };
        self.fail_stream(connections, key, status, Started::NOT);
    }

    /// Ends the first poll of a stream's handler.
    #[inline]
    fn after_begin<T: Transport>(
        &self,
        connections: &Connections<T>,
        key: StreamKey,
        deadline: Option<Instant>,
        (task, waker): LentTask,
        outcome: Served,
        frame: &mut [u8],
    ) {
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let Some(call) = state.streams.served_of(key) else {
            unreachable!("the request was counted");
        };
        if !matches!(outcome, Served::NotStarted(_)) {
            connections.counters.started(call.served.method);
        }
        let (pending, deadline) = match outcome {
            Served::Pending(handler_key) => (Some(handler_key), deadline),
            Served::PendingUntil(handler_key, ref limit) => (Some(handler_key), Some(**limit)),
            _ => (None, deadline),
        };
        state.streams.set_deadline(key, &mut state.links, deadline);
        if let Some(handler_key) = pending {
            connections.counters.handlers.awaited.add(1);
            state.streams.set_task(key, task);
            drop(borrowed);
            let parked = Task {
                call,
                handler_key,
                timer: None,
            };
            self.handlers.tasks.borrow_mut().park(task, waker, parked);
        } else {
            drop(borrowed);
            self.handlers.lent_task.set(Some((task, waker)));
            if self.answer_stream(connections, key, outcome, frame) {
                return;
            }
        }
        let state = &mut *connections.state.borrow_mut();
        state.streams.queue(key);
        // The credit of the request goes with the first frame, or alone.
        state.links.owe(call.link);
    }

    /// Answers a stream whose handler has completed, if all of its messages are sent. Otherwise keeps the
    /// outcome until they are. `frame` holds the response if it was encoded. Returns true if the stream
    /// has been answered.
    pub(super) fn answer_stream<T: Transport>(
        &self,
        connections: &Connections<T>,
        key: StreamKey,
        outcome: Served,
        frame: &mut [u8],
    ) -> bool {
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let (links, bodies) = (&mut state.links, &mut state.bodies);
        let answer = match outcome {
            Served::Encoded(len) => {
                let frame = &mut frame[..HEADER_LEN + len.total()];
                if let Some(call) = state.streams.take_answered(key, links, bodies) {
                    state
                        .responses
                        .respond_inline(&mut state.links, &call, len, frame);
                    return true;
                }
                BlockedResponse::Encoded {
                    frame: (&*frame).into(),
                    len,
                }
            }
            Served::Long(handler_key, len) => BlockedResponse::Kept { handler_key, len },
            Served::Failed(status) => BlockedResponse::Failed(status, Started::Maybe),
            Served::NotStarted(status) => BlockedResponse::Failed(status, Started::NOT),
            // The caller parks the handler.
            Served::Pending(_) | Served::PendingUntil(..) => return false,
        };
        state.streams.keep_answer(key, answer);
        false
    }

    /// Answers a stream with a status, and discards the messages that have not been sent.
    pub(super) fn fail_stream<T: Transport>(
        &self,
        connections: &Connections<T>,
        key: StreamKey,
        status: Status,
        started: Started,
    ) {
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let (links, bodies) = (&mut state.links, &mut state.bodies);
        let answer = BlockedResponse::Failed(status, started);
        let replaced = state.streams.replace_answer(key, links, bodies, answer);
        let call = state.streams.served_of(key);
        drop(borrowed);
        if let (Some(response), Some(call)) = (replaced, call) {
            self.handlers.discard_response(Blocked { call, response });
        }
        connections.drop_spent();
        connections.wake_collected();
    }

    /// Answers a stream whose handler does not begin. Its request has waited for its turn.
    #[cold]
    pub(super) fn refuse_stream<T: Transport>(
        &self,
        connections: &Connections<T>,
        link: LinkKey,
        header: &FrameHeader,
        served: ServedCall,
        status: Status,
        started: Started,
    ) {
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let key = state.streams.stream_of(&mut state.links, link, header.call);
        let Some(key) = key else {
            unreachable!(
                "a stream whose request waits for its turn ends together with the request"
            );
        };
        state.streams.set_served(key, served);
        drop(borrowed);
        self.fail_stream(connections, key, status, started);
    }

    /// Sends the answer of a stream that has taken a credit for it.
    fn send_answer<T: Transport>(&self, connections: &Connections<T>, key: StreamKey) {
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let (links, bodies) = (&mut state.links, &mut state.bodies);
        let Blocked { call, response } = state.streams.take_answer(key, links, bodies);
        drop(borrowed);
        self.handlers.respond_blocked(connections, call, response);
    }

    /// Drops the handler of a stream if it still runs, and answers the stream with `status`.
    pub(super) fn end_handler<T: Transport>(
        &self,
        connections: &Connections<T>,
        key: StreamKey,
        status: Status,
        started: Started,
    ) {
        let task = connections.state.borrow_mut().streams.take_task(key);
        let task = task.and_then(|task| self.handlers.tasks.borrow_mut().expire(task));
        if let Some(task) = task {
            self.handlers.discard(&task);
        }
        self.fail_stream(connections, key, status, started);
    }

    /// Fails a stream because this side cannot receive a message, unless the stream has its answer.
    #[cold]
    pub(super) fn fail_receiving<T: Transport>(
        &self,
        connections: &Connections<T>,
        key: StreamKey,
        status: Status,
    ) {
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let (links, bodies) = (&mut state.links, &mut state.bodies);
        let failed = state.streams.fail_receiving(key, links, bodies, status);
        let Some(failed) = failed else {
            drop(borrowed);
            return connections.wake_collected();
        };
        let FailedHandler {
            link, call, status, ..
        } = failed;
        // A handler whose request waits for its turn does not begin.
        let queued = state
            .run_queue
            .take_queued(&mut state.links, link, call, Flags::STREAM);
        drop(borrowed);
        if let Some(request) = queued {
            connections.release_request(link, request.body);
            let (header, served) = (request.header, request.served);
            return self.refuse_stream(connections, link, &header, served, status, Started::NOT);
        }
        let started = match failed.has_begun {
            true => Started::Maybe,
            false => Started::NOT,
        };
        self.end_handler(connections, key, status, started);
    }

    /// Ends a stream whose deadline has passed.
    pub(super) fn expire_stream<T: Transport>(&self, connections: &Connections<T>, key: StreamKey) {
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let (links, bodies) = (&mut state.links, &mut state.bodies);
        let has_handler = state.streams.expire(key, links, bodies);
        drop(borrowed);
        if has_handler {
            let status = Status::deadline_exceeded("the deadline passed before the call ended");
            self.end_handler(connections, key, status, Started::Maybe);
        }
    }
}

/// Returns the handler of a request that opens a stream, if it may begin.
fn handler_of(parts: &RequestParts) -> Option<Rc<dyn Handler>> {
    let handler = parts.handler.as_ref()?;
    let is_streaming = handler.kind() != MethodKind::Unary;
    (parts.may_start && is_streaming).then(|| Rc::clone(handler))
}
