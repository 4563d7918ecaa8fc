//! A stream opens: its client sends a request, and its server receives one.

use std::mem;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;

use super::super::bodies::{Bodies, TransferOwner};
use super::super::call_table::WakeTarget;
use super::super::handle::StreamRequest;
use super::super::link::{Link, LinkKey};
use super::super::link_streams::StreamKey;
use super::super::links::Links;
use super::super::outbox::{Class, Missing, Slot};
use super::{ServedStream, Stream, StreamPhase, Streams};
use crate::call_error::{CallError, Cause, Execution};
use crate::method::MethodSpec;
use crate::protocol::connection::{Connection, ProtocolError};
use crate::protocol::frame::{
    CallId, Flags, FrameHeader, FrameKind, HEADER_LEN, room_for_metadata,
};
use crate::stream::core::StreamCore;
use crate::stream::end::StreamEnd;
use crate::stream::outbound::{StreamSizes, coalesces};
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

impl StreamCapacity {
    /// Returns what would happen to a stream that is opened on a link now.
    pub(in super::super) fn of<B>(link: &mut Link<B>) -> Self {
        if link.takes_no_calls() {
            return Self::None;
        }
        if link.streams.open >= link.connection.max_streams() {
            note_that_streams_wait(link);
            return Self::None;
        }
        let connection = &link.connection;
        // Streams that were opened in this turn have not been sent yet.
        let unsent = link.streams.open.saturating_sub(connection.streams());
        match connection.messages_allowed() > unsent {
            true => Self::Free,
            false => Self::NoCredit,
        }
    }
}

