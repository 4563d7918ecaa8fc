//! Fills a batch with what is to be sent: first the rest of the message that was begun, then
//! responses, then requests, each after the checks that it needs.

use std::ptr::NonNull;

use super::batch::Batch;
use crate::provider::soft::context::element_list::for_each_part;
use crate::provider::soft::context::general_send::GeneralSend;
use crate::provider::soft::context::initiator::{Begin, Next};
use crate::provider::soft::context::memory::RemoteRequest;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::state::Common;
use crate::provider::soft::context::tcp_link::{Partial, PartialKind, Response, TcpLink};
use crate::provider::soft::wire::header::{EncodedHeader, Header, Message, Request};
use crate::types::{Access, AsyncEvent, CompletionStatus, RemoteMemory, RemoteOperation};

/// Bytes of a READ's response with one header: then requests and acknowledgements have their turn.
pub(super) const RESPONSE_PIECE: u32 = 256 * 1024;

/// Bytes after which a batch takes no further message. The socket's buffer is not much longer.
const BATCH_BYTES: usize = 1024 * 1024;

/// Why nothing more is written to a link.
pub(super) enum Stop {
    /// Everything was written that can be.
    Done,
    /// A request was begun and cannot be continued: its memory is not registered any more.
    TornRequest,
    /// A response was begun and cannot be continued: the peer may not read its memory any more.
    TornResponse,
}

impl SoftQueuePair {
    /// Fills a batch: first the rest of the message that was begun, then responses, then requests.
    pub(super) fn gather(&mut self, common: &mut Common, batch: &mut Batch) -> Result<(), Stop> {
        self.gather_partial(common, batch)?;
        self.gather_responses(common, batch)?;
        self.gather_requests(common, batch);
        Ok(())
    }

