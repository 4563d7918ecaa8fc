//! Opening a stream, on the client.

use std::mem;
use std::sync::Arc;

use bytes::Bytes;

use super::super::bodies::TransferOwner;
use super::super::call_table::WakeTarget;
use super::super::handle::StreamRequest;
use super::super::link::{Link, LinkKey};
use super::super::outbox::{Body, Class, Missing};
use super::super::{Driver, State, TimerTarget};
use super::{Phase, Stream, StreamKey, Streams};
use crate::call_error::{CallError, Cause, Execution};
use crate::codec::Chunks;
use crate::protocol::connection::Connection;
use crate::protocol::frame::{
    CallId, Flags, FrameHeader, FrameKind, HEADER_LEN, room_for_metadata,
};
use crate::stream::core::StreamCore;
use crate::stream::inbound::StreamEnd;
use crate::stream::outbound::{StreamSizes, coalesces};
use crate::stream::wakers::wake_all;
use crate::transport::{CloseReason, Transport};

/// What would happen to a stream that is opened on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamCapacity {
    /// It is sent at once.
    Free,
    /// It waits for a credit.
    NoCredit,
    /// It waits until another stream has ended, or fails.
    None,
}

impl<T: Transport> Driver<T> {
    /// Opens a stream as soon as its connection has a credit and room for it. If it cannot be
    /// opened, `core` ends.
    pub(crate) fn open_stream(&self, link: LinkKey, core: Arc<StreamCore>, request: StreamRequest) {
        let mut request = request;
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let cause = state.cause_not_to_open(link, &mut request);
        if let Some(cause) = cause {
            drop(borrowed);
            let error = CallError::new(cause, Execution::NeverSent);
            request.counters.end(&self.counters, error.code().number());
            let wakers = core.lock().end(StreamEnd::Failed(error));
            wake_all(wakers.into_iter().flatten());
            return;
        }
        let spec = request.spec;
        let sizes = state.stream_sizes(link, spec.max_request_len);
        let deadline = request.deadline;
        let key = state.streams.entries.next_key();
        let sender = core.attach(self.ready.clone(), key.number(), sizes);
        let sent = state.send_at_once(link, key, &core, &mut request);
        let phase = match sent {
            Some(call) => Phase::Sent {
                call,
                counters: request.counters,
            },
            None => Phase::Opening(Box::new(request)),
        };
        let stream = Stream::new(core, link, phase, spec.max_response_len);
        state.streams.entries.insert(stream);
        state.links[link].streams.open += 1;
        if let Some(deadline) = deadline {
            let timer = state
                .links
                .timers
                .insert(deadline, TimerTarget::Stream(key));
            state.streams.entries[key].timer = Some(timer);
        }
        if sent.is_none() {
            state.streams.queue(key);
        }
        drop(borrowed);
        wake_all(sender);
    }
}

impl<T: Transport> Driver<T> {
    /// Returns what would happen to a stream that is opened now.
    pub(crate) fn stream_capacity(&self, link: LinkKey) -> StreamCapacity {
        let state = self.state.borrow();
        let Some(link) = state.links.table.get(link) else {
            return StreamCapacity::None;
        };
        let connection = &link.connection;
        if link.takes_no_calls() || link.streams.open >= connection.max_streams() {
            return StreamCapacity::None;
        }
        // Streams that were opened in this turn have not been sent yet.
        let unsent = link.streams.open.saturating_sub(connection.streams());
        if connection.messages_allowed() > unsent {
            StreamCapacity::Free
        } else {
            StreamCapacity::NoCredit
        }
    }
}

impl<T: Transport> State<T> {
    /// Returns the reason that a stream cannot be opened. Otherwise, its message is in its frame if it
    /// fits, and else in parts.
    fn cause_not_to_open(&self, link: LinkKey, request: &mut StreamRequest) -> Option<Cause> {
        let Some(entry) = self.links.table.get(link) else {
            return Some(Cause::Disconnected(CloseReason::Local));
        };
        if let Some(reason) = entry.end() {
            return Some(Cause::Disconnected(reason));
        }
        let limit = self.links.transport.longest_frame(entry.id);
        let most = usize::from(u16::MAX);
        if request.metadata_len > most {
            return Some(Cause::metadata_too_long(request.metadata_len, most));
        }
        // The connection has ended, and the next event ends the stream.
        if limit == 0 {
            return None;
        }
        let overhead = HEADER_LEN + request.metadata_len;
        let message_len = (request.frame.len() - overhead) + request.message.len();
        if overhead + message_len <= limit {
            while let Some(part) = request.message.take_front(usize::MAX) {
                request.frame.extend_from_slice(&part);
            }
        } else if request.message.is_empty() {
            let mut frame = Bytes::from(mem::take(&mut request.frame));
            request.message = Chunks::from(frame.split_off(overhead));
            request.frame = frame.into();
        }
        let longest = entry
            .longest_message
            .and_method(request.spec.max_request_len);
        if message_len > longest.bytes() {
            return Some(Cause::request_too_long(message_len, longest));
        }
        // The frame of a long message describes it.
        let room = room_for_metadata(limit);
        let is_too_long = !request.message.is_empty() && request.metadata_len > room;
        is_too_long.then(|| Cause::metadata_too_long(request.metadata_len, room))
    }

    /// Returns the sizes of a stream of a link. Its method may have a limit for the messages that this
    /// side sends.
    pub(super) fn stream_sizes(&self, link: LinkKey, of_method: Option<u32>) -> StreamSizes {
        let entry = &self.links[link];
        StreamSizes {
            frame_room: self
                .links
                .transport
                .longest_frame(entry.id)
                .saturating_sub(HEADER_LEN),
            inbound_window: entry.streams.inbound_window,
            outbound_window: entry.streams.outbound_window,
            coalesces: coalesces(),
            longest_message: entry.longest_message.and_method(of_method),
        }
    }

