//! A stream ends: by its response, a deadline, or the end of its connection.

use std::mem;

use super::super::link::LinkKey;
use super::super::responses::{BlockedResponse, Started};
use super::super::{Driver, State};
use super::{Phase, StreamKey, Streams};
use crate::call_error::{CallError, Cause, Execution};
use crate::protocol::connection::ProtocolError;
use crate::protocol::frame::{FrameHeader, HEADER_LEN, ResponseHead};
use crate::stats::CalledStream;
use crate::status::Status;
use crate::stream::inbound::{ResponseBody, StreamEnd};
use crate::stream::wakers::wake_all;
use crate::transport::{CloseReason, Transport};

impl<T: Transport> Driver<T> {
    /// Ends a stream whose deadline has passed.
    pub(in super::super) fn expire_stream(&self, key: StreamKey) {
        let mut state = self.state.borrow_mut();
        let Some(stream) = state.streams.get_mut(key) else {
            return;
        };
        stream.timer = None;
        let execution = match &stream.phase {
            Phase::Opening(_) => Execution::NeverSent,
            Phase::Sent { .. } | Phase::Answered { .. } | Phase::Abandoned { .. } => {
                Execution::MayHaveRun
            }
            Phase::Serving(_) => {
                drop(state);
                let status = Status::deadline_exceeded("the deadline passed before the call ended");
                return self.end_handler(key, status, Started::Maybe);
            }
        };
        let error = CallError::new(Cause::DeadlineExceeded { latest: None }, execution);
        state.abandon_stream(key, Some(error));
    }

    /// Drops the handler of a stream if it still runs, and answers the stream with `status`.
    pub(in super::super) fn end_handler(&self, key: StreamKey, status: Status, started: Started) {
        let task = self.state.borrow_mut().streams.take_task(key);
        let task = task.and_then(|task| self.tasks.borrow_mut().expire(task));
        if let Some(task) = task {
            self.discard(&task);
        }
        self.answer_unsent(key, BlockedResponse::Failed(status, started));
    }

    /// Ends the streams of a connection that has ended. The handlers of a server's streams have been
    /// dropped.
    pub(in super::super) fn end_streams_of(&self, link: LinkKey) {
        let reason = self.close_reason(link).unwrap_or(CloseReason::Local);
        let keys = self.state.borrow().streams.keys_of(link);
        for key in keys {
            let mut borrowed = self.state.borrow_mut();
            let call = borrowed.served_of(key);
            let had_handler = borrowed.streams.take_task(key).is_some();
            let kept = borrowed.end_with_connection(key, &reason);
            drop(borrowed);
            let Some(call) = call else { continue };
            if !had_handler {
                // The handler has ended, or its request has not arrived in full.
                self.counters.dropped(call.served.method);
            }
            if let Some(BlockedResponse::Kept { handler_key, .. }) = kept {
                self.discard_handler(call.served.method, handler_key);
            }
        }
    }
}

