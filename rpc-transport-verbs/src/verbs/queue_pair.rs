//! A send queue and a receive queue, connected to one of another device.

use std::sync::Arc;

use super::completion_queue::CompletionQueueHandle;
use super::error::{ClaimError, ModifyError, PostError, PostErrorReason, VerbsError};
use super::in_flight::InFlight;
use super::memory_region::Access;
use super::posted_receives::PostedReceives;
use super::protection_domain::ProtectionDomain;
use super::queue_pair_attributes::{
    AddressVector, QpAttributes, QpNum, RtrAttributes, RtsAttributes,
};
use super::queue_pair_state::{QpState, QpType, check_transition};
use super::shared_receive_queue::{self, SharedReceiveQueue};
use super::slot::Slot;
use super::work_completion::WorkCompletion;
use super::wr_id::{QueueTag, check_depth};
use crate::provider::{self, SendWork};

/// What a queue pair is made with.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairConfig<'a> {
    /// Where sends complete.
    pub send_cq: &'a CompletionQueueHandle,
    /// Where receives complete; may be the same.
    pub recv_cq: &'a CompletionQueueHandle,
    /// Where receives are taken from; `None` for a receive queue of its own.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// Depth of the send queue.
    pub max_send_wr: usize,
    /// Depth of its own receive queue; ignored with a shared one.
    pub max_recv_wr: usize,
    /// Bytes that a send may carry inline.
    pub max_inline_data: usize,
    /// Whether every send completes, asked or not.
    pub sq_sig_all: bool,
}

/// What was granted: at least what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairCapabilities {
    /// Depth of the send queue.
    pub max_send_wr: usize,
    /// Depth of the receive queue; 0 with a shared one.
    pub max_recv_wr: usize,
    /// Bytes that a send may carry inline.
    pub max_inline_data: usize,
}

/// One message to send.
#[derive(Debug)]
pub struct SendRequest {
    /// The memory; its first `len` bytes are the message.
    pub slot: Slot,
    /// Bytes of the message.
    pub len: usize,
    /// Complete it even if it succeeds.
    pub signaled: bool,
    /// Copy the message while posting, so that the slot comes back at once.
    pub inline: bool,
    /// Ask for the receiver's attention.
    pub solicited: bool,
}

impl SendRequest {
    /// A message of the slot's first `len` bytes: neither signaled, nor inline, nor solicited.
    pub fn new(slot: Slot, len: usize) -> Self {
        Self {
            slot,
            len,
            signaled: false,
            inline: false,
            solicited: false,
        }
    }

    /// The same, to be completed even if it succeeds.
    pub fn signaled(self) -> Self {
        Self {
            signaled: true,
            ..self
        }
    }

    /// The same, copied while posting.
    pub fn inline(self) -> Self {
        Self {
            inline: true,
            ..self
        }
    }
}

/// A reliably connected queue pair.
///
/// It owns what is in flight on it: slots come back by [`complete_send`](Self::complete_send), or
/// all at once by [`destroy`](Self::destroy). A queue pair that fails goes to ERR by itself: every
/// request then completes, flushed, the unsignaled ones too.
#[derive(Debug)]
pub struct QueuePair {
    // First: the device gives up its queues before any slot in flight is dropped.
    raw: provider::QueuePair,
    send_slots: InFlight,
    /// `None` if receives come from a shared queue.
    receives: Option<PostedReceives>,
    capabilities: QueuePairCapabilities,
    qp_num: QpNum,
    port: u8,
    /// The device's list, kept for its memory.
    work: Vec<SendWork>,
    _srq: Option<Arc<shared_receive_queue::Shared>>,
    _send_cq: Arc<provider::CompletionQueue>,
    _recv_cq: Arc<provider::CompletionQueue>,
    _domain: Arc<provider::ProtectionDomain>,
}