    /// Sends the short request of a new stream, if no other stream waits, and everything is there that
    /// it needs. Returns its call.
    fn send_at_once(
        &mut self,
        on: LinkKey,
        key: StreamKey,
        core: &StreamCore,
        request: &mut StreamRequest,
    ) -> Option<CallId> {
        let is_short =
            request.message.is_empty() && request.frame.len() <= self.links.longest_inline;
        if !is_short || self.streams_wait() || !self.links.has_window_for_streams(on) {
            return None;
        }
        if self.links[on].announced_end().is_some() || self.streams.awaiting_room.len_of(on) > 0 {
            return None;
        }
        let mut state = core.lock();
        // The application may have half-closed, or given the call up.
        let has_work = state.is_cancelled() || state.outbound.next_frame().is_some();
        if has_work {
            return None;
        }
        let time_us = self.links.on_peers_clock(on, request.deadline);
        let permit = self.links.permit(Class::Opening, on).ok()?;
        state.begin_look();
        drop(state);
        let mut frame = mem::take(&mut request.frame);
        let sent = permit.send(Body::Inline(&mut frame), |link, frame| {
            let call = link.calls.begin(&mut WakeTarget::Stream(key))?;
            let connection = &mut link.connection;
            let mut header = request_header(connection, FrameKind::Request, call, request);
            header.time_us = time_us;
            header.encode(frame);
            Some(call)
        });
        let Ok(call) = sent else {
            request.frame = frame;
            return None;
        };
        request.counters.start();
        self.links.counters.streams.opened.add(1);
        Some(call)
    }

    /// Sends the request of a stream. Returns false if it has to wait; the stream is then queued
    /// again, or waits among its link's stalled ones.
    pub(super) fn send_opening(&mut self, key: StreamKey) -> bool {
        let link_key = self.streams.entries[key].link;
        // The application may have sent a message meanwhile, or half-closed.
        if self.streams.awaiting_room.contains(key) {
            return false;
        }
        if !self.links.has_window_for_streams(link_key) {
            self.stall(key);
            return false;
        }
        let link = &mut self.links[link_key];
        if link.connection.streams() >= link.connection.max_streams() {
            self.streams.awaiting_room.insert(link_key, key);
            return false;
        }
        let sent = match self.streams.opening(key).message.is_empty() {
            true => self.send_short_opening(key),
            false => self.send_long_opening(key),
        };
        match sent {
            Ok(()) => {}
            Err(Missing::Credit) => self.stall(key),
            // The next event ends the stream.
            Err(Missing::Connection) => {}
            // The length was checked, so only slots or ids are missing.
            Err(_) => self.streams.queue(key),
        }
        sent.is_ok()
    }

    fn send_short_opening(&mut self, key: StreamKey) -> Result<(), Missing> {
        let link = self.streams.entries[key].link;
        let request = self.streams.opening(key);
        let time_us = self.links.on_peers_clock(link, request.deadline);
        let permit = self.links.permit(Class::Opening, link)?;
        let call = permit.send(Body::Slot(request.frame.len()), |link, frame| {
            let call = link.calls.begin(&mut WakeTarget::Stream(key))?;
            let connection = &mut link.connection;
            let mut header = request_header(connection, FrameKind::Request, call, request);
            header.time_us = time_us;
            frame.copy_from_slice(&request.frame);
            header.encode(frame);
            Some(call)
        })?;
        self.opened(key, call);
        Ok(())
    }

    fn send_long_opening(&mut self, key: StreamKey) -> Result<(), Missing> {
        let on = self.streams.entries[key].link;
        let request = self.streams.opening(key);
        let time_us = self.links.on_peers_clock(on, request.deadline);
        self.links.permit(Class::Opening, on)?.hold();
        let mut message = mem::take(&mut request.message);
        let (metadata, owner) = (&request.frame[HEADER_LEN..], TransferOwner::Stream(key));
        let begin = |link: &mut Link<_>| {
            let call = link.calls.begin(&mut WakeTarget::Stream(key))?;
            let kind = FrameKind::LongRequest;
            let mut header = request_header(&mut link.connection, kind, call, request);
            header.time_us = time_us;
            Some((header, owner))
        };
        let links = &mut self.links;
        let sent =
            self.bodies
                .sending
                .send_long(links, on, Class::Opening, metadata, &mut message, begin);
        let request = self.streams.opening(key);
        request.message = message;
        let (call, transfer) = sent?;
        request.frame = Vec::new();
        self.opened(key, call);
        self.sends_for(key, transfer);
        Ok(())
    }

    /// Notes that the request of a stream was sent.
    fn opened(&mut self, key: StreamKey, call: CallId) {
        let counters = self.streams.opening(key).counters.clone();
        counters.start();
        self.links.counters.streams.opened.add(1);
        self.streams.entries[key].phase = Phase::Sent { call, counters };
    }
}

impl Streams {
    /// Returns the request of a stream that has not been sent.
    fn opening(&mut self, key: StreamKey) -> &mut StreamRequest {
        match &mut self.entries[key].phase {
            Phase::Opening(request) => request,
            _ => unreachable!("{key:?} is open"),
        }
    }
}

/// Returns the header of a request that opens a stream, but for its deadline.
fn request_header(
    connection: &mut Connection,
    kind: FrameKind,
    call: CallId,
    request: &StreamRequest,
) -> FrameHeader {
    let flags = match request.sends_messages {
        true => Flags::STREAM.with(Flags::OPEN),
        false => Flags::STREAM,
    };
    let mut header = connection.next_header_with(kind, flags, call, request.method);
    // Longer metadata was refused.
    header.metadata_len = request.metadata_len as u16;
    header
}
