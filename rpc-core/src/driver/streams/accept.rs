//! A stream opens, on the server.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::super::incoming::{LentTask, RequestParts};
use super::super::link::LinkKey;
use super::super::responses::Started;
use super::super::tasks::Task;
use super::super::transfers::LongMessage;
use super::super::{Driver, State, TimerTarget};
use super::{Phase, Serving, Stream, StreamKey};
use crate::method::{MethodKind, MethodSpec};
use crate::protocol::connection::ProtocolError;
use crate::protocol::frame::{Flags, FrameHeader, HEADER_LEN};
use crate::service::handler::{Handler, RawRequest, Served};
use crate::stats::ServedCall;
use crate::status::Status;
use crate::stream::core::StreamCore;
use crate::stream::inbound::StreamEnd;
use crate::transport::Transport;

impl<T: Transport> State<T> {
    /// Adds the stream that a request opens, so that messages which follow find it while the request
    /// waits for its turn.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn accept_stream(
        &mut self,
        link: LinkKey,
        header: &FrameHeader,
        spec: Option<&MethodSpec>,
    ) -> Result<(), ProtocolError> {
        let call = header.call;
        if self.links[link.index()].streams.served.contains_key(&call) {
            return Err(ProtocolError::DuplicateCall { call });
        }
        let longest = spec.and_then(|spec| spec.max_request_len);
        let streams = &mut self.streams;
        let core = StreamCore::of_server(streams.kept.take(), streams.poller, longest);
        let phase = Phase::Serving(Serving {
            call,
            served: None,
            task: None,
            answer: None,
        });
        let key = self
            .streams
            .insert(Stream::new(Arc::clone(&core), link, phase, longest));
        let sizes = self.stream_sizes(link, spec.and_then(|spec| spec.max_response_len));
        // No task waits for a new stream.
        let _ = core.attach(self.signals.clone(), key.0, sizes);
        // A handler that has one message answers the request with it.
        core.note_arrival();
        let mut state = core.lock();
        state.begin_look();
        if !header.flags.contains(Flags::OPEN) {
            state.inbound.end(StreamEnd::HalfClosed);
        }
        drop(state);
        let entry = &mut self.links[link.index()];
        entry.streams.begin_served(call, key);
        entry.streams.open += 1;
        self.counters.streams.opened.add(1);
        Ok(())
    }
}

impl<T: Transport> Driver<T> {
    /// Serves the request in `buf`, which opens a stream, or rejects it.
    #[inline(never)]
    pub(in super::super) fn serve_stream(
        &self,
        link: LinkKey,
        header: &FrameHeader,
        served: ServedCall,
        buf: T::RecvBuf,
    ) {
        let parts = self.request_parts(link, header);
        let Some((key, core)) = self.stream_to_serve(link, header, served) else {
            return self.release_request(link, buf);
        };
        let Some(handler) = handler_of(&parts) else {
            self.release_request(link, buf);
            return self.reject_stream(key, header, &parts);
        };
        let (metadata, message) = buf.as_ref()[HEADER_LEN..].split_at(header.metadata_len.into());
        let request = RawRequest {
            metadata,
            message,
            long: None,
            deadline: parts.deadline,
            stream: Some(&core),
            peer: &parts.peer,
        };
        let (task, mut frame) = (self.lend_task(), self.inline_frame.take());
        let outcome = self.poll_handler(header.selector, &task.1, &mut frame, |cx, out| {
            handler.serve(request, cx, out)
        });
        self.release_request(link, buf);
        self.after_begin(
            key,
            served,
            parts.deadline,
            task,
            outcome,
            frame.bytes_mut(),
        );
        self.inline_frame.put_back(frame);
    }

