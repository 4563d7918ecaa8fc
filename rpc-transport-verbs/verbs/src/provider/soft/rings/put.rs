//! Writes requests into the peer's ring, and notifies the peer.
//!
//! Writing a message and notifying the receiver (the doorbell) are two steps. A receiver that polls
//! the ring sees a message as soon as it is written. A receiver that does not is notified by the
//! doorbell, once for all messages before it.
//!
//! Requests of every kind take slots of the same ring in order: plain messages, SENDs with an immediate
//! or a key to invalidate, WRITEs, READs, atomics, and lists of elements.

use std::ops::Range;
use std::ptr::NonNull;

use crate::hooks::inject;
use crate::provider::soft::capacities::MAX_SGE;
use crate::provider::soft::context::core::Core;
use crate::provider::soft::context::general_send::{GeneralSend, InlineBytes};
use crate::provider::soft::context::link::{Rings, Unannounced};
use crate::provider::soft::context::memory::Memory;
use crate::provider::soft::shared::commit::Flags;
use crate::provider::soft::shared::descriptor::{DESCRIPTOR_LEN, Descriptor};
use crate::provider::soft::shared::request_message::{
    IN_SLOT, REMOTE_LEN, ReadPiece, RequestMessage,
};
use crate::provider::soft::shared::ring::{MAX_IN_RING, RingSender, STAGES, in_buffer};
use crate::provider::soft::shared::wake::ReceiverState;
use crate::provider::work::SendWork;
use crate::types::{
    Access, CompletionOpcode, CompletionStatus, DeviceCounters, RemoteMemory, RemoteOperation,
};

/// Polls until the first look at the acknowledgement of a message that was sent from an arena. Its
/// completion only frees memory, and to look at it moves its cache line from the peer, which then has
/// to fetch the line back before it acknowledges, in front of its next message.
pub(crate) const POLLS_BEFORE_ACK: u64 = 32;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// The ring has no room, or there is none yet.
    NoRoom,
    /// Its bytes are in the ring.
    InRing,
    /// Its bytes stay in this side's arena, which the peer reads.
    InArena,
}

/// What was requested of a READ.
#[derive(Clone, Debug)]
pub(crate) struct ReadRequested {
    /// The slots of the requests, one for each piece.
    pub(crate) slots: Range<u64>,
    /// The bytes that they ask for.
    pub(crate) bytes: u64,
    pub(crate) is_all: bool,
}

impl Rings {
    /// Returns the peer's ring if it has room for a message that takes `in_buffer` bytes of its buffer, and what
    /// its reader has not been told of.
    #[inline]
    fn with_room(&mut self, in_buffer: usize) -> Option<(&mut RingSender, &mut Unannounced)> {
        let sender = self.sender.as_mut()?;
        let has_room = sender.has_room(in_buffer) && !inject!(NoRoom);
        has_room.then_some((sender, &mut self.unannounced))
    }

    /// Writes a message of one element, if there is room. An error is the status that it completes
    /// with.
    #[inline]
    pub(crate) fn put_plain(
        &mut self,
        work: &SendWork,
        core: &Core,
        memory: &Memory,
    ) -> Result<Put, CompletionStatus> {
        let len = work.len as usize;
        // Longer ones stay where they are, unless they are inline.
        let is_in_ring = work.inline || len <= MAX_IN_RING;
        let in_ring = if is_in_ring { len } else { DESCRIPTOR_LEN };
        let Some((sender, unannounced)) = self.with_room(in_buffer(0, in_ring)) else {
            return Ok(Put::NoRoom);
        };
        let flags = flags(work.solicited);
        let mut place = (0, 0);
        if !work.inline {
            let bytes = (work.addr, len);
            let regions = &memory.regions;
            place = regions.check(work.local_key, core.domain, bytes, Access::NONE)?;
        }
        unannounced.add(Unannounced::Messages);
        if is_in_ring {
            sender.send(work.addr, len, flags);
            return Ok(Put::InRing);
        }
        let descriptor = Descriptor {
            arena: place.0,
            offset: place.1 as u64,
            len: work.len,
        };
        sender.send_descriptor(descriptor, flags);
        Ok(Put::InArena)
    }

    /// Writes a copied message. Returns false if there is no room.
    pub(crate) fn put_copy(&mut self, bytes: &[u8], solicited: bool) -> bool {
        let Some((sender, unannounced)) = self.with_room(in_buffer(0, bytes.len())) else {
            return false;
        };
        sender.send(NonNull::from(bytes).cast(), bytes.len(), flags(solicited));
        unannounced.add(Unannounced::Messages);
        true
    }

