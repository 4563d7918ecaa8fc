//! Queue pairs: a send queue and a receive queue (`ibv_create_qp(3)`, `ibv_post_send(3)`).

use std::mem;
use std::sync::Arc;
use std::vec;

use super::completion_queue::CompletionQueueHandle;
use super::element::{Element, Elements};
use super::in_flight::InFlight;
use super::memory_window::{Binding, MemoryWindow};
use super::posted_receives::PostedReceives;
use super::protection_domain::ProtectionDomain;
use super::shared_receive_queue::{self, SharedReceiveQueue};
use super::slot::Slot;
use super::types::access::Access;
use super::types::claim_error::ClaimError;
use super::types::extended_queue_pair::ExtendedConfig;
use super::types::keys::RemoteKey;
use super::types::modify_error::ModifyError;
use super::types::post_error::{PostError, PostErrorReason};
use super::types::queue_pair_attributes::{
    AddressVector, Psn, QpAttributes, QpNum, RtrAttributes, RtsAttributes,
};
use super::types::queue_pair_capabilities::QueuePairCapabilities;
use super::types::queue_pair_query::QpInitAttributes;
use super::types::queue_pair_state::{QpState, QpType};
use super::types::queue_pair_transitions::check_transition;
use super::types::verbs_error::VerbsError;
use super::types::window_type::WindowType;
use super::types::work_completion::WorkCompletion;
use super::types::wr_id::{QueueTag, WrId, check_depth};
use super::work_request::{Operation, ReceiveRequest, WorkRequest};
use crate::provider::{self, SendWork, Sge, Work};

/// The configuration of a new queue pair (`struct ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QueuePairConfig<'a> {
    /// Queue pair type.
    pub qp_type: QpType,
    /// Completion queue of the send queue.
    pub send_cq: &'a CompletionQueueHandle,
    /// Completion queue of the receive queue; may be the same.
    pub recv_cq: &'a CompletionQueueHandle,
    /// The shared receive queue to receive from; `None` creates a receive queue of its own.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// Depth of the send queue in work requests.
    pub max_send_wr: usize,
    /// Depth of its own receive queue in work requests; ignored with a shared one.
    pub max_recv_wr: usize,
    /// Scatter/gather elements per send.
    pub max_send_sge: usize,
    /// Scatter/gather elements per receive; ignored with a shared queue.
    pub max_recv_sge: usize,
    /// Bytes that a send may carry inline.
    pub max_inline_data: usize,
    /// Whether every send generates a completion, signaled or not.
    pub sq_sig_all: bool,
}

impl<'a> QueuePairConfig<'a> {
    /// Returns the default configuration: a reliable connection with its own receive queue, 16
    /// requests deep in each direction, one element per request, no inline data, and completions
    /// for signaled sends only.
    pub fn new(send_cq: &'a CompletionQueueHandle, recv_cq: &'a CompletionQueueHandle) -> Self {
        Self {
            qp_type: QpType::ReliableConnection,
            send_cq,
            recv_cq,
            srq: None,
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
            sq_sig_all: false,
        }
    }
}

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

/// Requests that the device has accepted and that are not yet recorded as in flight. It is dropped
/// only if a caller's `release` panics; it then records the remaining ones.
struct Unrecorded<'a, 'b> {
    rest: &'a mut vec::Drain<'b, SendRequest>,
    send_slots: &'a mut InFlight,
}

impl Drop for Unrecorded<'_, '_> {
    #[cold]
    fn drop(&mut self) {
        for SendRequest { slot, inline, .. } in &mut *self.rest {
            self.send_slots.push((!inline).then_some(slot));
        }
    }
}