impl Streams {
    /// Opens a stream as soon as its connection has a credit and room for it. Returns the waker of its
    /// sender, to be called while nothing is borrowed.
    ///
    /// # Errors
    ///
    /// Returns the error with which the call ends if it cannot be opened.
    pub(in super::super) fn open_new<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        core: &Arc<StreamCore>,
        mut request: StreamRequest,
    ) -> Result<Option<Waker>, CallError> {
        if let Some(cause) = cause_not_to_open(links, link, &mut request) {
            let error = CallError::new(cause, Execution::NeverSent);
            request.counters.end(&links.counters, error.code().number());
            return Err(error);
        }
        let spec = request.spec;
        let sizes = sizes(links, link, spec.max_request_len);
        let deadline = request.deadline;
        let key = self.entries.next_key();
        let sender = core.attach(
            self.signals.clone(),
            key.number(),
            sizes,
            *links[link].memory,
        );
        let sent = self.send_at_once(links, link, key, core, &mut request);
        let phase = match sent {
            Some(call) => StreamPhase::Sent {
                call,
                counters: request.counters,
            },
            None => StreamPhase::Opening(Box::new(request)),
        };
        let mut stream = Stream::new(Arc::clone(core), link, phase, spec.max_response_len);
        stream.timer = deadline.map(|deadline| links.time_stream(key, deadline));
        self.entries.insert(stream);
        links[link].streams.open += 1;
        if sent.is_none() {
            self.to_look.insert(key);
        }
        Ok(sender)
    }

    /// Sends the short request of a new stream, if no other stream waits, and everything is there that
    /// it needs. Returns its call.
    fn send_at_once<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        on: LinkKey,
        key: StreamKey,
        core: &StreamCore,
        request: &mut StreamRequest,
    ) -> Option<CallId> {
        let is_short = request.message.is_empty() && request.frame.len() <= links.longest_inline;
        if !is_short || self.wait(links) || !links.has_window_for_streams(on) {
            return None;
        }
        if links[on].announced_end().is_some() || links.outbox.awaiting_room.len_of(on) > 0 {
            return None;
        }
        let mut state = core.lock();
        // The application may have half-closed, or given the call up.
        if state.is_cancelled() || state.outbound.next_frame().is_some() {
            return None;
        }
        let time_us = links.on_peers_clock(on, request.deadline);
        let permit = links.permit(Class::Opening, on).ok()?;
        state.begin_look();
        drop(state);
        let mut frame = mem::take(&mut request.frame);
        let sent = permit.send_inline(&mut frame, |link, frame| {
            begin(link, key, request, time_us, frame)
        });
        let Ok(call) = sent else {
            request.frame = frame;
            return None;
        };
        request.counters.start();
        links.counters.streams.opened.add(1);
        Some(call)
    }

    /// Sends the request of a stream. Returns false if it has to wait; the stream is then queued
    /// again, or waits for a credit or for room.
    pub(super) fn send_opening<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
    ) -> bool {
        let stream = &mut self.entries[key];
        let on = stream.link;
        // The application may have sent a message meanwhile, or half-closed.
        if links.outbox.awaiting_room.contains(key) {
            return false;
        }
        if !links.has_window_for_streams(on) {
            links.stall(on, key);
            return false;
        }
        let connection = &links[on].connection;
        if connection.streams() >= connection.max_streams() {
            links.outbox.awaiting_room.insert(on, key);
            note_that_streams_wait(&mut links[on]);
            return false;
        }
        let sent = match stream.opening().message.is_empty() {
            true => stream.send_short_opening(key, links),
            false => stream.send_long_opening(key, links, bodies),
        };
        match sent {
            Ok(()) => return true,
            Err(Missing::Credit) => links.stall(on, key),
            // The next event ends the stream.
            Err(Missing::Connection) => {}
            // The length was checked, so only slots or ids are missing.
            Err(_) => {
                self.to_look.insert(key);
            }
        }
        false
    }

    /// Adds the stream that a request opens, so that messages which follow find it while the request
    /// waits for its turn.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn accept<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        header: &FrameHeader,
        spec: Option<&MethodSpec>,
    ) -> Result<StreamKey, ProtocolError> {
        let call = header.call;
        if links[link].knows_call(call) {
            return Err(ProtocolError::DuplicateCall { call });
        }
        let longest = spec.and_then(|spec| spec.max_request_len);
        let core = StreamCore::of_server(self.kept.take(), self.poller, longest);
        let phase = StreamPhase::Serving(ServedStream {
            call,
            served: None,
            task: None,
            answer: None,
        });
        let mut stream = Stream::new(Arc::clone(&core), link, phase, longest);
        let of_each = links.transport.limits().memory_of_stream();
        let entry = &mut links[link];
        let memory = *entry.memory;
        // Without memory, its handler does not begin.
        let has_memory = entry.streams.take_memory(memory, of_each);
        stream.has_memory = has_memory;
        // Call ids bound the streams of a connection.
        let key = self.entries.insert(stream);
        let sizes = sizes(links, link, spec.and_then(|spec| spec.max_response_len));
        // No task waits for a new stream.
        let _ = core.attach(self.signals.clone(), key.number(), sizes, memory);
        // A handler that has one message answers the request with it.
        core.note_arrival();
        let mut state = core.lock();
        state.begin_look();
        if header.flags.contains(Flags::LAST) {
            state.inbound.end(StreamEnd::HalfClosed);
        }
        drop(state);
        if !has_memory {
            // Nobody will read it. What arrives while its answer waits for a credit is kept nowhere.
            core.discard();
        }
        let entry = &mut links[link];
        entry.streams.begin_served(call, key);
        entry.streams.open += 1;
        links.counters.streams.opened.add(1);
        Ok(key)
    }
}

