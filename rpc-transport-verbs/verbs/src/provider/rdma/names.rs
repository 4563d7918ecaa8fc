//! How requests name the objects of this provider.

use std::ptr::NonNull;

use rdma_sys::{ibv_ah, ibv_mr, ibv_mw};

/// Identifies a window in a request that binds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowName(pub(super) NonNull<ibv_mw>);

/// Identifies a region in a request that binds a window to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionName(pub(super) NonNull<ibv_mr>);

/// Identifies an address handle in a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressName(pub(super) NonNull<ibv_ah>);

/// Implements `Send` and `Sync` for a type that holds an address for libibverbs.
macro_rules! from_any_thread {
    ($($name:ident)*) => {
        $(
            // SAFETY: the type holds an address for libibverbs, which accepts its objects from any
            // thread.
            unsafe impl Send for $name {}
            // SAFETY: the type holds an address for libibverbs, which synchronizes concurrent calls
            // with it.
            unsafe impl Sync for $name {}
        )*
    };
}

pub(super) use from_any_thread;

from_any_thread! { WindowName RegionName AddressName }
