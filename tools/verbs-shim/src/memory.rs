//! Protection domains, and what is in them besides queues: regions, windows and address handles.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use verbline_verbs::for_shim::{
    AddressHandle, MemoryRegion, MemoryWindow, Pages, ProtectionDomain, access,
};
use verbline_verbs::{AddressVector, Gid, WindowType};

use crate::abi::{
    Function, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_mr, ibv_mw, ibv_pd,
    ibv_wc,
};
use crate::boundary::{Errno, Users, absent, number, object};
use crate::devices::opened;
use crate::{mapped, pages};

/// The functions of `ibv_context_ops` that are here, by index.
pub(crate) const OPS: [(usize, Function); 2] =
    [(7, alloc_mw as Function), (9, dealloc_mw as Function)];

/// `IBV_ACCESS_OPTIONAL_RANGE`: rights that a device may leave out.
const OPTIONAL_RIGHTS: u32 = 0x3ff0_0000;
/// `IBV_WC_GRH`.
const HAS_ROUTE: u32 = 1;

/// A protection domain.
#[repr(C)]
pub(crate) struct Domain {
    head: ibv_pd,
    pub(crate) inner: ProtectionDomain,
    pub(crate) users: Users,
}

/// A registered region. The region is deregistered before its pages go.
#[repr(C)]
pub(crate) struct Region {
    head: ibv_mr,
    pub(crate) inner: MemoryRegion,
    _pages: Option<Pages>,
}

/// A memory window.
#[repr(C)]
pub(crate) struct Window {
    pub(crate) head: ibv_mw,
    pub(crate) inner: MemoryWindow,
}

/// An address handle.
#[repr(C)]
pub(crate) struct Handle {
    head: ibv_ah,
    pub(crate) inner: AddressHandle,
}

/// Returns the domain of a pointer that a program has.
///
/// # Safety
///
/// `ibv_alloc_pd` returned it, and it is not deallocated while the reference is used.
pub(crate) unsafe fn domain<'a>(pd: *mut ibv_pd) -> &'a Domain {
    // SAFETY: the pointer is to the head of a `Domain`.
    unsafe { &*pd.cast() }
}

/// `ibv_alloc_pd(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    object(|| {
        // SAFETY: the program's context.
        let opened = unsafe { opened(context) };
        let inner = opened.device.alloc_pd()?;
        opened.users.add();
        Ok(Box::new(Domain {
            head: ibv_pd { context, handle: 0 },
            inner,
            users: Users::default(),
        }))
    })
}

/// `ibv_dealloc_pd(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    number(|| {
        // SAFETY: the program's domain.
        let found = unsafe { domain(pd) };
        found.users.check_none()?;
        // SAFETY: the domain's own context.
        unsafe { opened(found.head.context) }.users.remove();
        // SAFETY: `ibv_alloc_pd` made it from a box, and nothing needs it any more.
        drop(unsafe { Box::from_raw(pd.cast::<Domain>()) });
        Ok(())
    })
}

/// `ibv_reg_mr(3)`.
///
/// # Safety
///
/// As the man page asks; and nobody writes into the pages of the memory during the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    rights: c_int,
) -> *mut ibv_mr {
    object(|| {
        let start = NonNull::new(addr.cast::<u8>()).ok_or(Errno::INVALID)?;
        if length == 0 {
            return Err(Errno::INVALID);
        }
        // SAFETY: the program's domain.
        let domain = unsafe { domain(pd) };
        let context = domain.head.context;
        // SAFETY: the domain's own context.
        let shares_memory = unsafe { opened(context) }.shares_memory;
        // IBV_ACCESS_LOCAL_WRITE, without which peers may not write either.
        let written = rights & 1 != 0;
        mapped::check(start.as_ptr().addr(), length, written, shares_memory)?;
        let pages = match shares_memory {
            // SAFETY: the memory is the program's, which leaves it alone until the call returns, and
            // keeps it until it deregisters the region, which holds the pages.
            true => Some(unsafe { pages::containing(start, length) }?),
            false => None,
        };
        let rights = access(rights.cast_unsigned() & !OPTIONAL_RIGHTS);
        // SAFETY: the same, and the bytes are in the pages.
        let inner = unsafe { domain.inner.register(pages.as_ref(), start, length, rights) }?;
        domain.users.add();
        Ok(Box::new(Region {
            head: ibv_mr {
                context,
                pd,
                addr,
                length,
                handle: 0,
                lkey: inner.local_key().0,
                rkey: inner.remote_key().0,
            },
            inner,
            _pages: pages,
        }))
    })
}

/// `ibv_reg_mr_iova(3)`, in the version that the header calls: peers address the memory as this process
/// does, and not otherwise.
///
/// # Safety
///
/// As [`ibv_reg_mr`].
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    rights: u32,
) -> *mut ibv_mr {
    if iova != addr.addr() as u64 {
        return absent();
    }
    // SAFETY: what the caller has promised.
    unsafe { ibv_reg_mr(pd, addr, length, rights.cast_signed()) }
}

/// `ibv_reg_mr_iova(3)`.
///
/// # Safety
///
/// As [`ibv_reg_mr`].
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    rights: c_int,
) -> *mut ibv_mr {
    // SAFETY: what the caller has promised.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, rights.cast_unsigned()) }
}

/// `ibv_reg_dmabuf_mr(3)`: no device has memory of its own.
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_dmabuf_mr(
    _: *mut ibv_pd,
    _: u64,
    _: usize,
    _: u64,
    _: c_int,
    _: c_int,
) -> *mut ibv_mr {
    absent()
}

