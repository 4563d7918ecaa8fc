//! A protection domain of either provider.

#[cfg(feature = "shim")]
use std::ptr::NonNull;
#[cfg(feature = "shim")]
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

#[cfg(feature = "rdma")]
use super::foreign;
#[cfg(feature = "rdma")]
use super::rdma;
use super::{
    AddressHandle, AwaitedClaim, CompletionQueue, MemoryRegion, MemoryWindow, Nonce, OnClaim,
    QueuePair, QueuePairConfig, SharedReceiveQueue, soft,
};
use crate::types::{Access, AddressVector, Gid, ModifyError, QpNum, VerbsError, WindowType};

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

    /// Registers memory of the program where it is.
    ///
    /// # Safety
    ///
    /// As for the software device's.
    #[cfg(feature = "shim")]
    pub(crate) unsafe fn register_at(
        &self,
        pages: Option<&Arc<soft::SharedMemory>>,
        bytes: (NonNull<u8>, usize),
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        match self {
            Self::Soft(domain) => {
                // SAFETY: what the caller has promised.
                let region = unsafe { domain.register_at(pages, bytes, access) };
                region.map(MemoryRegion::Soft)
            }
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => Err(foreign("register_at", "the domain")),
        }
    }

    /// Registers bytes where they lie, for peers over TCP of the software device.
    pub(crate) fn lend(&self, bytes: Bytes) -> Result<MemoryRegion, VerbsError> {
        match self {
            Self::Soft(domain) => Ok(MemoryRegion::Soft(domain.lend(bytes)?)),
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => Err(foreign("lend", "the domain")),
        }
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

    /// Waits for a process to prove that a GID is its own, and that it offers a queue pair: see
    /// [`soft::ProtectionDomain`]. Fails on an RDMA device, whose peers have no such proof.
    pub(crate) fn expect_claim(
        &self,
        gid: Gid,
        qp_num: QpNum,
        on_claim: OnClaim,
    ) -> Result<AwaitedClaim, VerbsError> {
        match self {
            Self::Soft(domain) => domain.expect_claim(gid, qp_num, on_claim),
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => Err(foreign("expect_claim", "the domain")),
        }
    }

    /// Proves to the process of `gid` that this process's GID is its own, and that it offers
    /// `qp_num`. Takes about this time at most.
    pub(crate) fn claim(
        &self,
        gid: Gid,
        nonce: Nonce,
        qp_num: QpNum,
        time: Duration,
    ) -> Result<(), ModifyError> {
        match self {
            Self::Soft(domain) => domain.claim(gid, nonce, qp_num, time),
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => Err(ModifyError::Os {
                action: "claim a GID: the device is not the software device",
                source: std::io::ErrorKind::Unsupported.into(),
            }),
        }
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
