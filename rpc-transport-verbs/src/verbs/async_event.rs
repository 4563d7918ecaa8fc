//! What happens to an object without having been asked for.

use super::queue_pair_attributes::QpNum;

/// Names a shared receive queue in an [`AsyncEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqNum(pub u32);

/// An asynchronous event of a context. Each is given to one reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overran; it and its queue pairs are dead.
    CompletionQueueError {
        /// The number that [`CompletionQueue::number`](super::CompletionQueue::number) says.
        cq: u32,
    },
    /// A queue pair failed in a way that no completion can tell.
    QpFatal {
        /// Which.
        qp_num: QpNum,
    },
    /// A queue pair in SQD with `notify_drained` has nothing under way any more.
    SqDrained {
        /// Which.
        qp_num: QpNum,
    },
    /// A queue pair in error has taken its last receive from the shared receive queue, and has
    /// completed all that it had taken.
    QpLastWqeReached {
        /// Which.
        qp_num: QpNum,
    },
    /// A message came to a queue pair that is ready to receive but not yet to send.
    CommunicationEstablished {
        /// Which.
        qp_num: QpNum,
    },
    /// Fewer receives than the limit are left. The limit is disarmed: arm it again after posting.
    SrqLimitReached {
        /// Which.
        srq: SrqNum,
    },
    /// An event that is newer than this layer.
    Unknown(i32),
}
