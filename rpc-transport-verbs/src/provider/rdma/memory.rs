//! Protection domains, and memory registered in them.

use std::fs;
use std::io;
use std::os::raw::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{ibv_mr, ibv_pd};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::super::QueuePairConfig;
use super::super::limits::in_range;
use super::completion_queue::CompletionQueue;
use super::context::Handle;
use super::queue_pair::QueuePair;
use super::shared_receive_queue::SharedReceiveQueue;
use super::windows::{AddressHandle, MemoryWindow, RegionName};
use super::{log_leak, os_error};
use crate::verbs::{Access, AddressVector, LocalKey, RemoteKey, VerbsError, WindowType};

/// Bytes of a huge page, on the processors that have any of this size.
const HUGE_PAGE: usize = 2 << 20;

/// The domain, shared by everything that was made from it.
#[derive(Debug)]
pub(super) struct Domain {
    raw: *mut ibv_pd,
    pub(super) handle: Arc<Handle>,
}

// SAFETY: as for the context's handle: every verb may be called from any thread.
unsafe impl Send for Domain {}
// SAFETY: as for `Send`.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if self.handle.is_ours() {
            // SAFETY: whatever was made from it holds an `Arc` of it, so nothing is left.
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
        // SAFETY: the context is open.
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
        let domain = Arc::clone(&self.domain);
        domain.handle.fork_guard.check()?;
        in_range("reg_mr", "len", len, 1, domain.handle.limits.max_mr_len)?;
        let mmap_failed = |source| VerbsError::Os {
            call: "mmap",
            source,
        };
        let mut pages = Pages::map(len).map_err(mmap_failed)?;
        // The bits are those of `enum ibv_access_flags`, four of them.
        let access = access.bits() as c_int;
        let reg_mr = |pages: &Pages| {
            // SAFETY: the pages are mapped, are nobody else's, and stay until the region is
            // deregistered.
            let raw = unsafe {
                (domain.handle.library.ibv_reg_mr)(
                    domain.raw(),
                    pages.start.as_ptr().cast(),
                    len,
                    access,
                )
            };
            NonNull::new(raw).ok_or_else(io::Error::last_os_error)
        };
        let mut registered = reg_mr(&pages);
        // Huge pages may be set aside, and withheld from this process's control group: that shows
        // when they are touched.
        if registered.is_err() && pages.are_huge {
            pages = Pages::map_small(len).map_err(mmap_failed)?;
            registered = reg_mr(&pages);
        }
        let raw = registered.map_err(|error| not_registered(len, error))?;
        // SAFETY: the library filled it in, and it changes no more.
        let (local_key, remote_key) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        Ok(MemoryRegion {
            raw,
            pages,
            len,
            local_key: LocalKey(local_key),
            remote_key: RemoteKey(remote_key),
            domain,
        })
    }

    pub(crate) fn alloc_mw(&self, _window_type: WindowType) -> Result<MemoryWindow, VerbsError> {
        Err(os_error("alloc_mw"))
    }

    pub(crate) fn create_ah(&self, _address: &AddressVector) -> Result<AddressHandle, VerbsError> {
        Err(os_error("create_ah"))
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
        config: &QueuePairConfig<'_>,
    ) -> Result<QueuePair, VerbsError> {
        QueuePair::create(&self.domain, send_cq, recv_cq, srq, config)
    }
}

/// What locking too much memory looks like: `ENOMEM`, or `EPERM` if none may be locked.
fn not_registered(len: usize, source: io::Error) -> VerbsError {
    match source.kind() {
        io::ErrorKind::OutOfMemory | io::ErrorKind::PermissionDenied => VerbsError::MemoryLocked {
            len,
            limit: memlock_limit(),
            source,
        },
        _ => VerbsError::Os {
            call: "reg_mr",
            source,
        },
    }
}

/// Bytes that this process may still lock, as the kernel reckons it: the limit, less what is pinned
/// already, unless the process may exceed it.
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

/// Bytes that this process has pinned for devices; 0 if the system does not say.
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
    // What this process has locked already counts against it.
    said.push_str(&format!(
        ", of which {} KiB are in use",
        pinned_len() / 1024
    ));
    said
}

/// Anonymous memory of its own pages, huge ones if the system has some set aside.
#[derive(Debug)]
struct Pages {
    start: NonNull<u8>,
    /// 0 if they are to stay mapped for ever.
    mapped_len: usize,
    are_huge: bool,
}

// SAFETY: plain memory; who may touch which byte of it is the layers' above (see `provider`).
unsafe impl Send for Pages {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pages {}

impl Pages {
    fn map(len: usize) -> io::Result<Self> {
        if len >= HUGE_PAGE
            && let Some(huge_len) = len.checked_next_multiple_of(HUGE_PAGE)
            // Refused unless that many are free.
            && let Ok(mut pages) =
                Self::map_with(huge_len, MapFlags::HUGETLB | MapFlags::HUGE_2MB)
        {
            pages.are_huge = true;
            return Ok(pages);
        }
        Self::map_small(len)
    }

    fn map_small(len: usize) -> io::Result<Self> {
        let pages = Self::map_with(len, MapFlags::empty())?;
        if len >= HUGE_PAGE {
            // SAFETY: the range is the mapping. It is advice: without it the pages are small.
            let _ = unsafe { madvise(pages.start.as_ptr().cast(), len, Advice::LinuxHugepage) };
        }
        Ok(pages)
    }

    fn map_with(len: usize, flags: MapFlags) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE | flags) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self {
            start,
            mapped_len: len,
            are_huge: false,
        })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.mapped_len == 0 {
            return;
        }
        // SAFETY: mapped with this length; the region over it has been deregistered before, so
        // neither the device nor anybody here uses it any more.
        if let Err(error) = unsafe { munmap(self.start.as_ptr().cast(), self.mapped_len) } {
            tracing::error!(%error, "registered memory cannot be unmapped");
        }
    }
}

#[derive(Debug)]
pub(crate) struct MemoryRegion {
    raw: NonNull<ibv_mr>,
    pages: Pages,
    len: usize,
    local_key: LocalKey,
    remote_key: RemoteKey,
    domain: Arc<Domain>,
}

// SAFETY: as for the context's handle.
unsafe impl Send for MemoryRegion {}
// SAFETY: as for `Send`.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.pages.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn local_key(&self) -> LocalKey {
        self.local_key
    }

    pub(crate) fn name(&self) -> RegionName {
        RegionName(self.raw)
    }

    pub(crate) fn remote_key(&self) -> RemoteKey {
        self.remote_key
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let handle = &self.domain.handle;
        if handle.is_ours() {
            // SAFETY: registered once; the slots that work requests name hold the region, so none of
            // them is with the device any more.
            let returned = unsafe { (handle.library.ibv_dereg_mr)(self.raw.as_ptr()) };
            if returned != 0 {
                log_leak("dereg_mr", returned);
                // The device may go on using them.
                self.pages.mapped_len = 0;
            }
        }
    }
}
