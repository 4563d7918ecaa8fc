//! Shared receive queues. Two threads post to them: the poller and the thread for asynchronous
//! events.

use std::os::raw::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rdma_sys::{ibv_post_srq_recv, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr};

use super::super::limits::in_range;
use super::super::work::{ReceiveList, ReceiveWork, Sge};
use super::handle::not_supported;
use super::memory::{Domain, ProtectionDomain};
use super::receives::{post_receive_lists, post_receives};
use super::{check, log_leak, next_number, os_error, to_u32};
use crate::types::{PostError, PostErrorReason, SrqAttributes, SrqNum, VerbsError};

const MODIFY: &str = "modify_srq";

/// The queue, shared by the queue pairs that receive from it.
#[derive(Debug)]
pub(super) struct Queue {
    raw: *mut ibv_srq,
    pub(super) domain: Arc<Domain>,
}

// SAFETY: libibverbs locks a shared receive queue while receives are posted, and any thread may
// call any verb.
unsafe impl Send for Queue {}
// SAFETY: concurrent calls on one queue are synchronized by libibverbs, so shared references may be
// used from any thread.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        let handle = &self.domain.handle;
        if handle.is_ours() {
            // SAFETY: the queue pairs that receive from the queue hold an `Arc` of it, so none is
            // left.
            log_leak("destroy_srq", unsafe {
                (handle.library.ibv_destroy_srq)(self.raw)
            });
        }
    }
}

#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    pub(super) queue: Arc<Queue>,
    number: u32,
    max_wr: AtomicUsize,
}

impl ProtectionDomain {
    pub(crate) fn create_srq(
        &self,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        SharedReceiveQueue::create(&self.domain, max_wr, max_sge)
    }
}

impl SharedReceiveQueue {
    fn create(domain: &Arc<Domain>, max_wr: usize, max_sge: usize) -> Result<Self, VerbsError> {
        let handle = &domain.handle;
        const CALL: &str = "create_srq";
        handle.fork_guard.check()?;
        in_range(CALL, "max_wr", max_wr, 1, handle.limits.max_srq_wr)?;
        in_range(CALL, "max_sge", max_sge, 0, handle.limits.max_srq_sge)?;
        let number = next_number();
        let mut wanted = ibv_srq_init_attr {
            srq_context: ptr::without_provenance_mut(number as usize),
            attr: ibv_srq_attr {
                max_wr: to_u32(CALL, "max_wr", max_wr)?,
                max_sge: to_u32(CALL, "max_sge", max_sge)?,
                // Ignored at creation (ibv_create_srq(3)), although some devices apply it.
                srq_limit: 0,
            },
        };
        // SAFETY: the domain is alive while it is borrowed; the queue's own context is a number and
        // is never dereferenced.
        let raw = unsafe { (handle.library.ibv_create_srq)(domain.raw(), &mut wanted) };
        if raw.is_null() {
            return Err(os_error(CALL));
        }
        let domain = Arc::clone(domain);
        let created = Self {
            queue: Arc::new(Queue { raw, domain }),
            number,
            max_wr: AtomicUsize::new(0),
        };
        let queried = created.query_raw()?.max_wr as usize;
        let written_back = wanted.attr.max_wr as usize;
        // rxe writes back the requested depth and grants more, which a query returns. mlx5 writes
        // back the granted depth, and a query returns the larger depth of its internal ring.
        let granted = if written_back > max_wr {
            written_back.min(queried)
        } else {
            queried
        };
        created.max_wr.store(granted, Ordering::Relaxed);
        Ok(created)
    }

    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.queue.raw
    }

    pub(crate) fn post_recv(&self, work: &[ReceiveWork]) -> Result<(), PostError> {
        self.check_fork()?;
        post_receives(work, self.max_wr(), |first, refused| {
            // SAFETY: the queue is alive while `self` is, and `post_receives` passes a complete,
            // null-terminated chain.
            unsafe { ibv_post_srq_recv(self.queue.raw, first, refused) }
        })
    }

    fn check_fork(&self) -> Result<(), PostError> {
        let forked = |forked| PostError {
            taken: 0,
            reason: PostErrorReason::Forked(forked),
        };
        self.queue.domain.handle.fork_guard.check().map_err(forked)
    }

    pub(crate) fn post_recv_lists(
        &self,
        work: &[ReceiveList],
        elements: &[Sge],
    ) -> Result<(), PostError> {
        self.check_fork()?;
        post_receive_lists(work, elements, self.max_wr(), |first, refused| {
            // SAFETY: the queue is alive while `self` is, and `post_receives` passes a complete,
            // null-terminated chain.
            unsafe { ibv_post_srq_recv(self.queue.raw, first, refused) }
        })
    }

    pub(crate) fn resize(&self, max_wr: usize) -> Result<(), VerbsError> {
        let handle = &self.queue.domain.handle;
        handle.fork_guard.check()?;
        in_range(MODIFY, "max_wr", max_wr, 1, handle.limits.max_srq_wr)?;
        let limit = self.query_raw()?.srq_limit as usize;
        if max_wr < limit {
            return Err(VerbsError::InvalidArgument {
                call: MODIFY,
                argument: "max_wr",
                value: max_wr as u64,
                reason: "less than the armed limit",
            });
        }
        let attributes = ibv_srq_attr {
            max_wr: to_u32(MODIFY, "max_wr", max_wr)?,
            max_sge: 0,
            srq_limit: 0,
        };
        self.modify(attributes, ibv_srq_attr_mask::IBV_SRQ_MAX_WR)
            .map_err(|error| not_supported(handle, MODIFY, "other depths", error))?;
        let granted = self.query_raw()?.max_wr as usize;
        // Relaxed: it publishes no other memory.
        self.max_wr.store(granted.max(max_wr), Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn arm_limit(&self, limit: usize) -> Result<(), VerbsError> {
        self.queue.domain.handle.fork_guard.check()?;
        in_range(MODIFY, "limit", limit, 0, self.max_wr())?;
        let attributes = ibv_srq_attr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: to_u32(MODIFY, "limit", limit)?,
        };
        self.modify(attributes, ibv_srq_attr_mask::IBV_SRQ_LIMIT)
    }

    fn modify(
        &self,
        mut attributes: ibv_srq_attr,
        attr_mask: ibv_srq_attr_mask,
    ) -> Result<(), VerbsError> {
        let modify = self.queue.domain.handle.library.ibv_modify_srq;
        // SAFETY: the queue is alive while `self` is; the driver reads only the fields in the mask.
        let returned = unsafe { modify(self.queue.raw, &mut attributes, attr_mask.0 as c_int) };
        check(MODIFY, returned)
    }

    fn max_wr(&self) -> usize {
        self.max_wr.load(Ordering::Relaxed)
    }

    pub(crate) fn query(&self) -> Result<SrqAttributes, VerbsError> {
        let attributes = self.query_raw()?;
        Ok(SrqAttributes {
            max_wr: self.max_wr(),
            max_sge: attributes.max_sge as usize,
            limit: attributes.srq_limit as usize,
        })
    }

    fn query_raw(&self) -> Result<ibv_srq_attr, VerbsError> {
        let handle = &self.queue.domain.handle;
        handle.fork_guard.check()?;
        let mut attributes = ibv_srq_attr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: 0,
        };
        // SAFETY: the queue is alive while `self` is, and the struct is a local variable.
        let returned = unsafe { (handle.library.ibv_query_srq)(self.queue.raw, &mut attributes) };
        check("query_srq", returned)?;
        Ok(attributes)
    }

    pub(crate) fn number(&self) -> SrqNum {
        SrqNum(self.number)
    }
}
