//! A completion queue of either provider.

#[cfg(feature = "rdma")]
use super::rdma;
use super::{forward, soft};
use crate::types::{VerbsError, WorkCompletion};

#[derive(Debug)]
pub(crate) enum CompletionQueue {
    Soft(soft::CompletionQueue),
    #[cfg(feature = "rdma")]
    Rdma(rdma::CompletionQueue),
}

/// Completions that were polled from a device and are not returned yet. They belong to the one
/// thread that polls the queue.
#[derive(Debug, Default)]
pub(crate) struct HeldCompletions {
    #[cfg(feature = "rdma")]
    rdma: rdma::HeldCompletions,
}

impl CompletionQueue {
    pub(crate) fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        forward!(self, cq => cq.arm(solicited_only))
    }

    /// Appends completions to `out`: first those in `held`, then those of the device.
    #[inline]
    pub(crate) fn poll(
        &self,
        held: &mut HeldCompletions,
        out: &mut Vec<WorkCompletion>,
        max: usize,
    ) -> Result<usize, VerbsError> {
        match self {
            Self::Soft(cq) => {
                let HeldCompletions { .. } = held;
                cq.poll(out, max)
            }
            #[cfg(feature = "rdma")]
            Self::Rdma(cq) => cq.poll(&mut held.rdma, out, max),
        }
    }

    /// Takes the next completion, if there is one: from `held`, or from the device.
    #[inline(always)]
    pub(crate) fn poll_one(
        &self,
        held: &mut HeldCompletions,
    ) -> Result<Option<WorkCompletion>, VerbsError> {
        match self {
            Self::Soft(cq) => {
                let HeldCompletions { .. } = held;
                cq.poll_one()
            }
            #[cfg(feature = "rdma")]
            Self::Rdma(cq) => cq.poll_one(&mut held.rdma),
        }
    }

    pub(crate) fn resize(&self, depth: usize) -> Result<(), VerbsError> {
        forward!(self, cq => cq.resize(depth))
    }

    pub(crate) fn capacity(&self) -> usize {
        forward!(self, cq => cq.capacity())
    }

    pub(crate) fn number(&self) -> u32 {
        forward!(self, cq => cq.number())
    }
}
