//! Opening a stream, on the client.

use std::sync::Arc;

use super::super::call_table::WakeTarget;
use super::super::handle::StreamRequest;
use super::super::link::LinkKey;
use super::super::request_permit::on_peers_clock;
use super::super::{Driver, State, TimerTarget};
use super::{Phase, Stream, StreamKey};
use crate::call_error::{CallError, Cause, Execution};
use crate::protocol::frame::{Flags, FrameKind, HEADER_LEN};
use crate::stream::core::{StreamCore, wake_all};
use crate::stream::inbound::StreamEnd;
use crate::stream::outbound::StreamSizes;
use crate::transport::{CloseReason, ReserveError, Transport};

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

impl<T: Transport> Driver<T> {
    /// Opens a stream as soon as its connection has a credit and room for it. If it cannot be
    /// opened, `core` ends.
    pub(crate) fn open_stream(&self, link: LinkKey, core: Arc<StreamCore>, request: StreamRequest) {
        request.counters.begin();
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let cause = state.cause_not_to_open(link, &request);
        if let Some(cause) = cause {
            drop(borrowed);
            let error = CallError::new(cause, Execution::NeverSent);
            request.counters.end(error.code().number());
            let wakers = core.lock().end(StreamEnd::Failed(error));
            wake_all(wakers.into_iter().flatten());
            return;
        }
        let sizes = state.stream_sizes(link);
        let deadline = request.deadline;
        let phase = Phase::Opening(Box::new(request));
        let key = state
            .streams
            .insert(Stream::new(Arc::clone(&core), link, phase));
        state.links[link.index()].streams.open += 1;
        if let Some(deadline) = deadline {
            let timer = state.timers.insert(deadline, TimerTarget::Stream(key));
            state.streams.entries[key.index()].timer = Some(timer);
        }
        let sender = core.attach(self.ready.clone(), key.0, sizes);
        state.streams.queue(key);
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
        if !connection.speaks_streams() {
            // It fails at once.
            return StreamCapacity::Free;
        }
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
    fn cause_not_to_open(&self, link: LinkKey, request: &StreamRequest) -> Option<Cause> {
        let Some(entry) = self.links.get(link.index()) else {
            return Some(Cause::Disconnected(CloseReason::Local));
        };
        if let Some(reason) = &entry.ended {
            return Some(Cause::Disconnected(reason.clone()));
        }
        if entry.going_away {
            return Some(Cause::Disconnected(CloseReason::GoingAway));
        }
        if !entry.connection.speaks_streams() {
            return Some(Cause::Unimplemented {
                path: request.counters.path(),
            });
        }
        let limit = self.transport.longest_frame(entry.id);
        let too_long = |message_len, limit| Some(Cause::RequestTooLong { message_len, limit });
        if request.metadata_len > usize::from(u16::MAX) {
            return too_long(request.metadata_len, usize::from(u16::MAX));
        }
        // The connection has ended, and the next event ends the stream.
        if limit == 0 {
            return None;
        }
        if request.frame.len() > limit {
            let overhead = HEADER_LEN + request.metadata_len;
            let message_len = request.frame.len().saturating_sub(overhead);
            return too_long(message_len, limit.saturating_sub(overhead));
        }
        None
    }

    /// Returns the sizes of the streams of a link.
    pub(super) fn stream_sizes(&self, link: LinkKey) -> StreamSizes {
        let entry = &self.links[link.index()];
        StreamSizes {
            frame_room: self
                .transport
                .longest_frame(entry.id)
                .saturating_sub(HEADER_LEN),
            inbound_window: entry.streams.inbound_window,
            outbound_window: entry.streams.outbound_window,
            coalesces: crate::stream::core::coalesces(),
            // No transfers yet.
            longest_message: self
                .transport
                .longest_frame(entry.id)
                .saturating_sub(HEADER_LEN),
        }
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
        let Phase::Opening(request) = &mut stream.phase else {
            return true;
        };
        if link.connection.streams() >= link.connection.max_streams() {
            link.streams.awaiting_room.push_back(key);
            stream.awaits_room = true;
            return false;
        }
        if !link.connection.take_stream() {
            self.stall(key);
            return false;
        }
        let frame = &mut *request.frame;
        let is_inline = frame.len() <= self.longest_inline;
        let mut reserved = None;
        let room = if is_inline {
            self.transport.check_inline(link.id, frame.len())
        } else {
            self.transport
                .reserve(link.id, frame.len())
                .map(|buf| reserved = Some(buf))
        };
        let mut waiting = WakeTarget::Stream(key);
        let call = match room {
            Ok(()) => link.calls.begin(&mut waiting),
            Err(_) => None,
        };
        let Some(call) = call else {
            link.connection.return_stream();
            if let Some(buf) = reserved {
                self.transport.cancel(buf);
            }
            // The length was checked, so only slots or ids are missing. If the link has ended, the
            // next event ends the stream.
            if !matches!(room, Err(ReserveError::Closed)) {
                self.streams.queue(key);
            }
            return false;
        };
        let flags = match request.sends_messages {
            true => Flags::STREAM.with(Flags::OPEN),
            false => Flags::STREAM,
        };
        let connection = &mut link.connection;
        let mut header =
            connection.next_header_with(FrameKind::Request, flags, call, request.method);
        // Longer metadata was refused.
        header.metadata_len = request.metadata_len as u16;
        if let Some(deadline) = request.deadline {
            let now = self.clock.now();
            let peer = self.transport.peer_clock(link.id);
            header.time_us = on_peers_clock(&self.clock, peer, deadline, now);
        }
        header.encode(frame);
        // If the connection has ended, the next event reports it and ends this stream.
        let _ = match reserved {
            None => self.transport.send_inline(link.id, frame),
            Some(mut buf) => {
                buf.as_mut().copy_from_slice(frame);
                self.transport.send(link.id, buf)
            }
        };
        self.unflushed = true;
        request.counters.start();
        self.counters.streams.opened.add(1);
        let counters = Arc::clone(&request.counters);
        stream.phase = Phase::Sent { call, counters };
        true
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