    fn gather_partial(&mut self, common: &Common, batch: &mut Batch) -> Result<(), Stop> {
        let Some(link) = self.link.tcp() else {
            return Err(Stop::Done);
        };
        let Some(Partial {
            kind,
            header,
            written,
        }) = link.outbound.partial
        else {
            return Ok(());
        };
        let skipped = written.saturating_sub(header.as_bytes().len());
        match kind {
            PartialKind::Ack => batch.add(kind, header, written, 0),
            PartialKind::Request => {
                let send = self
                    .initiator
                    .sends
                    .general_at(self.initiator.sends.started)
                    .ok_or(Stop::TornRequest)?;
                let checked = send.check_payload(&self.core, &common.memory);
                checked.map_err(|_| Stop::TornRequest)?;
                batch.add(kind, header, written, payload_len(send));
                add_payload(batch, send, skipped);
            }
            PartialKind::Response => match link.outbound.responses.front() {
                Some(&Response::Read {
                    memory, len, sent, ..
                }) => {
                    let piece = (len - sent).min(RESPONSE_PIECE);
                    batch.add(kind, header, written, piece as usize);
                    let memory = memory.offset(u64::from(sent));
                    let from = self
                        .readable(common, memory, piece)
                        .ok_or(Stop::TornResponse)?;
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

    /// Returns where the bytes of a READ are, if the peer may still read them.
    fn readable(&self, common: &Common, memory: RemoteMemory, len: u32) -> Option<NonNull<u8>> {
        common.memory.check_remote(&RemoteRequest {
            memory,
            len: len.into(),
            needs: Access::REMOTE_READ,
            domain: self.core.domain,
            qp_num: self.core.number,
        })
    }

    fn gather_responses(&mut self, common: &mut Common, batch: &mut Batch) -> Result<(), Stop> {
        let Some(link) = self.link.tcp() else {
            return Err(Stop::Done);
        };
        // Requests that wait have their turn after one piece.
        let most = match self.initiator.sends.started < self.initiator.sends.posted {
            true => RESPONSE_PIECE as usize,
            false => BATCH_BYTES,
        };
        let mut is_revoked = false;
        // Part of the first response may be in the batch already.
        let mut is_begun = batch.holds(PartialKind::Response);
        for response in &link.outbound.responses {
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
                        let Some(from) = self.readable(common, memory, piece) else {
                            is_revoked = true;
                            break;
                        };
                        let header = response_header(link, Message::Response, sequence, piece);
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
                    let header = response_header(link, Message::Response, sequence, 8);
                    batch.add(PartialKind::Response, header, 0, was.len());
                    batch.add_payload(NonNull::from(was).cast(), was.len());
                }
                Response::ReceiverNotReady { sequence, timer } => {
                    let message = Message::ReceiverNotReady { timer };
                    let header = response_header(link, message, sequence, 0);
                    batch.add(PartialKind::Response, header, 0, 0);
                }
                Response::Refused { sequence, status } => {
                    let header = response_header(link, Message::Refused { status }, sequence, 0);
                    batch.add(PartialKind::Response, header, 0, 0);
                }
            }
        }
        if is_revoked && batch.is_empty() {
            self.refuse_pending_read(common);
            return Err(Stop::Done);
        }
        Ok(())
    }

    /// Refuses the READ whose response is next: its key was revoked after it was requested.
    #[cold]
    fn refuse_pending_read(&mut self, common: &mut Common) {
        let Some(link) = self.link.tcp_mut() else {
            return;
        };
        if let Some(Response::Read { sequence, .. }) = link.outbound.responses.pop_front() {
            link.outbound.responses.clear();
            let status = CompletionStatus::RemoteAccess;
            common.raise(AsyncEvent::QpAccessError {
                qp_num: self.core.number,
            });
            self.refuse_over_tcp(common, sequence, status);
        }
    }

    fn gather_requests(&mut self, common: &mut Common, batch: &mut Batch) {
        let (mut number, mut reads) = (
            self.initiator.sends.started,
            self.initiator.outstanding.reads,
        );
        let Some(link) = self.link.tcp() else { return };
        let mut sequence = link.outbound.next;
        if batch.holds(PartialKind::Request) {
            // The rest of the request that was begun. It counts among the READs already.
            number += 1;
            sequence += 1;
        }
        while batch.has_room() && batch.bytes() < BATCH_BYTES {
            match self.add_request(common, batch, (number, sequence), &mut reads) {
                Ok(Added::Message) => {
                    number += 1;
                    sequence += 1;
                }
                Ok(Added::DoneHere) => number += 1,
                Ok(Added::Nothing) => return,
                Err(status) => {
                    // The request completes after all earlier ones, which have to be sent first.
                    if number == self.initiator.sends.started {
                        self.initiator.sends.local_failure = Some(status);
                        self.await_progress(common);
                    }
                    return;
                }
            }
        }
    }

    /// Adds one request to a batch if it may begin. An error is the status that it completes with.
    fn add_request(
        &mut self,
        common: &mut Common,
        batch: &mut Batch,
        (number, sequence): (u64, u64),
        reads: &mut u8,
    ) -> Result<Added, CompletionStatus> {
        let Some(link) = self.link.tcp() else {
            return Ok(Added::Nothing);
        };
        // Those that are sent again come first.
        if self.initiator.retry.rnr_until.is_some() || link.outbound.rewind_to.is_some() {
            return Ok(Added::Nothing);
        }
        let acked = link.inbound.expected as u32;
        let next = Next {
            number,
            unit: sequence,
            reads: *reads,
            is_first: batch.is_empty(),
        };
        let begin = self.initiator.begin(&self.core, &mut common.memory, next)?;
        let (operation, outstanding) = match begin {
            Begin::Wait => return Ok(Added::Nothing),
            Begin::Done => {
                self.initiator.sends.started += 1;
                self.complete_acknowledged(common);
                return Ok(Added::DoneHere);
            }
            Begin::Send {
                operation,
                outstanding,
            } => (operation, outstanding),
        };
        let is_ack_requested = self.initiator.sends.is_signaled(number) || self.is_half_unacked();
        let Some(send) = self.initiator.sends.general_at_mut(number) else {
            return Ok(Added::Nothing);
        };
        let message = Message::Request(Request {
            operation,
            read_len: match operation {
                // The cast is lossless: the length was checked above.
                RemoteOperation::Read(_) => send.total as u32,
                _ => 0,
            },
            outstanding,
            is_solicited: send.solicited,
            is_ack_requested,
        });
        let header = Header {
            message,
            // The cast is lossless: the length was checked above.
            len: payload_len(send) as u32,
            sequence: sequence as u32,
            acked,
        };
        let header = header.encode();
        match send.inline.as_mut().and_then(|bytes| bytes.behind(&header)) {
            Some(whole) => batch.add_whole(PartialKind::Request, header, whole),
            None => {
                batch.add(PartialKind::Request, header, 0, payload_len(send));
                add_payload(batch, send, 0);
            }
        }
        *reads = outstanding;
        Ok(Added::Message)
    }

    /// Returns true if half of the send queue waits for acknowledgements.
    fn is_half_unacked(&self) -> bool {
        2 * (self.initiator.sends.posted - self.initiator.sends.acked)
            >= self.initiator.sends.capacity() as u64
    }
}

/// What became of a request.
enum Added {
    /// It is in the batch.
    Message,
    /// It was carried out here.
    DoneHere,
    /// It has to wait.
    Nothing,
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

fn response_header(link: &TcpLink, message: Message, sequence: u32, len: u32) -> EncodedHeader {
    let header = Header {
        message,
        len,
        sequence,
        acked: link.inbound.expected as u32,
    };
    header.encode()
}
