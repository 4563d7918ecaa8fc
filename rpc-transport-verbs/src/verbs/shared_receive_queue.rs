//! Receives that many queue pairs share.

use std::sync::Arc;

use super::element::Elements;
use super::posted_receives::PostedReceives;
use super::protection_domain::ProtectionDomain;
use super::slot::Slot;
use super::types::async_event::SrqNum;
use super::types::error::{Busy, ClaimError, PostError, VerbsError};
use super::types::srq_attributes::SrqAttributes;
use super::types::work_completion::WorkCompletion;
use super::types::wr_id::{QueueTag, check_depth};
use super::work_request::ReceiveRequest;
use crate::provider;

/// How much deeper a queue can be made: what it is numbered for when it is created.
const GROWTH: usize = 16;

/// A shared receive queue: whichever queue pair receives takes the oldest receive posted here.
///
/// Cheap to clone, and usable from any thread: a second thread may post while the poller claims.
/// Destroyed after all queue pairs that receive from it; what is still posted then is dropped.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    // Before the slots, which are dropped after the device has given the queue up.
    pub(super) raw: provider::SharedReceiveQueue,
    posted: PostedReceives,
    _domain: Arc<provider::ProtectionDomain>,
}

impl SharedReceiveQueue {
    pub(super) fn new(
        domain: &ProtectionDomain,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<Self, VerbsError> {
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

    /// Names it in [`AsyncEvent::SrqLimitReached`](super::AsyncEvent::SrqLimitReached).
    pub fn number(&self) -> SrqNum {
        self.shared.raw.number()
    }

    /// Posts `count` slots, or as many as there are, from the end of `slots`, in one list.
    ///
    /// On error those from `taken` on are still in `slots`.
    pub fn post_recv(&self, slots: &mut Vec<Slot>, count: usize) -> Result<(), PostError> {
        self.shared
            .posted
            .post(slots, count, |work| self.shared.raw.post_recv(work))
    }

    /// Posts receives of several elements each, from the front of `requests`; on error those from `taken`
    /// on are still there.
    pub fn post_recv_elements(&self, requests: &mut Vec<ReceiveRequest>) -> Result<(), PostError> {
        let Shared { raw, posted, .. } = &*self.shared;
        posted.post_lists(requests, |work, elements| {
            raw.post_recv_lists(work, elements)
        })
    }

    /// Gives the elements of a receive back, whichever way it was posted, with the number of bytes that
    /// came: 0 if it failed.
    pub fn claim_elements(
        &self,
        completion: WorkCompletion,
    ) -> Result<(Elements, usize), ClaimError> {
        self.shared.posted.claim_elements(completion)
    }

    /// Gives the slot of a receive back, with the number of bytes that came: 0 if it failed.
    #[inline]
    pub fn claim(&self, completion: WorkCompletion) -> Result<(Slot, usize), ClaimError> {
        self.shared.posted.claim(completion)
    }

    /// Arms the limit: one [`SrqLimitReached`](super::AsyncEvent::SrqLimitReached) when a receive
    /// is taken and fewer than `limit` are left. 0 disarms.
    ///
    /// It does not fire for what is already below: check after arming. It fires once: arm again
    /// after posting.
    pub fn arm_limit(&self, limit: usize) -> Result<(), VerbsError> {
        self.shared.raw.arm_limit(limit)
    }

    /// Changes its depth to at least `max_wr`, in either direction (`ibv_modify_srq` with `IBV_SRQ_MAX_WR`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] for fewer receives than are posted (or have ended, and are not claimed
    /// yet), or more than the device takes, or sixteen times what it was made for, which it is numbered for; [`VerbsError::NotSupported`] if the device
    /// does not do it.
    pub fn resize(&self, max_wr: usize) -> Result<(), VerbsError> {
        let Shared { raw, posted, .. } = &*self.shared;
        posted.resize(max_wr, || {
            raw.resize(max_wr)?;
            Ok(raw.query()?.max_wr)
        })
    }

    /// Ends it (`ibv_destroy_srq`): what is still posted is dropped.
    ///
    /// # Errors
    ///
    /// [`Busy`], with the queue, while there are clones, or queue pairs that receive from it.
    pub fn destroy(self) -> Result<(), Busy<Self>> {
        Busy::unless_sole("destroy_srq", self.shared, |shared| Self { shared })
    }

    /// Its size and armed limit.
    pub fn query(&self) -> Result<SrqAttributes, VerbsError> {
        self.shared.raw.query()
    }
}
