//! Structs of the header that rdma-sys declares wrongly or not at all.

use std::os::raw::c_int;

use rdma_sys::{ibv_cq, ibv_qp, ibv_srq};

/// `struct ibv_async_event` with the event type as a plain number. rdma-sys declares an enum there,
/// for which a value newer than rdma-sys would be undefined behavior.
#[repr(C)]
pub(super) struct RawAsyncEvent {
    pub(super) element: Element,
    pub(super) event_type: c_int,
}

#[repr(C)]
pub(super) union Element {
    pub(super) cq: *mut ibv_cq,
    pub(super) qp: *mut ibv_qp,
    pub(super) srq: *mut ibv_srq,
    pub(super) port_num: c_int,
}

/// `struct ibv_gid_entry`. rdma-sys declares the type, but not the function that fills it. In the
/// header the GID is a union with 64-bit numbers, hence the alignment.
#[repr(C, align(8))]
pub(super) struct RawGidEntry {
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}
