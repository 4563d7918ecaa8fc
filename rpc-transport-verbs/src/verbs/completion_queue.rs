//! Where work requests are reported when they have ended.

use std::sync::Arc;

use super::context::Context;
use super::error::VerbsError;
use super::work_completion::WorkCompletion;
use crate::provider;

/// A completion queue. Destroyed when it and all queue pairs that complete to it are gone.
#[derive(Debug)]
pub struct CompletionQueue {
    pub(super) raw: Arc<provider::CompletionQueue>,
}

impl CompletionQueue {
    pub(super) fn new(context: &Context, depth: usize) -> Result<Self, VerbsError> {
        Ok(Self {
            raw: Arc::new(context.raw.create_cq(depth)?),
        })
    }

    /// Appends at most `max` completions to `out`, in the order in which they came, and says how
    /// many. Never blocks; allocates only if `out` has no room for `max` more.
    ///
    /// Completions of one queue pair's send queue come in order, and so do those of its receives;
    /// across queues there is no order.
    pub fn poll(&mut self, out: &mut Vec<WorkCompletion>, max: usize) -> Result<usize, VerbsError> {
        self.raw.poll(out, max)
    }

    /// Entries it has: at least as many as were asked for.
    pub fn capacity(&self) -> usize {
        self.raw.capacity()
    }

    /// Names it in [`AsyncEvent::CompletionQueueError`](super::AsyncEvent::CompletionQueueError).
    pub fn number(&self) -> u32 {
        self.raw.number()
    }
}
