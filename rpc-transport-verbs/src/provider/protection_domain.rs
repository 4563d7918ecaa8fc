//! A protection domain of either provider.

#[cfg(feature = "rdma")]
use super::foreign;
#[cfg(feature = "rdma")]
use super::rdma;
use super::{
    AddressHandle, CompletionQueue, MemoryRegion, MemoryWindow, QueuePair, QueuePairConfig,
    SharedReceiveQueue, soft,
};
use crate::verbs::types::{Access, AddressVector, VerbsError, WindowType};

#[derive(Debug)]
pub(crate) enum ProtectionDomain {
    Soft(soft::ProtectionDomain),
    #[cfg(feature = "rdma")]
    Rdma(rdma::ProtectionDomain),
}

impl ProtectionDomain {
    pub(crate) fn register(&self, len: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        Ok(match self {
            Self::Soft(domain) => MemoryRegion::Soft(domain.register(len, access)?),
            #[cfg(feature = "rdma")]
            Self::Rdma(domain) => MemoryRegion::Rdma(domain.register(len, access)?),
        })
    }

    pub(crate) fn alloc_mw(&self, window_type: WindowType) -> Result<MemoryWindow, VerbsError> {
        Ok(match self {
            Self::Soft(domain) => MemoryWindow::Soft(domain.alloc_mw(window_type)?),
            #[cfg(feature = "rdma")]
            Self::Rdma(domain) => MemoryWindow::Rdma(domain.alloc_mw(window_type)?),
        })
    }

    pub(crate) fn create_ah(&self, address: &AddressVector) -> Result<AddressHandle, VerbsError> {
        Ok(match self {
            Self::Soft(domain) => AddressHandle::Soft(domain.create_ah(address)?),
            #[cfg(feature = "rdma")]
            Self::Rdma(domain) => AddressHandle::Rdma(domain.create_ah(address)?),
        })
    }

    pub(crate) fn create_srq(
        &self,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        Ok(match self {
            Self::Soft(domain) => SharedReceiveQueue::Soft(domain.create_srq(max_wr, max_sge)?),
            #[cfg(feature = "rdma")]
            Self::Rdma(domain) => SharedReceiveQueue::Rdma(domain.create_srq(max_wr, max_sge)?),
        })
    }

    #[cfg(not(feature = "rdma"))]
    pub(crate) fn create_qp(&self, config: QueuePairConfig<'_>) -> Result<QueuePair, VerbsError> {
        let Self::Soft(domain) = self;
        let CompletionQueue::Soft(send_cq) = config.send_cq;
        let CompletionQueue::Soft(recv_cq) = config.recv_cq;
        let srq = config.srq.map(|SharedReceiveQueue::Soft(srq)| srq);
        let queue_pair = domain.create_qp(send_cq, recv_cq, srq, &config.options)?;
        Ok(QueuePair::Soft(queue_pair))
    }

    #[cfg(feature = "rdma")]
    pub(crate) fn create_qp(&self, config: QueuePairConfig<'_>) -> Result<QueuePair, VerbsError> {
        match (self, config.send_cq, config.recv_cq) {
            (
                Self::Soft(domain),
                CompletionQueue::Soft(send_cq),
                CompletionQueue::Soft(recv_cq),
            ) => {
                let srq = match config.srq {
                    None => None,
                    Some(SharedReceiveQueue::Soft(srq)) => Some(srq),
                    Some(_) => return Err(foreign("create_qp", "the shared receive queue")),
                };
                let queue_pair = domain.create_qp(send_cq, recv_cq, srq, &config.options)?;
                Ok(QueuePair::Soft(queue_pair))
            }
            (
                Self::Rdma(domain),
                CompletionQueue::Rdma(send_cq),
                CompletionQueue::Rdma(recv_cq),
            ) => {
                let srq = match config.srq {
                    None => None,
                    Some(SharedReceiveQueue::Rdma(srq)) => Some(srq),
                    Some(_) => return Err(foreign("create_qp", "the shared receive queue")),
                };
                let queue_pair = domain.create_qp(send_cq, recv_cq, srq, &config.options)?;
                Ok(QueuePair::Rdma(queue_pair))
            }
            _ => Err(foreign("create_qp", "a completion queue")),
        }
    }
}
