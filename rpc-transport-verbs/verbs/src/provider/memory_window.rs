//! A memory window of either provider.

#[cfg(feature = "rdma")]
use super::rdma;
use super::{WindowName, forward, soft};
use crate::types::RemoteKey;

#[derive(Debug)]
pub(crate) enum MemoryWindow {
    Soft(soft::MemoryWindow),
    #[cfg(feature = "rdma")]
    Rdma(rdma::MemoryWindow),
}

impl MemoryWindow {
    /// Returns the key that the window was allocated with. It grants no access yet.
    pub(crate) fn first_key(&self) -> RemoteKey {
        forward!(self, window => window.first_key())
    }

    pub(crate) fn name(&self) -> WindowName {
        match self {
            Self::Soft(window) => WindowName::Soft(window.name()),
            #[cfg(feature = "rdma")]
            Self::Rdma(window) => WindowName::Rdma(window.name()),
        }
    }
}
