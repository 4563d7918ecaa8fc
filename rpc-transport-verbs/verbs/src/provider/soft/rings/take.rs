//! Finds the bytes of what has arrived in this side's ring: in its slot, or in the sender's arenas. All of
//! it comes from a peer and is validated.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use crate::provider::soft::capacities::MAX_SGE;
use crate::provider::soft::context::link::Rings;
use crate::provider::soft::context::peer::Peer;
use crate::provider::soft::context::responder::Place;
use crate::provider::soft::shared::commit::Flags;
use crate::provider::soft::shared::copy::{copy_message, copy_shared};
use crate::provider::soft::shared::descriptor::{DESCRIPTOR_LEN, Descriptor};
use crate::provider::soft::shared::memory::Mapping;
use crate::provider::soft::shared::request_message::{
    IN_SLOT, MAX_PREFIX, MAX_READ_IN_SLOT, ReadPiece, RequestMessage,
};
use crate::provider::soft::shared::ring::{Incoming, MAX_IN_RING, STAGE_LEN};
use crate::provider::work::Sge;

/// Location of the bytes of a plain message.
pub(crate) enum Located {
    /// In its slot of the ring, or in the sender's arena, which this keeps mapped.
    At(NonNull<u8>, usize, Option<Arc<Mapping>>),
    /// In an arena that has not arrived over the link yet.
    NotMapped,
    /// Nowhere: the descriptor is invalid.
    Invalid,
}

/// A request, of which the slot was copied once, so that the checked bytes are the ones used. A payload in
/// the buffer stays there: nothing of it is checked.
pub(crate) struct Taken {
    pub(crate) message: RequestMessage,
    slot: [u8; MAX_IN_RING],
    /// Where the payload, or its descriptors, are in the slot.
    start: usize,
    end: usize,
    /// The payload, if it is in the ring's buffer.
    buffered: Option<(NonNull<u8>, usize)>,
}

/// The bytes of a request: in its slot, or in the sender's arenas. The mappings are kept alive
/// until the bytes have been copied.
pub(crate) struct Body<'a> {
    parts: [(NonNull<u8>, usize); MAX_SGE],
    count: usize,
    arenas: [Option<Arc<Mapping>>; MAX_SGE],
    /// Parts may point into the copy of the slot.
    slot: PhantomData<&'a [u8]>,
}

/// Why a request's bytes are not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotLocated {
    /// They are in an arena that has not arrived over the link yet.
    NotYet,
    /// No software device sends this.
    Invalid,
}

impl Rings {
    /// Takes the request out of the slot in which a message lies; `None` if no software device sends
    /// it.
    pub(crate) fn take_request(&self, incoming: &Incoming) -> Option<Taken> {
        let mut slot = [0; MAX_IN_RING];
        let is_buffered = incoming.flags.has(Flags::BUFFERED);
        let len = if is_buffered {
            MAX_PREFIX
        } else {
            incoming.len
        };
        // SAFETY: a slot has `len` readable bytes, at most as many as `slot`: the receiver has checked
        // that. The sender leaves them alone until the acknowledgement.
        unsafe {
            let to = NonNull::from(&mut slot).cast();
            copy_shared(self.receiver.in_slot(incoming), to, len);
        }
        let (message, start) = if incoming.flags.has(Flags::REQUEST) {
            let word = self.receiver.request_word(incoming);
            RequestMessage::parse(word, &slot[..len])?
        } else {
            let is_descriptor = incoming.flags.has(Flags::DESCRIPTOR);
            (RequestMessage::plain(is_descriptor), 0)
        };
        let takes_buffer = message.operation.has_payload() && message.descriptors == 0;
        if is_buffered && !takes_buffer {
            return None;
        }
        Some(Taken {
            message,
            slot,
            start,
            end: if is_buffered { start } else { len },
            buffered: is_buffered.then_some((incoming.payload, incoming.len)),
        })
    }

    /// Returns where its requester takes a piece of a READ from; `None` if no software device asks for
    /// such a piece.
    pub(crate) fn place_of_response(
        &self,
        incoming: &Incoming,
        ReadPiece { len, total, stage }: ReadPiece,
    ) -> Option<NonNull<u8>> {
        if len as usize > STAGE_LEN || len > total {
            return None;
        }
        match stage {
            IN_SLOT if len <= MAX_READ_IN_SLOT => Some(incoming.payload),
            IN_SLOT => None,
            stage => self.receiver.stage(stage),
        }
    }
}

impl Taken {
    /// Returns the payload, or its descriptors, that is in the slot.
    fn rest(&self) -> &[u8] {
        &self.slot[self.start..self.end]
    }

    /// Returns the length of the payload; `None` if no software device sends this.
    pub(crate) fn payload_len(&self) -> Option<u64> {
        let rest = self.rest();
        match (self.message.descriptors, self.buffered) {
            (0, Some((_, len))) => Some(len as u64),
            (0, None) => Some(rest.len() as u64),
            (count, _) if rest.len() != usize::from(count) * DESCRIPTOR_LEN => None,
            _ => {
                let mut descriptors = rest.chunks(DESCRIPTOR_LEN).map(Descriptor::parse);
                descriptors.try_fold(0, |len, descriptor| Some(len + u64::from(descriptor?.len)))
            }
        }
    }
}