impl QueuePair {
    pub(super) fn new(
        domain: &ProtectionDomain,
        config: QueuePairConfig<'_>,
    ) -> Result<Self, VerbsError> {
        let raw = domain.raw.create_qp(provider::QueuePairConfig {
            send_cq: &config.send_cq.raw,
            recv_cq: &config.recv_cq.raw,
            srq: config.srq.map(|srq| &srq.shared.raw),
            max_send_wr: config.max_send_wr,
            max_recv_wr: config.max_recv_wr,
            max_inline_data: config.max_inline_data,
            sq_sig_all: config.sq_sig_all,
        })?;
        let capabilities = raw.capabilities();
        check_depth("create_qp", "max_send_wr", capabilities.max_send_wr)?;
        check_depth("create_qp", "max_recv_wr", capabilities.max_recv_wr)?;
        let queue = QueueTag::allocate("create_qp")?;
        Ok(Self {
            send_slots: InFlight::new(queue, capabilities.max_send_wr),
            receives: match config.srq {
                Some(_) => None,
                None => Some(PostedReceives::new(queue, capabilities.max_recv_wr)),
            },
            qp_num: raw.qp_num(),
            port: 1,
            work: Vec::with_capacity(capabilities.max_send_wr),
            capabilities,
            raw,
            _srq: config.srq.map(|srq| Arc::clone(&srq.shared)),
            _send_cq: Arc::clone(&config.send_cq.raw),
            _recv_cq: Arc::clone(&config.recv_cq.raw),
            _domain: Arc::clone(&domain.raw),
        })
    }

    /// Its number, which the peer needs. Not used again for a long time.
    pub fn qp_num(&self) -> QpNum {
        self.qp_num
    }

    /// What was granted at creation.
    pub fn capabilities(&self) -> QueuePairCapabilities {
        self.capabilities
    }

    /// Send-queue slots that are free: what can be posted before a completion has to be polled.
    pub fn send_slots_free(&self) -> usize {
        self.send_slots.free()
    }

    /// The state that the device has it in at this moment.
    pub fn state(&self) -> Result<QpState, VerbsError> {
        self.raw.state()
    }

    /// Its attributes at this moment: those that mean something in its state.
    pub fn query(&self) -> Result<QpAttributes, VerbsError> {
        let all = self.raw.query()?;
        let state = all.state.unwrap_or(QpState::Reset);
        Ok(all.valid_in(QpType::ReliableConnection, state))
    }

    /// All that the device has kept, whatever its state: for the report of a failure, after which verbs promise
    /// nothing but the state.
    pub(crate) fn query_remains(&self) -> Result<QpAttributes, VerbsError> {
        self.raw.query()
    }

