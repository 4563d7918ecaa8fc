//! Posts to the send queue and completes its requests (`ibv_post_send(3)`).

use super::super::element::{Element, Elements};
use super::super::memory_window::{Binding, MemoryWindow};
use super::super::slot::Slot;
use super::super::types::claim_error::ClaimError;
use super::super::types::keys::RemoteKey;
use super::super::types::post_error::{PostError, PostErrorReason};
use super::super::types::queue_pair_state::QpType;
use super::super::types::window_type::WindowType;
use super::super::types::work_completion::WorkCompletion;
use super::super::types::wr_id::WrId;
use super::super::work_request::{Operation, WindowBinding, WorkRequest};
use super::QueuePair;
use crate::provider::{SendWork, Work};

/// A message to send from one slot.
#[derive(Debug)]
pub struct SendRequest {
    /// The memory; its first `len` bytes are the message.
    pub slot: Slot,
    /// Length of the message in bytes.
    pub len: usize,
    /// Generate a completion even on success.
    pub signaled: bool,
    /// Copy the message while posting, so that the slot is released at once.
    pub inline: bool,
    /// Request a solicited event at the receiver.
    pub solicited: bool,
}

impl SendRequest {
    /// Makes a message of the slot's first `len` bytes that is not signaled, inline or solicited.
    pub fn new(slot: Slot, len: usize) -> Self {
        Self {
            slot,
            len,
            signaled: false,
            inline: false,
            solicited: false,
        }
    }

    /// Requests a completion even on success.
    pub fn signaled(self) -> Self {
        Self {
            signaled: true,
            ..self
        }
    }

    /// Copies the message while posting.
    pub fn inline(self) -> Self {
        Self {
            inline: true,
            ..self
        }
    }
}

impl QueuePair {
    /// Posts `requests` in order, as one chain with one doorbell (`ibv_post_send(3)`).
    ///
    /// Posted requests are drained from `requests`. The slots of inline requests are passed to
    /// `release` at once; all others stay with the queue pair until a completion covers them.
    ///
    /// # Errors
    ///
    /// [`PostError`] with the number of posted requests (`taken`) and the reason. The rejected
    /// request is now the first of `requests`.
    pub fn post_send(
        &mut self,
        requests: &mut Vec<SendRequest>,
        release: &mut impl FnMut(Slot),
    ) -> Result<(), PostError> {
        if let Err(reason) = self.ring_doorbell() {
            return Err(PostError { taken: 0, reason });
        }
        self.work.clear();
        let mut refused = None;
        for (index, request) in requests.iter().enumerate() {
            if let Err(reason) = self.check(request, index) {
                refused = Some(reason);
                break;
            }
            self.work.push(SendWork {
                wr_id: self.send_slots.id_of_next(index),
                addr: request.slot.start(),
                // Cannot truncate: `check` has verified that it is at most the slot's length, which
                // has 32 bits.
                len: request.len as u32,
                local_key: request.slot.local_key(),
                signaled: request.signaled,
                inline: request.inline,
                solicited: request.solicited,
            });
        }
        let posted = self.raw.post_send(&self.work);
        let taken = match &posted {
            Ok(()) => self.work.len(),
            Err(error) => error.taken.min(self.work.len()),
        };
        // All requests are recorded before any slot is released: if `release` panics, the device
        // still has them.
        if taken == 1
            && requests.len() == 1
            && let Some(only) = requests.pop()
        {
            // Takes fewer instructions than a drain.
            self.record(only);
        } else {
            for request in requests.drain(..taken) {
                self.record(request);
            }
        }
        while let Some(slot) = self.inline_slots.pop() {
            release(slot);
        }
        posted?;
        match refused {
            Some(reason) => Err(PostError { taken, reason }),
            None => Ok(()),
        }
    }

    /// Records a request that the device has taken.
    #[inline]
    fn record(&mut self, SendRequest { slot, inline, .. }: SendRequest) {
        if inline {
            self.send_slots.push_inline();
            self.inline_slots.push(slot);
        } else {
            self.send_slots.push(slot);
        }
    }

    /// Returns the id of the request that will be posted to the send queue after `ahead` others.
    /// Its completion carries this id.
    pub fn next_wr_id(&self, ahead: usize) -> WrId {
        self.send_slots.id_of_next(ahead)
    }

