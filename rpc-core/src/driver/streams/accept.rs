//! A stream opens, on the server.

use std::sync::Arc;

use super::super::incoming::RequestParts;
use super::super::link::LinkKey;
use super::super::responses::{BlockedResponse, Started};
use super::super::tasks::{IncomingCall, Task};
use super::super::{Driver, State, TimerTarget};
use super::{Phase, Serving, Stream};
use crate::method::MethodKind;
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
    ) -> Result<(), ProtocolError> {
        let call = header.call;
        if self.links[link.index()].streams.served.contains_key(&call) {
            return Err(ProtocolError::DuplicateCall { call });
        }
        let core = StreamCore::new();
        let phase = Phase::Serving(Serving {
            call,
            served: None,
            task: None,
            answer: None,
        });
        let key = self
            .streams
            .insert(Stream::new(Arc::clone(&core), link, phase));
        let sizes = self.stream_sizes(link);
        // No task waits for a new stream.
        let _ = core.attach(self.signals.clone(), key.0, sizes);
        let mut state = core.lock();
        state.begin_look();
        if !header.flags.contains(Flags::OPEN) {
            state.inbound.end(StreamEnd::HalfClosed);
        }
        drop(state);
        let entry = &mut self.links[link.index()];
        entry.streams.served.insert(call, key);
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
        let RequestParts {
            deadline,
            is_expired,
            handler,
            may_start,
        } = self.request_parts(header);
        let mut state = self.state.borrow_mut();
        let key = state.stream_of(link, header.call);
        let stream = key.and_then(|key| Some((key, state.streams.get_mut(key)?)));
        let Some((key, stream)) = stream else {
            drop(state);
            return self.release_request(link, buf);
        };
        let core = Arc::clone(&stream.core);
        if let Phase::Serving(serving) = &mut stream.phase {
            serving.served = Some(served);
        }
        drop(state);
        let is_unary = |handler: &dyn Handler| handler.kind() == MethodKind::Unary;
        let handler = handler.filter(|handler| may_start && !is_unary(&**handler));
        let Some(handler) = handler else {
            let status = if is_expired || !may_start {
                self.rejection(header, is_expired)
            } else {
                Status::unimplemented(
                    "the server's method is unary, or has another number: client and server use different versions of the service",
                )
            };
            self.release_request(link, buf);
            return self.answer_unsent(key, BlockedResponse::Failed(status, Started::NOT));
        };
        let (metadata, message) = buf.as_ref()[HEADER_LEN..].split_at(header.metadata_len.into());
        let request = RawRequest {
            metadata,
            message,
            shared: None,
            deadline,
            stream: Some(&core),
        };
        let (task, waker) = self.lend_task();
        let mut frame = self.inline_frame.take();
        let outcome = self.poll_handler(header.selector, &waker, &mut frame, |cx, out| {
            handler.serve(request, cx, out)
        });
        self.release_request(link, buf);
        if !matches!(outcome, Served::Undecodable(_)) {
            self.counters.started(header.selector);
        }
        let call = IncomingCall {
            link,
            call: header.call,
            served,
            stream: Some(key),
        };
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        // The credit of the request goes with the first frame, or alone.
        state.owe(link);
        state.streams.queue(key);
        if let Some(deadline) = deadline
            && let Some(stream) = state.streams.entries.get_mut(key.index())
        {
            let timer = state.timers.insert(deadline, TimerTarget::Stream(key));
            stream.timer = Some(timer);
        }
        if let Served::Pending(handler_key) = outcome {
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
            self.answer_stream(key, outcome, frame.bytes_mut());
        }
        self.inline_frame.put_back(frame);
    }
}
