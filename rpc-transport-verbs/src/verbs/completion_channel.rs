//! Where armed completion queues raise events, and threads sleep until they do.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::context::Context;
use super::types::error::VerbsError;
use crate::provider;

/// A completion channel, shared by any number of completion queues of its context.
///
/// Used from any thread, and by several at a time: each event goes to one of them. It is destroyed when
/// it and all of its queues are gone.
///
/// # Sleeping
///
/// ```text
///  1. cq.arm(…)                   what comes from now on raises an event
///  2. cq.poll(…)                  what came before: if there is any, handle it, and do not sleep
///  3. channel.wait(timeout)       sleeps; then poll until the queue is empty, and begin again
/// ```
///
/// The second step is what makes it whole: a completion that came before the first raises no event, and
/// without the second it would be slept over. Each arming is good for one event. A completion that was
/// polled after its event had been raised leaves the event behind, so that an event may find an empty
/// queue.
///
/// # Without blocking
///
/// The channel's file ([`AsFd`]) is readable while there may be an event. Put it into an event loop
/// (level triggered), do the first two steps as above, and when it is readable call
/// [`wait`](Self::wait) with a timeout of zero until it returns `None`. The file is for being watched:
/// reading from it directly takes events away from the device's library. On the software device it is also
/// readable when there is work to be done for others than the armed queues; `wait` does that work, and
/// then says `None`.
///
/// # Acknowledging
///
/// Nobody has to. A device does not destroy a queue before every event of it that was taken has been
/// acknowledged (`ibv_ack_cq_events`), and it is easy to wait for that for ever; so this layer keeps the
/// count, acknowledges many at a time, and the rest when the queue is dropped. Dropping a queue
/// never waits for its user. Its events that nobody has taken go with it.
#[derive(Debug)]
pub struct CompletionChannel {
    pub(super) raw: provider::CompletionChannel,
}

impl CompletionChannel {
    pub(super) fn new(context: &Context) -> Result<Self, VerbsError> {
        Ok(Self {
            raw: context.raw.create_comp_channel()?,
        })
    }

    /// Sleeps until a queue raises an event, or has already, and takes the event: the queue's
    /// [`number`](super::CompletionQueue::number). `None` after `timeout`; without one it waits as long as
    /// it takes. Never returns early.
    ///
    /// # Errors
    ///
    /// What the system says, when it cannot wait or the device has been taken out of the machine; in the
    /// child of a fork, [`VerbsError::Forked`].
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
