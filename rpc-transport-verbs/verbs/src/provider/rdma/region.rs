//! Memory regions (`ibv_reg_mr(3)`).

use std::io;
use std::os::raw::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::ibv_mr;

use super::super::limits::{in_range, needs_local_write};
use super::locked_memory::memlock_limit;
use super::log_leak;
use super::memory::{Domain, ProtectionDomain};
use super::names::RegionName;
use super::pages::Pages;
use crate::types::{Access, LocalKey, RemoteKey, VerbsError};

const CALL: &str = "reg_mr";

/// `IBV_ACCESS_OPTIONAL_RANGE`: rights that a device may ignore if it does not know them.
const OPTIONAL: Access = Access::from_bits(0x3ff0_0000);

/// Rights that affect the requests of peers only, not local requests.
const OF_PEERS: Access = Access::from_bits(
    Access::REMOTE_WRITE.bits()
        | Access::REMOTE_READ.bits()
        | Access::REMOTE_ATOMIC.bits()
        | Access::MW_BIND.bits()
        | Access::FLUSH_GLOBAL.bits()
        | Access::FLUSH_PERSISTENT.bits(),
);

/// Rights that not every device supports.
const NOT_EVERYWHERE: [(Access, &str); 8] = [
    (Access::ON_DEMAND, "the access right ON_DEMAND"),
    (Access::HUGETLB, "the access right HUGETLB"),
    (Access::FLUSH_GLOBAL, "the access right FLUSH_GLOBAL"),
    (
        Access::FLUSH_PERSISTENT,
        "the access right FLUSH_PERSISTENT",
    ),
    (
        Access::RELAXED_ORDERING,
        "the access right RELAXED_ORDERING",
    ),
    (Access::ZERO_BASED, "the access right ZERO_BASED"),
    (Access::MW_BIND, "the access right MW_BIND"),
    (Access::REMOTE_ATOMIC, "the access right REMOTE_ATOMIC"),
];

#[derive(Debug)]
pub(crate) struct MemoryRegion {
    raw: NonNull<ibv_mr>,
    /// The second registration of a zero-based region, which peers access.
    zero_based: Option<NonNull<ibv_mr>>,
    pages: Pages,
    len: usize,
    local_key: LocalKey,
    remote_key: RemoteKey,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs synchronizes its calls, and any thread may call any verb on the region, as for
// the context's handle.
unsafe impl Send for MemoryRegion {}
// SAFETY: a shared reference gives only addresses and keys, which do not change after registration.
unsafe impl Sync for MemoryRegion {}

impl ProtectionDomain {
    pub(crate) fn register(&self, len: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        MemoryRegion::register(&self.domain, len, access)
    }
}

impl MemoryRegion {
    fn register(domain: &Arc<Domain>, len: usize, access: Access) -> Result<Self, VerbsError> {
        let handle = &domain.handle;
        handle.fork_guard.check()?;
        in_range(CALL, "len", len, 1, handle.limits.max_mr_len)?;
        needs_local_write(access)?;
        let mmap_failed = |source| VerbsError::Os {
            call: "mmap",
            source,
        };
        let mut pages = Pages::map(len).map_err(mmap_failed)?;
        let mut registered = register_all(domain, &pages, len, access);
        // Huge pages may be reserved without being available to this process's control group. The
        // failure occurs only when they are touched.
        if registered.is_err() && pages.are_huge {
            pages = Pages::map_small(len).map_err(mmap_failed)?;
            registered = register_all(domain, &pages, len, access);
        }
        let (raw, zero_based) =
            registered.map_err(|error| refused(domain, &pages, len, access, error))?;
        // SAFETY: the library has initialized both regions, and their keys do not change
        // afterwards.
        let (local_key, remote_key) = unsafe {
            let of_peers = zero_based.unwrap_or(raw);
            ((*raw.as_ptr()).lkey, (*of_peers.as_ptr()).rkey)
        };
        Ok(Self {
            raw,
            zero_based,
            pages,
            len,
            local_key: LocalKey(local_key),
            remote_key: RemoteKey(remote_key),
            domain: Arc::clone(domain),
        })
    }

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
        RegionName(self.zero_based.unwrap_or(self.raw))
    }

    pub(crate) fn remote_key(&self) -> RemoteKey {
        self.remote_key
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if !self.domain.handle.is_ours() {
            return;
        }
        for raw in self.zero_based.into_iter().chain([self.raw]) {
            // SAFETY: each region was registered once. Slots in work requests keep the region
            // alive, so no request that names it is left with the device.
            if !unsafe { deregister(&self.domain, raw) } {
                // The device may go on accessing the pages, so they stay mapped.
                self.pages.mapped_len = 0;
            }
        }
    }
}

