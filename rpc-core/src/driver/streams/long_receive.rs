//! Long messages of streams, on the side that receives them. `long.rs` has the side that sends.
//!
//! A long message has its position in the stream from its first frame on. The stream's
//! [`Inbound`](crate::stream::inbound::Inbound) keeps this position while the message is under way, and
//! what arrives behind it waits there, out of its slots and within the stream's window.
//!
//! The response of the server may arrive before long messages are complete that precede it. The stream
//! stays until they are ([`Phase::Answered`]).

use std::sync::Arc;

use super::super::link::LinkKey;
use super::super::link_transfers::IncomingKey;
use super::super::responses::Started;
use super::super::transfers::{Completed, LongMessage, Purpose};
use super::super::{Driver, State, TimerTarget};
use super::{Phase, StreamKey};
use crate::call_error::CallError;
use crate::limits::{Direction, MessageLimit};
use crate::protocol::connection::ProtocolError;
use crate::protocol::frame::{Flags, FrameHeader, FrameKind, LongBody, ResponseHead};
use crate::status::Status;
use crate::stream::inbound::{ResponseBody, StreamEnd};
use crate::transport::Transport;

/// A long message that has begun, and the reason that its stream fails at once, if there is one.
type Begun = (IncomingKey, Option<(StreamKey, Status)>);

impl<T: Transport> Driver<T> {
    /// Handles the first frame of a long message of a stream.
    pub(in super::super) fn receive_long_of_stream(
        &self,
        link: LinkKey,
        header: &FrameHeader,
        metadata: &[u8],
        body: &[u8],
    ) -> Result<Option<Completed>, ProtocolError> {
        let body = LongBody::parse(header.kind, body)?;
        let (incoming, refusal) = match header.kind {
            FrameKind::LongRequest => self.receive_long_opening(link, header, metadata, &body)?,
            FrameKind::LongResponse => {
                let mut state = self.state.borrow_mut();
                state.receive_long_answer(link, header, metadata, &body)?
            }
            _ => {
                let mut state = self.state.borrow_mut();
                state.receive_long_message(link, header, metadata, &body)?
            }
        };
        let mut state = self.state.borrow_mut();
        state.take_piece(incoming, body.form, body.piece)?;
        let completed = state.complete(incoming);
        drop(state);
        if let Some((key, status)) = refusal {
            self.fail_receiving(key, status);
        }
        self.wake_collected();
        Ok(completed)
    }

