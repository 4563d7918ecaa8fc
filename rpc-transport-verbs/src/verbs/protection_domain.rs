//! What may be used together: regions, queues and queue pairs of one protection domain.

use std::sync::Arc;

use super::address_handle::AddressHandle;
use super::context::Context;
use super::exposed_memory::ExposedMemory;
use super::memory_region::MemoryRegion;
use super::memory_window::MemoryWindow;
use super::queue_pair::{QueuePair, QueuePairConfig};
use super::registered_memory::RegisteredMemory;
use super::shared_receive_queue::SharedReceiveQueue;
use super::types::access::Access;
use super::types::error::{Busy, VerbsError};
use super::types::extended_queue_pair::ExtendedConfig;
use super::types::queue_pair_attributes::AddressVector;
use super::types::window_type::WindowType;
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

    /// Allocates at least `len` bytes of memory that suits the device, and registers it once, for requests of
    /// this side alone. The memory is zeroed and starts at a page.
    ///
    /// # Errors
    ///
    /// [`VerbsError::ExposedSlots`] if `access` lets peers at it: that is [`expose`](Self::expose).
    pub fn register(&self, len: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        if access.intersects(remote | Access::MW_BIND) {
            return Err(VerbsError::ExposedSlots { access });
        }
        Ok(MemoryRegion::new(self.reg_mr(len, access)?))
    }

    /// The same for memory that peers may reach, as far as `access` says: by the region's own key, or through
    /// memory windows ([`Access::MW_BIND`]).
    pub fn expose(&self, len: usize, access: Access) -> Result<ExposedMemory, VerbsError> {
        Ok(ExposedMemory::new(self.reg_mr(len, access)?, access))
    }

    fn reg_mr(&self, len: usize, access: Access) -> Result<RegisteredMemory, VerbsError> {
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
            && !access.contains(Access::LOCAL_WRITE)
        {
            return Err(VerbsError::RemoteWithoutLocalWrite);
        }
        let raw = self.raw.register(len, access)?;
        Ok(RegisteredMemory::new(raw, Arc::clone(&self.raw)))
    }

    /// Allocates a memory window, bound to nothing.
    pub fn alloc_mw(&self, window_type: WindowType) -> Result<MemoryWindow, VerbsError> {
        MemoryWindow::new(self, window_type)
    }

    /// Creates an address handle, for datagrams.
    pub fn create_ah(&self, address: AddressVector) -> Result<AddressHandle, VerbsError> {
        AddressHandle::new(self, address)
    }

    /// Ends it (`ibv_dealloc_pd`).
    ///
    /// # Errors
    ///
    /// [`Busy`], with the domain, while there are clones, or regions, windows, address handles, queue pairs
    /// or shared receive queues that were made from it.
    pub fn dealloc(self) -> Result<(), Busy<Self>> {
        Busy::unless_sole("dealloc_pd", self.raw, |raw| Self { raw })
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
        QueuePair::new(self, config, ExtendedConfig::default())
    }

    /// The same with more than the usual (`ibv_create_qp_ex`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::NotSupported`] with the name of the field, and of the flag in it, that the device lacks.
    pub fn create_qp_ex(
        &self,
        config: QueuePairConfig<'_>,
        extended: ExtendedConfig,
    ) -> Result<QueuePair, VerbsError> {
        extended.check(config.qp_type)?;
        QueuePair::new(self, config, extended)
    }
}