/// Registers the pages with the rights in `access`, once or twice.
///
/// A zero-based region is registered twice. Devices interpret `IBV_ACCESS_ZERO_BASED` differently,
/// but all of them treat a region that begins at I/O virtual address 0 in the same way. Local
/// requests, however, name memory by its address in this process, so they need a second region with
/// its own key.
fn register_all(
    domain: &Domain,
    pages: &Pages,
    len: usize,
    access: Access,
) -> io::Result<(NonNull<ibv_mr>, Option<NonNull<ibv_mr>>)> {
    if !access.contains(Access::ZERO_BASED) {
        return Ok((register_once(domain, pages, len, None, access)?, None));
    }
    let local = access.without(OF_PEERS | Access::ZERO_BASED);
    let raw = register_once(domain, pages, len, None, local)?;
    let of_peers = access.without(Access::ZERO_BASED);
    match register_once(domain, pages, len, Some(0), of_peers) {
        Ok(zero_based) => Ok((raw, Some(zero_based))),
        Err(error) => {
            // SAFETY: registered above, and its keys are unknown outside this function.
            unsafe { deregister(domain, raw) };
            Err(error)
        }
    }
}

/// Registers one region over the pages. Requests address its first byte as `base`, or by its
/// address in this process if `base` is `None`.
fn register_once(
    domain: &Domain,
    pages: &Pages,
    len: usize,
    base: Option<u64>,
    access: Access,
) -> io::Result<NonNull<ibv_mr>> {
    let library = domain.handle.library;
    let addr: *mut c_void = pages.start.as_ptr().cast();
    let first = addr.addr() as u64;
    let is_plain = base.is_none() && !access.intersects(OPTIONAL);
    let raw = match library.reg_mr_iova2 {
        // SAFETY: the pages are mapped, used for nothing else, and stay mapped until the region is
        // deregistered.
        Some(reg_mr) if !is_plain => unsafe {
            reg_mr(
                domain.raw(),
                addr,
                len,
                base.unwrap_or(first),
                access.bits(),
            )
        },
        // The library is older than version 28 (2020), which introduced the function.
        None if base.is_some() => return Err(io::ErrorKind::Unsupported.into()),
        _ => {
            // The bits are those of `enum ibv_access_flags`. Optional rights may be left out.
            let bits = access.without(OPTIONAL).bits() as c_int;
            // SAFETY: the pages are mapped, used for nothing else, and stay mapped until the region
            // is deregistered.
            unsafe { (library.ibv_reg_mr)(domain.raw(), addr, len, bits) }
        }
    };
    NonNull::new(raw).ok_or_else(io::Error::last_os_error)
}

/// Deregisters a region. Returns false if the device refuses.
///
/// # Safety
///
/// `raw` was registered and not yet deregistered, and no request in flight names it.
unsafe fn deregister(domain: &Domain, raw: NonNull<ibv_mr>) -> bool {
    // SAFETY: the caller guarantees that the region is registered and that no request names it.
    let returned = unsafe { (domain.handle.library.ibv_dereg_mr)(raw.as_ptr()) };
    log_leak("dereg_mr", returned);
    returned == 0
}

/// Finds the cause of a failed registration: too much locked memory (`ENOMEM`, or `EPERM` if the
/// limit is 0), or a right that the device does not support. To find such a right, requests each
/// right separately.
#[cold]
fn refused(
    domain: &Domain,
    pages: &Pages,
    len: usize,
    access: Access,
    source: io::Error,
) -> VerbsError {
    match source.kind() {
        io::ErrorKind::OutOfMemory | io::ErrorKind::PermissionDenied => {
            return VerbsError::MemoryLocked {
                len,
                limit: memlock_limit(),
                source,
            };
        }
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => {}
        _ => return VerbsError::Os { call: CALL, source },
    }
    let asked = NOT_EVERYWHERE
        .iter()
        .filter(|(right, _)| access.contains(*right));
    for (right, name) in asked {
        match register_all(domain, pages, len, *right | Access::LOCAL_WRITE) {
            Ok((raw, zero_based)) => {
                for raw in zero_based.into_iter().chain([raw]) {
                    // SAFETY: registered in this iteration, and its keys are unknown outside this
                    // function.
                    unsafe { deregister(domain, raw) };
                }
            }
            Err(_) => {
                return VerbsError::NotSupported {
                    call: CALL,
                    device: domain.handle.name.clone(),
                    what: name,
                };
            }
        }
    }
    VerbsError::Os { call: CALL, source }
}