/// A queue pair.
///
/// It owns the slots of requests in flight. Slots are returned by
/// [`complete_send`](Self::complete_send), or all at once by [`destroy`](Self::destroy). A queue
/// pair that fails moves to ERR by itself: every request then completes as flushed, including
/// unsignaled ones.
///
/// It may be sent to any thread, but methods that post to it or change it take `&mut self`, so one
/// thread at a time uses it.
#[derive(Debug)]
pub struct QueuePair {
    // First field: the device releases its queues before any slot in flight is dropped.
    pub(super) raw: provider::QueuePair,
    send_slots: InFlight,
    /// `None` if receives are taken from a shared queue.
    receives: Option<PostedReceives>,
    capabilities: QueuePairCapabilities,
    qp_num: QpNum,
    qp_type: QpType,
    sq_sig_all: bool,
    port: u8,
    /// The error of a message of one slot, if the queue pair cannot send one: a datagram needs a
    /// destination, and without elements there are no bytes to send.
    takes_no_plain_sends: Option<PostErrorReason>,
    /// The last value that was set: 0 means that READs and atomics are rejected.
    max_rd_atomic: u8,
    /// The chains for the device, kept to reuse their allocations.
    work: Vec<SendWork>,
    general_work: Vec<Work>,
    elements: Vec<Sge>,
    _srq: Option<Arc<shared_receive_queue::Shared>>,
    _send_cq: Arc<provider::CompletionQueue>,
    _recv_cq: Arc<provider::CompletionQueue>,
    domain: Arc<provider::ProtectionDomain>,
}

impl ProtectionDomain {
    /// Creates a queue pair in RESET (`ibv_create_qp(3)`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] if the device does not support the requested sizes,
    /// [`VerbsError::NotSupported`] if it lacks the type, [`VerbsError::ForeignObject`] if a queue
    /// belongs to another context, [`VerbsError::Exhausted`], [`VerbsError::QueueMemory`] or
    /// [`VerbsError::Os`] if resources run out, [`VerbsError::Forked`] in a forked child.
    pub fn create_qp(&self, config: QueuePairConfig<'_>) -> Result<QueuePair, VerbsError> {
        QueuePair::new(self, config, ExtendedConfig::default())
    }

    /// Creates a queue pair with extended options (`ibv_create_qp_ex(3)`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::NotSupported`] with the name of the field, and of the flag in it, that the
    /// device lacks; otherwise as for [`create_qp`](Self::create_qp).
    pub fn create_qp_ex(
        &self,
        config: QueuePairConfig<'_>,
        extended: ExtendedConfig,
    ) -> Result<QueuePair, VerbsError> {
        extended.check(config.qp_type)?;
        QueuePair::new(self, config, extended)
    }
}

impl QueuePair {
    fn new(
        domain: &ProtectionDomain,
        config: QueuePairConfig<'_>,
        extended: ExtendedConfig,
    ) -> Result<Self, VerbsError> {
        let raw = domain.raw.create_qp(provider::QueuePairConfig {
            send_cq: &config.send_cq.raw,
            recv_cq: &config.recv_cq.raw,
            srq: config.srq.map(|srq| &srq.shared.raw),
            options: provider::QueuePairOptions {
                qp_type: config.qp_type,
                max_send_wr: config.max_send_wr,
                max_recv_wr: config.max_recv_wr,
                max_send_sge: config.max_send_sge,
                max_recv_sge: config.max_recv_sge,
                max_inline_data: config.max_inline_data,
                sq_sig_all: config.sq_sig_all,
                extended,
            },
        })?;
        let capabilities = raw.capabilities();
        check_depth("create_qp", "max_send_wr", capabilities.max_send_wr)?;
        check_depth("create_qp", "max_recv_wr", capabilities.max_recv_wr)?;
        let queue = QueueTag::allocate("create_qp")?;
        Ok(Self {
            send_slots: InFlight::new(queue, capabilities.max_send_wr),
            receives: match config.srq {
                Some(_) => None,
                None => Some(PostedReceives::new(
                    queue,
                    capabilities.max_recv_wr,
                    capabilities.max_recv_sge,
                    1,
                )),
            },
            qp_num: raw.qp_num(),
            qp_type: config.qp_type,
            sq_sig_all: config.sq_sig_all,
            port: 1,
            takes_no_plain_sends: match (config.qp_type, capabilities.max_send_sge) {
                (QpType::UnreliableDatagram, _) => Some(PostErrorReason::NoDestination),
                (_, 0) => Some(PostErrorReason::TooManyElements { count: 1, limit: 0 }),
                _ => None,
            },
            max_rd_atomic: 0,
            work: Vec::with_capacity(capabilities.max_send_wr),
            general_work: Vec::new(),
            elements: Vec::new(),
            capabilities,
            raw,
            _srq: config.srq.map(|srq| Arc::clone(&srq.shared)),
            _send_cq: Arc::clone(&config.send_cq.raw),
            _recv_cq: Arc::clone(&config.recv_cq.raw),
            domain: Arc::clone(&domain.raw),
        })
    }