impl<T: Transport> State<T> {
    /// Ends the stream that a response belongs to. Wakers are collected.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn complete_stream(
        &mut self,
        link: LinkKey,
        header: &FrameHeader,
        buf: T::RecvBuf,
    ) {
        let call = header.call;
        let key = self.stream_of(link, call);
        let stream = key.and_then(|key| Some((key, self.streams.get_mut(key)?)));
        let Some((key, stream)) =
            stream.filter(|(_, stream)| !matches!(stream.phase, Phase::Answered { .. }))
        else {
            return self
                .links
                .close_for_violation(link, buf, ProtocolError::UnknownCall { call });
        };
        let awaits_messages = !stream.receiving.is_empty();
        let body = ResponseBody::Short(buf.as_ref()[HEADER_LEN..].to_vec());
        let head = ResponseHead::of(header);
        self.end_core(key, StreamEnd::Response { head, body });
        if awaits_messages {
            self.note_answer(key, header);
            self.abandon_sending(key);
        } else {
            if let Some(stream) = self.streams.get_mut(key)
                && let Phase::Sent { counters, .. } = &stream.phase
            {
                counters.end(&self.links.counters, header.selector);
            }
            self.remove_stream(key);
        }
        self.links.release_received(link, buf);
    }

    /// Ends a client's stream on this side: with `error`, or because the application has dropped it.
    /// If the server has its request, the call is cancelled, and its response is still to come.
    pub(super) fn abandon_stream(&mut self, key: StreamKey, error: Option<CallError>) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        let link = stream.link;
        let count = |counters: &CalledStream| match &error {
            Some(error) => counters.end(&self.links.counters, error.code().number()),
            None => counters.drop_one(),
        };
        let is_opening = matches!(stream.phase, Phase::Opening(_));
        let sent = match &stream.phase {
            Phase::Opening(request) => {
                count(&request.counters);
                None
            }
            Phase::Answered { counters, .. } => {
                count(counters);
                None
            }
            Phase::Sent { call, counters } => {
                count(counters);
                Some(*call)
            }
            Phase::Abandoned { .. } | Phase::Serving(_) => return,
        };
        if let Some(timer) = stream.timer.take() {
            self.links.timers.cancel(timer);
        }
        let is_dropped = error.is_none();
        let dropped = || CallError::new(Cause::Cancelled, Execution::MayHaveRun);
        let end = StreamEnd::Failed(error.unwrap_or_else(dropped));
        self.end_core(key, end);
        self.stop_receiving(key);
        self.abandon_sending(key);
        let Some(call) = sent else {
            let never_sent = is_dropped && is_opening;
            self.links
                .counters
                .cancels
                .never_sent
                .add(never_sent.into());
            return self.remove_stream(key);
        };
        if let Some(stream) = self.streams.get_mut(key) {
            stream.phase = Phase::Abandoned { call };
        }
        self.links.cancel_call(link, call);
    }

    /// Fails a stream that has not been opened, because its server ends the connection.
    #[cold]
    pub(super) fn fail_going_away(&mut self, key: StreamKey, reason: CloseReason) {
        let cause = Cause::Disconnected(reason);
        let error = CallError::new(cause, Execution::NeverSent);
        self.abandon_stream(key, Some(error));
    }

    /// Ends both directions for the application. Collects the wakers.
    pub(super) fn end_core(&mut self, key: StreamKey, end: StreamEnd) {
        if let Some(stream) = self.streams.get_mut(key) {
            let mut core = stream.core.lock();
            let [reader, sender] = core.end(end);
            let left = core.outbound.take_left();
            drop(core);
            self.links.wakers.extend(reader);
            self.links.wakers.extend(sender);
            for message in left {
                self.bodies.sending.discard(message);
            }
        }
    }

    /// Gives up the long messages of this side that are under way.
    pub(super) fn abandon_sending(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        for transfer in mem::take(&mut stream.sending) {
            self.bodies
                .sending
                .abandon_transfer(&mut self.links, transfer);
        }
    }

    /// Ends a stream of a connection that has ended. Returns the answer that was not sent.
    fn end_with_connection(
        &mut self,
        key: StreamKey,
        reason: &CloseReason,
    ) -> Option<BlockedResponse> {
        let stream = self.streams.get_mut(key)?;
        let execution = match &stream.phase {
            Phase::Opening(_) => Execution::NeverSent,
            _ => Execution::MayHaveRun,
        };
        let error = CallError::new(Cause::Disconnected(reason.clone()), execution);
        let code = error.code().number();
        let mut answer = None;
        match &mut stream.phase {
            Phase::Opening(request) => request.counters.end(&self.links.counters, code),
            Phase::Sent { counters, .. } | Phase::Answered { counters, .. } => {
                counters.end(&self.links.counters, code);
            }
            Phase::Abandoned { .. } => {}
            Phase::Serving(serving) => answer = serving.answer.take(),
        }
        // Their transfers have ended with the connection.
        stream.sending.clear();
        stream.receiving.clear();
        self.end_core(key, StreamEnd::Failed(error));
        self.remove_stream(key);
        answer
    }

    /// Removes a stream that has ended on both sides.
    pub(super) fn remove_stream(&mut self, key: StreamKey) {
        self.stop_receiving(key);
        if !self.streams.entries.contains(key) {
            return;
        }
        let mut stream = self.streams.entries.remove(key);
        self.streams.to_look.remove(key);
        self.links.outbox.streams.remove(key);
        self.streams.awaiting_room.remove(key);
        self.streams.grants.remove(key);
        if stream.phase.is_client() {
            for transfer in mem::take(&mut stream.sending) {
                self.bodies
                    .sending
                    .abandon_transfer(&mut self.links, transfer);
            }
        }
        if let Phase::Opening(request) = &mut stream.phase {
            self.bodies.sending.discard(mem::take(&mut request.message));
        }
        if let Some(timer) = stream.timer {
            self.links.timers.cancel(timer);
        }
        self.links.counters.streams.ended.add(1);
        let Some(link) = self.links.table.get_mut(stream.link) else {
            return;
        };
        link.streams.open -= 1;
        match &stream.phase {
            Phase::Opening(_) => {}
            Phase::Sent { call, .. } | Phase::Answered { call, .. } | Phase::Abandoned { call } => {
                link.calls.end_stream(*call);
            }
            Phase::Serving(serving) => {
                link.streams.end_served(serving.call);
                // A part of the handler may live on in a task of its own.
                let error = CallError::new(Cause::Cancelled, Execution::Answered);
                let mut core = stream.core.lock();
                let [reader, sender] = core.end(StreamEnd::Failed(error));
                let left = core.outbound.take_left();
                drop(core);
                self.links.wakers.extend(reader);
                self.links.wakers.extend(sender);
                for message in left {
                    self.bodies.sending.discard(message);
                }
            }
        }
        self.streams.kept.keep(stream.core);
        if link.connection.streams() < link.connection.max_streams()
            && let Some(next) = self.streams.awaiting_room.pop(stream.link)
        {
            self.streams.queue(next);
        }
        let is_last = link.streams.is_orphaned && link.streams.open == 0 && link.ended.is_none();
        if is_last && mem::take(&mut link.streams.is_orphaned) {
            link.ended = Some(CloseReason::Local);
            self.links.transport.close(link.id);
        }
    }
}

impl Drop for Streams {
    /// Ends the streams of a poller that is dropped: their other ends may be on other threads.
    fn drop(&mut self) {
        for stream in self.entries.values_mut() {
            let execution = match &stream.phase {
                Phase::Opening(_) => Execution::NeverSent,
                _ => Execution::MayHaveRun,
            };
            let error = CallError::new(Cause::Disconnected(CloseReason::Local), execution);
            let wakers = stream.core.lock().end(StreamEnd::Failed(error));
            wake_all(wakers.into_iter().flatten());
        }
    }
}
