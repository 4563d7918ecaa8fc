//! Completion channels, on which armed completion queues raise events and threads sleep.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::context::Context;
use super::types::verbs_error::VerbsError;
use crate::provider;

/// A completion channel (`ibv_create_comp_channel(3)`), shared by any number of completion queues
/// of its context.
///
/// Several threads may use it at the same time: each event goes to one of them. The channel is
/// destroyed once it and all of its queues are dropped.
///
/// # Sleeping
///
/// ```text
///  1. cq.arm(…)                   from now on, a completion raises an event
///  2. cq.poll(…)                  earlier completions: if any, handle them and do not sleep
///  3. channel.wait(timeout)       sleeps; then poll until the queue is empty, and start over
/// ```
///
/// Step 2 is required: a completion that arrives before step 1 raises no event, and without step 2
/// the thread would sleep over it. Each arming is good for one event. If a completion is polled
/// after it raised its event, the event remains, so a thread may find the queue empty after an
/// event.
///
/// # Without blocking
///
/// The channel's file ([`AsFd`]) is readable while there may be an event. Add it to an event loop
/// (level triggered) and do steps 1 and 2 as above. When the file is readable, call
/// [`wait`](Self::wait) with a timeout of zero until it returns `None`. Only watch the file:
/// reading from it directly takes events away from the device's library. On the software device the
/// file is also readable when there is work for queues other than the armed ones; `wait` does that
/// work and then returns `None`.
///
/// # Acknowledging
///
/// Users don't acknowledge events. A device does not destroy a queue before every event taken from
/// it is acknowledged (`ibv_ack_cq_events(3)`), and waiting for a forgotten acknowledgement would
/// never end. This layer therefore counts the events, acknowledges many at a time, and acknowledges
/// the rest when the queue is dropped. Dropping a queue never waits for its user, and discards its
/// pending events.
#[derive(Debug)]
pub struct CompletionChannel {
    pub(super) raw: provider::CompletionChannel,
}

impl Context {
    /// Creates a completion channel (`ibv_create_comp_channel(3)`), on which completion queues
    /// raise events and threads sleep until one is raised. It uses a few file descriptors.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Os`] if the operating system refuses them, [`VerbsError::Forked`] in a forked
    /// child.
    pub fn create_comp_channel(&self) -> Result<CompletionChannel, VerbsError> {
        CompletionChannel::new(self)
    }
}

impl CompletionChannel {
    fn new(context: &Context) -> Result<Self, VerbsError> {
        Ok(Self {
            raw: context.raw.create_comp_channel()?,
        })
    }

    /// Sleeps until a queue has raised an event, takes the event and returns the queue's
    /// [`number`](super::CompletionQueue::number) (`ibv_get_cq_event(3)`). Returns `None` after
    /// `timeout`, never earlier; without a timeout it waits indefinitely.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Os`] if the system cannot wait, or if the device was removed from the machine;
    /// [`VerbsError::Forked`] in a forked child.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<u32>, VerbsError> {
        self.raw.wait(timeout)
    }
}

/// Readable while there may be an event. See [`CompletionChannel`] for how to use it.
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.fd()
    }
}