    /// Fails the streams with long messages that get no memory.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn fail_refused(&self) {
        loop {
            let refused = self.state.borrow_mut().streams.refused.pop_front();
            let Some((key, status)) = refused else { return };
            self.fail_receiving(key, status);
        }
    }

    /// Adds the stream that a long request opens.
    fn receive_long_opening(
        &self,
        link: LinkKey,
        header: &FrameHeader,
        metadata: &[u8],
        body: &LongBody<'_>,
    ) -> Result<Begun, ProtocolError> {
        let served = self.counters.received(header.selector, || self.clock.now());
        let parts = self.request_parts(link, header);
        let mut refusal = None;
        if parts.is_expired || parts.handler.is_none() {
            refusal = Some(self.rejection(header, parts.is_expired));
        }
        let spec = self.methods.borrow().spec(header.selector);
        let state = &mut *self.state.borrow_mut();
        let accepted = state.accept_stream(link, header, spec);
        let key = match accepted.map(|()| state.stream_of(link, header.call)) {
            Ok(Some(key)) => key,
            Ok(None) => return Err(ProtocolError::UnknownCall { call: header.call }),
            Err(error) => {
                self.counters.dropped(served.method);
                return Err(error);
            }
        };
        state.set_served(key, served);
        let purpose = Purpose::Stream(key);
        let incoming = state.begin_incoming(link, header, metadata, body, purpose, None)?;
        if refusal.is_none() {
            refusal = state.refuse_length(key, link, body.len);
        }
        let refusal = refusal.or_else(|| state.admit_incoming(incoming));
        let Some(status) = refusal else {
            state.receive_for(key, incoming);
            if let Some(deadline) = parts.deadline
                && let Some(stream) = state.streams.get_mut(key)
            {
                let timer = state.timers.insert(deadline, TimerTarget::Stream(key));
                stream.timer = Some(timer);
            }
            return Ok((incoming, None));
        };
        state.stop_incoming(incoming);
        Ok((incoming, Some((key, status))))
    }

    /// Fails a stream because this side cannot receive a message, unless the stream has its answer.
    #[cold]
    pub(in super::super) fn fail_receiving(&self, key: StreamKey, status: Status) {
        let mut state = self.state.borrow_mut();
        let Some(stream) = state.streams.get_mut(key) else {
            return;
        };
        let Phase::Serving(serving) = &stream.phase else {
            let error = CallError::remote(status);
            state.abandon_stream(key, Some(error));
            drop(state);
            return self.wake_collected();
        };
        if serving.answer.is_some() {
            // It waits to be sent. The handler has ended.
            state.stop_receiving(key);
            state.streams.queue(key);
            drop(state);
            return self.wake_collected();
        }
        let (link, call) = (stream.link, serving.call);
        let started = match serving.task {
            Some(_) => Started::Maybe,
            None => Started::NOT,
        };
        // A handler whose request waits for its turn does not begin.
        let queued = state.take_queued(link, call);
        drop(state);
        if let Some(request) = queued {
            let (header, served) = (request.header, request.served);
            return self.refuse(link, &header, served, request.buf, status, Started::NOT);
        }
        self.end_handler(key, status, started);
    }

    /// Delivers a long message of a stream, which is complete.
    pub(in super::super) fn deliver_long_of_stream(
        &self,
        key: StreamKey,
        incoming: IncomingKey,
        link: LinkKey,
        long: LongMessage,
    ) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let Some(stream) = state.streams.get_mut(key) else {
            return;
        };
        stream.receiving.retain(|other| *other != incoming);
        let header = long.header;
        let message = self.received_long(&long);
        match header.kind {
            FrameKind::LongRequest => {
                if let Phase::Serving(serving) = &stream.phase
                    && let Some(served) = serving.served
                {
                    drop(borrowed);
                    drop(message);
                    self.serve_long_stream(link, served, long);
                }
                return;
            }
            FrameKind::LongResponse => {
                let head = ResponseHead::of(&header);
                let body = ResponseBody::Long {
                    metadata: long.metadata,
                    message,
                };
                state.end_core(key, StreamEnd::Response { head, body });
            }
            _ => {
                let mut core = stream.core.lock();
                let left = core.inbound.complete_long(incoming.number(), message);
                state.wakers.extend(core.inbound.reader.wake());
                drop(core);
                drop(left);
            }
        }
        state.finish_answered(key);
        drop(borrowed);
        self.wake_collected();
    }

    /// Handles a long message of a stream whose sender sends no more of it.
    pub(in super::super) fn abandoned_long_of_stream(&self, key: StreamKey, incoming: IncomingKey) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let Some(stream) = state.streams.get_mut(key) else {
            return;
        };
        stream.receiving.retain(|other| *other != incoming);
        let mut core = stream.core.lock();
        core.inbound.cut(incoming.number());
        // The end may have arrived before, and nothing else wakes the reader for it.
        state.wakers.extend(core.inbound.reader.wake());
        drop(core);
        // Those before it go on.
        let (core, receiving) = (Arc::clone(&stream.core), stream.receiving.clone());
        for other in receiving {
            if !core.lock().inbound.awaits(other.number()) {
                state.stop_one(key, other);
            }
        }
        state.finish_answered(key);
        let stream = state.streams.get_mut(key);
        let is_served = stream.is_some_and(|stream| matches!(stream.phase, Phase::Serving(_)));
        drop(borrowed);
        if is_served {
            // Its client has cancelled the call. The handler must not take an end that was sent
            // behind the message for the end of a complete stream.
            let status = Status::cancelled("the client cancelled the call");
            self.fail_receiving(key, status);
        }
        self.wake_collected();
    }
}

