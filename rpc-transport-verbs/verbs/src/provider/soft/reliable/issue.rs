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

use crate::provider::soft::capacities::{MAX_MESSAGE_LEN, MAX_SGE};
use crate::provider::soft::context::link::{Link, Rings, Unannounced};
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::state::Common;
use crate::provider::soft::shared::commit::Flags;
use crate::provider::soft::shared::descriptor::{DESCRIPTOR_LEN, Descriptor};
use crate::provider::soft::shared::request_message::{
    IN_SLOT, REMOTE_LEN, ReadPiece, RequestMessage,
};
use crate::provider::soft::shared::ring::{MAX_IN_RING, RingSender, STAGES};
use crate::provider::work::Operation;
use crate::types::{
    Access, CompletionOpcode, CompletionStatus, QpState, RemoteMemory, RemoteOperation,
};

/// Outcome of an attempt to begin a request.
enum BeginOutcome {
    Complete,
    /// The request has to wait, for room or for an earlier request.
    Waiting,
}

impl SoftQueuePair {
    /// Begins the next request, which is not a plain message. Returns `false` if it has to wait, or
    /// if it failed: then `local_failure` is set.
    pub(crate) fn issue(&mut self, common: &mut Common) -> bool {
        let number = self.sends.started;
        let mut general = self.sends.general.iter();
        let Some(index) = general.position(|send| send.number == number) else {
            return false;
        };
        let before = self.link.sender().map(RingSender::next);
        let outcome = self.begin_in_ring(common, index);
        if let (Link::Rings(rings), Some(before)) = (&mut self.link, before)
            && let Some(sender) = &mut rings.sender
        {
            sender.set_held(self.outstanding.reads > 0);
            let written = sender.next() - before;
            if written > 0 {
                common.counters.sends += written;
                let opcode = self.sends.general[index].operation.opcode();
                rings.unannounced.add(match opcode {
                    CompletionOpcode::Send => Unannounced::Messages,
                    _ => Unannounced::OneSided,
                });
            }
        }
        match outcome {
            Ok(BeginOutcome::Complete) => true,
            Ok(BeginOutcome::Waiting) => false,
            Err(status) => {
                // The request completes after all earlier ones: see `process_acks`.
                self.sends.local_failure = Some(status);
                false
            }
        }
    }

    /// Begins a request or continues to begin it: writes as much as there is room for. An error is
    /// the status that the request completes with.
    fn begin_in_ring(
        &mut self,
        common: &mut Common,
        index: usize,
    ) -> Result<BeginOutcome, CompletionStatus> {
        let (domain, qp_num) = (self.core.domain, self.core.number);
        let (may_begin, may_go_on) = match self.core.state {
            QpState::Rts => (true, true),
            // In SQD, requests that have begun are finished.
            QpState::Sqd => (false, true),
            _ => (false, false),
        };
        let send = &mut self.sends.general[index];
        let is_begun = send.slots.is_some();
        let Some(sender) = self.link.sender_mut() else {
            return Ok(BeginOutcome::Waiting);
        };
        let is_permitted = if is_begun { may_go_on } else { may_begin };
        if !is_permitted || self.has_psn_mismatch || self.sends.local_failure.is_some() {
            return Ok(BeginOutcome::Waiting);
        }
        if !is_begun {
            if send.fenced && self.outstanding.reads > 0 {
                return Ok(BeginOutcome::Waiting);
            }
            let most = self.core.attributes.max_rd_atomic.unwrap_or(0);
            if send.operation.has_response() && self.outstanding.reads >= most {
                return Ok(BeginOutcome::Waiting);
            }
            if send.total > MAX_MESSAGE_LEN as u64 {
                return Err(CompletionStatus::LocalLength);
            }
        }
        let next = sender.next();
        let operation = match send.operation {
            // Earlier requests may use the key, so it is invalidated only after they have
            // completed.
            Operation::LocalInvalidate(_) if self.sends.acked < self.sends.started => {
                return Ok(BeginOutcome::Waiting);
            }
            Operation::LocalInvalidate(key) => {
                send.slots = Some(next..next);
                // Unlike in a peer's request, a wrong key is this side's mistake.
                let invalidated = common.memory.invalidate(key, domain, qp_num);
                invalidated.map_err(|_| CompletionStatus::MemoryWindowBind)?;
                return Ok(BeginOutcome::Complete);
            }
            Operation::BindWindow(binding) => {
                send.slots = Some(next..next);
                common.memory.bind_window(&binding, domain, qp_num)?;
                return Ok(BeginOutcome::Complete);
            }
            Operation::Remote(RemoteOperation::Read(memory)) => {
                if !is_begun && self.try_read_in_place(common, index, memory) {
                    return Ok(BeginOutcome::Complete);
                }
                return Ok(self.request_read(index, memory));
            }
            Operation::Remote(operation) => operation,
        };
        if !sender.has_room() {
            return Ok(BeginOutcome::Waiting);
        }
        let outstanding = self.outstanding.reads + u8::from(operation.has_response());
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
                let checked =
                    common
                        .memory
                        .regions
                        .check(element.local_key, domain, bytes, Access::NONE)?;
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
        send.slots = Some(next..next + 1);
        self.outstanding.reads = outstanding;
        self.outstanding.unexecuted += u32::from(send.holds_up_reads());
        Ok(BeginOutcome::Complete)
    }
}

impl SoftQueuePair {
    /// Requests as many pieces of a READ as there is room for.
    fn request_read(&mut self, index: usize, memory: RemoteMemory) -> BeginOutcome {
        let send = &mut self.sends.general[index];
        let Link::Rings(Rings {
            sender: Some(sender),
            staged,
            unstaged,
            ..
        }) = &mut self.link
        else {
            return BeginOutcome::Waiting;
        };
        let outstanding = self.outstanding.reads + u8::from(send.slots.is_none());
        loop {
            let piece = send.piece(send.requested);
            let has_stage = *staged - *unstaged < STAGES;
            if !sender.has_room() || (piece.is_staged && !has_stage) {
                return BeginOutcome::Waiting;
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
            self.outstanding.reads = outstanding;
            self.outstanding.unexecuted += u32::from(send.slots.is_none());
            send.requested += u64::from(piece.len);
            let first = send.slots.as_ref().map_or(next, |slots| slots.start);
            send.slots = Some(first..next + 1);
            if send.requested == send.total {
                return BeginOutcome::Complete;
            }
        }
    }
}