/// Locates the bytes of a message. All of it comes from a peer and is validated.
#[inline]
pub(crate) fn locate(
    incoming: &Incoming,
    peer: &Peer,
    recent: &mut Option<(u64, Weak<Mapping>)>,
) -> Located {
    if !incoming.flags.has(Flags::DESCRIPTOR) {
        return Located::At(incoming.payload, incoming.len, None);
    }
    if incoming.len != DESCRIPTOR_LEN {
        return Located::Invalid;
    }
    let mut bytes = [0; DESCRIPTOR_LEN];
    // SAFETY: the payload has `incoming.len` readable bytes, which is the array's length. They are
    // copied once, so that the checked bytes are the ones used.
    unsafe {
        copy_message(
            incoming.payload,
            NonNull::from(&mut bytes).cast(),
            DESCRIPTOR_LEN,
        );
    }
    let Some(descriptor) = Descriptor::parse(&bytes) else {
        return Located::Invalid;
    };
    let cached = match recent {
        Some((number, arena)) if *number == descriptor.arena => arena.upgrade(),
        _ => None,
    };
    let arena = match cached {
        Some(arena) => arena,
        None => {
            let found = peer.arena(descriptor.arena);
            let Some(arena) = found else {
                return Located::NotMapped;
            };
            *recent = Some((descriptor.arena, Arc::downgrade(&arena)));
            arena
        }
    };
    match descriptor.offset_within(arena.len()) {
        Some(offset) => {
            // SAFETY: `offset_within` checked that the offset, and `len` bytes after it, are inside
            // the mapping, which `Located` keeps alive.
            let from = unsafe { arena.start().add(offset) };
            Located::At(from, descriptor.len as usize, Some(arena))
        }
        None => Located::Invalid,
    }
}

impl<'a> Body<'a> {
    /// Locates the bytes of a request. All of it comes from a peer and is validated.
    pub(crate) fn locate(taken: &'a Taken, peer: &Peer) -> Result<Self, NotLocated> {
        let mut body = Self {
            parts: [(NonNull::dangling(), 0); MAX_SGE],
            count: 0,
            arenas: Default::default(),
            slot: PhantomData,
        };
        let rest = taken.rest();
        if taken.message.descriptors == 0 {
            let in_slot = (NonNull::from(rest).cast(), rest.len());
            let (from, len) = taken.buffered.unwrap_or(in_slot);
            body.put(from, len, None)?;
            return Ok(body);
        }
        for bytes in rest.chunks(DESCRIPTOR_LEN) {
            let descriptor = Descriptor::parse(bytes).ok_or(NotLocated::Invalid)?;
            // The arena may not have arrived yet.
            let arena = peer.arena(descriptor.arena).ok_or(NotLocated::NotYet)?;
            let offset = descriptor
                .offset_within(arena.len())
                .ok_or(NotLocated::Invalid)?;
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
    ) -> Result<(), NotLocated> {
        let part = self.parts.get_mut(self.count).ok_or(NotLocated::Invalid)?;
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
    pub(crate) unsafe fn copy_to(&self, place: Place<'_>) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::soft::shared::ring::pair;
    use crate::types::{Gid, RemoteKey, RemoteMemory, RemoteOperation};

    const REMOTE: RemoteMemory = RemoteMemory {
        addr: 8,
        key: RemoteKey(7),
    };

    /// Sends a request whose payload is in the ring's buffer, and returns the length of what is taken.
    fn taken_from_buffer(operation: RemoteOperation, descriptors: u8) -> Option<u64> {
        let (mut sender, mut receiver) = pair(0);
        let message = RequestMessage {
            operation,
            descriptors,
            ..RequestMessage::plain(false)
        };
        let (word, prefix, len) = message.encode();
        sender.send_buffered_request(word, &prefix[..len], &[7; 300], 0);
        let incoming = receiver.peek().unwrap().unwrap();
        let rings = Rings::new(receiver, Arc::new(Peer::new(Gid([1; 16]))));
        rings.take_request(&incoming)?.payload_len()
    }

    #[test]
    fn only_a_payload_without_descriptors_is_taken_from_the_buffer() {
        for operation in [
            RemoteOperation::SendWithImm(3),
            RemoteOperation::Write(REMOTE),
        ] {
            assert_eq!(taken_from_buffer(operation, 0), Some(300));
            assert_eq!(taken_from_buffer(operation, 1), None);
        }
        let (remote, addend) = (REMOTE, 1);
        for operation in [
            RemoteOperation::Read(REMOTE),
            RemoteOperation::FetchAndAdd { remote, addend },
        ] {
            assert_eq!(taken_from_buffer(operation, 0), None);
        }
    }

    /// What the peer has withdrawn no longer counts against its limits, so it must not stay mapped.
    #[test]
    fn an_arena_that_its_peer_has_withdrawn_is_unmapped() {
        let peer = Arc::new(Peer::new(Gid([1; 16])));
        assert!(peer.add_arena(7, Mapping::for_tests(4096)));
        let mapping = Arc::downgrade(&peer.arena(7).unwrap());
        let descriptor = Descriptor {
            arena: 7,
            offset: 96,
            len: 4000,
        };
        let mut bytes = descriptor.encode();
        let incoming = Incoming {
            payload: NonNull::from(&mut bytes).cast(),
            len: DESCRIPTOR_LEN,
            flags: Flags(Flags::DESCRIPTOR),
            sequence: 0,
        };
        let mut recent = None;
        let mut locate = || locate(&incoming, &peer, &mut recent);
        assert!(matches!(locate(), Located::At(_, 4000, Some(_))));
        let body = locate();
        peer.remove_arena(7);
        assert!(mapping.upgrade().is_some(), "while the message is copied");
        drop(body);
        assert!(mapping.upgrade().is_none());
        assert!(matches!(locate(), Located::NotMapped));
    }
}
