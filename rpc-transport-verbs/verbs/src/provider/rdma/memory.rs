//! Protection domains (`ibv_alloc_pd(3)`).

use std::sync::Arc;

use rdma_sys::ibv_pd;

use super::handle::Handle;
use super::{log_leak, os_error};
use crate::types::VerbsError;

/// The domain, shared by everything that was created from it.
#[derive(Debug)]
pub(super) struct Domain {
    raw: *mut ibv_pd,
    pub(super) handle: Arc<Handle>,
}

// SAFETY: libibverbs synchronizes its calls, and any thread may call any verb on the domain, as for
// the context's handle.
unsafe impl Send for Domain {}
// SAFETY: libibverbs synchronizes concurrent calls on the domain, so shared references may be used
// from any thread.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if self.handle.is_ours() {
            // SAFETY: every object that was created from the domain holds an `Arc` of it, so none
            // is left.
            log_leak("dealloc_pd", unsafe {
                (self.handle.library.ibv_dealloc_pd)(self.raw)
            });
        }
    }
}

#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    pub(super) domain: Arc<Domain>,
}

impl ProtectionDomain {
    pub(super) fn alloc(handle: &Arc<Handle>) -> Result<Self, VerbsError> {
        handle.fork_guard.check()?;
        // SAFETY: `handle` keeps the context open for the duration of the call.
        let raw = unsafe { (handle.library.ibv_alloc_pd)(handle.raw()) };
        if raw.is_null() {
            return Err(os_error("alloc_pd"));
        }
        let handle = Arc::clone(handle);
        Ok(Self {
            domain: Arc::new(Domain { raw, handle }),
        })
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.domain.raw()
    }
}
