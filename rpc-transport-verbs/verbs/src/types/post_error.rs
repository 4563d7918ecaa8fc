//! Why work requests were not posted.

use std::io;

use super::forked::Forked;
use super::keys::RemoteKey;
use super::queue_pair_state::{QpState, QpType};
use super::window_type::WindowType;

/// A chain of work requests was not posted completely.
///
/// The requests before index `taken` are posted. The request at `taken` and all later ones are not,
/// and remain in the caller's list, which now begins with the rejected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {taken} of the list was rejected: {reason}")]
pub struct PostError {
    /// The number of posted requests, which is the index of the rejected one.
    pub taken: usize,
    /// Why that request was rejected.
    pub reason: PostErrorReason,
}

/// Why a work request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorReason {
    /// All entries of the queue are in use (`ENOMEM`). An entry of a send queue becomes free only
    /// once a completion that covers it has been polled and completed.
    #[error("all {capacity} entries of the queue are in use")]
    QueueFull {
        /// Depth of the queue.
        capacity: usize,
    },
    /// The queue pair's state does not permit the request (`EINVAL`).
    #[error("the queue pair is in {state}")]
    State {
        /// The queue pair's state.
        state: QpState,
    },
    /// The message is longer than its slot (`EINVAL`).
    #[error("{len} bytes do not fit the slot of {slot_len} bytes")]
    TooLong {
        /// Length of the message in bytes.
        len: usize,
        /// Length of the slot in bytes.
        slot_len: usize,
    },
    /// The message is too long to be sent inline (`EINVAL`).
    #[error("{len} bytes are more than the {limit} that can be inline")]
    InlineTooLong {
        /// Length of the message in bytes.
        len: usize,
        /// The queue pair's `max_inline_data`.
        limit: usize,
    },
    /// Queue pairs of this type do not support the operation (`EINVAL`).
    #[error("a queue pair of type {qp_type} cannot {operation}")]
    NotForType {
        /// The operation: "RDMA READ".
        operation: &'static str,
        /// The queue pair's type.
        qp_type: QpType,
    },
    /// The request has more scatter/gather elements than were granted (`EINVAL`).
    #[error("{count} scatter/gather elements are more than the {limit} that were granted")]
    TooManyElements {
        /// Elements of the request.
        count: usize,
        /// The queue pair's `max_send_sge` or `max_recv_sge`.
        limit: usize,
    },
    /// The operation sends no local bytes, so it cannot be inline (`EINVAL`).
    #[error("{operation} cannot be inline: it sends no bytes of this side")]
    NotInline {
        /// The operation.
        operation: &'static str,
    },
    /// The result of an atomic needs exactly eight bytes (`EINVAL`).
    #[error("{operation}: the result has eight bytes, and the elements have {len}")]
    AtomicLength {
        /// The operation.
        operation: &'static str,
        /// Total length of the elements in bytes.
        len: usize,
    },
    /// The remote address of an atomic is not a multiple of eight (`EINVAL`). Some devices leave
    /// this check to the peer's device.
    #[error("the address of an atomic is a multiple of eight, and {addr:#x} is not")]
    AtomicAlignment {
        /// The remote address.
        addr: u64,
    },
    /// The operation needs a nonzero `max_rd_atomic`, which is 0 for this queue pair (`EINVAL`). On
    /// some devices the request would wait forever.
    #[error("{operation}: the queue pair's max_rd_atomic is 0, so it would wait for ever")]
    NoReads {
        /// The operation.
        operation: &'static str,
    },
    /// A datagram does not fit one packet of the port's MTU (`EINVAL`). Some devices accept it and
    /// complete it in error.
    #[error("a datagram of {len} bytes exceeds the {limit} bytes that the port accepts")]
    DatagramTooLong {
        /// Length of the message in bytes.
        len: usize,
        /// The port's MTU in bytes.
        limit: usize,
    },
    /// A datagram has no destination (`EINVAL`).
    #[error("a datagram needs a destination: WorkRequest::to")]
    NoDestination,
    /// A request on a connected queue pair has a destination (`EINVAL`).
    #[error(
        "a queue pair of type {qp_type} sends to the peer that it is connected to, so a destination is not allowed"
    )]
    UselessDestination {
        /// The queue pair's type.
        qp_type: QpType,
    },
    /// The range for a window is not inside the region, or ends before it begins (`EINVAL`). Some
    /// devices bind such a window.
    #[error("a window cannot be bound to {start}..{end}: the bytes of the region are 0..{len}")]
    WindowRange {
        /// Index of the first byte.
        start: usize,
        /// Index after the last byte.
        end: usize,
        /// Length of the region in bytes.
        len: usize,
    },
    /// Windows of this type must be bound by another call (`EINVAL`).
    #[error("a memory window of type {} is bound by {by}", *.window_type as u32)]
    WindowType {
        /// The window's type.
        window_type: WindowType,
        /// The call that binds it.
        by: &'static str,
    },
    /// The upper 24 bits of the key are not those of the memory window (`EINVAL`). Only the lower
    /// eight bits may be chosen.
    #[error("the key {:#x} is not of the window that has {:#x}: the upper 24 bits are the window's", .key.0, .window.0)]
    WindowKey {
        /// The key passed.
        key: RemoteKey,
        /// The window's current key.
        window: RemoteKey,
    },
    /// The key to invalidate belongs to a window that is not bound (`EINVAL`). Most devices check
    /// this themselves and complete the request in error.
    #[error("the key {:#x} is of a memory window that is bound to nothing", .key.0)]
    WindowNotBound {
        /// The key.
        key: RemoteKey,
    },
    /// An object in the request belongs to another protection domain (`EINVAL`). Some devices check
    /// this themselves and complete the request in error.
    #[error("{object} belongs to another protection domain")]
    OtherDomain {
        /// The object.
        object: &'static str,
    },
    /// An object in the request belongs to another device or context (`EINVAL`).
    #[error("{object} belongs to another context")]
    ForeignObject {
        /// The object.
        object: &'static str,
    },
    /// An object in the request belongs to another protection domain than the queue pair
    /// (`EINVAL`).
    #[error("{object} belongs to another protection domain than the queue pair")]
    ForeignDomain {
        /// The object.
        object: &'static str,
    },
    /// The device rejected the request for another reason.
    #[error("{}", io::Error::from_raw_os_error(*.errno))]
    Refused {
        /// The error number.
        errno: i32,
    },
    /// The queue pair receives from a shared receive queue, to which receives must be posted
    /// instead (`EINVAL`).
    #[error("the queue pair receives from a shared receive queue; post there")]
    HasSharedReceiveQueue,
    /// The process was forked after the device was opened.
    #[error(transparent)]
    Forked(#[from] Forked),
}
