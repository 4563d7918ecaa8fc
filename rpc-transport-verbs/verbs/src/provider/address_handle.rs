//! An address handle of either provider.

#[cfg(feature = "rdma")]
use super::rdma;
use super::{AddressName, soft};

#[derive(Debug)]
pub(crate) enum AddressHandle {
    Soft(soft::AddressHandle),
    #[cfg(feature = "rdma")]
    Rdma(rdma::AddressHandle),
}

impl AddressHandle {
    pub(crate) fn name(&self) -> AddressName {
        match self {
            Self::Soft(handle) => AddressName::Soft(handle.name()),
            #[cfg(feature = "rdma")]
            Self::Rdma(handle) => AddressName::Rdma(handle.name()),
        }
    }
}