    /// Posts requests of any kind, in order, as one chain with one doorbell (`ibv_post_send(3)`).
    ///
    /// As with [`post_send`](Self::post_send), posted requests are drained from `requests`, the
    /// slots of inline requests are passed to `release` at once, and all others when a completion
    /// covers them.
    ///
    /// # Errors
    ///
    /// [`PostError`] with the number of posted requests (`taken`) and the reason. The rejected
    /// request is now the first of `requests`.
    pub fn post(
        &mut self,
        requests: &mut Vec<WorkRequest>,
        release: &mut impl FnMut(Slot),
    ) -> Result<(), PostError> {
        if let Err(reason) = self.ring_doorbell() {
            return Err(PostError { taken: 0, reason });
        }
        self.general_work.clear();
        self.elements.clear();
        let mut refused = None;
        for (index, request) in requests.iter().enumerate() {
            if let Err(reason) = self.check_general(request, index) {
                refused = Some(reason);
                break;
            }
            let first = self.elements.len();
            let elements = request.elements.0.iter();
            self.elements.extend(elements.map(Element::sge));
            self.general_work.push(Work {
                wr_id: self.send_slots.id_of_next(index),
                operation: request.operation.map_binding(WindowBinding::raw),
                first_element: first,
                element_count: request.elements.0.len(),
                destination: request.raw_destination(),
                signaled: request.signaled,
                fenced: request.fenced,
                solicited: request.solicited,
                inline: request.inline,
            });
        }
        let posted = self.raw.post(&self.general_work, &self.elements);
        let taken = match &posted {
            Ok(()) => self.general_work.len(),
            Err(error) => error.taken.min(self.general_work.len()),
        };
        // All requests are recorded before any slot is released: if `release` panics, the device
        // still has them.
        let mut inline = Elements::NONE;
        for mut request in requests.drain(..taken) {
            if let Operation::BindWindow(bound) = &request.operation {
                bound.window.note_binding(&bound.binding, bound.key);
            }
            if request.inline {
                inline.0.append(&mut request.elements.0);
            }
            self.send_slots.push_request(request);
        }
        for slot in inline.into_iter().filter_map(Element::into_slot) {
            release(slot);
        }
        posted?;
        match refused {
            Some(reason) => Err(PostError { taken, reason }),
            None => Ok(()),
        }
    }

    /// Posts one request of any kind and returns its id. Don't use it for inline requests: it drops
    /// their slots.
    ///
    /// # Errors
    ///
    /// Returns the request with the reason.
    pub fn post_one(
        &mut self,
        request: WorkRequest,
    ) -> Result<WrId, (Box<WorkRequest>, PostErrorReason)> {
        let wr_id = self.next_wr_id(0);
        let mut list = vec![request];
        // Inline slots would be released at once; here they are dropped.
        match self.post(&mut list, &mut drop) {
            Ok(()) => Ok(wr_id),
            Err(PostError { reason, .. }) => match list.pop() {
                Some(request) => Err((Box::new(request), reason)),
                // The device accepted the request although it reports an error: the request
                // completes or is flushed.
                None => Ok(wr_id),
            },
        }
    }

    /// Binds a type 1 window (`ibv_bind_mw(3)`); binding it to zero bytes unbinds it. Returns the
    /// key that the window will have once the request has been executed. The request occupies an
    /// entry of the send queue.
    ///
    /// # Errors
    ///
    /// [`PostErrorReason::WindowType`] for a type 2 window; otherwise the reason why the request
    /// was rejected.
    pub fn bind_mw(
        &mut self,
        window: &MemoryWindow,
        binding: Binding,
        signaled: bool,
    ) -> Result<RemoteKey, PostErrorReason> {
        let window_type = window.window_type();
        if window_type != WindowType::Type1 {
            let by = "a work request: WorkRequest::bind_window";
            return Err(PostErrorReason::WindowType { window_type, by });
        }
        let request = WorkRequest::bind_window(window, binding, window.next_key());
        let Operation::BindWindow(bound) = &request.operation else {
            return Err(PostErrorReason::NotForType {
                operation: request.name(),
                qp_type: self.qp_type,
            });
        };
        self.check_common(&request, 0)?;
        self.ring_doorbell()?;
        let wr_id = self.next_wr_id(0);
        let key = self
            .raw
            .bind_mw(wr_id, bound.raw(), signaled)
            .map_err(|error| error.reason)?;
        window.note_binding(&bound.binding, key);
        self.send_slots.push_request(request);
        Ok(key)
    }

