//! Responses: how the outcome of a handler leaves, and what happens to a response that cannot leave
//! yet.
//!
//! A response that finds no room waits in the *blocked* queue: a short one as encoded bytes, a longer
//! one as a value in its method, a long one encoded. Each turn tries them, oldest first.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use super::link::LinkKey;
use super::links::Links;
use super::outbox::{Class, Missing, Slot};
use super::tasks::IncomingCall;
use crate::limits::{Direction, MessageLimit};
use crate::protocol::frame::{Flags, FrameKind, HEADER_LEN, StatusBody, room_for_metadata};
use crate::service::handler::{EncodedResponse, HandlerKey, ResponseLengths, metadata_too_long};
use crate::status::{Code, Status};
use crate::transport::Transport;

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

/// Responses that cannot leave yet.
#[derive(Debug, Default)]
pub(super) struct Responses {
    /// Those that found no free send slot, oldest first.
    pub(super) blocked: VecDeque<Blocked>,
}

impl Responses {
    /// Takes the responses of a connection that has ended.
    pub(super) fn take_blocked_of(&mut self, link: LinkKey) -> Vec<Blocked> {
        let of_link = |blocked: &mut Blocked| blocked.call.link == link;
        let mut taken = Vec::new();
        // Most often there are none.
        if self.blocked.iter_mut().any(of_link) {
            let all = mem::take(&mut self.blocked);
            for mut blocked in all {
                match of_link(&mut blocked) {
                    true => taken.push(blocked),
                    false => self.blocked.push_back(blocked),
                }
            }
        }
        taken
    }

    /// Sends a response whose frame is complete but for its header, or blocks it.
    // Never inlined: with one copy of it, the send is inlined here.
    #[inline(never)]
    pub(super) fn respond_inline<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        call: &IncomingCall,
        len: ResponseLengths,
        frame: &mut [u8],
    ) {
        let code = Code::Ok.number();
        let Links {
            table,
            outbox,
            transport,
            counters,
            ..
        } = links;
        let link = &mut table[call.link];
        let limit = link.longest_message.bytes();
        let permit = match len.message as usize > limit {
            true => Err(Missing::Length { limit }),
            false => outbox.permit(Class::Response, link, transport),
        };
        let sent = permit.and_then(|permit| {
            permit.send_inline(&mut *frame, |link, frame| {
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
                counters.responded(call.served, code);
                Some(())
            })
        });
        if let Err(missing) = sent {
            self.cannot_respond(links, call, len, frame, missing);
        }
    }

    /// Handles a short response that cannot be sent now, or never.
    #[cold]
    #[inline(never)]
    fn cannot_respond<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        call: &IncomingCall,
        len: ResponseLengths,
        frame: &[u8],
        missing: Missing,
    ) {
        match missing {
            Missing::Connection => links.counters.dropped(call.served.method),
            Missing::Length { limit } => {
                let status = self.too_long(links, call.link, len, limit);
                self.respond_status_or_block(links, call, &status, Started::Maybe);
            }
            _ => {
                let frame = frame.into();
                self.block(links, call, BlockedResponse::Encoded { frame, len });
            }
        }
    }

    pub(super) fn reserve_response<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        len: usize,
        message_len: usize,
    ) -> Result<T::SendBuf, Missing> {
        let longest = links[link].longest_message.bytes();
        if message_len > longest {
            let limit = longest + (len - message_len);
            return Err(Missing::Length { limit });
        }
        links.permit(Class::Response, link)?.reserve(len)
    }

    pub(super) fn send_response<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        call: &IncomingCall,
        code: u16,
        started: Started,
        len: ResponseLengths,
        buf: T::SendBuf,
    ) {
        // The handler may have run for long, but it took no turn of the driver, so the link is still there.
        links.counters.responded(call.served, code);
        let permit = links.resume(Class::Response, call.link);
        let sent = permit.send(Slot::Reserved(buf), |link, frame| {
            let (connection, flags) = (&mut link.connection, rare_flags(call, len));
            let kind = FrameKind::Response;
            let mut header = connection.next_header_with(kind, flags, call.call, code);
            header.metadata_len = len.metadata;
            header.time_us = started.time_us();
            header.encode(frame);
            Some(())
        });
        debug_assert_eq!(sent, Ok(()), "a reserved frame lacks nothing");
    }

    pub(super) fn respond_status_or_block<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        call: &IncomingCall,
        status: &Status,
        started: Started,
    ) {
        match self.try_respond_status(links, call, status, started) {
            Ok(()) => {}
            Err(Missing::Connection) => links.counters.dropped(call.served.method),
            Err(Missing::Length { limit }) => {
                // The code always fits; the message is truncated to the remaining length.
                let cut = shorten(status, limit.saturating_sub(HEADER_LEN));
                match self.try_respond_status(links, call, &cut, started) {
                    Ok(()) => {}
                    Err(Missing::Connection | Missing::Length { .. }) => {
                        links.counters.dropped(call.served.method);
                    }
                    Err(_) => self.block(links, call, BlockedResponse::Failed(cut, started)),
                }
            }
            Err(_) => self.block(
                links,
                call,
                BlockedResponse::Failed(status.clone(), started),
            ),
        }
    }

    fn try_respond_status<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        call: &IncomingCall,
        status: &Status,
        started: Started,
    ) -> Result<(), Missing> {
        let body = StatusBody {
            message: status.message().to_owned(),
            details: Bytes::copy_from_slice(status.details()),
        };
        let metadata_len = status.metadata().encoded_len();
        let body_len = body.encoded_len();
        if metadata_len > usize::from(u16::MAX) {
            return Err(Missing::Length { limit: HEADER_LEN });
        }
        let mut buf =
            self.reserve_response(links, call.link, HEADER_LEN + metadata_len + body_len, 0)?;
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
        self.send_response(links, call, code.number(), started, len, buf);
        Ok(())
    }

    /// Builds the status of a response that cannot be sent on a link whose frames have `frame_len` bytes
    /// at most.
    #[cold]
    pub(super) fn too_long<T: Transport>(
        &self,
        links: &Links<T>,
        link: LinkKey,
        len: ResponseLengths,
        frame_len: usize,
    ) -> Status {
        let of_link = links.table.get(link);
        let of_link = of_link.map_or(MessageLimit::NONE, |link| link.longest_message);
        let message_len = len.message as usize;
        if message_len > of_link.bytes() {
            return Status::message_too_long(message_len, of_link, Direction::Response);
        }
        metadata_too_long(len.metadata.into(), room_for_metadata(frame_len))
    }

    pub(super) fn block<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        call: &IncomingCall,
        response: BlockedResponse,
    ) {
        let mut call = *call;
        if !mem::replace(&mut call.served.has_waited, true) {
            links.counters.stalls.responses.add(1);
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
