//! Loads libibverbs at run time and looks up its functions.

use std::fmt;
use std::os::raw::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::os::unix;
use rdma_sys::{
    _compat_ibv_port_attr, ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_gid, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq,
    ibv_srq_attr, ibv_srq_init_attr,
};

use super::raw_structs::{RawAsyncEvent, RawGidEntry};
use crate::types::OpenError;

/// The library's runtime name (soname); its version is the version of the ABI.
const NAME: &str = "libibverbs.so.1";

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The library functions that this crate calls, under the names of their man pages. Each is
        /// the default version of its symbol, which a program linked with the library would get.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// `ibv_query_gid_table` of the header; since version 33 of rdma-core (2021).
            pub(super) query_gid_table: Option<QueryGidTable>,
            /// `ibv_is_fork_initialized`; since version 35 of rdma-core (2021).
            pub(super) is_fork_initialized: Option<IsForkInitialized>,
            /// `ibv_reg_mr_iova2`; since version 28 of rdma-core (2020).
            pub(super) reg_mr_iova2: Option<RegMrIova2>,
        }

        impl Library {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: the library's initializers only register its drivers. The library is
                // never unloaded: it is leaked below, so the function pointers stay valid for the
                // life of the process.
                let library = unsafe { unix::Library::new(NAME) }?;
                let loaded = Self {
                    $($name: {
                        // SAFETY: the signature is the one in the header (infiniband/verbs.h). A
                        // symbol's signature never changes as long as the library keeps this
                        // soname.
                        let symbol = unsafe {
                            library.get(concat!(stringify!($name), "\0").as_bytes())
                        }?;
                        *symbol
                    },)*
                    query_gid_table: {
                        // SAFETY: the type alias is the header's signature, as for the symbols
                        // above; the leading underscore is part of the symbol's name.
                        let symbol = unsafe { library.get(b"_ibv_query_gid_table\0") };
                        symbol.ok().map(|symbol| *symbol)
                    },
                    is_fork_initialized: {
                        // SAFETY: the type alias is the header's signature, as for the symbols
                        // above.
                        let symbol = unsafe { library.get(b"ibv_is_fork_initialized\0") };
                        symbol.ok().map(|symbol| *symbol)
                    },
                    reg_mr_iova2: {
                        // SAFETY: the type alias is the header's signature, as for the symbols
                        // above.
                        let symbol = unsafe { library.get(b"ibv_reg_mr_iova2\0") };
                        symbol.ok().map(|symbol| *symbol)
                    },
                };
                std::mem::forget(library);
                Ok(loaded)
            }
        }
    };
}

/// (context, entries, capacity in entries, flags, size of an entry in bytes) → number of entries,
/// or a negated errno.
type QueryGidTable =
    unsafe extern "C" fn(*mut ibv_context, *mut RawGidEntry, usize, u32, usize) -> isize;

type IsForkInitialized = unsafe extern "C" fn() -> c_uint;
/// (domain, first byte, length in bytes, I/O virtual address of the first byte, access rights)
type RegMrIova2 = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;

functions! {
    ibv_fork_init: fn() -> c_int;
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list: fn(*mut *mut ibv_device) -> ();
    ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
    ibv_get_device_guid: fn(*mut ibv_device) -> u64;
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device: fn(*mut ibv_context) -> c_int;
    ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port: fn(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;
    ibv_query_gid: fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    ibv_query_pkey: fn(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
    ibv_get_async_event: fn(*mut ibv_context, *mut RawAsyncEvent) -> c_int;
    ibv_ack_async_event: fn(*mut RawAsyncEvent) -> ();
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    ibv_create_ah: fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    ibv_destroy_ah: fn(*mut ibv_ah) -> c_int;
    ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
    ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut ibv_cq, c_uint) -> ();
    ibv_create_cq:
        fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_resize_cq: fn(*mut ibv_cq, c_int) -> c_int;
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_modify_srq: fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    ibv_query_srq: fn(*mut ibv_srq, *mut ibv_srq_attr) -> c_int;
    ibv_destroy_srq: fn(*mut ibv_srq) -> c_int;
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_query_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
    ibv_attach_mcast: fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int;
    ibv_detach_mcast: fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int;
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)
    }
}

/// Returns the library. The first call loads it; it stays loaded for the life of the process.
pub(super) fn library() -> Result<&'static Library, OpenError> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY
        .get_or_init(|| Library::load().map_err(|error| error.to_string()))
        .as_ref()
        .map_err(|reason| OpenError::LibraryMissing {
            source: reason.as_str().into(),
        })
}
