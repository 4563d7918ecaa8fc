//! Issues requests of any kind on a reliable connection: writes them from the send queue into the
//! peer's ring. `responses` completes them.
//!
//! Plain messages of one element take the fast path (`transmit`). All other requests take this
//! path, in order with the plain ones: the send queue has a small entry for each, and
//! [`GeneralSend`](crate::provider::soft::context::general_send::GeneralSend) holds the rest.
//!
//! Requests of every kind take slots of the same ring in order: SENDs with an immediate or a key to
//! invalidate, WRITEs, READs, atomics, and lists of elements. Local requests (bind, invalidate)
//! take no slot, and complete in order with the others.
//!
//! A READ is executed in place if it may be: see `read_in_place`. The rest of this applies to the
//! others.
//!
//! The response to a READ or an atomic is written into the request's own slot before that slot is
//! acknowledged. A longer result goes through the staging memory behind the ring, 64 KiB at a time,
//! with four pieces in flight.

use std::ptr::NonNull;

use crate::provider::soft::capacities::MAX_SGE;
use crate::provider::soft::context::initiator::{Begin, Next};
use crate::provider::soft::context::link::{Link, Rings, Unannounced};
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::state::Common;
use crate::provider::soft::shared::commit::Flags;
use crate::provider::soft::shared::descriptor::{DESCRIPTOR_LEN, Descriptor};
use crate::provider::soft::shared::request_message::{
    IN_SLOT, REMOTE_LEN, ReadPiece, RequestMessage,
};
use crate::provider::soft::shared::ring::{MAX_IN_RING, RingSender, STAGES};
use crate::types::{Access, CompletionOpcode, CompletionStatus, RemoteMemory, RemoteOperation};

impl SoftQueuePair {
    /// Begins the next request, which is not a plain message, or goes on with it. Returns `false` if it
    /// has to wait, or if it failed: then `local_failure` is set.
    pub(crate) fn issue(&mut self, common: &mut Common) -> bool {
        let Some(before) = self.link.sender().map(RingSender::next) else {
            return false;
        };
        let next = Next {
            number: self.initiator.sends.started,
            unit: before,
            reads: self.initiator.outstanding.reads,
            is_first: true,
        };
        let begin = self.initiator.begin(&self.core, &mut common.memory, next);
        let issued = begin.and_then(|begin| match begin {
            Begin::Wait => Ok(false),
            Begin::Done => Ok(true),
            Begin::Send {
                operation: RemoteOperation::Read(memory),
                outstanding,
            } => {
                let is_done = self.try_read_in_place(common, next.number, memory);
                Ok(is_done || self.request_read(next.number, memory, outstanding))
            }
            Begin::Send {
                operation,
                outstanding,
            } => self.put_request(common, next.number, operation, outstanding),
        });
        if let Link::Rings(rings) = &mut self.link
            && let Some(sender) = &mut rings.sender
        {
            sender.set_held(self.initiator.outstanding.reads > 0);
            let written = sender.next() - before;
            if written > 0 {
                common.counters.sends += written;
                let send = self.initiator.sends.general_at(next.number);
                let opcode = send.map(|send| send.operation.opcode());
                rings.unannounced.add(match opcode {
                    Some(CompletionOpcode::Send) => Unannounced::Messages,
                    _ => Unannounced::OneSided,
                });
            }
        }
        issued.unwrap_or_else(|status| {
            // The request completes after all earlier ones: see `process_acks`.
            self.initiator.sends.local_failure = Some(status);
            false
        })
    }