    /// Serves a long request that has arrived in full and that opens a stream, or rejects it.
    #[cold]
    #[inline(never)]
    pub(super) fn serve_long_stream(&self, link: LinkKey, served: ServedCall, long: LongMessage) {
        let header = &long.header;
        let parts = self.request_parts(link, header);
        let Some((key, core)) = self.stream_to_serve(link, header, served) else {
            return;
        };
        let Some(handler) = handler_of(&parts) else {
            return self.reject_stream(key, header, &parts);
        };
        let message = self.received_long(&long);
        let request = RawRequest {
            metadata: &long.metadata,
            message: &message.message,
            long: Some(&message),
            deadline: parts.deadline,
            stream: Some(&core),
            peer: &parts.peer,
        };
        let (task, mut frame) = (self.lend_task(), self.inline_frame.take());
        let outcome = self.poll_handler(header.selector, &task.1, &mut frame, |cx, out| {
            handler.serve(request, cx, out)
        });
        // The handler has its own slices of it.
        drop((message, long.message));
        self.after_begin(
            key,
            served,
            parts.deadline,
            task,
            outcome,
            frame.bytes_mut(),
        );
        self.inline_frame.put_back(frame);
    }

    /// Returns the stream that a request has opened, which is counted from now on.
    fn stream_to_serve(
        &self,
        link: LinkKey,
        header: &FrameHeader,
        served: ServedCall,
    ) -> Option<(StreamKey, Arc<StreamCore>)> {
        let mut state = self.state.borrow_mut();
        let key = state.stream_of(link, header.call)?;
        state.set_served(key, served);
        let stream = state.streams.get_mut(key)?;
        Some((key, Arc::clone(&stream.core)))
    }

    /// Answers a stream whose handler does not begin.
    #[cold]
    fn reject_stream(&self, key: StreamKey, header: &FrameHeader, parts: &RequestParts) {
        let status = if parts.is_expired || !parts.may_start || parts.handler.is_none() {
            self.rejection(header, parts.is_expired)
        } else {
            Status::unimplemented(
                "the server's method is unary, or has another number: client and server use different versions of the service",
            )
        };
        self.fail_stream(key, status, Started::NOT);
    }

    /// Ends the first poll of a stream's handler.
    #[inline]
    fn after_begin(
        &self,
        key: StreamKey,
        served: ServedCall,
        deadline: Option<Instant>,
        (task, waker): LentTask,
        outcome: Served,
        frame: &mut [u8],
    ) {
        if !matches!(outcome, Served::Undecodable(_)) {
            self.counters.started(served.method);
        }
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let call = state.served_of(key);
        // The timer of a long request began with its first frame.
        if let Some(deadline) = deadline
            && let Some(stream) = state.streams.entries.get_mut(key.index())
            && stream.timer.is_none()
        {
            let timer = state.timers.insert(deadline, TimerTarget::Stream(key));
            stream.timer = Some(timer);
        }
        if let Served::Pending(handler_key) = outcome
            && let Some(call) = call
        {
            self.counters.handlers.awaited.add(1);
            if let Some(stream) = state.streams.get_mut(key)
                && let Phase::Serving(serving) = &mut stream.phase
            {
                serving.task = Some(task);
            }
            drop(borrowed);
            let parked = Task {
                call,
                handler_key,
                timer: None,
            };
            self.tasks.borrow_mut().park(task, waker, parked);
        } else {
            drop(borrowed);
            self.lent_task.set(Some((task, waker)));
            if self.answer_stream(key, outcome, frame) {
                return;
            }
        }
        let state = &mut *self.state.borrow_mut();
        state.streams.queue(key);
        if let Some(call) = &call {
            // The credit of the request goes with the first frame, or alone.
            state.owe(call.link);
        }
    }
}

/// Returns the handler of a request that opens a stream, if it may begin.
fn handler_of(parts: &RequestParts) -> Option<Rc<dyn Handler>> {
    let handler = parts.handler.as_ref()?;
    let is_streaming = handler.kind() != MethodKind::Unary;
    (parts.may_start && is_streaming).then(|| Rc::clone(handler))
}
