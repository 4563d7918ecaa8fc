//! Completion queues: handles to a context's completion-queue table.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::super::limits::in_range;
use crate::provider::soft::capacities::MAX_CQE;
use crate::provider::soft::context::channel_events::ChannelEvents;
use crate::provider::soft::context::state::Look;
use crate::provider::soft::process::node::domain::Domain;
use crate::provider::soft::reliable::poll::Overrun;
use crate::types::{VerbsError, WorkCompletion};

#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(super) domain: Arc<Domain>,
    pub(super) index: usize,
    pub(super) number: u32,
    pub(super) channel: Option<Arc<ChannelEvents>>,
}

impl CompletionQueue {
    pub(crate) fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        if self.channel.is_none() {
            return Err(VerbsError::NoCompletionChannel);
        }
        let mut state = self.domain.enter()?;
        state.arm(self.index, solicited_only);
        let is_idle = state.is_idle();
        drop(state);
        let node = &self.domain.node;
        // Relaxed: `Engine::tick` sets the flag before it enters the context, and the context's lock
        // orders the two.
        if !is_idle && node.ticks_slowly.load(Ordering::Relaxed) {
            node.wake_engine();
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn poll(
        &self,
        out: &mut Vec<WorkCompletion>,
        max: usize,
    ) -> Result<usize, VerbsError> {
        let mut state = self.domain.enter()?;
        let polled = state.poll(self.index, out, max);
        drop(state);
        polled.map_err(|Overrun| self.overrun())
    }

    /// Takes the next completion, if there is one.
    // Always inlined, as its callers are: a completion that is returned in memory is moved as a whole,
    // and the processor waits for that until the fields have been stored.
    #[inline(always)]
    pub(crate) fn poll_one(&self) -> Result<Option<WorkCompletion>, VerbsError> {
        let mut state = self.domain.enter()?;
        let commit = match state.look() {
            Look::Nothing => {
                // Released before the arms join, so that the compiler leaves out the caller's tests of
                // the outcome: an empty turn is seven instructions shorter.
                drop(state);
                return Ok(None);
            }
            Look::Message(commit) => Some(commit),
            Look::Unclear => None,
        };
        let mut completion = WorkCompletion::EMPTY;
        let polled = match commit {
            Some(commit) => state.take_message(self.index, commit, &mut completion),
            None => state.poll_general(self.index, &mut completion),
        };
        drop(state);
        match polled {
            Ok(true) => Ok(Some(completion)),
            Ok(false) => Ok(None),
            Err(Overrun) => Err(self.overrun()),
        }
    }

    #[cold]
    fn overrun(&self) -> VerbsError {
        VerbsError::CompletionQueueOverrun {
            capacity: self.capacity(),
        }
    }

    pub(crate) fn resize(&self, depth: usize) -> Result<(), VerbsError> {
        let mut state = self.domain.enter()?;
        let queues = &mut state.common.completion_queues;
        let len = queues.queue(self.index).len();
        in_range("resize_cq", "depth", depth, len.max(1), MAX_CQE)?;
        queues.set_capacity(self.index, depth);
        Ok(())
    }

    pub(crate) fn capacity(&self) -> usize {
        match self.domain.enter() {
            Ok(state) => state.common.completion_queues.queue(self.index).capacity(),
            // In the child of a fork no operation works, so no entry fits.
            Err(_) => 0,
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // The queue pairs keep this queue alive, so they are all gone.
        if let Ok(mut state) = self.domain.enter() {
            state.common.completion_queues.remove(self.index);
            drop(state);
            // Events of a destroyed queue are discarded.
            if let Some(channel) = &self.channel {
                channel.remove_queue(self.number);
            }
        }
    }
}
