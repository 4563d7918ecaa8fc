//! Shared receive queues: handles to a context's table of shared receive queues.

use std::sync::Arc;

use super::super::super::limits::in_range;
use super::{LIMITS, all_taken, not_posted};
use crate::hooks::accepted;
use crate::provider::soft::capacities::MAX_WR;
use crate::provider::soft::process::node::domain::Domain;
use crate::provider::work::{ReceiveList, ReceiveWork, Sge};
use crate::types::{PostError, SrqAttributes, SrqNum, VerbsError};

#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    pub(super) domain: Arc<Domain>,
    pub(super) index: usize,
    pub(super) number: u32,
}

impl SharedReceiveQueue {
    pub(crate) fn post_recv(&self, work: &[ReceiveWork]) -> Result<(), PostError> {
        let mut state = self.domain.enter().map_err(not_posted)?;
        let queue = &mut state.common.shared_receive_queues[self.index].queue;
        let most = accepted!(Receives, work.len(), None);
        all_taken(queue.push(&work[..most]), work.len(), queue.capacity())
    }

    pub(crate) fn post_recv_lists(
        &self,
        work: &[ReceiveList],
        elements: &[Sge],
    ) -> Result<(), PostError> {
        let mut state = self.domain.enter().map_err(not_posted)?;
        let queue = &mut state.common.shared_receive_queues[self.index].queue;
        let taken = queue.push_lists(work, elements);
        all_taken(taken, work.len(), queue.capacity())
    }

    pub(crate) fn resize(&self, max_wr: usize) -> Result<(), VerbsError> {
        let mut state = self.domain.enter()?;
        let queue = &mut state.common.shared_receive_queues[self.index].queue;
        in_range(
            "modify_srq",
            "max_wr",
            max_wr,
            queue.len().max(queue.limit()).max(1),
            MAX_WR,
        )?;
        queue.set_capacity(max_wr);
        Ok(())
    }

    pub(crate) fn arm_limit(&self, limit: usize) -> Result<(), VerbsError> {
        let mut state = self.domain.enter()?;
        let queue = &mut state.common.shared_receive_queues[self.index].queue;
        in_range("modify_srq", "limit", limit, 0, queue.capacity())?;
        queue.set_limit(limit);
        Ok(())
    }

    pub(crate) fn query(&self) -> Result<SrqAttributes, VerbsError> {
        let state = self.domain.enter()?;
        let queue = &state.common.shared_receive_queues[self.index].queue;
        let max_sge = LIMITS.max_sge;
        Ok(SrqAttributes {
            max_wr: queue.capacity(),
            max_sge,
            limit: queue.limit(),
        })
    }

    pub(crate) fn number(&self) -> SrqNum {
        SrqNum(self.number)
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // The queue pairs keep this queue alive, so they are all gone.
        if let Ok(mut state) = self.domain.enter() {
            let _ = state.common.shared_receive_queues.try_remove(self.index);
        }
    }
}
