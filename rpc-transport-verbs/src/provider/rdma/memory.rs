//! Protection domains, and the limit of locked memory.

use std::fs;
use std::sync::Arc;

use rdma_sys::ibv_pd;

use super::super::queue_pair_options::QueuePairOptions;
use super::completion_queue::CompletionQueue;
use super::context::Handle;
use super::queue_pair::QueuePair;
use super::region::MemoryRegion;
use super::shared_receive_queue::SharedReceiveQueue;
use super::windows::{AddressHandle, MemoryWindow};
use super::{log_leak, os_error};
use crate::verbs::types::{Access, AddressVector, VerbsError, WindowType};

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
    domain: Arc<Domain>,
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

    pub(crate) fn register(&self, len: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        MemoryRegion::register(&self.domain, len, access)
    }

    pub(crate) fn alloc_mw(&self, window_type: WindowType) -> Result<MemoryWindow, VerbsError> {
        MemoryWindow::alloc(&self.domain, window_type)
    }

    pub(crate) fn create_ah(&self, address: &AddressVector) -> Result<AddressHandle, VerbsError> {
        AddressHandle::create(&self.domain, address)
    }

    pub(crate) fn create_srq(
        &self,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        SharedReceiveQueue::create(&self.domain, max_wr, max_sge)
    }

    pub(crate) fn create_qp(
        &self,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        srq: Option<&SharedReceiveQueue>,
        config: &QueuePairOptions,
    ) -> Result<QueuePair, VerbsError> {
        QueuePair::create(&self.domain, send_cq, recv_cq, srq, config)
    }
}

/// Returns the number of bytes that this process may still lock, by the kernel's accounting: the
/// limit minus the bytes that are already pinned. Unlimited if the process may exceed the limit.
pub(super) fn lockable_len() -> usize {
    use rustix::process::{Resource, getrlimit};
    use rustix::thread::{CapabilitySet, capabilities};
    let may_exceed =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    match getrlimit(Resource::Memlock).current {
        Some(limit) if !may_exceed => {
            usize::try_from(limit.saturating_sub(pinned_len())).unwrap_or(usize::MAX)
        }
        _ => usize::MAX,
    }
}

/// Returns the number of bytes that this process has pinned for devices; 0 if the system does not
/// report it.
fn pinned_len() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    // "VmPin:	    1234 kB"
    let kib = status.lines().find_map(|line| {
        let value = line.strip_prefix("VmPin:")?;
        value.split_whitespace().next()?.parse::<u64>().ok()
    });
    kib.unwrap_or(0).saturating_mul(1024)
}

pub(super) fn memlock_limit() -> String {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Memlock);
    let words = |limit: Option<u64>| match limit {
        Some(bytes) => format!("{} KiB", bytes / 1024),
        None => "unlimited".to_owned(),
    };
    let mut said = format!(
        "{} (at most {} for this user)",
        words(limit.current),
        words(limit.maximum)
    );
    // Memory that this process has already locked counts against the limit.
    said.push_str(&format!(
        ", of which {} KiB are in use",
        pinned_len() / 1024
    ));
    said
}
