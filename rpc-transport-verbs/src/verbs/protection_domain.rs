//! What may be used together: regions, queues and queue pairs of one protection domain.

use std::sync::Arc;

use super::context::Context;
use super::error::VerbsError;
use super::memory_region::{Access, MemoryRegion};
use super::queue_pair::{QueuePair, QueuePairConfig};
use super::shared_receive_queue::SharedReceiveQueue;
use crate::provider;

/// A protection domain. Cheap to clone; destroyed after everything that was made from it.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    pub(super) raw: Arc<provider::ProtectionDomain>,
}

impl ProtectionDomain {
    pub(super) fn new(context: &Context) -> Result<Self, VerbsError> {
        Ok(Self {
            raw: Arc::new(context.raw.alloc_pd()?),
        })
    }

    /// Allocates at least `len` bytes of memory that suits the device, and registers it once.
    /// The memory is zeroed and starts at a page.
    pub fn register(&self, len: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
            && !access.contains(Access::LOCAL_WRITE)
        {
            return Err(VerbsError::RemoteWithoutLocalWrite);
        }
        Ok(MemoryRegion::new(
            self.raw.register(len, access)?,
            Arc::clone(&self.raw),
        ))
    }

    /// Creates a shared receive queue of at least `max_wr` work requests, its limit not armed.
    pub fn create_srq(
        &self,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        SharedReceiveQueue::new(self, max_wr, max_sge)
    }

    /// Creates a queue pair, in RESET.
    pub fn create_qp(&self, config: QueuePairConfig<'_>) -> Result<QueuePair, VerbsError> {
        QueuePair::new(self, config)
    }
}
