//! A completion channel of either provider.

use std::os::fd::BorrowedFd;
use std::time::Duration;

#[cfg(feature = "rdma")]
use super::rdma;
use super::{forward, soft};
use crate::types::VerbsError;

#[derive(Debug)]
pub(crate) enum CompletionChannel {
    Soft(soft::CompletionChannel),
    #[cfg(feature = "rdma")]
    Rdma(rdma::CompletionChannel),
}

impl CompletionChannel {
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<Option<u32>, VerbsError> {
        forward!(self, channel => channel.wait(timeout))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        forward!(self, channel => channel.fd())
    }
}
