//! Executes requests from a ring on the side that owns the memory.
//!
//! [`Responder`] has the rules. This file finds a request's bytes in its slot, or in the sender's
//! arenas, and moves them. The thread that holds the context's owner word does this: the application's
//! poll, or the engine.
//!
//! The process that owns the memory checks the keys under its context's owner word. Deregistering
//! takes the same word, so the device does not access the memory afterwards.

use std::ptr::NonNull;
use std::sync::Arc;

use super::receive::Step;
use crate::provider::soft::capacities::MAX_SGE;
use crate::provider::soft::context::link::{Link, Rings};
use crate::provider::soft::context::peer::Peer;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::responder::{
    Arrived, Done, Place, Placement, Rejection, Responder,
};
use crate::provider::soft::context::state::Common;
use crate::provider::soft::shared::commit::Flags;
use crate::provider::soft::shared::copy::copy_shared;
use crate::provider::soft::shared::descriptor::{DESCRIPTOR_LEN, Descriptor};
use crate::provider::soft::shared::memory::Mapping;
use crate::provider::soft::shared::request_message::{
    IN_SLOT, MAX_READ_IN_SLOT, ReadPiece, RequestMessage,
};
use crate::provider::soft::shared::ring::{Incoming, MAX_IN_RING, RingReceiver, STAGE_LEN};
use crate::provider::work::Sge;
use crate::types::{Access, RemoteMemory, RemoteOperation};

/// The bytes of a request: in its slot, or in the sender's arenas. The mappings are kept alive
/// until the bytes have been copied.
struct Body {
    parts: [(NonNull<u8>, usize); MAX_SGE],
    count: usize,
    arenas: [Option<Arc<Mapping>>; MAX_SGE],
}

impl SoftQueuePair {
    /// Executes the message that was found in the ring: a request other than a plain message, or
    /// one that does not simply go to the next receive.
    #[cold]
    pub(crate) fn execute(&mut self, common: &mut Common, incoming: &Incoming) -> Step {
        match self.try_execute(common, incoming) {
            Ok(done) => {
                if let Link::Rings(rings) = &mut self.link {
                    rings.receiver.advance();
                }
                self.apply(common, done);
                self.communication_established(common);
                Step::Received
            }
            Err(Rejection::NotReady) => {
                self.send_rnr_nak(common);
                Step::Wait
            }
            Err(Rejection::NotYet) => Step::Wait,
            Err(Rejection::Lost) => {
                // Messages behind it may be whole, but a reliable connection delivers nothing behind a
                // message that it has lost. The receive stays posted.
                if let Link::Rings(rings) = &mut self.link {
                    rings.receiver.stop();
                }
                Step::Wait
            }
            Err(Rejection::Invalid) => self.fail_invalid_message(common),
            Err(Rejection::Status(status, report)) => {
                self.report(common, report);
                self.refuse_message(common, status);
                Step::Failed
            }
        }
    }

    fn try_execute(&mut self, common: &mut Common, incoming: &Incoming) -> Result<Done, Rejection> {
        let rings = self.link.rings().ok_or(Rejection::Invalid)?;
        let Rings { receiver, peer, .. } = rings;
        let mut slot = [0; MAX_IN_RING];
        // SAFETY: the slot has `len` readable bytes, which the sender leaves alone until the
        // acknowledgement. They are copied once, so that the checked bytes are the ones used.
        unsafe {
            copy_shared(
                incoming.payload,
                NonNull::from(&mut slot).cast(),
                incoming.len,
            );
        }
        let slot = &slot[..incoming.len];
        let (message, start) = if incoming.flags.has(Flags::REQUEST) {
            let word = receiver.request_word(incoming);
            RequestMessage::parse(word, slot).ok_or(Rejection::Invalid)?
        } else {
            let is_descriptor = incoming.flags.has(Flags::DESCRIPTOR);
            (RequestMessage::plain(is_descriptor), 0)
        };
        let rest = &slot[start..];
        let len = match message.operation {
            RemoteOperation::Read(_) => message.piece.total.into(),
            _ => message.payload_len(rest).ok_or(Rejection::Invalid)?,
        };
        let shared = &mut common.shared_receive_queues;
        let mut responder =
            Responder::new(&self.core, &mut self.receives, &mut common.memory, shared);
        let placement = responder.admit(&Arrived {
            operation: &message.operation,
            len,
            outstanding: message.outstanding,
            is_solicited: incoming.flags.has(Flags::SOLICITED),
        })?;
        match placement {
            Placement::Read(memory) => {
                read_piece(&responder, receiver, incoming, memory, message.piece)?;
            }
            Placement::Atomic(operation) => {
                let was = responder.operate(&operation)?.to_ne_bytes();
                // SAFETY: a slot has room for eight bytes and belongs to this side until the
                // acknowledgement.
                unsafe { copy_shared(NonNull::from(&was).cast(), incoming.payload, was.len()) };
            }
            Placement::Receive(_) | Placement::Write(..) => {
                let body = Body::locate(&message, rest, peer)?;
                // The sender may have reclaimed the memory that its descriptors name.
                let is_lost = || message.descriptors > 0 && receiver.is_closed_after_copy();
                if len > 0 {
                    let mut only = [Sge::NONE];
                    let place = responder.place(&placement, &mut only, 0, len)?;
                    if is_lost() {
                        return Err(Rejection::Lost);
                    }
                    // SAFETY: `place` has room for the whole body, in registered memory, which stays
                    // registered while the owner word is held.
                    unsafe { body.copy_to(place) };
                }
                if is_lost() {
                    return Err(Rejection::Lost);
                }
            }
        }
        // The cast is lossless: a message's length fits in 32 bits.
        responder.finish(placement, len as u32)
    }
}

