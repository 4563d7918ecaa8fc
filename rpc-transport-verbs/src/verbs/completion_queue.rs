//! Where work requests are reported when they have ended.

use std::ops::Deref;
use std::sync::Arc;

use super::completion_channel::CompletionChannel;
use super::context::Context;
use super::types::error::{Busy, VerbsError};
use super::types::work_completion::WorkCompletion;
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
    pub(super) fn new(
        context: &Context,
        depth: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<Self, VerbsError> {
        let channel = channel.map(|channel| &channel.raw);
        let raw = Arc::new(context.raw.create_cq(depth, channel)?);
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

    /// Asks for one event, at the queue's [`CompletionChannel`], when the next completion comes: the
    /// next one at all, or the next that is *solicited* (a receive whose sender asked for that with
    /// [`SendRequest::solicited`](super::SendRequest::solicited), or anything that failed). This is
    /// `ibv_req_notify_cq`.
    ///
    /// What came before raises none, so that the queue has to be polled once more after this and before
    /// its channel is waited at; the completions that this poll finds may have raised the event already.
    /// An arming is used up by its event. Arming again before that changes nothing, but that any
    /// completion goes over solicited ones, whichever was asked for first.
    ///
    /// Not for the data path of a queue that is polled all the time: it may cost a system call, and the
    /// first message after it does.
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoCompletionChannel`] if the queue was created without one; what the device's driver
    /// says; in the child of a fork, [`VerbsError::Forked`].
    pub fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.raw.arm(solicited_only)
    }

    /// Changes its depth to at least `depth` (`ibv_resize_cq`); what is in it stays.
    ///
    /// # Errors
    ///
    /// If it holds more completions than that, or the device cannot.
    pub fn resize(&mut self, depth: usize) -> Result<(), VerbsError> {
        self.raw.resize(depth)
    }

    /// Ends it (`ibv_destroy_cq`).
    ///
    /// # Errors
    ///
    /// [`Busy`], with the queue, while there are handles of it, or queue pairs that complete to it.
    pub fn destroy(self) -> Result<(), Busy<Self>> {
        Busy::unless_sole("destroy_cq", self.handle.raw, |raw| Self {
            handle: CompletionQueueHandle { raw },
        })
    }

    /// A handle to give away.
    pub fn handle(&self) -> CompletionQueueHandle {
        self.handle.clone()
    }

    /// Entries it has: at least as many as were asked for.
    pub fn capacity(&self) -> usize {
        self.raw.capacity()
    }

    /// Names it in [`AsyncEvent::CompletionQueueError`](super::AsyncEvent::CompletionQueueError), and
    /// in what [`CompletionChannel::wait`] returns.
    pub fn number(&self) -> u32 {
        self.raw.number()
    }
}
