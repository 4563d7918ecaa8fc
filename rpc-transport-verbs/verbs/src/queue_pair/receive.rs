//! Receives of a queue pair without a shared receive queue (`ibv_post_recv(3)`).

use super::super::element::Elements;
use super::super::slot::Slot;
use super::super::types::claim_error::ClaimError;
use super::super::types::post_error::{PostError, PostErrorReason};
use super::super::types::work_completion::WorkCompletion;
use super::super::work_request::ReceiveRequest;
use super::QueuePair;

impl QueuePair {
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

    /// Returns the elements of a receive of its own receive queue, however the receive was posted,
    /// and the number of bytes received: 0 if it failed.
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
}
