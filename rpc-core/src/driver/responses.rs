//! Responses: how the outcome of a handler leaves, and what happens to a response that cannot leave
//! yet.
//!
//! A response that finds no room waits in the *blocked* queue: a short one as encoded bytes, a longer
//! one as a value in its method. The driver retries them in each turn, oldest first.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use super::link::LinkKey;
use super::tasks::IncomingCall;
use super::{Driver, State};
use crate::catch_panic::catch_panic;
use crate::limits::{Direction, LengthLimit, MessageLimit};
use crate::protocol::frame::{Flags, FrameKind, HEADER_LEN, StatusBody, room_for_metadata};
use crate::service::handler::{
    EncodedResponse, Handler, HandlerKey, ResponseLengths, Served, metadata_too_long,
};
use crate::status::{Code, Status};
use crate::transport::{ReserveError, Transport};

/// A response that found no free send slot.
#[derive(Debug)]
pub(crate) struct Blocked {
    pub(super) call: IncomingCall,
    pub(super) response: BlockedResponse,
}

#[derive(Debug)]
pub(super) enum BlockedResponse {
    /// The frame, complete but for its header.
    Encoded {
        frame: Box<[u8]>,
        len: ResponseLengths,
    },
    /// The value is still in its method.
    Kept {
        handler_key: HandlerKey,
        len: ResponseLengths,
    },
    /// The message does not fit a frame.
    Long {
        encoded: Box<EncodedResponse>,
        len: ResponseLengths,
    },
    Failed(Status, Started),
}

/// Whether the handler of a failed call may have started, and if not, what its client should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Started {
    Maybe,
    /// It did not, and the client should send no further calls for this long.
    Not {
        pushback: Duration,
    },
}

impl Started {
    /// The handler did not start, for a reason that says nothing about other calls.
    pub(super) const NOT: Self = Self::Not {
        pushback: Duration::ZERO,
    };

    /// Returns the header's `time_us`.
    fn time_us(self) -> u32 {
        match self {
            Self::Maybe => 0,
            // 0 would say that the handler may have started.
            Self::Not { pushback } => u32::try_from(pushback.as_micros())
                .unwrap_or(u32::MAX)
                .saturating_add(1),
        }
    }
}

impl<T: Transport> Driver<T> {
    /// Sends the outcome of a handler that has completed. `frame` holds the response if it was
    /// encoded.
    pub(super) fn respond(
        &self,
        call: &IncomingCall,
        handler: &dyn Handler,
        outcome: Served,
        frame: &mut [u8],
    ) {
        match outcome {
            Served::Encoded(len) => {
                let frame = &mut frame[..HEADER_LEN + len.total()];
                self.state.borrow_mut().respond_inline(call, len, frame);
            }
            Served::Long(handler_key, len) => self.respond_long(call, handler, handler_key, len),
            Served::Failed(status) => self.respond_status(call, status),
            Served::Undecodable(status) => self.respond_failure(call, status, Started::NOT),
            // The caller parks the handler.
            Served::Pending(_) => {}
        }
    }

    pub(super) fn retry_blocked_responses(&self) {
        // Each is tried once: a response that finds no slot again is queued behind the others.
        let count = self.state.borrow().blocked.len();
        for _ in 0..count {
            let Some(Blocked { call, response }) = self.state.borrow_mut().blocked.pop_front()
            else {
                break;
            };
            self.respond_blocked(call, response);
        }
    }

    /// Sends a response, or blocks it again.
    pub(super) fn respond_blocked(&self, call: IncomingCall, response: BlockedResponse) {
        match response {
            BlockedResponse::Encoded { mut frame, len } => {
                let state = &mut *self.state.borrow_mut();
                state.respond_inline(&call, len, &mut frame);
            }
            BlockedResponse::Kept { handler_key, len } => {
                let handler = self.methods.borrow().handler(call.served.method).cloned();
                if let Some(handler) = handler {
                    self.respond_long(&call, &*handler, handler_key, len);
                }
            }
            BlockedResponse::Long { encoded, len } => self.respond_chunks(&call, encoded, len),
            BlockedResponse::Failed(status, started) => {
                self.respond_failure(&call, status, started);
            }
        }
    }

