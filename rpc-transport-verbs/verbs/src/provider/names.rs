//! How requests name the objects of either provider.

#[cfg(feature = "rdma")]
use super::rdma::names as rdma;
use super::soft::names as soft;
use crate::types::LocalKey;

/// Identifies a memory window in a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WindowName {
    Soft(soft::WindowName),
    #[cfg(feature = "rdma")]
    Rdma(rdma::WindowName),
}

/// Identifies a region in a request that binds a window to it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RegionName {
    Soft(LocalKey),
    #[cfg(feature = "rdma")]
    Rdma(rdma::RegionName),
}

/// Identifies an address handle in a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AddressName {
    Soft(soft::AddressName),
    #[cfg(feature = "rdma")]
    Rdma(rdma::AddressName),
}

/// Defines `of_soft`, which returns the software device's own identifier, or `None` for an object
/// of another provider.
macro_rules! of_soft {
    ($($name:ident => $own:ty;)*) => {
        $(impl $name {
            pub(super) fn of_soft(self) -> Option<$own> {
                match self {
                    Self::Soft(name) => Some(name),
                    #[cfg(feature = "rdma")]
                    Self::Rdma(_) => None,
                }
            }
        })*
    };
}

of_soft! {
    WindowName => soft::WindowName;
    RegionName => LocalKey;
    AddressName => soft::AddressName;
}
