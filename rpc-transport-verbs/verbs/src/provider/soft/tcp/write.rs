//! Writes to a TCP connection what is to be sent, as many messages as fit a batch with one system call:
//! first the rest of the message that was begun, then responses, then requests.
//!
//! A message whose writing has begun is written to its end before anything else: the socket takes as
//! much of a batch as it has room for, and [`Partial`] remembers where the next batch begins.

use std::ops::Range;
use std::ptr::NonNull;

use rustix::io::Errno;

use super::batch::Batch;
use crate::hooks::inject;
use crate::provider::soft::context::core::Core;
use crate::provider::soft::context::element_list::for_each_part;
use crate::provider::soft::context::general_send::GeneralSend;
use crate::provider::soft::context::memory::{Memory, RemoteRequest};
use crate::provider::soft::context::tcp_link::{Partial, PartialKind, Response, TcpLink, extended};
use crate::provider::soft::wire::header::{EncodedHeader, Header, Message, Request};
use crate::types::{Access, CompletionStatus, RemoteMemory, RemoteOperation};

/// Bytes of a READ's response with one header: then requests and acknowledgements have their turn.
const RESPONSE_PIECE: u32 = 256 * 1024;

/// Bytes after which a batch takes no further message. The socket's buffer is not much longer.
const BATCH_BYTES: usize = 1024 * 1024;

/// Bytes that are written to a link before other links have their turn: a peer may read as fast as
/// this side writes.
pub(crate) const MOST_WRITTEN: usize = 4 * 1024 * 1024;

/// Why nothing more is written to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A request was begun and cannot be continued: its memory is not registered any more.
    TornRequest,
    /// A response was begun and cannot be continued: the peer may not read its memory any more.
    TornResponse,
    /// The response to this request of the peer cannot be begun: its key was revoked after the READ
    /// was requested.
    Revoked { sequence: u32 },
}

/// What the socket has taken of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) bytes: usize,
    /// The sequence number of the first request in the batch.
    pub(crate) first: u64,
    /// The requests of which the first byte was taken now.
    pub(crate) begun: Range<u64>,
    /// The number of requests of which the last byte was taken now.
    pub(crate) whole: u64,
    /// The socket takes no more.
    pub(crate) is_full: bool,
}

impl TcpLink {
    /// Returns true if something may be written now.
    pub(crate) fn takes_more(&self) -> bool {
        self.is_open() && !self.outbound.is_blocked && !inject!(NoRoom)
    }

