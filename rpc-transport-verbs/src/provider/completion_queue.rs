//! A completion queue of either provider.

#[cfg(feature = "rdma")]
use super::rdma;
use super::{forward, soft};
use crate::verbs::types::{VerbsError, WorkCompletion};

#[derive(Debug)]
pub(crate) enum CompletionQueue {
    Soft(soft::CompletionQueue),
    #[cfg(feature = "rdma")]
    Rdma(rdma::CompletionQueue),
}

impl CompletionQueue {
    pub(crate) fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        forward!(self, cq => cq.arm(solicited_only))
    }

    #[inline]
    pub(crate) fn poll(
        &self,
        out: &mut Vec<WorkCompletion>,
        max: usize,
    ) -> Result<usize, VerbsError> {
        forward!(self, cq => cq.poll(out, max))
    }

    /// Takes the next completion, if there is one.
    #[inline]
    pub(crate) fn poll_one(&self) -> Result<Option<WorkCompletion>, VerbsError> {
        match self {
            Self::Soft(cq) => cq.poll_one(),
            #[cfg(feature = "rdma")]
            Self::Rdma(cq) => {
                let mut completions = Vec::new();
                cq.poll(&mut completions, 1)?;
                Ok(completions.pop())
            }
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
