//! Memory windows and address handles.

use std::ptr::NonNull;

use rdma_sys::{ibv_ah, ibv_mr, ibv_mw};

use crate::verbs::RemoteKey;

/// A window, in a request that binds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowName(pub(super) NonNull<ibv_mw>);

/// A region, in a request that binds a window to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionName(pub(super) NonNull<ibv_mr>);

/// An address handle, in a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressName(pub(super) NonNull<ibv_ah>);

#[derive(Debug)]
pub(crate) struct MemoryWindow {
    raw: NonNull<ibv_mw>,
    first_key: RemoteKey,
}

impl MemoryWindow {
    pub(crate) fn first_key(&self) -> RemoteKey {
        self.first_key
    }

    pub(crate) fn name(&self) -> WindowName {
        WindowName(self.raw)
    }
}

#[derive(Debug)]
pub(crate) struct AddressHandle {
    raw: NonNull<ibv_ah>,
}

impl AddressHandle {
    pub(crate) fn name(&self) -> AddressName {
        AddressName(self.raw)
    }
}

macro_rules! from_any_thread {
    ($($name:ident)*) => {
        $(
            // SAFETY: an address for the library, which takes its objects from any thread.
            unsafe impl Send for $name {}
            // SAFETY: as for `Send`.
            unsafe impl Sync for $name {}
        )*
    };
}

from_any_thread! { MemoryWindow AddressHandle WindowName RegionName AddressName }