    /// Sends a response that is too long for an inline frame: encodes it into its slot.
    fn respond_long(
        &self,
        call: &IncomingCall,
        handler: &dyn Handler,
        handler_key: HandlerKey,
        len: ResponseLengths,
    ) {
        let frame_len = HEADER_LEN + len.total();
        let spec = self.methods.borrow().spec(call.served.method);
        let of_method = spec.and_then(|spec| spec.max_response_len);
        let reserved = match of_method.map(|limit| limit as usize) {
            Some(limit) if len.message as usize > limit => {
                handler.discard(handler_key);
                let limit = MessageLimit::new(limit, LengthLimit::Method);
                let status =
                    Status::message_too_long(len.message as usize, limit, Direction::Response);
                return self.respond_status(call, status);
            }
            _ => {
                let mut state = self.state.borrow_mut();
                state.reserve_response(call.link, frame_len, len.message as usize)
            }
        };
        match reserved {
            Ok(mut buf) => {
                let encoded = handler.encode_response(handler_key, &mut buf.as_mut()[HEADER_LEN..]);
                let state = &mut *self.state.borrow_mut();
                match encoded {
                    Ok(()) => {
                        let code = Code::Ok.number();
                        state.send_response(call, code, Started::Maybe, len, buf);
                    }
                    Err(status) => {
                        state.transport.cancel(buf);
                        state.respond_status_or_block(call, &status, Started::Maybe);
                    }
                }
            }
            Err(ReserveError::NoSlot) => {
                let response = BlockedResponse::Kept { handler_key, len };
                self.state.borrow_mut().block(call, response);
            }
            Err(ReserveError::TooLong { limit, .. }) => {
                self.respond_very_long(call, handler, handler_key, len, limit);
            }
            Err(ReserveError::Closed) => {
                self.counters.dropped(call.served.method);
                handler.discard(handler_key);
            }
        }
    }

    /// Answers a call whose handler may have started with a status.
    pub(super) fn respond_status(&self, call: &IncomingCall, status: Status) {
        self.respond_failure(call, status, Started::Maybe);
    }

    #[cold]
    pub(super) fn respond_failure(&self, call: &IncomingCall, status: Status, started: Started) {
        self.state
            .borrow_mut()
            .respond_status_or_block(call, &status, started);
        // A status may hold values of the application, whose destructors run here.
        if let Err(panicked) = catch_panic(|| drop(status)) {
            log_limited!(
                error,
                "the destructor of a handler's status panicked: {panicked}"
            );
        }
    }

    /// Releases the slot of a request, and records its credit as owed.
    pub(super) fn release_request(&self, link: LinkKey, buf: T::RecvBuf) {
        let state = &mut *self.state.borrow_mut();
        state.transport.release(buf);
        state.take_back(link);
    }
}

impl<T: Transport> State<T> {
    /// Takes back what a request had until its handler's first poll has ended: its credit, which is recorded
    /// as owed, and perhaps its reference to the peer.
    #[inline(always)]
    pub(super) fn take_back(&mut self, link: LinkKey) {
        if let Some(entry) = self.links.get_mut(link.index()) {
            if let Some(peer) = &mut entry.peer {
                peer.take_back();
            }
            if entry.owe_credit() {
                self.grow_window(link);
            }
        }
    }

    #[cold]
    pub(super) fn grow_window(&mut self, link: LinkKey) {
        let free = self.free_for_growth();
        let Some(entry) = self.links.get(link.index()) else {
            return;
        };
        let growth = entry.connection.wants_growth(free);
        if growth > 0 && self.promise(growth) {
            self.links[link.index()].connection.grow(growth);
        }
    }