    /// Changes state and attributes, all or nothing, after checking that the transition exists,
    /// needs what is given, and is given what it needs.
    ///
    /// To RESET, everything posted is forgotten without a completion: its slots stay in flight
    /// here until [`reclaim`](Self::reclaim) or [`destroy`](Self::destroy).
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
            QpType::ReliableConnection,
            actual,
            attributes.current_state,
            attributes.state,
            attributes.mask(),
        )?;
        self.raw.modify(actual, to, attributes)?;
        self.port = attributes.port.unwrap_or(self.port);
        Ok(())
    }

    /// RESET to INIT, on a port. Receives may be posted from now on.
    pub fn to_init(&mut self, port: u8, access: Access) -> Result<(), ModifyError> {
        self.modify(&QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(port),
            access: Some(access),
            ..QpAttributes::default()
        })
    }

    /// INIT to RTR: ready to receive from this peer.
    pub fn to_rtr(&mut self, attributes: RtrAttributes) -> Result<(), ModifyError> {
        let RtrAttributes {
            remote,
            sgid_index,
            path_mtu,
            min_rnr_timer,
        } = attributes;
        self.modify(&QpAttributes {
            state: Some(QpState::Rtr),
            address: Some(AddressVector {
                gid: remote.gid,
                lid: remote.lid,
                sgid_index,
                // A local identifier reaches the whole subnet by itself.
                is_global: remote.lid == 0,
                port: self.port,
                ..AddressVector::default()
            }),
            path_mtu: Some(path_mtu),
            dest_qp_num: Some(remote.qp_num),
            rq_psn: Some(remote.psn),
            max_dest_rd_atomic: Some(0),
            min_rnr_timer: Some(min_rnr_timer),
            ..QpAttributes::default()
        })
    }

    /// RTR to RTS: ready to send. Only after the peer is in RTR may anything be sent.
    pub fn to_rts(&mut self, attributes: RtsAttributes) -> Result<(), ModifyError> {
        let RtsAttributes {
            psn,
            timeout,
            retry_cnt,
            rnr_retry,
        } = attributes;
        self.modify(&QpAttributes {
            state: Some(QpState::Rts),
            sq_psn: Some(psn),
            timeout: Some(timeout),
            retry_cnt: Some(retry_cnt),
            rnr_retry: Some(rnr_retry),
            max_rd_atomic: Some(0),
            ..QpAttributes::default()
        })
    }

    /// Any but RESET to ERR: everything posted is flushed.
    pub fn to_error(&mut self) -> Result<(), ModifyError> {
        self.modify(&QpAttributes {
            state: Some(QpState::Error),
            ..QpAttributes::default()
        })
    }

    /// Posts `requests` in order, as one list with one doorbell.
    ///
    /// What was posted is drained from `requests`. The slots of inline requests are given to
    /// `release` at once; all others stay with the queue pair until a completion covers them. On
    /// error, those before `taken` are posted, and the list begins with the one that was refused.
    pub fn post_send(
        &mut self,
        requests: &mut Vec<SendRequest>,
        release: &mut impl FnMut(Slot),
    ) -> Result<(), PostError> {
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
                // `check` saw that it is at most the slot's length, which fits.
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
        for request in requests.drain(..taken) {
            if request.inline {
                self.send_slots.push(None);
                release(request.slot);
            } else {
                self.send_slots.push(Some(request.slot));
            }
        }
        posted?;
        match refused {
            Some(reason) => Err(PostError { taken, reason }),
            None => Ok(()),
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

    /// Gives back the slots that a completion of this send queue covers: its own request's and
    /// those of all requests before it. An error completes each request by itself.
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

    /// Posts `count` slots, or as many as there are, from the end of `slots`, to its own receive
    /// queue. On error those from `taken` on are still in `slots`.
    pub fn post_recv(&mut self, slots: &mut Vec<Slot>, count: usize) -> Result<(), PostError> {
        match &self.receives {
            Some(receives) => receives.post(slots, count, |work| self.raw.post_recv(work)),
            None => Err(PostError {
                taken: 0,
                reason: PostErrorReason::HasSharedReceiveQueue,
            }),
        }
    }

    /// Gives the slot of a receive of its own receive queue back, with the number of bytes that
    /// came: 0 if it failed.
    pub fn claim_recv(&mut self, completion: WorkCompletion) -> Result<(Slot, usize), ClaimError> {
        match &self.receives {
            Some(receives) => receives.claim(completion),
            None => Err(ClaimError {
                wr_id: completion.wr_id(),
                qp_num: completion.qp_num(),
            }),
        }
    }

    /// Moves to RESET and gives back everything that was in flight.
    pub fn reclaim(&mut self, release: &mut impl FnMut(Slot)) -> Result<(), ModifyError> {
        self.modify(&QpAttributes {
            state: Some(QpState::Reset),
            ..QpAttributes::default()
        })?;
        self.take_back(release);
        Ok(())
    }

    /// Destroys it and gives back everything that was in flight. Completions that are still in the
    /// completion queue then name nothing.
    pub fn destroy(mut self, release: &mut impl FnMut(Slot)) {
        if self.raw.destroy() {
            self.take_back(release);
        } else {
            // The device has kept it: what is in flight stays its own, and so do the regions.
            std::mem::forget(self);
        }
    }

    fn take_back(&mut self, release: &mut impl FnMut(Slot)) {
        self.send_slots.drain(release);
        if let Some(receives) = &mut self.receives {
            receives.drain(release);
        }
    }
}
