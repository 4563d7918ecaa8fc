//! Protection domains: the regions, queues and queue pairs that may be used together.

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

/// A protection domain (`ibv_alloc_pd(3)`). Cloning it is cheap; it is destroyed after everything
/// that was created from it.
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

    /// Allocates at least `len` bytes of memory that suits the device, and registers them for local
    /// use only (`ibv_reg_mr(3)`). The memory is zeroed and page-aligned.
    ///
    /// # Errors
    ///
    /// * [`VerbsError::ExposedSlots`] if `access` grants a peer access; use
    ///   [`expose`](Self::expose) for that.
    /// * [`VerbsError::OutOfRange`] if the device does not support this length.
    /// * [`VerbsError::NotSupported`] if the device lacks one of the access rights.
    /// * [`VerbsError::MemoryLocked`] if the limit of locked memory is too low.
    /// * [`VerbsError::Os`] or [`VerbsError::Exhausted`] if memory or regions run out,
    ///   [`VerbsError::Forked`] in a forked child.
    pub fn register(&self, len: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        if access.intersects(remote | Access::MW_BIND) {
            return Err(VerbsError::ExposedSlots { access });
        }
        Ok(MemoryRegion::new(self.reg_mr(len, access)?))
    }

    /// Allocates and registers memory that peers may access as far as `access` permits: by the
    /// region's own key, or through memory windows ([`Access::MW_BIND`]).
    ///
    /// # Errors
    ///
    /// [`VerbsError::RemoteWithoutLocalWrite`] if `access` has `REMOTE_WRITE` or `REMOTE_ATOMIC`
    /// without `LOCAL_WRITE`; otherwise as for [`register`](Self::register).
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

    /// Allocates a memory window that is not bound (`ibv_alloc_mw(3)`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::NotSupported`] if the device has no such windows, [`VerbsError::Exhausted`] or
    /// [`VerbsError::Os`] if there are no more of them, [`VerbsError::Forked`] in a forked child.
    pub fn alloc_mw(&self, window_type: WindowType) -> Result<MemoryWindow, VerbsError> {
        MemoryWindow::new(self, window_type)
    }

    /// Creates an address handle for datagrams (`ibv_create_ah(3)`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidArgument`] if the device does not accept
    /// an attribute of the address, [`VerbsError::Exhausted`] or [`VerbsError::Os`] if the device
    /// refuses, [`VerbsError::Forked`] in a forked child.
    pub fn create_ah(&self, address: AddressVector) -> Result<AddressHandle, VerbsError> {
        AddressHandle::new(self, address)
    }

    /// Deallocates the domain (`ibv_dealloc_pd(3)`).
    ///
    /// # Errors
    ///
    /// [`Busy`], with the domain, while there are clones of it, or regions, windows, address
    /// handles, queue pairs or shared receive queues that were created from it.
    pub fn dealloc(self) -> Result<(), Busy<Self>> {
        Busy::unless_sole("dealloc_pd", self.raw, |raw| Self { raw })
    }

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

    /// Creates a queue pair in RESET (`ibv_create_qp(3)`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] if the device does not support the requested sizes,
    /// [`VerbsError::NotSupported`] if it lacks the type, [`VerbsError::ForeignObject`] if a queue
    /// belongs to another context, [`VerbsError::Exhausted`], [`VerbsError::QueueMemory`] or
    /// [`VerbsError::Os`] if resources run out, [`VerbsError::Forked`] in a forked child.
    pub fn create_qp(&self, config: QueuePairConfig<'_>) -> Result<QueuePair, VerbsError> {
        QueuePair::new(self, config, ExtendedConfig::default())
    }

    /// Creates a queue pair with extended options (`ibv_create_qp_ex(3)`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::NotSupported`] with the name of the field, and of the flag in it, that the
    /// device lacks; otherwise as for [`create_qp`](Self::create_qp).
    pub fn create_qp_ex(
        &self,
        config: QueuePairConfig<'_>,
        extended: ExtendedConfig,
    ) -> Result<QueuePair, VerbsError> {
        extended.check(config.qp_type)?;
        QueuePair::new(self, config, extended)
    }
}