impl<T: Transport> State<T> {
    fn receive_long_message(
        &mut self,
        link: LinkKey,
        header: &FrameHeader,
        metadata: &[u8],
        body: &LongBody<'_>,
    ) -> Result<Begun, ProtocolError> {
        let call = header.call;
        let key = match self.stream_of(link, call) {
            Some(key) => Some(key),
            // The server has answered the call meanwhile.
            None if self.links[link.index()].is_server() => None,
            None => return Err(ProtocolError::UnknownCall { call }),
        };
        let purpose = key.map_or(Purpose::Nobody, Purpose::Stream);
        let incoming = self.begin_incoming(link, header, &[], body, purpose, None)?;
        let Some(key) = key else {
            self.stop_incoming(incoming);
            return Ok((incoming, None));
        };
        let is_wanted = self.begin_long_message(key, header, metadata, incoming)?;
        let refusal = self.refuse_length(key, link, body.len);
        if is_wanted && refusal.is_none() {
            self.receive_for(key, incoming);
            self.fetch_ahead(key);
            return Ok((incoming, None));
        }
        self.stop_incoming(incoming);
        if let Some(stream) = self.streams.get_mut(key) {
            stream.core.lock().inbound.cut(incoming.number());
        }
        let refusal = refusal.filter(|_| is_wanted);
        Ok((incoming, refusal.map(|status| (key, status))))
    }

    /// Returns the status of a message that is longer than this side receives on a stream.
    fn refuse_length(&mut self, key: StreamKey, link: LinkKey, len: u32) -> Option<Status> {
        let of_method = self.streams.get_mut(key).and_then(|stream| stream.longest);
        let limit = MessageLimit::of_receiver(self.transport.limits()).and_method(of_method);
        let direction = match self.links[link.index()].is_server() {
            true => Direction::Request,
            false => Direction::Response,
        };
        let len = len as usize;
        (len > limit.bytes()).then(|| Status::message_too_long(len, limit, direction))
    }

    /// Applies the first frame of a long message to its stream. Returns false if nobody wants the
    /// message.
    fn begin_long_message(
        &mut self,
        key: StreamKey,
        header: &FrameHeader,
        metadata: &[u8],
        incoming: IncomingKey,
    ) -> Result<bool, ProtocolError> {
        let call = header.call;
        let Some(stream) = self.streams.get_mut(key) else {
            return Ok(false);
        };
        if let Phase::Answered { .. } = stream.phase {
            return Err(ProtocolError::UnknownCall { call });
        }
        stream.was_used = true;
        self.counters.streams.frames_received.add(1);
        let is_server = matches!(stream.phase, Phase::Serving(_));
        let mut core = stream.core.lock();
        if is_server && core.inbound.has_ended() {
            return Err(ProtocolError::AfterHalfClose { call });
        }
        if header.time_us != 0 && !core.outbound.grant(header.time_us) {
            return Err(ProtocolError::GrantTooLarge { call });
        }
        if !is_server && (!metadata.is_empty() || !core.inbound.has_begun()) {
            core.inbound.begin(metadata);
        }
        let received = core.inbound.receive_long(incoming.number());
        let is_wanted = received.map_err(|exceeded| ProtocolError::StreamWindow {
            call,
            sent: exceeded.sent,
            available: exceeded.available,
        })?;
        if header.flags.contains(Flags::LAST) {
            core.inbound.end(StreamEnd::HalfClosed);
        }
        // The server has begun to answer.
        self.wakers.extend(core.inbound.reader.wake());
        drop(core);
        // Its window may have been granted, and a stream whose reader has gone owes a grant.
        self.streams.queue(key);
        Ok(is_wanted)
    }