/// `ibv_rereg_mr(3)`: `IBV_REREG_MR_ERR_CMD`, and the region is as it was.
#[unsafe(no_mangle)]
extern "C" fn ibv_rereg_mr(
    _: *mut ibv_mr,
    _: c_int,
    _: *mut ibv_pd,
    _: *mut c_void,
    _: usize,
    _: c_int,
) -> c_int {
    let _: *mut ibv_mr = absent();
    -4
}

/// `ibv_dereg_mr(3)`: not while a window is bound to the region.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    number(|| {
        // SAFETY: the program's region.
        if unsafe { &*mr.cast::<Region>() }.inner.has_window() {
            return Err(Errno::BUSY);
        }
        // SAFETY: `ibv_reg_mr` made it from a box, and the program gives it back.
        let region = unsafe { Box::from_raw(mr.cast::<Region>()) };
        // SAFETY: the region's own domain.
        unsafe { domain(region.head.pd) }.users.remove();
        drop(region);
        pages::region_has_gone();
        Ok(())
    })
}

/// `ibv_alloc_mw(3)`.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    object(|| {
        let window_type = match kind {
            1 => WindowType::Type1,
            2 => WindowType::Type2,
            _ => return Err(Errno::INVALID),
        };
        // SAFETY: the program's domain.
        let domain = unsafe { domain(pd) };
        let inner = domain.inner.alloc_mw(window_type)?;
        domain.users.add();
        Ok(Box::new(Window {
            head: ibv_mw {
                context: domain.head.context,
                pd,
                rkey: inner.first_key().0,
                handle: 0,
                kind,
            },
            inner,
        }))
    })
}

/// `ibv_dealloc_mw(3)`.
///
/// # Safety
///
/// As the man page asks.
unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    number(|| {
        // SAFETY: `alloc_mw` made it from a box, and the program gives it back.
        let window = unsafe { Box::from_raw(mw.cast::<Window>()) };
        // SAFETY: the window's own domain.
        unsafe { domain(window.head.pd) }.users.remove();
        Ok(())
    })
}

/// Returns the address of an attribute.
pub(crate) fn address(raw: &ibv_ah_attr) -> AddressVector {
    AddressVector {
        gid: Gid(raw.grh.dgid.0),
        lid: raw.dlid,
        sgid_index: raw.grh.sgid_index,
        is_global: raw.is_global != 0,
        port: raw.port_num,
        sl: raw.sl,
        src_path_bits: raw.src_path_bits,
        static_rate: raw.static_rate,
        flow_label: raw.grh.flow_label,
        hop_limit: raw.grh.hop_limit,
        traffic_class: raw.grh.traffic_class,
    }
}

/// Returns the attribute of an address.
pub(crate) fn address_attribute(address: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid(address.gid.0),
            flow_label: address.flow_label,
            sgid_index: address.sgid_index,
            hop_limit: address.hop_limit,
            traffic_class: address.traffic_class,
        },
        dlid: address.lid,
        sl: address.sl,
        src_path_bits: address.src_path_bits,
        static_rate: address.static_rate,
        is_global: address.is_global.into(),
        port_num: address.port,
    }
}

/// `ibv_create_ah(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    object(|| {
        // SAFETY: the program's domain.
        let domain = unsafe { domain(pd) };
        // SAFETY: the program's attributes.
        let inner = domain.inner.create_ah(&address(unsafe { &*attr }))?;
        domain.users.add();
        Ok(Box::new(Handle {
            head: ibv_ah {
                context: domain.head.context,
                pd,
                handle: 0,
            },
            inner,
        }))
    })
}

/// `ibv_create_ah_from_wc(3)`. The global routing header is 40 bytes; the sender's GID is at byte 8.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    completion: *mut ibv_wc,
    route: *mut u8,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: the program's completion.
    let completion = unsafe { &*completion };
    let mut attributes = ibv_ah_attr {
        dlid: completion.slid,
        sl: completion.sl,
        src_path_bits: completion.dlid_path_bits,
        port_num: port,
        ..ibv_ah_attr::default()
    };
    if completion.wc_flags & HAS_ROUTE != 0 {
        attributes.is_global = 1;
        attributes.grh.hop_limit = u8::MAX;
        let gid = &mut attributes.grh.dgid.0;
        // SAFETY: the flag says that the header is there.
        unsafe { ptr::copy_nonoverlapping(route.add(8), gid.as_mut_ptr(), gid.len()) };
    }
    // SAFETY: the program's domain, and attributes of this function.
    unsafe { ibv_create_ah(pd, &raw mut attributes) }
}

/// `ibv_destroy_ah(3)`.
///
/// # Safety
///
/// As the man page asks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    number(|| {
        // SAFETY: `ibv_create_ah` made it from a box, and the program gives it back.
        let handle = unsafe { Box::from_raw(ah.cast::<Handle>()) };
        // SAFETY: the handle's own domain.
        unsafe { domain(handle.head.pd) }.users.remove();
        Ok(())
    })
}

/// Defines functions of objects that one process gets from another.
macro_rules! imports {
    ($($import:ident, $unimport:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $import(_: *mut c_void, _: u32) -> *mut c_void {
                absent()
            }

            #[unsafe(no_mangle)]
            extern "C" fn $unimport(_: *mut c_void) {}
        )*
    };
}

// `ibv_import_pd(3)` and its like: objects of one process are not another's.
imports! {
    ibv_import_pd, ibv_unimport_pd;
    ibv_import_mr, ibv_unimport_mr;
    ibv_import_dm, ibv_unimport_dm;
}
