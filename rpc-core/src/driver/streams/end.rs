//! A stream ends: by its response, a deadline, a cancel, or the end of its connection.

use std::mem;

use super::super::bodies::{Begun, Bodies, FirstFrame, Purpose};
use super::super::link::LinkKey;
use super::super::link_bodies::IncomingKey;
use super::super::link_streams::StreamKey;
use super::super::links::Links;
use super::super::outbox::{Class, Permit};
use super::super::responses::{Blocked, BlockedResponse};
use super::super::tasks::{IncomingCall, TaskKey};
use super::{StreamPhase, Streams};
use crate::call_error::{CallError, Cause, Execution};
use crate::codec::LongMessage;
use crate::protocol::connection::ProtocolError;
use crate::protocol::frame::{CallId, FrameHeader, FrameKind, HEADER_LEN, ResponseHead};
use crate::stats::CalledStream;
use crate::status::Status;
use crate::stream::end::{ResponseBody, StreamEnd};
use crate::transport::{CloseReason, Transport};

impl Streams {
    /// Ends the stream that a response belongs to. Wakers are collected.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn complete<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
        link: LinkKey,
        header: &FrameHeader,
        buf: T::RecvBuf,
    ) {
        match self.begin_answer(links, bodies, link, header) {
            Ok(None) => {}
            Ok(Some(key)) => {
                let body = ResponseBody::Short(buf.as_ref()[HEADER_LEN..].to_vec());
                self.answer(key, links, bodies, header, body);
            }
            Err(error) => return links.close_for_violation(link, buf, error),
        }
        links.release_received(link, buf);
    }

    /// Begins a long response, which ends a stream.
    pub(in super::super) fn begin_long_answer<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
        first: &FirstFrame<'_>,
    ) -> Result<Begun, ProtocolError> {
        let answered = self.begin_answer(links, bodies, first.link, first.header)?;
        let receiving = &mut bodies.receiving;
        let Some(stream) = answered else {
            return receiving.begin_unwanted(links, first);
        };
        let purpose = Purpose::Stream(stream);
        let key = receiving.begin_incoming(links, first, purpose, None)?;
        let stream = &mut self.entries[stream];
        stream.receiving.push(key);
        let refusal = first.refuse_length(links, stream.longest);
        let refusal = refusal.or_else(|| receiving.admit_incoming(links, key));
        Ok(Begun { key, refusal })
    }

    /// Notes that a response to a stream of this side has begun to arrive. Returns the stream, or `None`
    /// if it was abandoned, and is gone now.
    fn begin_answer<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
        link: LinkKey,
        header: &FrameHeader,
    ) -> Result<Option<StreamKey>, ProtocolError> {
        let call = header.call;
        let unknown = ProtocolError::UnknownCall { call };
        let key = self.stream_of(links, link, call).ok_or(unknown)?;
        let stream = &mut self.entries[key];
        match &mut stream.phase {
            StreamPhase::Sent { call, counters } => {
                stream.phase = StreamPhase::Answered {
                    call: *call,
                    counters: mem::take(counters),
                    code: header.selector,
                };
                stream.abandon_sending(links, &mut bodies.sending);
                Ok(Some(key))
            }
            StreamPhase::Abandoned { .. } => {
                self.remove(key, links, bodies);
                Ok(None)
            }
            _ => Err(ProtocolError::UnknownCall { call }),
        }
    }

    /// Ends a stream with its response, all of which has arrived.
    fn answer<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
        header: &FrameHeader,
        body: ResponseBody,
    ) {
        let head = ResponseHead::of(header);
        let end = StreamEnd::Response { head, body };
        self.entries[key].end_core(links, &mut bodies.sending, end);
        self.finish(key, links, bodies);
    }

    /// Removes a stream that the server has answered, unless long messages are still under way.
    pub(in super::super) fn finish<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
    ) {
        let stream = &self.entries[key];
        if let StreamPhase::Answered { counters, code, .. } = &stream.phase
            && stream.receiving.is_empty()
        {
            counters.end(&links.counters, *code);
            self.remove(key, links, bodies);
        }
    }

    /// Ends a client's stream on this side: with `error`, or because the application has dropped it.
    /// If the server has its request, the call is cancelled, and its response is still to come.
    pub(in super::super) fn abandon<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
        error: Option<CallError>,
    ) {
        let stream = &mut self.entries[key];
        let count = |counters: &CalledStream| match &error {
            Some(error) => counters.end(&links.counters, error.code().number()),
            None => counters.drop_one(),
        };
        let is_opening = matches!(stream.phase, StreamPhase::Opening(_));
        let sent = match &stream.phase {
            StreamPhase::Opening(request) => {
                count(&request.counters);
                None
            }
            StreamPhase::Answered { counters, .. } => {
                count(counters);
                None
            }
            StreamPhase::Sent { call, counters } => {
                count(counters);
                Some(*call)
            }
            StreamPhase::Abandoned { .. } | StreamPhase::Serving(_) => return,
        };
        if let Some(timer) = stream.timer.take() {
            links.timers.cancel(timer);
        }
        let is_dropped = error.is_none();
        let dropped = || CallError::new(Cause::Cancelled, Execution::MayHaveRun);
        let end = StreamEnd::Failed(error.unwrap_or_else(dropped));
        stream.end_core(links, &mut bodies.sending, end);
        stream.stop_receiving(links, &mut bodies.receiving);
        stream.abandon_sending(links, &mut bodies.sending);
        let Some(call) = sent else {
            let never_sent = is_dropped && is_opening;
            links.counters.cancels.never_sent.add(never_sent.into());
            return self.remove(key, links, bodies);
        };
        stream.phase = StreamPhase::Abandoned { call };
        let link = stream.link;
        links.cancel_call(link, call);
    }

    /// Forgets the long messages of a connection, which have ended with it. Its streams may end in later
    /// turns, for other reasons, too: their deadlines pass, or the server stops.
    #[cold]
    pub(in super::super) fn forget_bodies_of(&mut self, link: LinkKey) {
        for stream in self.entries.values_mut() {
            if stream.link == link {
                stream.sending.clear();
                stream.receiving.clear();
            }
        }
    }

    /// Ends a stream of a connection that has ended. Returns what it leaves.
    pub(in super::super) fn end_with_connection<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
        reason: &CloseReason,
    ) -> LeftStream {
        let call = self.served_of(key);
        let task = self.take_task(key);
        let stream = &mut self.entries[key];
        let execution = match &stream.phase {
            StreamPhase::Opening(_) => Execution::NeverSent,
            _ => Execution::MayHaveRun,
        };
        let error = CallError::new(Cause::Disconnected(reason.clone()), execution);
        let code = error.code().number();
        let mut answer = None;
        match &mut stream.phase {
            StreamPhase::Opening(request) => request.counters.end(&links.counters, code),
            StreamPhase::Sent { counters, .. } | StreamPhase::Answered { counters, .. } => {
                counters.end(&links.counters, code);
            }
            StreamPhase::Abandoned { .. } => {}
            StreamPhase::Serving(serving) => answer = serving.answer.take(),
        }
        stream.end_core(links, &mut bodies.sending, StreamEnd::Failed(error));
        self.remove(key, links, bodies);
        LeftStream { call, task, answer }
    }

    /// Removes a stream that has ended on both sides.
    pub(in super::super) fn remove<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
    ) {
        self.to_look.remove(key);
        links.outbox.forget_stream(key);
        let mut stream = self.entries.remove(key);
        stream.stop_receiving(links, &mut bodies.receiving);
        if stream.phase.is_client() {
            stream.abandon_sending(links, &mut bodies.sending);
        }
        if let StreamPhase::Opening(request) = &mut stream.phase {
            bodies.sending.discard(mem::take(&mut request.message));
        }
        if let Some(timer) = stream.timer {
            links.timers.cancel(timer);
        }
        links.counters.streams.ended.add(1);
        let link = &mut links[stream.link];
        link.streams.open -= 1;
        if stream.has_memory {
            link.streams.give_memory_back();
        }
        match &stream.phase {
            StreamPhase::Opening(_) => {}
            StreamPhase::Sent { call, .. }
            | StreamPhase::Answered { call, .. }
            | StreamPhase::Abandoned { call } => {
                link.calls.end_stream(*call);
            }
            StreamPhase::Serving(serving) => {
                link.streams.end_served(serving.call);
                // A part of the handler may live on in a task of its own.
                let error = CallError::new(Cause::Cancelled, Execution::Answered);
                stream.end_core(links, &mut bodies.sending, StreamEnd::Failed(error));
            }
        }
        let on = stream.link;
        self.kept.keep(stream.core);
        let connection = &links[on].connection;
        if connection.streams() < connection.max_streams()
            && let Some(next) = links.outbox.awaiting_room.pop(on)
        {
            self.to_look.insert(next);
        }
        links.close_if_orphaned(on);
    }

    /// Keeps the outcome of a handler until all of its messages have been sent.
    pub(in super::super) fn keep_answer(&mut self, key: StreamKey, answer: BlockedResponse) {
        if let Some(serving) = self.entries[key].serving() {
            serving.task = None;
            serving.answer = Some(answer);
        }
        self.to_look.insert(key);
    }

    /// Answers a stream, and discards the messages that have not been sent. Returns the answer that
    /// this one replaces. Wakers are collected.
    pub(in super::super) fn replace_answer<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
        answer: BlockedResponse,
    ) -> Option<BlockedResponse> {
        let stream = &mut self.entries[key];
        let mut replaced = None;
        if let Some(serving) = stream.serving() {
            serving.task = None;
            replaced = serving.answer.replace(answer);
            let mut core = stream.core.lock();
            links.wakers.extend(core.stop_sending());
            let left = core.outbound.take_left();
            drop(core);
            for message in left {
                bodies.sending.discard(message);
            }
        }
        stream.abandon_sending(links, &mut bodies.sending);
        stream.stop_receiving(links, &mut bodies.receiving);
        self.to_look.insert(key);
        replaced
    }

    /// Removes a stream, and takes a credit for its answer, if it can be answered at once: nothing of it
    /// is under way, and no other stream waits.
    pub(in super::super) fn take_answered<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
    ) -> Option<IncomingCall> {
        let call = self.served_of(key)?;
        let stream = &self.entries[key];
        let is_idle = stream.receiving.is_empty() && stream.core.lock().outbound.is_empty();
        if !is_idle || self.wait(links) {
            return None;
        }
        // The response takes it along.
        links
            .permit(Class::Message, call.link)
            .map(Permit::hold)
            .ok()?;
        self.remove(key, links, bodies);
        Some(call)
    }

    /// Removes a stream whose answer is sent now, and returns the answer.
    pub(in super::super) fn take_answer<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
    ) -> Blocked {
        let call = self.served_of(key);
        let serving = self.entries[key].serving();
        let answer = serving.and_then(|serving| serving.answer.take());
        let (Some(call), Some(response)) = (call, answer) else {
            unreachable!("only a stream with an answer is answered");
        };
        self.remove(key, links, bodies);
        Blocked { call, response }
    }

    /// Takes a long message of a stream, or its long response, which is complete.
    pub(in super::super) fn complete_long<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
        (incoming, header): (IncomingKey, &FrameHeader),
        message: Box<LongMessage>,
    ) {
        let stream = &mut self.entries[key];
        stream.receiving.retain(|other| *other != incoming);
        if header.kind == FrameKind::Response {
            return self.answer(key, links, bodies, header, ResponseBody::Long(message));
        }
        stream.complete_long(links, incoming, *message);
        self.finish(key, links, bodies);
    }

    /// Handles that the sender of a long message sends no more of it. Returns true if the stream is
    /// served: its client has cancelled the call.
    pub(in super::super) fn cut_long<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
        incoming: IncomingKey,
    ) -> bool {
        let stream = &mut self.entries[key];
        stream.cut_long(links, &mut bodies.receiving, incoming);
        let is_served = stream.is_served();
        self.finish(key, links, bodies);
        is_served
    }

    /// What becomes of a stream that does not receive a message.
    pub(in super::super) fn fail_receiving<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
        status: Status,
    ) -> Option<FailedHandler> {
        let stream = &mut self.entries[key];
        let link = stream.link;
        let Some(serving) = stream.serving() else {
            let error = CallError::remote(status);
            self.abandon(key, links, bodies, Some(error));
            return None;
        };
        if serving.answer.is_some() {
            // It waits to be sent. The handler has ended.
            stream.stop_receiving(links, &mut bodies.receiving);
            self.to_look.insert(key);
            return None;
        }
        let (call, task) = (serving.call, serving.task);
        Some(FailedHandler {
            link,
            call,
            has_begun: task.is_some(),
            status,
        })
    }

    /// Ends a stream whose deadline has passed. Returns true if its handler has to be ended.
    pub(in super::super) fn expire<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
    ) -> bool {
        let stream = &mut self.entries[key];
        stream.timer = None;
        let execution = match &stream.phase {
            StreamPhase::Serving(_) => return true,
            StreamPhase::Opening(_) => Execution::NeverSent,
            StreamPhase::Sent { .. }
            | StreamPhase::Answered { .. }
            | StreamPhase::Abandoned { .. } => Execution::MayHaveRun,
        };
        let error = CallError::new(Cause::DeadlineExceeded { latest: None }, execution);
        self.abandon(key, links, bodies, Some(error));
        false
    }
}

/// What a stream leaves whose connection has ended.
pub(in super::super) struct LeftStream {
    /// The call of a client, if it has been counted.
    pub(in super::super) call: Option<IncomingCall>,
    pub(in super::super) task: Option<TaskKey>,
    /// The answer that was not sent.
    pub(in super::super) answer: Option<BlockedResponse>,
}

/// The handler of a stream that fails.
pub(in super::super) struct FailedHandler {
    pub(in super::super) link: LinkKey,
    pub(in super::super) call: CallId,
    pub(in super::super) has_begun: bool,
    pub(in super::super) status: Status,
}