    /// Returns true if something is to be written besides requests that have not begun.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.outbound.responses.is_empty() || self.outbound.partial.is_some()
    }

    /// Adds to a batch what comes before further requests: the rest of the message that was begun, and
    /// responses. `begun` is the request of this side of which a part was written; with `has_requests`,
    /// requests have their turn after one piece of a response.
    #[inline(always)]
    pub(crate) fn gather(
        &self,
        batch: &mut Batch,
        core: &Core,
        memory: &Memory,
        begun: Option<&GeneralSend>,
        has_requests: bool,
    ) -> Result<(), Stop> {
        self.gather_partial(batch, core, memory, begun)?;
        self.gather_responses(batch, core, memory, has_requests)
    }

    fn gather_partial(
        &self,
        batch: &mut Batch,
        core: &Core,
        registered: &Memory,
        begun: Option<&GeneralSend>,
    ) -> Result<(), Stop> {
        let Some(Partial {
            kind,
            header,
            written,
        }) = self.outbound.partial
        else {
            return Ok(());
        };
        let skipped = written.saturating_sub(header.as_bytes().len());
        match kind {
            PartialKind::Ack => batch.add(kind, header, written, 0),
            PartialKind::Request => {
                let send = begun.ok_or(Stop::TornRequest)?;
                let checked = send.check_payload(core, registered);
                checked.map_err(|_| Stop::TornRequest)?;
                batch.add(kind, header, written, payload_len(send));
                add_payload(batch, send, skipped);
            }
            PartialKind::Response => match self.outbound.responses.front() {
                Some(&Response::Read {
                    memory, len, sent, ..
                }) => {
                    let piece = (len - sent).min(RESPONSE_PIECE);
                    batch.add(kind, header, written, piece as usize);
                    let memory = memory.offset(u64::from(sent));
                    let from =
                        readable(core, registered, memory, piece).ok_or(Stop::TornResponse)?;
                    let left = piece as usize - skipped;
                    if left > 0 {
                        // SAFETY: the piece has `skipped` bytes and `left` more.
                        batch.add_payload(unsafe { from.add(skipped) }, left);
                    }
                }
                Some(Response::Atomic { was, .. }) => {
                    batch.add(kind, header, written, was.len());
                    let rest = &was[skipped..];
                    if !rest.is_empty() {
                        batch.add_payload(NonNull::from(rest).cast(), rest.len());
                    }
                }
                Some(_) => batch.add(kind, header, written, 0),
                None => return Err(Stop::TornResponse),
            },
        }
        Ok(())
    }

    fn gather_responses(
        &self,
        batch: &mut Batch,
        core: &Core,
        registered: &Memory,
        has_requests: bool,
    ) -> Result<(), Stop> {
        let most = match has_requests {
            true => RESPONSE_PIECE as usize,
            false => BATCH_BYTES,
        };
        let mut revoked = None;
        // Part of the first response may be in the batch already.
        let mut is_begun = batch.holds(PartialKind::Response);
        for response in &self.outbound.responses {
            let is_begun = std::mem::take(&mut is_begun);
            match *response {
                Response::Read {
                    sequence,
                    memory,
                    len,
                    mut sent,
                } => {
                    if is_begun {
                        sent += (len - sent).min(RESPONSE_PIECE);
                    }
                    while sent < len && batch.has_room() && batch.bytes() < most {
                        let piece = (len - sent).min(RESPONSE_PIECE);
                        let memory = memory.offset(u64::from(sent));
                        let Some(from) = readable(core, registered, memory, piece) else {
                            revoked = Some(sequence);
                            break;
                        };
                        let header = self.header(Message::Response, sequence, piece);
                        batch.add(PartialKind::Response, header, 0, piece as usize);
                        batch.add_payload(from, piece as usize);
                        sent += piece;
                    }
                    if sent < len {
                        break;
                    }
                }
                _ if is_begun => {}
                _ if !batch.has_room() => break,
                Response::Atomic { sequence, ref was } => {
                    let header = self.header(Message::Response, sequence, 8);
                    batch.add(PartialKind::Response, header, 0, was.len());
                    batch.add_payload(NonNull::from(was).cast(), was.len());
                }
                Response::ReceiverNotReady { sequence, timer } => {
                    let message = Message::ReceiverNotReady { timer };
                    let header = self.header(message, sequence, 0);
                    batch.add(PartialKind::Response, header, 0, 0);
                }
                Response::Refused { sequence, status } => {
                    let header = self.header(Message::Refused { status }, sequence, 0);
                    batch.add(PartialKind::Response, header, 0, 0);
                }
            }
        }
        match revoked {
            // What is before it is written first.
            Some(sequence) if batch.is_empty() => Err(Stop::Revoked { sequence }),
            _ => Ok(()),
        }
    }

    /// Returns true if a batch takes a further request.
    pub(crate) fn has_room_in(batch: &Batch) -> bool {
        batch.has_room() && batch.bytes() < BATCH_BYTES
    }

    /// Adds a request with this sequence number to a batch that has room. Its payload was checked.
    pub(crate) fn add_request(
        &self,
        batch: &mut Batch,
        send: &mut GeneralSend,
        sequence: u64,
        (operation, outstanding): (RemoteOperation, u8),
        is_ack_requested: bool,
    ) {
        let message = Message::Request(Request {
            operation,
            read_len: match operation {
                // The cast is lossless: the length was checked when the request began.
                RemoteOperation::Read(_) => send.total as u32,
                _ => 0,
            },
            outstanding,
            is_solicited: send.solicited,
            is_ack_requested,
        });
        // The casts take the lower bits of the sequence number, as on the wire; the length is as above.
        let header = self.header(message, sequence as u32, payload_len(send) as u32);
        match send.inline.as_mut().and_then(|bytes| bytes.behind(&header)) {
            Some(whole) => batch.add_whole(PartialKind::Request, header, whole),
            None => {
                batch.add(PartialKind::Request, header, 0, payload_len(send));
                add_payload(batch, send, 0);
            }
        }
    }

    /// Adds an acknowledgement to a batch that has no message to carry it.
    pub(crate) fn add_ack(&self, batch: &mut Batch) {
        batch.add(PartialKind::Ack, self.header(Message::Ack, 0, 0), 0, 0);
    }

    /// Writes as much of a batch as the socket takes, and records what it has taken.
    ///
    /// # Safety
    ///
    /// Every part of a payload in the batch is readable until this returns.
    #[inline(always)]
    pub(crate) unsafe fn write(&mut self, batch: &Batch) -> Result<Written, Errno> {
        // SAFETY: the caller guarantees it.
        let bytes = unsafe { batch.write(&mut self.stream)? };
        let first = self.outbound.next;
        // The rest of a request has begun before.
        let begun = first + u64::from(self.outbound.is_writing_request());
        let mut written = Written {
            bytes,
            first,
            begun: begun..begun,
            whole: 0,
            is_full: bytes < batch.bytes() || self.stream.holds_unsent(),
        };
        let mut rest = bytes;
        for (message, header) in batch.messages() {
            if rest == 0 {
                break;
            }
            let is_request = message.kind == PartialKind::Request;
            written.begun.end += u64::from(is_request && message.written == 0);
            let left = message.len - message.written;
            if rest < left {
                self.outbound.partial = Some(Partial {
                    kind: message.kind,
                    header: *header,
                    written: message.written + rest,
                });
                break;
            }
            rest -= left;
            self.outbound.partial = None;
            // The acknowledgement is as old as the header, which an earlier batch may have begun.
            let expected = self.inbound.expected;
            self.inbound.acknowledged = extended(header.acked(), expected).min(expected);
            self.inbound.is_ack_requested &= self.owes_ack();
            written.whole += u64::from(is_request);
            if message.kind == PartialKind::Response {
                self.response_was_written();
            }
        }
        self.outbound.next += written.whole;
        Ok(written)
    }

    /// Records that a piece of the first response was written.
    fn response_was_written(&mut self) {
        if let Some(Response::Read { len, sent, .. }) = self.outbound.responses.front_mut() {
            *sent += (*len - *sent).min(RESPONSE_PIECE);
            if sent < len {
                return;
            }
        }
        self.outbound.responses.pop_front();
    }

    /// Sends a fatal NAK for a request of the peer, behind the responses to earlier ones. What the
    /// socket does not take now is not sent. `begun` is as for [`gather`](Self::gather). The queue pair
    /// ends: what is written is not recorded. Returns true if the peer may not read the memory of an
    /// earlier READ any more, which fails as well.
    #[cold]
    pub(crate) fn refuse(
        &mut self,
        sequence: u32,
        status: CompletionStatus,
        core: &Core,
        memory: &Memory,
        begun: Option<&GeneralSend>,
    ) -> bool {
        self.push_refusal(sequence, status);
        let mut is_revoked = false;
        let mut left = MOST_WRITTEN;
        while left > 0 && self.takes_more() {
            let mut batch = Batch::new();
            match self.gather(&mut batch, core, memory, begun, false) {
                Ok(()) => {}
                // An earlier request fails first.
                Err(Stop::Revoked { sequence }) => {
                    self.outbound.responses.clear();
                    self.push_refusal(sequence, CompletionStatus::RemoteAccess);
                    is_revoked = true;
                    continue;
                }
                Err(Stop::TornRequest) => break,
                Err(Stop::TornResponse) => return true,
            }
            if batch.is_empty() {
                break;
            }
            // SAFETY: `gather` has found every payload in registered memory, which stays registered
            // while the context's lock is held, or in memory of the request or of the response, which the
            // queue pair holds.
            match unsafe { self.write(&batch) } {
                Ok(written) if written.is_full => break,
                Ok(written) => left = left.saturating_sub(written.bytes),
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        is_revoked
    }

    fn push_refusal(&mut self, sequence: u32, status: CompletionStatus) {
        // The cast is lossless: status codes are below 256.
        let status = status.code() as u8;
        let refusal = Response::Refused { sequence, status };
        self.outbound.responses.push_back(refusal);
    }

    /// Ends the connection. The peer is told what was executed: its requests were successful, though
    /// this queue pair is gone.
    pub(crate) fn close(mut self) {
        if self.is_open() && self.owes_ack() && self.outbound.partial.is_none() {
            let last = self.header(Message::Ack, 0, 0);
            // If the socket does not take it, the peer finds the end of the connection.
            self.stream.write_message(last.as_bytes());
        }
        self.stream.shut_down();
    }

    fn header(&self, message: Message, sequence: u32, len: u32) -> EncodedHeader {
        let header = Header {
            message,
            len,
            sequence,
            // The cast takes the lower bits, as on the wire.
            acked: self.inbound.expected as u32,
        };
        header.encode()
    }
}

/// Returns where the bytes of a READ are, if the peer may still read them.
fn readable(
    core: &Core,
    registered: &Memory,
    memory: RemoteMemory,
    len: u32,
) -> Option<NonNull<u8>> {
    registered.check_remote(&RemoteRequest {
        memory,
        len: len.into(),
        needs: Access::REMOTE_READ,
        domain: core.domain,
        qp_num: core.number,
    })
}

/// Adds the payload of a request without its first `skipped` bytes. The caller has made the local
/// protection check.
fn add_payload(batch: &mut Batch, send: &GeneralSend, skipped: usize) {
    if send.operation.has_response() {
        // No local bytes are sent; the response's destination is checked when the response arrives.
        return;
    }
    if let Some(bytes) = &send.inline {
        let rest = &bytes.as_slice()[skipped..];
        if !rest.is_empty() {
            batch.add_payload(NonNull::from(rest).cast(), rest.len());
        }
        return;
    }
    for_each_part(send.elements(), skipped, usize::MAX, |start, len| {
        batch.add_payload(start, len);
    });
}

/// Returns the number of bytes that follow a request's header.
fn payload_len(send: &GeneralSend) -> usize {
    if send.operation.has_response() {
        return 0;
    }
    send.total as usize
}