/// Copies a piece of a READ to where its requester takes it from.
fn read_piece(
    responder: &Responder<'_>,
    receiver: &RingReceiver,
    incoming: &Incoming,
    memory: RemoteMemory,
    ReadPiece { len, total, stage }: ReadPiece,
) -> Result<(), Rejection> {
    if len as usize > STAGE_LEN || len > total {
        return Err(Rejection::Invalid);
    }
    if total == 0 {
        return Ok(());
    }
    let from = responder.permitted(memory, total.into(), Access::REMOTE_READ)?;
    let to = match stage {
        IN_SLOT if len <= MAX_READ_IN_SLOT => incoming.payload,
        IN_SLOT => return Err(Rejection::Invalid),
        stage => receiver.stage(stage).ok_or(Rejection::Invalid)?,
    };
    // SAFETY: the permitted range has `total` bytes, of which `len` is a part. A slot has room for
    // `MAX_READ_IN_SLOT` bytes and a stage for `STAGE_LEN`, and both belong to this side until the
    // acknowledgement.
    unsafe { copy_shared(from, to, len as usize) };
    Ok(())
}

impl RequestMessage {
    /// Returns the length of a request's payload, of which `rest` has the bytes or the descriptors;
    /// `None` if no software device sends this.
    fn payload_len(&self, rest: &[u8]) -> Option<u64> {
        if self.descriptors == 0 {
            return Some(rest.len() as u64);
        }
        if rest.len() != usize::from(self.descriptors) * DESCRIPTOR_LEN {
            return None;
        }
        let mut descriptors = rest.chunks(DESCRIPTOR_LEN).map(Descriptor::parse);
        descriptors.try_fold(0, |len, descriptor| Some(len + u64::from(descriptor?.len)))
    }
}

impl Body {
    /// Locates the bytes of a request. All of it comes from a peer and is validated.
    fn locate(message: &RequestMessage, rest: &[u8], peer: &Peer) -> Result<Self, Rejection> {
        let mut body = Self {
            parts: [(NonNull::dangling(), 0); MAX_SGE],
            count: 0,
            arenas: Default::default(),
        };
        if message.descriptors == 0 {
            body.put(NonNull::from(rest).cast(), rest.len(), None)?;
            return Ok(body);
        }
        for bytes in rest.chunks(DESCRIPTOR_LEN) {
            let descriptor = Descriptor::parse(bytes).ok_or(Rejection::Invalid)?;
            // The arena may not have arrived yet.
            let arena = peer.arena(descriptor.arena).ok_or(Rejection::NotYet)?;
            let offset = descriptor
                .offset_within(arena.len())
                .ok_or(Rejection::Invalid)?;
            // SAFETY: `offset_within` checked that the offset, and `len` bytes after it, are inside
            // the mapping, which `arena` keeps alive.
            let from = unsafe { arena.start().add(offset) };
            body.put(from, descriptor.len as usize, Some(arena))?;
        }
        Ok(body)
    }

    fn put(
        &mut self,
        from: NonNull<u8>,
        len: usize,
        arena: Option<Arc<Mapping>>,
    ) -> Result<(), Rejection> {
        let part = self.parts.get_mut(self.count).ok_or(Rejection::Invalid)?;
        *part = (from, len);
        self.arenas[self.count] = arena;
        self.count += 1;
        Ok(())
    }

    /// Copies the body to its place.
    ///
    /// # Safety
    ///
    /// The place is writable, has room for the whole body, and belongs to the device.
    unsafe fn copy_to(&self, place: Place<'_>) {
        match place {
            // SAFETY: the caller guarantees it.
            Place::Elements(elements, _) => unsafe { self.scatter(elements) },
            Place::At(mut to) => {
                for &(from, len) in &self.parts[..self.count] {
                    // SAFETY: `locate` found `len` readable bytes, and the caller guarantees the
                    // place.
                    unsafe {
                        copy_shared(from, to, len);
                        to = to.add(len);
                    }
                }
            }
        }
    }

    /// Copies the body into the elements, in order.
    ///
    /// # Safety
    ///
    /// The elements are writable, have room for the whole body, and belong to the device.
    unsafe fn scatter(&self, elements: &[Sge]) {
        let mut elements = elements
            .iter()
            .map(|element| (element.addr, element.len as usize));
        let mut room = (NonNull::dangling(), 0);
        for &(mut from, mut len) in &self.parts[..self.count] {
            while len > 0 {
                if room.1 == 0 {
                    let Some(next) = elements.next() else { return };
                    room = next;
                    continue;
                }
                let part = len.min(room.1);
                // SAFETY: the range is within the part, and the caller guarantees that the element
                // is writable.
                unsafe {
                    copy_shared(from, room.0, part);
                    from = from.add(part);
                    room.0 = room.0.add(part);
                }
                len -= part;
                room.1 -= part;
            }
        }
    }
}