    /// Writes a request that is no plain message and no READ. Returns its slot, or `None` if there is no
    /// room. An error is the status that it completes with.
    pub(crate) fn put_request(
        &mut self,
        send: &GeneralSend,
        operation: RemoteOperation,
        outstanding: u8,
        core: &Core,
        memory: &Memory,
    ) -> Result<Option<u64>, CompletionStatus> {
        let Some(sender) = &mut self.sender else {
            return Ok(None);
        };
        let inline = send.inline.as_ref().map_or(&[][..], InlineBytes::as_slice);
        let mut message = RequestMessage {
            operation,
            piece: ReadPiece::default(),
            outstanding,
            descriptors: 0,
        };
        // Descriptors do not change the prefix.
        let (.., prefix_len) = message.encode();
        let in_buffer = in_buffer(prefix_len, inline.len());
        if !sender.has_room(in_buffer) {
            return Ok(None);
        }
        let next = sender.next();
        let flags = flags(send.solicited);
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
        } else if send.inline.is_some() {
            put((NonNull::from(inline).cast(), inline.len()));
        } else {
            let fits = send.total as usize <= MAX_IN_RING - REMOTE_LEN;
            for (element, descriptor) in send.elements().iter().zip(&mut descriptors) {
                let bytes = (element.addr, element.len as usize);
                let (key, domain) = (element.local_key, core.domain);
                let checked = memory.regions.check(key, domain, bytes, Access::NONE)?;
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
        let prefix = &prefix[..prefix_len];
        if in_buffer > 0 {
            sender.send_buffered_request(word, prefix, inline, flags);
        } else {
            // SAFETY: the parts are registered memory that was just checked and belongs to the request,
            // bytes of this function, or bytes owned by the request. The descriptors of all elements
            // fit a slot.
            unsafe {
                sender.send_request(word, prefix, parts[..count].iter().copied(), flags);
            }
        }
        self.unannounced.add(match operation.opcode() {
            CompletionOpcode::Send => Unannounced::Messages,
            _ => Unannounced::OneSided,
        });
        Ok(Some(next))
    }

    /// Requests as many pieces of a READ as there is room for. `outstanding` READs and atomics are in
    /// flight then.
    pub(crate) fn request_read(
        &mut self,
        send: &GeneralSend,
        memory: RemoteMemory,
        outstanding: u8,
    ) -> ReadRequested {
        let next = self.sender.as_ref().map_or(0, RingSender::next);
        let mut requested = ReadRequested {
            slots: next..next,
            bytes: 0,
            is_all: false,
        };
        let Some(sender) = &mut self.sender else {
            return requested;
        };
        while !requested.is_all {
            let start = send.requested + requested.bytes;
            let piece = send.piece(start);
            let has_stage = self.staged - self.unstaged < STAGES;
            if !sender.has_room(0) || (piece.is_staged && !has_stage) {
                break;
            }
            let message = RequestMessage {
                operation: RemoteOperation::Read(memory.offset(start)),
                piece: ReadPiece {
                    len: piece.len,
                    total: if start == 0 {
                        // The cast is lossless: `total` is at most MAX_MESSAGE_LEN.
                        send.total as u32
                    } else {
                        piece.len
                    },
                    stage: if piece.is_staged {
                        (self.staged % STAGES) as u32
                    } else {
                        IN_SLOT
                    },
                },
                outstanding,
                descriptors: 0,
            };
            let (word, prefix, len) = message.encode();
            // SAFETY: the request has no parts, so `send_request` reads no memory but the prefix.
            unsafe { sender.send_request(word, &prefix[..len], std::iter::empty(), 0) };
            sender.set_held(true);
            self.unannounced.add(Unannounced::OneSided);
            self.staged += u64::from(piece.is_staged);
            requested.slots.end += 1;
            requested.bytes += u64::from(piece.len);
            requested.is_all = start + u64::from(piece.len) == send.total;
        }
        requested
    }

    /// Sets whether slots are held until their responses are taken.
    pub(crate) fn set_held(&mut self, is_held: bool) {
        if let Some(sender) = &mut self.sender {
            sender.set_held(is_held);
        }
    }

    /// Notifies the receiver of what was written since the last doorbell, unless it polls.
    #[inline]
    pub(crate) fn ring_doorbell(&mut self, counters: &mut DeviceCounters) {
        if self.unannounced == Unannounced::Nothing {
            return;
        }
        let Some(sender) = &mut self.sender else {
            return;
        };
        counters.doorbells += 1;
        let found = sender.ring_doorbell();
        if found == ReceiverState::Hot && self.unannounced == Unannounced::Messages {
            self.unannounced = Unannounced::Nothing;
        } else {
            self.note(counters, found);
        }
    }

    /// Counts what a doorbell has done for a receiver that does not poll the ring, and wakes its engine if
    /// that may have to carry out what was written.
    #[cold]
    #[inline(never)]
    fn note(&mut self, counters: &mut DeviceCounters, found: ReceiverState) {
        let was = std::mem::take(&mut self.unannounced);
        counters.wakes += u64::from(found != ReceiverState::Hot);
        counters.sleepers_woken += u64::from(found == ReceiverState::Asleep);
        if was == Unannounced::OneSided
            && let Some(sender) = &self.sender
        {
            sender.wake_engine();
        }
    }
}

fn flags(solicited: bool) -> u16 {
    if solicited { Flags::SOLICITED } else { 0 }
}
