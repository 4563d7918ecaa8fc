//! Executes requests from a ring on the side that owns the memory.
//!
//! The steps follow the specification's order: check that this queue pair permits the operation,
//! that a receive is available, that the message fits it, and that the key permits the access; then
//! carry out the whole operation; finally complete the receive. The thread that holds the context's
//! owner word does this: the application's poll, or the engine.
//!
//! The process that owns the memory checks the keys under its context's owner word. Deregistering
//! takes the same word, so the device does not access the memory afterwards.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::receive::Step;
use super::rejection::{LocalReport, Rejection};
use crate::hooks::inject;
use crate::provider::soft::capacities::MAX_SGE;
use crate::provider::soft::context::link::Link;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::receive_queue::ReceiveQueue;
use crate::provider::soft::context::remote_access::RemoteRequest;
use crate::provider::soft::context::state::Common;
use crate::provider::soft::shared::commit::Flags;
use crate::provider::soft::shared::copy::copy_shared;
use crate::provider::soft::shared::descriptor::{DESCRIPTOR_LEN, Descriptor};
use crate::provider::soft::shared::memory::Mapping;
use crate::provider::soft::shared::request_message::{
    IN_SLOT, MAX_READ_IN_SLOT, ReadPiece, RequestMessage,
};
use crate::provider::soft::shared::ring::{Incoming, MAX_IN_RING, STAGE_LEN};
use crate::provider::work::Sge;
use crate::types::{
    Access, CompletionOpcode, CompletionStatus, Extras, RemoteKey, RemoteMemory, RemoteOperation,
};

/// The bytes of a request: in its slot, or in the sender's arenas. The mappings are kept alive
/// until the bytes have been copied.
struct Body {
    parts: [(NonNull<u8>, usize); MAX_SGE],
    count: usize,
    len: usize,
    arenas: [Option<Arc<Mapping>>; MAX_SGE],
}

impl SoftQueuePair {
    /// Executes the message that was found in the ring: a request other than a plain message, or
    /// any message if posted receives have no element or several.
    #[cold]
    pub(crate) fn execute(&mut self, common: &mut Common, incoming: &Incoming) -> Step {
        match self.try_execute(common, incoming) {
            Ok(()) => {
                if let Link::Rings(rings) = &mut self.link {
                    rings.receiver.advance();
                }
                self.communication_established(common);
                Step::Received
            }
            Err(Rejection::NotYet) => Step::Wait,
            Err(Rejection::Lost) => {
                // What follows it must not be delivered: see `receive_one`.
                if let Link::Rings(rings) = &mut self.link {
                    rings.receiver.stop();
                }
                Step::Wait
            }
            // A ring holds no responses.
            Err(Rejection::Invalid | Rejection::OfResponse(_)) => self.fail_invalid_message(common),
            Err(Rejection::Status(status, local_report)) => {
                self.reject(common, status, local_report);
                Step::Failed
            }
        }
    }

    fn reject(&mut self, common: &mut Common, status: CompletionStatus, report: LocalReport) {
        self.report(common, report);
        self.refuse_message(common, status);
    }

    fn try_execute(&mut self, common: &mut Common, incoming: &Incoming) -> Result<(), Rejection> {
        let receiver = &self.link.rings().ok_or(Rejection::Invalid)?.receiver;
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
        self.check_request(&message.operation, message.outstanding)?;
        let solicited = incoming.flags.has(Flags::SOLICITED);
        match message.operation {
            RemoteOperation::Send => {
                self.execute_send(common, &message, slot, start, solicited, None, None)
            }
            RemoteOperation::SendWithImm(imm) => {
                self.execute_send(common, &message, slot, start, solicited, Some(imm), None)
            }
            RemoteOperation::SendWithInvalidate(key) => {
                self.execute_send(common, &message, slot, start, solicited, None, Some(key))
            }
            RemoteOperation::Write(memory) => self
                .execute_write(common, &message, slot, start, memory)
                .map(drop),
            RemoteOperation::WriteWithImm(memory, imm) => {
                self.need_receive(common)?;
                let len = self.execute_write(common, &message, slot, start, memory)?;
                let flag = if solicited { Extras::SOLICITED } else { 0 };
                let opcode = CompletionOpcode::ReceiveRdmaWithImm;
                let (imm, extras) = (Some(imm), flag | Extras::IMMEDIATE);
                self.complete_receive(common, CompletionStatus::Success, opcode, len, imm, extras);
                Ok(())
            }
            RemoteOperation::Read(memory) => {
                self.execute_read(common, incoming, memory, message.piece)
            }
            RemoteOperation::CompareAndSwap { remote, .. }
            | RemoteOperation::FetchAndAdd { remote, .. } => {
                self.execute_atomic(common, incoming, remote, &message.operation)
            }
        }
    }