    /// Writes a request into the ring, if there is room. An error is the status that it completes with.
    fn put_request(
        &mut self,
        common: &Common,
        number: u64,
        operation: RemoteOperation,
        outstanding: u8,
    ) -> Result<bool, CompletionStatus> {
        let (Some(sender), Some(send)) = (
            self.link.sender_mut(),
            self.initiator.sends.general_at(number),
        ) else {
            return Ok(false);
        };
        if !sender.has_room() {
            return Ok(false);
        }
        let next = sender.next();
        let mut message = RequestMessage {
            operation,
            piece: ReadPiece::default(),
            outstanding,
            descriptors: 0,
        };
        let flags = if send.solicited { Flags::SOLICITED } else { 0 };
        // Must outlive the write to the ring: `parts` points into it.
        let mut descriptors = [[0; DESCRIPTOR_LEN]; MAX_SGE];
        let mut parts = [(NonNull::dangling(), 0); MAX_SGE];
        let mut count = 0;
        let mut put = |part| {
            parts[count] = part;
            count += 1;
        };
        if !operation.has_payload() {
            // No local bytes are sent; the response's destination is checked when the response
            // arrives.
        } else if let Some(bytes) = &send.inline {
            let bytes = bytes.as_slice();
            put((NonNull::from(bytes).cast(), bytes.len()));
        } else {
            let fits = send.total as usize <= MAX_IN_RING - REMOTE_LEN;
            for (element, descriptor) in send.elements().iter().zip(&mut descriptors) {
                let bytes = (element.addr, element.len as usize);
                let checked = common.memory.regions.check(
                    element.local_key,
                    self.core.domain,
                    bytes,
                    Access::NONE,
                )?;
                if element.len == 0 {
                    continue;
                }
                if fits {
                    put(bytes);
                    continue;
                }
                let (arena, offset) = checked;
                *descriptor = Descriptor {
                    arena,
                    offset: offset as u64,
                    len: element.len,
                }
                .encode();
                message.descriptors += 1;
                put((NonNull::from(&*descriptor).cast(), DESCRIPTOR_LEN));
            }
        }
        let (word, prefix, prefix_len) = message.encode();
        // SAFETY: the parts are registered memory that was just checked and belongs to the request,
        // bytes of this function, or bytes owned by the request. The descriptors of all elements
        // fit a slot.
        unsafe {
            sender.send_request(
                word,
                &prefix[..prefix_len],
                parts[..count].iter().copied(),
                flags,
            );
        }
        self.initiator.begun(number, next..next + 1);
        Ok(true)
    }

    /// Requests as many pieces of a READ as there is room for. Returns true if all are requested.
    fn request_read(&mut self, number: u64, memory: RemoteMemory, outstanding: u8) -> bool {
        let Link::Rings(Rings {
            sender: Some(sender),
            staged,
            unstaged,
            ..
        }) = &mut self.link
        else {
            return false;
        };
        loop {
            let Some(send) = self.initiator.sends.general_at(number) else {
                return false;
            };
            let piece = send.piece(send.requested);
            let has_stage = *staged - *unstaged < STAGES;
            if !sender.has_room() || (piece.is_staged && !has_stage) {
                return false;
            }
            let requested = ReadPiece {
                len: piece.len,
                total: if send.requested == 0 {
                    // The cast is lossless: `total` is at most MAX_MESSAGE_LEN.
                    send.total as u32
                } else {
                    piece.len
                },
                stage: if piece.is_staged {
                    (*staged % STAGES) as u32
                } else {
                    IN_SLOT
                },
            };
            let message = RequestMessage {
                operation: RemoteOperation::Read(memory.offset(send.requested)),
                piece: requested,
                outstanding,
                descriptors: 0,
            };
            let (word, prefix, len) = message.encode();
            let next = sender.next();
            // SAFETY: the request has no parts, so `send_request` reads no memory but the prefix.
            unsafe { sender.send_request(word, &prefix[..len], std::iter::empty(), 0) };
            sender.set_held(true);
            *staged += u64::from(piece.is_staged);
            self.initiator.begun(number, next..next + 1);
            let Some(send) = self.initiator.sends.general_at_mut(number) else {
                return false;
            };
            send.requested += u64::from(piece.len);
            if send.requested == send.total {
                return true;
            }
        }
    }
}