    /// Returns the queue pair number, which the peer needs. A number is not reused for a long time.
    pub fn qp_num(&self) -> QpNum {
        self.qp_num
    }

    /// Returns the type that it was created with.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Returns the capabilities granted at creation.
    pub fn capabilities(&self) -> QueuePairCapabilities {
        self.capabilities
    }

    /// Returns the number of free send queue entries: how many requests can be posted before a
    /// completion must be polled.
    pub fn send_slots_free(&self) -> usize {
        self.send_slots.free()
    }

    /// Returns the device's current state of the queue pair (`ibv_query_qp(3)`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::Os`] if the driver fails, [`VerbsError::Forked`] in a forked child.
    pub fn state(&self) -> Result<QpState, VerbsError> {
        self.raw.state()
    }

    /// Returns its current attributes: those that are valid in its state (`ibv_query_qp(3)`).
    ///
    /// # Errors
    ///
    /// As for [`state`](Self::state).
    pub fn query(&self) -> Result<QpAttributes, VerbsError> {
        let all = self.raw.query()?;
        let state = all.state.unwrap_or(QpState::Reset);
        Ok(all.valid_in(self.qp_type, state))
    }

    /// Returns the attributes of its creation and the granted capabilities.
    pub fn query_init(&self) -> QpInitAttributes {
        QpInitAttributes {
            qp_num: self.qp_num,
            qp_type: self.qp_type,
            capabilities: self.capabilities,
            sq_sig_all: self.sq_sig_all,
            has_srq: self._srq.is_some(),
        }
    }

    /// Returns all attributes that the device has, whatever the state. For failure reports: after a
    /// failure verbs guarantee only the state.
    pub(crate) fn query_remains(&self) -> Result<QpAttributes, VerbsError> {
        self.raw.query()
    }

    /// Changes state and attributes, all or none (`ibv_modify_qp(3)`). It first checks that the
    /// transition exists, that all required attributes are present, and that the others are
    /// allowed.
    ///
    /// A transition to RESET discards everything posted without a completion: the slots stay in
    /// flight here until [`reclaim`](Self::reclaim) or [`destroy`](Self::destroy).
    ///
    /// # Errors
    ///
    /// [`ModifyError`] names the transition and the attribute that is missing, not allowed or
    /// invalid, or the cause of the device's refusal.
    pub fn modify(&mut self, attributes: &QpAttributes) -> Result<(), ModifyError> {
        let actual = self.raw.state().map_err(|error| match error {
            VerbsError::Forked(forked) => ModifyError::Forked(forked),
            VerbsError::Os { source, .. } => ModifyError::Os {
                action: "query its state",
                source,
            },
            other => ModifyError::Os {
                action: "query its state",
                source: std::io::Error::other(other),
            },
        })?;
        let to = check_transition(
            self.qp_type,
            actual,
            attributes.current_state,
            attributes.state,
            attributes.mask(),
        )?;
        self.raw.modify(actual, to, attributes)?;
        self.port = attributes.port.unwrap_or(self.port);
        self.max_rd_atomic = attributes.max_rd_atomic.unwrap_or(self.max_rd_atomic);
        Ok(())
    }