    /// Checks rules of all requests that devices do not check, or report without naming the rule.
    fn check_common(&self, request: &WorkRequest, ahead: usize) -> Result<(), PostErrorReason> {
        if ahead >= self.send_slots.free() {
            return Err(PostErrorReason::QueueFull {
                capacity: self.send_slots.capacity(),
            });
        }
        let (operation, qp_type) = (request.name(), self.qp_type);
        if !request.operation.is_for(qp_type) {
            return Err(PostErrorReason::NotForType { operation, qp_type });
        }
        match &request.operation {
            Operation::BindWindow(bound) => bound.binding.check(),
            _ => Ok(()),
        }
    }

    fn check_general(&self, request: &WorkRequest, ahead: usize) -> Result<(), PostErrorReason> {
        self.check_common(request, ahead)?;
        let operation = request.name();
        let (count, limit) = (request.elements.0.len(), self.capabilities.max_send_sge);
        if count > limit {
            return Err(PostErrorReason::TooManyElements { count, limit });
        }
        let len = request.elements.total_len();
        if request.inline {
            if !request.operation.has_payload() {
                return Err(PostErrorReason::NotInline { operation });
            }
            let limit = self.capabilities.max_inline_data;
            if len > limit {
                return Err(PostErrorReason::InlineTooLong { len, limit });
            }
        }
        if request.operation.is_atomic() && len != 8 {
            return Err(PostErrorReason::AtomicLength { operation, len });
        }
        if request.operation.has_response() && self.max_rd_atomic == 0 {
            return Err(PostErrorReason::NoReads { operation });
        }
        if let Operation::BindWindow(bound) = &request.operation
            && bound.window.window_type() == WindowType::Type1
        {
            let (window_type, by) = (WindowType::Type1, "QueuePair::bind_mw");
            return Err(PostErrorReason::WindowType { window_type, by });
        }
        let qp_type = self.qp_type;
        match (qp_type, &request.destination) {
            (QpType::UnreliableDatagram, None) => Err(PostErrorReason::NoDestination),
            (QpType::UnreliableDatagram, Some(destination))
                if !destination.handle.is_of(&self.domain) =>
            {
                let object = "the address handle";
                Err(PostErrorReason::ForeignDomain { object })
            }
            (QpType::UnreliableDatagram, Some(_)) | (_, None) => Ok(()),
            (_, Some(_)) => Err(PostErrorReason::UselessDestination { qp_type }),
        }
    }

    fn check(&self, request: &SendRequest, ahead: usize) -> Result<(), PostErrorReason> {
        if let Some(reason) = self.takes_no_plain_sends {
            return Err(reason);
        }
        if ahead >= self.send_slots.free() {
            return Err(PostErrorReason::QueueFull {
                capacity: self.send_slots.capacity(),
            });
        }
        if request.len > request.slot.len() {
            return Err(PostErrorReason::TooLong {
                len: request.len,
                slot_len: request.slot.len(),
            });
        }
        if request.inline && request.len > self.capabilities.max_inline_data {
            return Err(PostErrorReason::InlineTooLong {
                len: request.len,
                limit: self.capabilities.max_inline_data,
            });
        }
        Ok(())
    }

    /// Releases the slots that a completion of this send queue covers: the slots of its own request
    /// and of all earlier ones (`ibv_poll_cq(3)`). After an error each request has its own
    /// completion.
    ///
    /// # Errors
    ///
    /// [`ClaimError`] if the completion names no request in flight on this send queue.
    #[inline]
    pub fn complete_send(
        &mut self,
        completion: WorkCompletion,
        release: &mut impl FnMut(Slot),
    ) -> Result<(), ClaimError> {
        let wr_id = completion.wr_id();
        if self.send_slots.complete(wr_id, release) {
            Ok(())
        } else {
            Err(ClaimError {
                wr_id,
                qp_num: completion.qp_num(),
            })
        }
    }
}
