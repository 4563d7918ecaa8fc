//! Asynchronous events: `ibv_get_async_event(3)`.

use super::queue_pair_attributes::QpNum;

/// The number of a shared receive queue in an [`AsyncEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqNum(pub u32);

/// An asynchronous event of a context (`enum ibv_event_type`). Each event is delivered to one
/// reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overran; it and its queue pairs are unusable.
    CompletionQueueError {
        /// The number that [`CompletionQueue::number`](crate::CompletionQueue::number)
        /// returns.
        cq: u32,
    },
    /// A queue pair failed in a way that no completion reports.
    QpFatal {
        /// The queue pair.
        qp_num: QpNum,
    },
    /// A peer sent an invalid request to a queue pair, which is now in error.
    QpRequestError {
        /// The queue pair.
        qp_num: QpNum,
    },
    /// A peer's request failed a protection check; the queue pair is now in error.
    QpAccessError {
        /// The queue pair.
        qp_num: QpNum,
    },
    /// A message arrived at a queue pair in RTR.
    CommunicationEstablished {
        /// The queue pair.
        qp_num: QpNum,
    },
    /// The send queue of a queue pair in SQD with `notify_drained` has no more requests in flight.
    SqDrained {
        /// The queue pair.
        qp_num: QpNum,
    },
    /// A queue pair has migrated to its alternate path.
    PathMigrated {
        /// The queue pair.
        qp_num: QpNum,
    },
    /// A queue pair could not migrate to its alternate path.
    PathMigrationError {
        /// The queue pair.
        qp_num: QpNum,
    },
    /// A queue pair in error has taken its last receive from the shared receive queue, and has
    /// completed all receives that it had taken.
    QpLastWqeReached {
        /// The queue pair.
        qp_num: QpNum,
    },
    /// Fewer receives are left than the limit. The limit is now disarmed: arm it again after
    /// posting.
    SrqLimitReached {
        /// The shared receive queue.
        srq: SrqNum,
    },
    /// A shared receive queue has failed and delivers no more messages.
    SrqError {
        /// The shared receive queue.
        srq: SrqNum,
    },
    /// The device has failed, and so has every object created from it.
    DeviceFatal,
    /// A port's link is up.
    PortActive {
        /// The port, from 1.
        port: u8,
    },
    /// A port's link is down.
    PortError {
        /// The port, from 1.
        port: u8,
    },
    /// A port's local identifier (LID) changed.
    LidChange {
        /// The port, from 1.
        port: u8,
    },
    /// A port's partition key table changed.
    PkeyChange {
        /// The port, from 1.
        port: u8,
    },
    /// A port's subnet manager changed.
    SmChange {
        /// The port, from 1.
        port: u8,
    },
    /// The subnet manager requests reregistration of a port's clients.
    ClientReregister {
        /// The port, from 1.
        port: u8,
    },
    /// A port's GID table changed.
    GidChange {
        /// The port, from 1.
        port: u8,
    },
    /// A work queue of a type that this layer does not create has failed.
    WorkQueueFatal,
    /// The speed or width of a port's link changed.
    DeviceSpeedChange {
        /// The port, from 1.
        port: u8,
    },
    /// An event unknown to this layer, by its number.
    Unknown(i32),
}
