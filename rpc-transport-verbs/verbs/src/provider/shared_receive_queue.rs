//! A shared receive queue of either provider.

#[cfg(feature = "rdma")]
use super::rdma;
use super::{ReceiveList, ReceiveWork, Sge, forward, soft};
use crate::types::{PostError, SrqAttributes, SrqNum, VerbsError};

#[derive(Debug)]
pub(crate) enum SharedReceiveQueue {
    Soft(soft::SharedReceiveQueue),
    #[cfg(feature = "rdma")]
    Rdma(rdma::SharedReceiveQueue),
}

impl SharedReceiveQueue {
    #[inline]
    pub(crate) fn post_recv(&self, work: &[ReceiveWork]) -> Result<(), PostError> {
        forward!(self, srq => srq.post_recv(work))
    }

    pub(crate) fn post_recv_lists(
        &self,
        work: &[ReceiveList],
        elements: &[Sge],
    ) -> Result<(), PostError> {
        forward!(self, srq => srq.post_recv_lists(work, elements))
    }

    pub(crate) fn resize(&self, max_wr: usize) -> Result<(), VerbsError> {
        forward!(self, srq => srq.resize(max_wr))
    }

    pub(crate) fn arm_limit(&self, limit: usize) -> Result<(), VerbsError> {
        forward!(self, srq => srq.arm_limit(limit))
    }

    pub(crate) fn query(&self) -> Result<SrqAttributes, VerbsError> {
        forward!(self, srq => srq.query())
    }

    pub(crate) fn number(&self) -> SrqNum {
        forward!(self, srq => srq.number())
    }
}
