//! Completion queues, which report work requests that have ended.

use std::ops::Deref;
use std::sync::Arc;

use super::completion_channel::CompletionChannel;
use super::context::Context;
use super::types::busy::Busy;
use super::types::verbs_error::VerbsError;
use super::types::work_completion::WorkCompletion;
use crate::provider;

/// A completion queue (`ibv_create_cq(3)`), owned by the thread that polls it. It is destroyed once
/// it, its handles and all queue pairs that complete to it are dropped.
#[derive(Debug)]
pub struct CompletionQueue {
    handle: CompletionQueueHandle,
    /// Completions that are polled and not returned yet.
    held: provider::HeldCompletions,
}

/// A handle with which any thread can create queue pairs that complete to this queue.
#[derive(Clone, Debug)]
pub struct CompletionQueueHandle {
    pub(super) raw: Arc<provider::CompletionQueue>,
}

/// Makes the methods of the handle available on the queue.
impl Deref for CompletionQueue {
    type Target = CompletionQueueHandle;

    fn deref(&self) -> &CompletionQueueHandle {
        &self.handle
    }
}

impl Context {
    /// Creates a completion queue of at least `depth` entries (`ibv_create_cq(3)`).
    ///
    /// Size it to the sum of the depths of all queues that complete to it. If one completion too
    /// many arrives, the completion queue overruns and fails, and its queue pairs fail with it.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] if the device does not support this depth,
    /// [`VerbsError::Exhausted`], [`VerbsError::QueueMemory`] or [`VerbsError::Os`] if resources
    /// run out, [`VerbsError::Forked`] in a forked child.
    pub fn create_cq(&self, depth: usize) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::new(self, depth, None, 0)
    }

    /// Creates a completion queue that raises events on `channel`: one event each time that it was
    /// armed ([`CompletionQueue::arm`]). Several queues may share a channel. A queue that is not
    /// armed has no extra cost.
    ///
    /// # Errors
    ///
    /// [`VerbsError::ForeignObject`] if the channel belongs to another context; otherwise as for
    /// [`create_cq`](Self::create_cq).
    pub fn create_cq_with_channel(
        &self,
        depth: usize,
        channel: &CompletionChannel,
    ) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::new(self, depth, Some(channel), 0)
    }

    /// Creates a completion queue with or without a channel on a completion vector, which is the
    /// interrupt that reports the queue's events. The other methods take vector 0. Each vector
    /// interrupts a core of its own, as a rule, so queues whose threads sleep on different cores want
    /// different vectors.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] if the device has no such vector: it has
    /// [`num_comp_vectors`](super::DeviceAttributes::num_comp_vectors). Otherwise as for
    /// [`create_cq_with_channel`](Self::create_cq_with_channel).
    pub fn create_cq_on(
        &self,
        depth: usize,
        channel: Option<&CompletionChannel>,
        vector: u32,
    ) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::new(self, depth, channel, vector)
    }
}

impl CompletionQueue {
    fn new(
        context: &Context,
        depth: usize,
        channel: Option<&CompletionChannel>,
        vector: u32,
    ) -> Result<Self, VerbsError> {
        let channel = channel.map(|channel| &channel.raw);
        let raw = Arc::new(context.raw.create_cq(depth, channel, vector)?);
        Ok(Self {
            handle: CompletionQueueHandle { raw },
            held: provider::HeldCompletions::default(),
        })
    }

    /// Appends at most `max` completions to `out`, in order of arrival, and returns their number
    /// (`ibv_poll_cq(3)`). Never blocks; allocates only if `out` lacks capacity for `max` more.
    ///
    /// Completions of one send queue arrive in order, and so do those of one queue pair's receives.
    /// Across queues there is no order.
    ///
    /// # Errors
    ///
    /// [`VerbsError::CompletionQueueOverrun`] if the software device's queue overran: it is no
    /// longer usable, nor are its queue pairs (RDMA devices report an overrun by
    /// [`AsyncEvent::CompletionQueueError`](super::AsyncEvent::CompletionQueueError) instead).
    /// [`VerbsError::Os`] if the driver fails, [`VerbsError::Forked`] in a forked child.
    #[inline]
    pub fn poll(&mut self, out: &mut Vec<WorkCompletion>, max: usize) -> Result<usize, VerbsError> {
        self.handle.raw.poll(&mut self.held, out, max)
    }

    /// Returns the next completion, if there is one (`ibv_poll_cq(3)`). Never blocks and never
    /// allocates. Faster than [`poll`](Self::poll) if the queue is mostly empty or has few
    /// completions; the order is the same, and both may be used on one queue.
    ///
    /// # Errors
    ///
    /// As for [`poll`](Self::poll).
    #[inline(always)]
    pub fn poll_one(&mut self) -> Result<Option<WorkCompletion>, VerbsError> {
        self.handle.raw.poll_one(&mut self.held)
    }

    /// Requests one event on the queue's [`CompletionChannel`] for the next completion
    /// (`ibv_req_notify_cq(3)`): either any completion, or a *solicited* one, which is a receive
    /// whose sender set [`SendRequest::solicited`](super::SendRequest::solicited), or any failed
    /// request.
    ///
    /// Completions that arrived earlier raise no event, so poll the queue until it is empty after
    /// arming and before waiting on its channel. Completions that this poll finds may already have raised
    /// the event. An event uses up the arming. Arming again before that has no effect, except that
    /// arming for any completion overrides arming for solicited ones, in either order.
    ///
    /// Don't arm a queue that is polled continuously: arming may cost a system call, and so does
    /// the first message after it.
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoCompletionChannel`] if the queue was created without one, [`VerbsError::Os`]
    /// if the driver fails, [`VerbsError::Forked`] in a forked child.
    pub fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.raw.arm(solicited_only)
    }

    /// Changes the depth to at least `depth` entries (`ibv_resize_cq(3)`). Pending completions
    /// remain.
    ///
    /// # Errors
    ///
    /// * [`VerbsError::OutOfRange`] if the device does not support this depth.
    /// * [`VerbsError::OutOfRange`] (software device) or [`VerbsError::InvalidArgument`] (RDMA
    ///   devices) if the queue holds more completions than `depth`.
    /// * [`VerbsError::NotSupported`] if the device cannot resize queues.
    /// * [`VerbsError::Os`] if the driver fails, [`VerbsError::Forked`] in a forked child.
    pub fn resize(&mut self, depth: usize) -> Result<(), VerbsError> {
        self.raw.resize(depth)
    }

    /// Destroys the queue (`ibv_destroy_cq(3)`).
    ///
    /// # Errors
    ///
    /// [`Busy`], with the queue, while there are handles of it or queue pairs that complete to it.
    pub fn destroy(self) -> Result<(), Busy<Self>> {
        let Self { handle, held } = self;
        Busy::unless_sole("destroy_cq", handle.raw, |raw| Self {
            handle: CompletionQueueHandle { raw },
            held,
        })
    }

    /// Returns a handle for use by other threads.
    pub fn handle(&self) -> CompletionQueueHandle {
        self.handle.clone()
    }

    /// Returns the number of entries: at least as many as requested.
    pub fn capacity(&self) -> usize {
        self.raw.capacity()
    }

    /// Returns the number that identifies the queue in
    /// [`AsyncEvent::CompletionQueueError`](super::AsyncEvent::CompletionQueueError) and in the
    /// result of [`CompletionChannel::wait`].
    pub fn number(&self) -> u32 {
        self.raw.number()
    }
}
