//! A registered region of either provider.

use std::ptr::NonNull;

#[cfg(feature = "rdma")]
use super::rdma;
use super::{RegionName, forward, soft};
use crate::types::{LocalKey, RemoteKey};

#[derive(Debug)]
pub(crate) enum MemoryRegion {
    Soft(soft::MemoryRegion),
    #[cfg(feature = "rdma")]
    Rdma(rdma::MemoryRegion),
}

impl MemoryRegion {
    /// Returns the first of `len` zeroed bytes, which stay mapped until the region is dropped.
    pub(crate) fn start(&self) -> NonNull<u8> {
        forward!(self, region => region.start())
    }

    pub(crate) fn len(&self) -> usize {
        forward!(self, region => region.len())
    }

    pub(crate) fn local_key(&self) -> LocalKey {
        forward!(self, region => region.local_key())
    }

    pub(crate) fn remote_key(&self) -> RemoteKey {
        forward!(self, region => region.remote_key())
    }

    #[cfg(feature = "shim")]
    pub(crate) fn has_window(&self) -> bool {
        match self {
            Self::Soft(region) => region.has_window(),
            // The device itself refuses to deregister it.
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => false,
        }
    }

    pub(crate) fn name(&self) -> RegionName {
        match self {
            Self::Soft(region) => RegionName::Soft(region.local_key()),
            #[cfg(feature = "rdma")]
            Self::Rdma(region) => RegionName::Rdma(region.name()),
        }
    }
}