    /// Checks that the queue pair permits an operation, which is one of `outstanding` READs and
    /// atomics if it is one.
    pub(super) fn check_request(
        &self,
        operation: &RemoteOperation,
        outstanding: u8,
    ) -> Result<(), Rejection> {
        let (needs, is_counted) = (operation.needs(), operation.has_response());
        let most = self.core.attributes.max_dest_rd_atomic.unwrap_or(0);
        let has_access = self
            .core
            .attributes
            .access
            .unwrap_or_default()
            .contains(needs);
        if has_access && (!is_counted || outstanding <= most) {
            return Ok(());
        }
        Err(Rejection::Status(
            CompletionStatus::RemoteInvalidRequest,
            LocalReport::RequestError,
        ))
    }

    /// Checks that a receive is available; otherwise sends an RNR NAK.
    pub(super) fn need_receive(&mut self, common: &mut Common) -> Result<(), Rejection> {
        let shared = &common.shared_receive_queues;
        let queue = ReceiveQueue::seen_by(shared, self.core.srq, &self.receives);
        if queue.next().is_some_and(|_| !inject!(ReceiverNotReady)) {
            return Ok(());
        }
        self.send_rnr_nak(common);
        Err(Rejection::NotYet)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one message")]
    fn execute_send(
        &mut self,
        common: &mut Common,
        message: &RequestMessage,
        slot: &[u8],
        start: usize,
        solicited: bool,
        imm: Option<u32>,
        invalidate: Option<RemoteKey>,
    ) -> Result<(), Rejection> {
        self.need_receive(common)?;
        let body = self.locate_all(message, slot, start)?;
        let shared = &common.shared_receive_queues;
        let queue = ReceiveQueue::seen_by(shared, self.core.srq, &self.receives);
        let mut only = [Sge::NONE];
        let elements = queue.next_elements(&mut only).ok_or(Rejection::NotYet)?;
        if body.len as u64 > Sge::total_len(elements) {
            let status = CompletionStatus::RemoteInvalidRequest;
            let report = LocalReport::Receive(CompletionStatus::LocalLength);
            return Err(Rejection::Status(status, report));
        }
        if body.len > 0 {
            common
                .memory
                .regions
                .check_all(elements, self.core.domain, Access::LOCAL_WRITE)
                .map_err(|status| {
                    Rejection::Status(
                        CompletionStatus::RemoteOperation,
                        LocalReport::Receive(status),
                    )
                })?;
        }
        // SAFETY: the elements were checked to lie in registered memory, which stays registered
        // while the owner word is held, and they have room for the body.
        unsafe { body.scatter(elements) };
        if self.was_reclaimed(message) {
            // The receive stays posted.
            return Err(Rejection::Lost);
        }
        let (domain, qp_num) = (self.core.domain, self.core.number);
        let mut extras = if solicited { Extras::SOLICITED } else { 0 };
        if let Some(key) = invalidate {
            common
                .memory
                .invalidate(key, domain, qp_num)
                .map_err(|status| {
                    Rejection::Status(status, LocalReport::Receive(CompletionStatus::LocalAccess))
                })?;
            extras |= Extras::INVALIDATED;
        }
        if imm.is_some() {
            extras |= Extras::IMMEDIATE;
        }
        let data = imm.or(invalidate.map(|key| key.0));
        self.complete_receive(
            common,
            CompletionStatus::Success,
            CompletionOpcode::Receive,
            // The cast is lossless: the length is at most the receive's.
            body.len as u32,
            data,
            extras,
        );
        Ok(())
    }

    fn execute_write(
        &mut self,
        common: &mut Common,
        message: &RequestMessage,
        slot: &[u8],
        start: usize,
        memory: RemoteMemory,
    ) -> Result<u32, Rejection> {
        let body = self.locate_all(message, slot, start)?;
        if body.len > 0 {
            let permitted =
                self.permitted(common, memory, body.len as u64, Access::REMOTE_WRITE)?;
            if self.was_reclaimed(message) {
                return Err(Rejection::Lost);
            }
            let mut to = permitted;
            for &(from, len) in &body.parts[..body.count] {
                // SAFETY: `locate_all` found `len` readable bytes. The whole body fits into the
                // permitted range, which stays mapped while the owner word is held.
                unsafe {
                    copy_shared(from, to, len);
                    to = to.add(len);
                }
            }
        }
        // The cast is lossless: a message's length fits in 32 bits.
        Ok(body.len as u32)
    }

    fn execute_read(
        &mut self,
        common: &mut Common,
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
        let permitted = self.permitted(common, memory, total.into(), Access::REMOTE_READ)?;
        let receiver = &self.link.rings().ok_or(Rejection::Invalid)?.receiver;
        let to = match stage {
            IN_SLOT if len <= MAX_READ_IN_SLOT => incoming.payload,
            IN_SLOT => return Err(Rejection::Invalid),
            stage => receiver.stage(stage).ok_or(Rejection::Invalid)?,
        };
        // SAFETY: the permitted range has `total` bytes, of which `len` is a part. A slot has room
        // for `MAX_READ_IN_SLOT` bytes and a stage for `STAGE_LEN`, and both belong to this side
        // until the acknowledgement.
        unsafe { copy_shared(permitted, to, len as usize) };
        Ok(())
    }

    fn execute_atomic(
        &mut self,
        common: &mut Common,
        incoming: &Incoming,
        memory: RemoteMemory,
        operation: &RemoteOperation,
    ) -> Result<(), Rejection> {
        let response = self.operate(common, memory, operation)?.to_ne_bytes();
        // SAFETY: a slot has room for eight bytes and belongs to this side until the
        // acknowledgement.
        unsafe {
            copy_shared(
                NonNull::from(&response).cast(),
                incoming.payload,
                response.len(),
            )
        };
        Ok(())
    }

    /// Carries out an atomic operation. Returns the previous value.
    pub(super) fn operate(
        &self,
        common: &Common,
        memory: RemoteMemory,
        operation: &RemoteOperation,
    ) -> Result<u64, Rejection> {
        let misaligned = Rejection::Status(
            CompletionStatus::RemoteInvalidRequest,
            LocalReport::RequestError,
        );
        if !memory.addr.is_multiple_of(8) {
            return Err(misaligned);
        }
        let permitted = self.permitted(common, memory, 8, Access::REMOTE_ATOMIC)?;
        let cell = permitted.cast::<AtomicU64>();
        if !cell.is_aligned() {
            // A zero-based window may begin at any address.
            return Err(misaligned);
        }
        // SAFETY: the eight bytes are permitted, aligned, and mapped while the owner word is held;
        // they are accessed only through atomics.
        Ok(operation.operate(unsafe { cell.as_ref() }))
    }

    pub(super) fn permitted(
        &self,
        common: &Common,
        memory: RemoteMemory,
        len: u64,
        needs: Access,
    ) -> Result<NonNull<u8>, Rejection> {
        let request = RemoteRequest {
            memory,
            len,
            needs,
            domain: self.core.domain,
            qp_num: self.core.number,
        };
        common
            .memory
            .check_remote(&request)
            .ok_or(Rejection::Status(
                CompletionStatus::RemoteAccess,
                LocalReport::AccessError,
            ))
    }

    /// Returns true if the sender may have reclaimed the memory that its descriptors name.
    fn was_reclaimed(&self, message: &RequestMessage) -> bool {
        let rings = self.link.rings();
        message.descriptors > 0 && rings.is_some_and(|rings| rings.receiver.is_closed_after_copy())
    }

    /// Locates the bytes of a request. All of it comes from a peer and is validated.
    fn locate_all(
        &self,
        message: &RequestMessage,
        slot: &[u8],
        start: usize,
    ) -> Result<Body, Rejection> {
        let mut body = Body {
            parts: [(NonNull::dangling(), 0); MAX_SGE],
            count: 0,
            len: 0,
            arenas: Default::default(),
        };
        let rest = &slot[start..];
        if message.descriptors == 0 {
            body.put(NonNull::from(rest).cast(), rest.len(), None)?;
            return Ok(body);
        }
        if rest.len() != usize::from(message.descriptors) * DESCRIPTOR_LEN {
            return Err(Rejection::Invalid);
        }
        let peer = &self.link.rings().ok_or(Rejection::Invalid)?.peer;
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
}

impl Body {
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
        self.len += len;
        Ok(())
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