    /// Handles the first frame of a long response, which ends a stream.
    fn receive_long_answer(
        &mut self,
        link: LinkKey,
        header: &FrameHeader,
        metadata: &[u8],
        body: &LongBody<'_>,
    ) -> Result<Begun, ProtocolError> {
        let call = header.call;
        let unknown = ProtocolError::UnknownCall { call };
        let key = self.stream_of(link, call).ok_or(unknown)?;
        let is_wanted = match self.streams.get_mut(key).map(|stream| &stream.phase) {
            Some(Phase::Sent { .. }) => true,
            Some(Phase::Abandoned { .. }) => false,
            _ => return Err(ProtocolError::UnknownCall { call }),
        };
        let purpose = match is_wanted {
            true => Purpose::Stream(key),
            false => Purpose::Nobody,
        };
        let incoming = self.begin_incoming(link, header, metadata, body, purpose, None)?;
        self.note_answer(key, header);
        if !is_wanted {
            self.stop_incoming(incoming);
            self.remove_stream(key);
            return Ok((incoming, None));
        }
        let refusal = self.refuse_length(key, link, body.len);
        let refusal = refusal.or_else(|| self.admit_incoming(incoming));
        match refusal {
            None => self.receive_for(key, incoming),
            Some(_) => self.stop_incoming(incoming),
        }
        Ok((incoming, refusal.map(|status| (key, status))))
    }

    /// Notes that the response to a stream of this side has arrived, or has begun to arrive.
    pub(super) fn note_answer(&mut self, key: StreamKey, header: &FrameHeader) {
        if let Some(stream) = self.streams.get_mut(key)
            && let Phase::Sent { call, counters } = &stream.phase
        {
            stream.phase = Phase::Answered {
                call: *call,
                counters: counters.clone(),
                code: header.selector,
            };
        }
    }

    /// Removes a stream that the server has answered, unless long messages are still under way.
    pub(super) fn finish_answered(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        if let Phase::Answered { counters, code, .. } = &stream.phase
            && stream.receiving.is_empty()
        {
            counters.end(&self.counters, *code);
            self.remove_stream(key);
        }
    }

    fn receive_for(&mut self, key: StreamKey, incoming: IncomingKey) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.receiving.push(incoming);
        }
    }

    /// Fetches the next long messages of a stream, unless its reader lags behind. One for which there
    /// is no room ahead of its reader is fetched when the reader waits for it.
    fn fetch_ahead(&mut self, key: StreamKey) {
        while let Some(stream) = self.streams.get_mut(key) {
            let core = Arc::clone(&stream.core);
            let next = core.lock().inbound.next_to_fetch();
            let Some(next) = next else { return };
            let mut receiving = stream.receiving.iter().copied();
            let incoming = receiving.find(|incoming| incoming.number() == next.transfer);
            let ahead = incoming.map(|incoming| self.read_ahead(incoming));
            if let Some(None) = ahead
                && !next.is_awaited
            {
                return;
            }
            let ahead = ahead.flatten().filter(|_| !next.is_awaited);
            core.lock().inbound.begin_to_fetch(next.transfer, ahead);
            if let Some(status) = incoming.and_then(|incoming| self.admit_incoming(incoming)) {
                self.streams.refuse(key, status);
            }
        }
    }

    /// Looks at a stream with long messages that its reader has not got: fetches the next, or stops all
    /// of them if nobody reads.
    #[cold]
    #[inline(never)]
    pub(super) fn look_at_receiving(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        let mut core = stream.core.lock();
        core.begin_look();
        let is_answered = matches!(stream.phase, Phase::Answered { .. });
        let is_cancelled = is_answered && core.is_cancelled();
        let is_discarded = core.inbound.is_discarded();
        drop(core);
        if is_cancelled {
            self.abandon_stream(key, None);
        } else if is_discarded && matches!(stream.phase, Phase::Serving(_)) {
            // A handler that has begun has its request.
            self.stop_receiving(key);
        } else {
            self.fetch_ahead(key);
        }
    }

    fn stop_one(&mut self, key: StreamKey, incoming: IncomingKey) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.receiving.retain(|other| *other != incoming);
        }
        self.stop_incoming(incoming);
    }

    /// Stops the long messages that are under way to a stream. Its reader, if there is one, gets those
    /// before them. Collects its waker.
    pub(super) fn stop_receiving(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        if stream.receiving.is_empty() {
            return;
        }
        let mut core = stream.core.lock();
        // Their numbers are used again.
        core.inbound.cut_incomplete();
        self.wakers.extend(core.inbound.reader.wake());
        drop(core);
        for incoming in std::mem::take(&mut stream.receiving) {
            self.stop_incoming(incoming);
        }
    }
}