    /// Sends a response whose frame is complete but for its header, or blocks it.
    // Never inlined: with one copy of it, the send is inlined here.
    #[inline(never)]
    pub(super) fn respond_inline(
        &mut self,
        call: &IncomingCall,
        len: ResponseLengths,
        frame: &mut [u8],
    ) {
        let code = Code::Ok.number();
        let Some(link) = self.links.get_mut(call.link.index()) else {
            return self.counters.dropped(call.served.method);
        };
        if link.ended.is_some() {
            return self.counters.dropped(call.served.method);
        }
        let longest = link.longest_message.bytes();
        let message_len = len.message as usize;
        let sent = match message_len > longest {
            true => Err(ReserveError::TooLong {
                len: message_len,
                limit: longest,
            }),
            false => self.transport.send_inline(link.id, frame, |frame| {
                let connection = &mut link.connection;
                let flags = match len.has_initial | call.stream.is_some() {
                    false => Flags::NONE,
                    true => rare_flags(call, len),
                };
                let kind = FrameKind::Response;
                let mut header = connection.next_header_with(kind, flags, call.call, code);
                header.metadata_len = len.metadata;
                header.encode(frame);
                // Before the client can have the response, so that its time is never shorter than the
                // server's.
                self.counters.responded(call.served, code);
                Some(())
            }),
        };
        match sent {
            Ok(_) => self.unflushed = true,
            Err(error) => self.cannot_respond(call, len, frame, error),
        }
    }

    /// Handles a short response that cannot be sent now, or never.
    #[cold]
    #[inline(never)]
    fn cannot_respond(
        &mut self,
        call: &IncomingCall,
        len: ResponseLengths,
        frame: &[u8],
        error: ReserveError,
    ) {
        match error {
            ReserveError::NoSlot => {
                let frame = frame.into();
                self.block(call, BlockedResponse::Encoded { frame, len });
            }
            ReserveError::TooLong { limit, .. } => {
                let status = self.too_long(call.link, len, limit);
                self.respond_status_or_block(call, &status, Started::Maybe);
            }
            ReserveError::Closed => self.counters.dropped(call.served.method),
        }
    }

    fn reserve_response(
        &mut self,
        link: LinkKey,
        len: usize,
        message_len: usize,
    ) -> Result<T::SendBuf, ReserveError> {
        match self.links.get(link.index()) {
            Some(link) if message_len > link.longest_message.bytes() => {
                let limit = link.longest_message.bytes() + (len - message_len);
                Err(ReserveError::TooLong { len, limit })
            }
            Some(link) if link.ended.is_none() => self.transport.reserve(link.id, len),
            _ => Err(ReserveError::Closed),
        }
    }

    fn send_response(
        &mut self,
        call: &IncomingCall,
        code: u16,
        started: Started,
        len: ResponseLengths,
        mut buf: T::SendBuf,
    ) {
        // The handler may have run for long, but it took no turn of the driver, so the link still
        // exists.
        let Some(link) = self.links.get_mut(call.link.index()) else {
            self.counters.dropped(call.served.method);
            return self.transport.cancel(buf);
        };
        self.counters.responded(call.served, code);
        let connection = &mut link.connection;
        let flags = rare_flags(call, len);
        let mut header = connection.next_header_with(FrameKind::Response, flags, call.call, code);
        header.metadata_len = len.metadata;
        header.time_us = started.time_us();
        header.encode(buf.as_mut());
        // If the connection has ended, the next event reports it.
        let _ = self.transport.send(link.id, buf);
        self.unflushed = true;
    }