impl Stream {
    fn send_short_opening<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
    ) -> Result<(), Missing> {
        let on = self.link;
        let request = self.opening();
        let time_us = links.on_peers_clock(on, request.deadline);
        let permit = links.permit(Class::Opening, on)?;
        let call = permit.send(Slot::Of(request.frame.len()), |link, frame| {
            frame.copy_from_slice(&request.frame);
            begin(link, key, request, time_us, frame)
        })?;
        self.opened(links, call);
        Ok(())
    }

    fn send_long_opening<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
    ) -> Result<(), Missing> {
        let (on, class) = (self.link, Class::Opening);
        let request = self.opening();
        let time_us = links.on_peers_clock(on, request.deadline);
        links.permit(class, on)?.hold();
        let mut message = mem::take(&mut request.message);
        let metadata = &request.frame[HEADER_LEN..];
        let begin = |link: &mut Link<_>| {
            let call = link.calls.begin(&mut WakeTarget::Stream(key))?;
            let mut header = request_header(&mut link.connection, call, request);
            header.time_us = time_us;
            Some((header, TransferOwner::Stream(key)))
        };
        let sending = &mut bodies.sending;
        let sent = sending.send_long(links, on, class, metadata, &mut message, begin);
        let request = self.opening();
        request.message = message;
        let (call, transfer) = sent?;
        request.frame = Vec::new();
        self.opened(links, call);
        self.note_sending(sending, transfer);
        Ok(())
    }

    /// Notes that the request of a stream was sent.
    fn opened<T: Transport>(&mut self, links: &Links<T>, call: CallId) {
        let counters = self.opening().counters.clone();
        counters.start();
        links.counters.streams.opened.add(1);
        self.phase = StreamPhase::Sent { call, counters };
    }
}

/// Says once for a connection that streams wait for each other: their calls may seem to hang.
fn note_that_streams_wait<B>(link: &mut Link<B>) {
    if !mem::replace(&mut link.streams.has_said_that_they_wait, true) {
        log_limited!(
            warn,
            connection = %link.id,
            "a stream waits until another one ends: the server permits {} at a time on a connection. Raise its \
             `max_streams`, or use more connections",
            link.connection.max_streams()
        );
    }
}

/// Returns the reason that a stream cannot be opened. Otherwise, its message is in its frame if it
/// fits, and else in parts.
fn cause_not_to_open<T: Transport>(
    links: &Links<T>,
    link: LinkKey,
    request: &mut StreamRequest,
) -> Option<Cause> {
    // The channel of the stream may have been closed.
    let Some(entry) = links.table.get(link) else {
        return Some(Cause::Disconnected(CloseReason::Local));
    };
    if let Some(reason) = entry.end() {
        return Some(Cause::Disconnected(reason));
    }
    let limit = links.transport.longest_frame(entry.id);
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
        request.message = frame.split_off(overhead).into();
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
fn sizes<T: Transport>(links: &Links<T>, link: LinkKey, of_method: Option<u32>) -> StreamSizes {
    let entry = &links[link];
    let frame_len = links.transport.longest_frame(entry.id);
    StreamSizes {
        frame_room: frame_len.saturating_sub(HEADER_LEN),
        inbound_window: entry.streams.inbound_window,
        outbound_window: entry.streams.outbound_window,
        coalesces: coalesces(),
        longest_message: entry.longest_message.and_method(of_method),
        is_served: entry.is_server(),
    }
}

/// Adds the call of a stream whose request leaves in `frame`, and writes its header.
fn begin<B>(
    link: &mut Link<B>,
    key: StreamKey,
    request: &StreamRequest,
    time_us: u32,
    frame: &mut [u8],
) -> Option<CallId> {
    let call = link.calls.begin(&mut WakeTarget::Stream(key))?;
    let mut header = request_header(&mut link.connection, call, request);
    header.time_us = time_us;
    header.encode(frame);
    Some(call)
}

/// Returns the header of a request that opens a stream, but for its deadline.
fn request_header(
    connection: &mut Connection,
    call: CallId,
    request: &StreamRequest,
) -> FrameHeader {
    let flags = match request.sends_messages {
        true => Flags::STREAM,
        false => Flags::STREAM.with(Flags::LAST),
    };
    let kind = FrameKind::Request;
    let mut header = connection.next_header_with(kind, flags, call, request.method);
    // Longer metadata was refused.
    header.metadata_len = request.metadata_len as u16;
    header
}
