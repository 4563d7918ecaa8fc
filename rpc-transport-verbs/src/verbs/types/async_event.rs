//! What happens to an object without having been asked for.

use super::queue_pair_attributes::QpNum;

/// Names a shared receive queue in an [`AsyncEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqNum(pub u32);

/// An asynchronous event of a context (`enum ibv_event_type`). Each is given to one reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overran; it and its queue pairs are dead.
    CompletionQueueError {
        /// The number that [`CompletionQueue::number`](crate::verbs::CompletionQueue::number) says.
        cq: u32,
    },
    /// A queue pair failed in a way that no completion can tell.
    QpFatal {
        /// Which.
        qp_num: QpNum,
    },
    /// A peer sent a queue pair a request that is not permitted; it is in error.
    QpRequestError {
        /// Which.
        qp_num: QpNum,
    },
    /// A peer's request failed a protection check; the queue pair is in error.
    QpAccessError {
        /// Which.
        qp_num: QpNum,
    },
    /// A message came to a queue pair that is ready to receive but not yet to send.
    CommunicationEstablished {
        /// Which.
        qp_num: QpNum,
    },
    /// A queue pair in SQD with `notify_drained` has nothing under way any more.
    SqDrained {
        /// Which.
        qp_num: QpNum,
    },
    /// A queue pair uses its alternate path now.
    PathMigrated {
        /// Which.
        qp_num: QpNum,
    },
    /// A queue pair could not change to its alternate path.
    PathMigrationError {
        /// Which.
        qp_num: QpNum,
    },
    /// A queue pair in error has taken its last receive from the shared receive queue, and has
    /// completed all that it had taken.
    QpLastWqeReached {
        /// Which.
        qp_num: QpNum,
    },
    /// Fewer receives than the limit are left. The limit is disarmed: arm it again after posting.
    SrqLimitReached {
        /// Which.
        srq: SrqNum,
    },
    /// A shared receive queue has failed: nothing can be received through it any more.
    SrqError {
        /// Which.
        srq: SrqNum,
    },
    /// The device has failed, and everything that was made from it.
    DeviceFatal,
    /// A port's link is up.
    PortActive {
        /// Which, from 1.
        port: u8,
    },
    /// A port's link is down.
    PortError {
        /// Which, from 1.
        port: u8,
    },
    /// A port has another local identifier.
    LidChange {
        /// Which, from 1.
        port: u8,
    },
    /// A port's table of partition keys changed.
    PkeyChange {
        /// Which, from 1.
        port: u8,
    },
    /// A port has another subnet manager.
    SmChange {
        /// Which, from 1.
        port: u8,
    },
    /// The subnet manager asks for a port's registrations again.
    ClientReregister {
        /// Which, from 1.
        port: u8,
    },
    /// A port's table of GIDs changed.
    GidChange {
        /// Which, from 1.
        port: u8,
    },
    /// A work queue of a kind that this layer does not make has failed.
    WorkQueueFatal,
    /// A port's link has another speed or width.
    DeviceSpeedChange {
        /// Which, from 1.
        port: u8,
    },
    /// An event that is newer than this layer, by its number.
    Unknown(i32),
}
