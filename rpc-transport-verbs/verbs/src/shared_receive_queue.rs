//! Shared receive queues: receives for many queue pairs.

use std::sync::Arc;

use super::element::Elements;
use super::posted_receives::PostedReceives;
use super::protection_domain::ProtectionDomain;
use super::slot::Slot;
use super::types::async_event::SrqNum;
use super::types::busy::Busy;
use super::types::claim_error::ClaimError;
use super::types::post_error::PostError;
use super::types::srq_attributes::SrqAttributes;
use super::types::verbs_error::VerbsError;
use super::types::work_completion::WorkCompletion;
use super::types::wr_id::{QueueTag, check_depth};
use super::work_request::ReceiveRequest;
use crate::provider;

/// How many times deeper a queue may become. Its requests are numbered for that depth from the
/// start.
const GROWTH: usize = 16;

/// A shared receive queue (`ibv_create_srq(3)`): a message for any of its queue pairs consumes the
/// oldest receive posted here.
///
/// Cheap to clone, and usable from any thread: a second thread may post while the poller claims. It
/// is destroyed after all queue pairs that receive from it; receives that are still posted are then
/// dropped.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    // Before the slots, which must be dropped after the device has released the queue.
    pub(super) raw: provider::SharedReceiveQueue,
    posted: PostedReceives,
    _domain: Arc<provider::ProtectionDomain>,
}

impl ProtectionDomain {
    /// Creates a shared receive queue of at least `max_wr` work requests with up to `max_sge`
    /// elements each (`ibv_create_srq(3)`). Its limit is not armed.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] if the device does not support these sizes,
    /// [`VerbsError::Exhausted`], [`VerbsError::QueueMemory`] or [`VerbsError::Os`] if resources
    /// run out, [`VerbsError::Forked`] in a forked child.
    pub fn create_srq(
        &self,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        SharedReceiveQueue::new(self, max_wr, max_sge)
    }
}

impl SharedReceiveQueue {
    fn new(domain: &ProtectionDomain, max_wr: usize, max_sge: usize) -> Result<Self, VerbsError> {
        let raw = domain.raw.create_srq(max_wr, max_sge)?;
        let granted = raw.query()?;
        check_depth("create_srq", "max_wr", granted.max_wr)?;
        let tag = QueueTag::allocate("create_srq")?;
        let posted = PostedReceives::new(tag, granted.max_wr, granted.max_sge, GROWTH);
        Ok(Self {
            shared: Arc::new(Shared {
                raw,
                posted,
                _domain: Arc::clone(&domain.raw),
            }),
        })
    }

    /// Returns the number that identifies the queue in
    /// [`AsyncEvent::SrqLimitReached`](super::AsyncEvent::SrqLimitReached).
    pub fn number(&self) -> SrqNum {
        self.shared.raw.number()
    }

    /// Posts `count` slots, or all if there are fewer, from the end of `slots` as one chain
    /// (`ibv_post_srq_recv(3)`).
    ///
    /// # Errors
    ///
    /// [`PostError`] with the number of slots that were posted. The others, from index `taken` on,
    /// remain in `slots`.
    pub fn post_recv(&self, slots: &mut Vec<Slot>, count: usize) -> Result<(), PostError> {
        self.shared
            .posted
            .post(slots, count, |work| self.shared.raw.post_recv(work))
    }

    /// Posts receives of several elements each, from the front of `requests`
    /// (`ibv_post_srq_recv(3)`).
    ///
    /// # Errors
    ///
    /// [`PostError`] with the number of requests that were posted. The others, from index `taken`
    /// on, remain in `requests`.
    pub fn post_recv_elements(&self, requests: &mut Vec<ReceiveRequest>) -> Result<(), PostError> {
        let Shared { raw, posted, .. } = &*self.shared;
        posted.post_lists(requests, |work, elements| {
            raw.post_recv_lists(work, elements)
        })
    }

    /// Returns the elements of a receive, whichever way it was posted, and the number of bytes
    /// received: 0 if it failed.
    ///
    /// # Errors
    ///
    /// [`ClaimError`] if the completion names no receive in flight on this queue.
    pub fn claim_elements(
        &self,
        completion: WorkCompletion,
    ) -> Result<(Elements, usize), ClaimError> {
        self.shared.posted.claim_elements(completion)
    }

    /// Returns the slot of a receive and the number of bytes received: 0 if it failed.
    ///
    /// # Errors
    ///
    /// [`ClaimError`] if the completion names no receive in flight on this queue, or a receive of
    /// several elements, which are then lost: use [`claim_elements`](Self::claim_elements) for
    /// those.
    #[inline]
    pub fn claim(&self, completion: WorkCompletion) -> Result<(Slot, usize), ClaimError> {
        self.shared.posted.claim(completion)
    }

    /// Arms the limit (`ibv_modify_srq(3)` with `IBV_SRQ_LIMIT`): the device raises one
    /// [`SrqLimitReached`](super::AsyncEvent::SrqLimitReached) when a receive is consumed and fewer
    /// than `limit` are left. 0 disarms it.
    ///
    /// The event does not fire if the queue is already below the limit: check after arming. It
    /// fires once: arm again after posting.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] or [`VerbsError::Os`] if the device rejects the limit,
    /// [`VerbsError::Forked`] in a forked child.
    pub fn arm_limit(&self, limit: usize) -> Result<(), VerbsError> {
        self.shared.raw.arm_limit(limit)
    }

    /// Changes the depth to at least `max_wr`, in either direction (`ibv_modify_srq(3)` with
    /// `IBV_SRQ_MAX_WR`).
    ///
    /// # Errors
    ///
    /// * [`VerbsError::OutOfRange`] if `max_wr` is less than the number of receives that are posted
    ///   (or have ended and are not claimed yet), more than the device supports, or more than
    ///   sixteen times the original depth (rounded up to a power of two, at most 2¹⁹), for which
    ///   the requests are numbered.
    /// * [`VerbsError::OutOfRange`] (software device) or [`VerbsError::InvalidArgument`] (RDMA
    ///   devices) if `max_wr` is less than the armed limit.
    /// * [`VerbsError::NotSupported`] if the device cannot resize queues.
    /// * [`VerbsError::Os`] if the driver fails, [`VerbsError::Forked`] in a forked child.
    pub fn resize(&self, max_wr: usize) -> Result<(), VerbsError> {
        let Shared { raw, posted, .. } = &*self.shared;
        posted.resize(max_wr, || {
            raw.resize(max_wr)?;
            Ok(raw.query()?.max_wr)
        })
    }

    /// Destroys the queue (`ibv_destroy_srq(3)`). Receives that are still posted are dropped.
    ///
    /// # Errors
    ///
    /// [`Busy`], with the queue, while there are clones of it or queue pairs that receive from it.
    pub fn destroy(self) -> Result<(), Busy<Self>> {
        Busy::unless_sole("destroy_srq", self.shared, |shared| Self { shared })
    }

    /// Returns the queue's size and armed limit (`ibv_query_srq(3)`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::Os`] if the driver fails, [`VerbsError::Forked`] in a forked child.
    pub fn query(&self) -> Result<SrqAttributes, VerbsError> {
        self.shared.raw.query()
    }
}
