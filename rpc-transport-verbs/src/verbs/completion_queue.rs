//! Where work requests are reported when they have ended.

use std::ops::Deref;
use std::sync::Arc;

use super::context::Context;
use super::error::VerbsError;
use super::work_completion::WorkCompletion;
use crate::provider;

/// A completion queue, in the hands of the one who polls it. Destroyed when it, its handles and all
/// queue pairs that complete to it are gone.
#[derive(Debug)]
pub struct CompletionQueue {
    handle: CompletionQueueHandle,
}

/// Names a completion queue when a queue pair is created, also on another thread than the one that
/// polls it.
#[derive(Clone, Debug)]
pub struct CompletionQueueHandle {
    pub(super) raw: Arc<provider::CompletionQueue>,
}

/// A queue in hand serves wherever its handle does.
impl Deref for CompletionQueue {
    type Target = CompletionQueueHandle;

    fn deref(&self) -> &CompletionQueueHandle {
        &self.handle
    }
}

impl CompletionQueue {
    pub(super) fn new(context: &Context, depth: usize) -> Result<Self, VerbsError> {
        let raw = Arc::new(context.raw.create_cq(depth)?);
        Ok(Self {
            handle: CompletionQueueHandle { raw },
        })
    }

    /// Appends at most `max` completions to `out`, in the order in which they came, and says how
    /// many. Never blocks; allocates only if `out` has no room for `max` more.
    ///
    /// Completions of one queue pair's send queue come in order, and so do those of its receives;
    /// across queues there is no order.
    #[inline]
    pub fn poll(&mut self, out: &mut Vec<WorkCompletion>, max: usize) -> Result<usize, VerbsError> {
        self.raw.poll(out, max)
    }

    /// A handle to give away.
    pub fn handle(&self) -> CompletionQueueHandle {
        self.handle.clone()
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