    pub(super) fn respond_status_or_block(
        &mut self,
        call: &IncomingCall,
        status: &Status,
        started: Started,
    ) {
        match self.try_respond_status(call, status, started) {
            Ok(()) => {}
            Err(ReserveError::Closed) => self.counters.dropped(call.served.method),
            Err(ReserveError::NoSlot) => {
                self.block(call, BlockedResponse::Failed(status.clone(), started));
            }
            Err(ReserveError::TooLong { limit, .. }) => {
                // The code always fits; the message is truncated to the remaining length.
                let cut = shorten(status, limit.saturating_sub(HEADER_LEN));
                match self.try_respond_status(call, &cut, started) {
                    Ok(()) => {}
                    Err(ReserveError::NoSlot) => {
                        self.block(call, BlockedResponse::Failed(cut, started));
                    }
                    Err(_) => self.counters.dropped(call.served.method),
                }
            }
        }
    }

    fn try_respond_status(
        &mut self,
        call: &IncomingCall,
        status: &Status,
        started: Started,
    ) -> Result<(), ReserveError> {
        let body = StatusBody {
            message: status.message().to_owned(),
            details: Bytes::copy_from_slice(status.details()),
        };
        let metadata_len = status.metadata().encoded_len();
        let body_len = body.encoded_len();
        if metadata_len > usize::from(u16::MAX) {
            return Err(ReserveError::TooLong {
                len: metadata_len,
                limit: HEADER_LEN,
            });
        }
        let mut buf = self.reserve_response(call.link, HEADER_LEN + metadata_len + body_len, 0)?;
        let (metadata, mut message) = buf.as_mut()[HEADER_LEN..].split_at_mut(metadata_len);
        status.metadata().encode(metadata);
        // The buffer was reserved to fit.
        let _ = body.encode(&mut message);
        // `OK` would tell the client that a response message follows. A handler that returns `OK`
        // as its error has not specified the error, so the code is `UNKNOWN`.
        let code = match status.code() {
            Code::Ok => Code::Unknown,
            code => code,
        };
        // Both fit the frame that was reserved.
        let len = ResponseLengths {
            message: body_len as u32,
            metadata: metadata_len as u16,
            has_initial: false,
        };
        self.send_response(call, code.number(), started, len, buf);
        Ok(())
    }

    /// Builds the status of a response that cannot be sent on a link whose frames have `frame_len` bytes
    /// at most.
    #[cold]
    pub(super) fn too_long(&self, link: LinkKey, len: ResponseLengths, frame_len: usize) -> Status {
        let of_link = self.links.get(link.index());
        let of_link = of_link.map_or(MessageLimit::NONE, |link| link.longest_message);
        let message_len = len.message as usize;
        if message_len > of_link.bytes() {
            return Status::message_too_long(message_len, of_link, Direction::Response);
        }
        metadata_too_long(len.metadata.into(), room_for_metadata(frame_len))
    }

    pub(super) fn block(&mut self, call: &IncomingCall, response: BlockedResponse) {
        let mut call = *call;
        if !std::mem::replace(&mut call.served.has_waited, true) {
            self.counters.stalls.responses.add(1);
        }
        // The response will carry the credit of its request. A control frame is of no use here,
        // because it would find no slot either.
        self.blocked.push_back(Blocked { call, response });
    }
}

/// Returns the flags of a response that answers a stream, or that has both kinds of metadata.
#[cold]
pub(super) fn rare_flags(call: &IncomingCall, len: ResponseLengths) -> Flags {
    let mut flags = Flags::NONE;
    if call.stream.is_some() {
        flags |= Flags::STREAM;
    }
    if len.has_initial {
        flags |= Flags::INITIAL;
    }
    flags
}

/// The end of a status's message that did not fit.
const CUT: &str = "… (cut)";

/// Returns the status with as much of its message as fits in `len` bytes, without details and
/// metadata. The message says so if it was cut.
fn shorten(status: &Status, len: usize) -> Status {
    // Reserves space for the field's tag and length.
    let room = len.saturating_sub(8);
    let message = status.message();
    if message.len() <= room {
        return Status::new(status.code(), message);
    }
    let mut end = room.saturating_sub(CUT.len());
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    Status::new(status.code(), format!("{}{CUT}", &message[..end]))
}
