//! Queue pairs: a send queue and a receive queue (`ibv_create_qp(3)`, `ibv_post_send(3)`).

mod inline;
mod post;
mod receive;
mod transitions;

pub use post::SendRequest;

use crate::provider::{InlineError, LinkBytes, LinkTarget};

use std::io;
use std::mem;
use std::sync::Arc;

use super::completion_queue::CompletionQueueHandle;
use super::in_flight::InFlight;
use super::posted_receives::PostedReceives;
use super::protection_domain::ProtectionDomain;
use super::shared_receive_queue::{self, SharedReceiveQueue};
use super::slot::Slot;
use super::types::extended_queue_pair::ExtendedConfig;
use super::types::modify_error::ModifyError;
use super::types::post_error::PostErrorReason;
use super::types::queue_pair_attributes::{QpAttributes, QpNum};
use super::types::queue_pair_capabilities::QueuePairCapabilities;
use super::types::queue_pair_query::QpInitAttributes;
use super::types::queue_pair_state::{QpState, QpType};
use super::types::verbs_error::VerbsError;
use super::types::wr_id::{QueueTag, check_depth};
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
    /// Why posting a plain one-slot SEND is rejected, if it is: a datagram needs a destination, and
    /// a queue pair without elements per send cannot send bytes.
    takes_no_plain_sends: Option<PostErrorReason>,
    /// Inline messages shorter than this are posted: 0 if plain sends are rejected.
    inline_end: usize,
    /// True if requests were posted inline after the last doorbell.
    needs_doorbell: bool,
    /// The last value that was set: 0 means that READs and atomics are rejected.
    max_rd_atomic: u8,
    /// The chains for the device, kept to reuse their allocations. They grow with the longest list.
    work: Vec<SendWork>,
    /// The slots of inline requests while a chain is being recorded.
    inline_slots: Vec<Slot>,
    general_work: Vec<Work>,
    elements: Vec<Sge>,
    _srq: Option<Arc<shared_receive_queue::Shared>>,
    _send_cq: Arc<provider::CompletionQueue>,
    _recv_cq: Arc<provider::CompletionQueue>,
    domain: Arc<provider::ProtectionDomain>,
}

impl QueuePair {
    /// Returns the target of the TCP connection that the peer dials, if the queue pair is connected
    /// over TCP.
    #[doc(hidden)]
    pub fn link_target(&self) -> Option<LinkTarget> {
        self.raw.link_target()
    }

    /// Uses the TCP connection that this side has dialed for the queue pair, which is connected over
    /// TCP. Its first bytes, the peer's answer, have not been taken from it.
    #[doc(hidden)]
    pub fn adopt_link(&mut self, bytes: impl Into<LinkBytes>) -> io::Result<()> {
        self.raw.adopt_link(bytes.into())
    }
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
        let takes_no_plain_sends = match (config.qp_type, capabilities.max_send_sge) {
            (QpType::UnreliableDatagram, _) => Some(PostErrorReason::NoDestination),
            (_, 0) => Some(PostErrorReason::TooManyElements { count: 1, limit: 0 }),
            _ => None,
        };
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
            takes_no_plain_sends,
            inline_end: match takes_no_plain_sends {
                None => capabilities.max_inline_data.saturating_add(1),
                Some(_) => 0,
            },
            needs_doorbell: false,
            max_rd_atomic: 0,
            work: Vec::new(),
            inline_slots: Vec::new(),
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
    #[inline]
    pub fn send_slots_free(&self) -> usize {
        self.send_slots.free()
    }

    /// Returns the number of the oldest request in flight, counted from 0 since the queue pair was
    /// created, or of the next request if none is in flight.
    #[doc(hidden)]
    pub fn oldest_send(&self) -> u64 {
        self.send_slots.oldest()
    }

    /// Returns the number of the message of which a part has arrived over TCP, and the rest has not.
    #[doc(hidden)]
    pub fn arriving_message(&self) -> Option<u64> {
        self.raw.arriving_message()
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
    ///
    /// Returns false if the device refused: it may still access the memory of requests in flight,
    /// which is leaked, and peers may still access the memory that they were allowed to.
    pub fn destroy(mut self, release: &mut impl FnMut(Slot)) -> bool {
        let is_destroyed = self.raw.destroy();
        if is_destroyed {
            self.take_back(release);
        } else {
            // The device refused: the slots in flight and their regions are leaked, because the
            // device may still access them.
            mem::forget(self);
        }
        is_destroyed
    }

    fn take_back(&mut self, release: &mut impl FnMut(Slot)) {
        while let Some(slot) = self.inline_slots.pop() {
            release(slot);
        }
        self.send_slots.drain(release);
        if let Some(receives) = &mut self.receives {
            receives.drain(release);
        }
    }
}
