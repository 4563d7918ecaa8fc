//! Opening a stream, on the client.

use std::mem;
use std::sync::Arc;

use bytes::Bytes;

use super::super::call_table::WakeTarget;
use super::super::handle::StreamRequest;
use super::super::link::LinkKey;
use super::super::request_permit::on_peers_clock;
use super::super::transfers::{PreparedTransfer, TransferOwner};
use super::super::{Driver, State, TimerTarget};
use super::{Phase, Stream, StreamKey};
use crate::call_error::{CallError, Cause, Execution};
use crate::clock::Clock;
use crate::codec::Chunks;
use crate::protocol::connection::Connection;
use crate::protocol::frame::{
    CallId, Flags, FrameHeader, FrameKind, HEADER_LEN, room_for_metadata,
};
use crate::stream::core::StreamCore;
use crate::stream::inbound::StreamEnd;
use crate::stream::outbound::{StreamSizes, coalesces};
use crate::stream::wakers::wake_all;
use crate::transport::{CloseReason, PeerClock, ReserveError, Transport};

/// Receives that a client promises to a server with its first stream. The window grows as it is
/// used up.
const FIRST_WINDOW: u32 = 16;

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

/// What a request that opens a stream has reserved.
enum Reserved<T: Transport> {
    Slot(T::SendBuf),
    /// Its message is long, and was taken.
    Long(Box<PreparedTransfer<T::SendBuf>>),
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
        let key = state.streams.next_key();
        let sender = core.attach(self.ready.clone(), key.0, sizes);
        let sent = state.send_at_once(link, key, &core, &mut request);
        let phase = match sent {
            Some(call) => Phase::Sent {
                call,
                counters: request.counters,
            },
            None => Phase::Opening(Box::new(request)),
        };
        let stream = Stream::new(core, link, phase, spec.max_response_len);
        state.streams.insert(stream);
        state.links[link.index()].streams.open += 1;
        if let Some(deadline) = deadline {
            let timer = state.timers.insert(deadline, TimerTarget::Stream(key));
            state.streams.entries[key.index()].timer = Some(timer);
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
        let Some(link) = state.links.get(link.index()) else {
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
        let Some(entry) = self.links.get(link.index()) else {
            return Some(Cause::Disconnected(CloseReason::Local));
        };
        if let Some(reason) = entry.end() {
            return Some(Cause::Disconnected(reason));
        }
        let limit = self.transport.longest_frame(entry.id);
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
        let entry = &self.links[link.index()];
        StreamSizes {
            frame_room: self
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
        let is_short = request.message.is_empty() && request.frame.len() <= self.longest_inline;
        if !is_short || self.streams.waiting() != 0 || !self.has_window_for_streams(on) {
            return None;
        }
        let link = &mut self.links[on.index()];
        if link.announced_end().is_some() || !link.streams.awaiting_room.is_empty() {
            return None;
        }
        let mut state = core.lock();
        // The application may have half-closed, or given the call up.
        let has_work = state.is_cancelled() || state.outbound.next_frame().is_some();
        if has_work || !link.connection.take_stream() {
            return None;
        }
        state.begin_look();
        drop(state);
        let peer = self.transport.peer_clock(link.id);
        let time_us = time_on_peers_clock(&self.clock, peer, request);
        let mut frame = mem::take(&mut request.frame);
        let sent = self.transport.send_inline(link.id, &mut frame, |frame| {
            let call = link.calls.begin(&mut WakeTarget::Stream(key))?;
            let connection = &mut link.connection;
            let mut header = request_header(connection, FrameKind::Request, call, request);
            header.time_us = time_us;
            header.encode(frame);
            Some(call)
        });
        let Ok(Some(call)) = sent else {
            link.connection.return_stream();
            request.frame = frame;
            return None;
        };
        request.counters.start();
        self.counters.streams.opened.add(1);
        self.unflushed = true;
        Some(call)
    }

    /// Sends the request of a stream. Returns false if it has to wait; the stream is then queued
    /// again, or waits among its link's stalled ones.
    pub(super) fn send_opening(&mut self, key: StreamKey) -> bool {
        let link_key = self.streams.entries[key.index()].link;
        // The application may have sent a message meanwhile, or half-closed.
        if self.streams.entries[key.index()].awaits_room {
            return false;
        }
        if !self.has_window_for_streams(link_key) {
            self.stall(key);
            return false;
        }
        let link = &mut self.links[link_key.index()];
        let stream = &mut self.streams.entries[key.index()];
        if link.connection.streams() >= link.connection.max_streams() {
            link.streams.awaiting_room.push_back(key);
            stream.awaits_room = true;
            return false;
        }
        if !link.connection.take_stream() {
            self.stall(key);
            return false;
        }
        let room = self.reserve_opening(key);
        let mut waiting = WakeTarget::Stream(key);
        let link = &mut self.links[link_key.index()];
        let call = room
            .as_ref()
            .ok()
            .and_then(|_| link.calls.begin(&mut waiting));
        let (reserved, call) = match (room, call) {
            (Ok(reserved), Some(call)) => (reserved, call),
            (room, _) => {
                link.connection.return_stream();
                // The length was checked, so only slots or ids are missing. If the link has ended, the
                // next event ends the stream.
                if !matches!(room, Err(ReserveError::Closed)) {
                    self.streams.queue(key);
                }
                if let Ok(reserved) = room {
                    self.cancel_opening(key, reserved);
                }
                return false;
            }
        };
        self.send_request(key, reserved, call);
        true
    }

    /// Reserves what the request of a stream needs to be sent. Takes its message if it is long.
    fn reserve_opening(&mut self, key: StreamKey) -> Result<Reserved<T>, ReserveError> {
        let stream = &mut self.streams.entries[key.index()];
        let link = stream.link;
        let Phase::Opening(request) = &mut stream.phase else {
            return Err(ReserveError::Closed);
        };
        let id = self.links[link.index()].id;
        let len = request.frame.len();
        if !request.message.is_empty() {
            let (metadata_len, mut message) =
                (request.metadata_len, mem::take(&mut request.message));
            let prepared = self.prepare_transfer(link, metadata_len, &mut message);
            self.return_message(key, message);
            return prepared.map(|prepared| Reserved::Long(Box::new(prepared)));
        }
        self.transport.reserve(id, len).map(Reserved::Slot)
    }

    fn cancel_opening(&mut self, key: StreamKey, reserved: Reserved<T>) {
        match reserved {
            Reserved::Slot(buf) => self.transport.cancel(buf),
            Reserved::Long(prepared) => {
                let message = self.cancel_transfer(*prepared);
                self.return_message(key, message);
            }
        }
    }

    fn return_message(&mut self, key: StreamKey, message: Chunks) {
        if let Some(stream) = self.streams.get_mut(key)
            && let Phase::Opening(request) = &mut stream.phase
        {
            request.message = message;
        }
    }

    /// Sends the request of a stream, for which everything is reserved.
    fn send_request(&mut self, key: StreamKey, reserved: Reserved<T>, call: CallId) {
        let stream = &mut self.streams.entries[key.index()];
        let link_key = stream.link;
        let link = &mut self.links[link_key.index()];
        let Phase::Opening(request) = &mut stream.phase else {
            return;
        };
        let kind = match reserved {
            Reserved::Long(_) => FrameKind::LongRequest,
            Reserved::Slot(_) => FrameKind::Request,
        };
        let mut header = request_header(&mut link.connection, kind, call, request);
        let peer = self.transport.peer_clock(link.id);
        header.time_us = time_on_peers_clock(&self.clock, peer, request);
        let mut frame = mem::take(&mut request.frame);
        let counters = request.counters.clone();
        counters.start();
        self.counters.streams.opened.add(1);
        stream.phase = Phase::Sent { call, counters };
        header.encode(&mut frame);
        // If the connection has ended, the next event reports it and ends this stream.
        let _ = match reserved {
            Reserved::Slot(mut buf) => {
                buf.as_mut().copy_from_slice(&frame);
                self.transport.send(link.id, buf)
            }
            Reserved::Long(prepared) => {
                let owner = TransferOwner::Stream(key);
                let metadata = &frame[HEADER_LEN..];
                let transfer = self.send_transfer(link_key, *prepared, header, metadata, owner);
                self.sends_for(key, transfer);
                Ok(())
            }
        };
        self.unflushed = true;
    }

    /// Makes sure that the server holds receives for messages and responses of streams.
    pub(in super::super) fn has_window_for_streams(&mut self, link: LinkKey) -> bool {
        if self.links[link.index()].connection.window_len() > 0 {
            return true;
        }
        let receives = FIRST_WINDOW.min(self.free_for_growth().max(1));
        let fits = self.promise(receives);
        if fits {
            self.links[link.index()].connection.open_window(receives);
        }
        fits
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

/// Returns the deadline of a request for its header, 0 if it has none.
fn time_on_peers_clock(clock: &Clock, peer: Option<PeerClock>, request: &StreamRequest) -> u32 {
    let on_peers_clock = |deadline| on_peers_clock(clock, peer, deadline, clock.now());
    request.deadline.map_or(0, on_peers_clock)
}