    /// Moves from RESET to INIT on `port`. Receives may be posted from now on. `access` sets the
    /// remote operations that the peer may use.
    ///
    /// # Errors
    ///
    /// As for [`modify`](Self::modify).
    pub fn to_init(&mut self, port: u8, access: Access) -> Result<(), ModifyError> {
        self.modify(&QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(port),
            access: Some(access),
            ..QpAttributes::default()
        })
    }

    /// Moves from RESET to RTS, for unreliable datagrams, which have no peer. It uses `port`, and
    /// receives datagrams with the Q_Key `qkey`; `psn` is its first sequence number.
    ///
    /// # Errors
    ///
    /// As for [`modify`](Self::modify). The queue pair stays in the state that it has reached.
    pub fn to_rts_for_datagrams(
        &mut self,
        port: u8,
        qkey: u32,
        psn: Psn,
    ) -> Result<(), ModifyError> {
        self.modify(&QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(port),
            qkey: Some(qkey),
            ..QpAttributes::default()
        })?;
        self.modify(&QpAttributes {
            state: Some(QpState::Rtr),
            ..QpAttributes::default()
        })?;
        self.modify(&QpAttributes {
            state: Some(QpState::Rts),
            sq_psn: Some(psn),
            ..QpAttributes::default()
        })
    }

    /// Moves from INIT to RTR, ready to receive from the peer. For an unreliable connection, the
    /// RNR timer and the number of READs are ignored.
    ///
    /// # Errors
    ///
    /// As for [`modify`](Self::modify).
    pub fn to_rtr(&mut self, attributes: RtrAttributes) -> Result<(), ModifyError> {
        let RtrAttributes {
            remote,
            sgid_index,
            path_mtu,
            min_rnr_timer,
            max_dest_rd_atomic,
        } = attributes;
        let is_reliable = self.qp_type == QpType::ReliableConnection;
        self.modify(&QpAttributes {
            state: Some(QpState::Rtr),
            address: Some(AddressVector {
                gid: remote.gid,
                lid: remote.lid,
                sgid_index,
                // A LID alone reaches every port of the subnet.
                is_global: remote.lid == 0,
                port: self.port,
                ..AddressVector::default()
            }),
            path_mtu: Some(path_mtu),
            dest_qp_num: Some(remote.qp_num),
            rq_psn: Some(remote.psn),
            max_dest_rd_atomic: is_reliable.then_some(max_dest_rd_atomic),
            min_rnr_timer: is_reliable.then_some(min_rnr_timer),
            ..QpAttributes::default()
        })
    }

    /// Moves from RTR to RTS, ready to send. Don't send before the peer is in RTR. For an
    /// unreliable connection, only the sequence number is used.
    ///
    /// # Errors
    ///
    /// As for [`modify`](Self::modify).
    pub fn to_rts(&mut self, attributes: RtsAttributes) -> Result<(), ModifyError> {
        let RtsAttributes {
            psn,
            timeout,
            retry_cnt,
            rnr_retry,
            max_rd_atomic,
        } = attributes;
        let is_reliable = self.qp_type == QpType::ReliableConnection;
        self.modify(&QpAttributes {
            state: Some(QpState::Rts),
            sq_psn: Some(psn),
            timeout: is_reliable.then_some(timeout),
            retry_cnt: is_reliable.then_some(retry_cnt),
            rnr_retry: is_reliable.then_some(rnr_retry),
            max_rd_atomic: is_reliable.then_some(max_rd_atomic),
            ..QpAttributes::default()
        })
    }

    /// Moves from any state but RESET to ERR: all posted requests are flushed.
    ///
    /// # Errors
    ///
    /// As for [`modify`](Self::modify).
    pub fn to_error(&mut self) -> Result<(), ModifyError> {
        self.modify(&QpAttributes {
            state: Some(QpState::Error),
            ..QpAttributes::default()
        })
    }

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
        self.work.clear();
        if let Some(reason) = self.takes_no_plain_sends
            && !requests.is_empty()
        {
            return Err(PostError { taken: 0, reason });
        }
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
                general: false,
            });
        }
        let posted = self.raw.post_send(&self.work);
        let taken = match &posted {
            Ok(()) => self.work.len(),
            Err(error) => error.taken.min(self.work.len()),
        };
        let mut rest = requests.drain(..taken);
        let unrecorded = Unrecorded {
            rest: &mut rest,
            send_slots: &mut self.send_slots,
        };
        for request in unrecorded.rest.by_ref() {
            if request.inline {
                unrecorded.send_slots.push(None);
                release(request.slot);
            } else {
                unrecorded.send_slots.push(Some(request.slot));
            }
        }
        mem::forget(unrecorded);
        drop(rest);
        posted?;
        match refused {
            Some(reason) => Err(PostError { taken, reason }),
            None => Ok(()),
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
                operation: request.operation.raw(),
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
            if let Operation::BindWindow {
                window,
                binding,
                key,
            } = &request.operation
            {
                window.note_binding(binding, *key);
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
        let Operation::BindWindow { binding, key, .. } = &request.operation else {
            return Err(PostErrorReason::NotForType {
                operation: request.name(),
                qp_type: self.qp_type,
            });
        };
        self.check_common(&request, 0)?;
        let wr_id = self.next_wr_id(0);
        let key = self
            .raw
            .bind_mw(wr_id, binding.raw(window, *key), signaled)
            .map_err(|error| error.reason)?;
        window.note_binding(binding, key);
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
            Operation::BindWindow { binding, .. } => binding.check(),
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
            if !request.operation.sends_bytes() {
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
        if request.operation.waits_for_response() && self.max_rd_atomic == 0 {
            return Err(PostErrorReason::NoReads { operation });
        }
        if let Operation::BindWindow { window, .. } = &request.operation
            && window.window_type() == WindowType::Type1
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

    /// Releases the slots that a completion of this send queue covers: those of its own request and
    /// of all earlier ones (`ibv_poll_cq(3)`). After an error each request has its own completion.
    ///
    /// # Errors
    ///
    /// [`ClaimError`] if the completion names no request in flight on this send queue.
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

    /// Posts `count` slots, or all if there are fewer, from the end of `slots` to its own receive
    /// queue (`ibv_post_recv(3)`).
    ///
    /// # Errors
    ///
    /// [`PostError`] with the number of posted slots (`taken`) and the reason. The others remain in
    /// `slots`.
    pub fn post_recv(&mut self, slots: &mut Vec<Slot>, count: usize) -> Result<(), PostError> {
        match &self.receives {
            Some(receives) => receives.post(slots, count, |work| self.raw.post_recv(work)),
            None => Err(PostError {
                taken: 0,
                reason: PostErrorReason::HasSharedReceiveQueue,
            }),
        }
    }

    /// Posts receives of several elements each to its own receive queue, from the front of
    /// `requests` (`ibv_post_recv(3)`).
    ///
    /// # Errors
    ///
    /// [`PostError`] with the number of posted requests (`taken`) and the reason. The others remain
    /// in `requests`.
    pub fn post_recv_elements(
        &mut self,
        requests: &mut Vec<ReceiveRequest>,
    ) -> Result<(), PostError> {
        match &self.receives {
            Some(receives) => receives.post_lists(requests, |work, elements| {
                self.raw.post_recv_lists(work, elements)
            }),
            None => Err(PostError {
                taken: 0,
                reason: PostErrorReason::HasSharedReceiveQueue,
            }),
        }
    }

    /// Returns the elements of a receive of its own receive queue, whichever way it was posted, and
    /// the number of bytes received: 0 if it failed.
    ///
    /// # Errors
    ///
    /// [`ClaimError`] if the completion names no receive in flight on this receive queue.
    pub fn claim_recv_elements(
        &mut self,
        completion: WorkCompletion,
    ) -> Result<(Elements, usize), ClaimError> {
        match &self.receives {
            Some(receives) => receives.claim_elements(completion),
            None => Err(ClaimError {
                wr_id: completion.wr_id(),
                qp_num: completion.qp_num(),
            }),
        }
    }

    /// Returns the slot of a receive of its own receive queue and the number of bytes received: 0
    /// if it failed.
    ///
    /// # Errors
    ///
    /// [`ClaimError`] if the completion names no receive in flight on this receive queue, or a
    /// receive of several elements, which are then lost: use
    /// [`claim_recv_elements`](Self::claim_recv_elements) for those.
    #[inline]
    pub fn claim_recv(&mut self, completion: WorkCompletion) -> Result<(Slot, usize), ClaimError> {
        match &self.receives {
            Some(receives) => receives.claim(completion),
            None => Err(ClaimError {
                wr_id: completion.wr_id(),
                qp_num: completion.qp_num(),
            }),
        }
    }

    /// Moves to RESET and releases the slots of all requests in flight.
    ///
    /// # Errors
    ///
    /// As for [`modify`](Self::modify); nothing is released then.
    pub fn reclaim(&mut self, release: &mut impl FnMut(Slot)) -> Result<(), ModifyError> {
        self.modify(&QpAttributes {
            state: Some(QpState::Reset),
            ..QpAttributes::default()
        })?;
        self.take_back(release);
        Ok(())
    }

    /// Destroys the queue pair and releases the slots of all requests in flight
    /// (`ibv_destroy_qp(3)`). Its completions that are still in the completion queue then name no
    /// request.
    pub fn destroy(mut self, release: &mut impl FnMut(Slot)) {
        if self.raw.destroy() {
            self.take_back(release);
        } else {
            // The device refused: the slots in flight and their regions are leaked, because the
            // device may still access them.
            mem::forget(self);
        }
    }

    fn take_back(&mut self, release: &mut impl FnMut(Slot)) {
        self.send_slots.drain(release);
        if let Some(receives) = &mut self.receives {
            receives.drain(release);
        }
    }
}
