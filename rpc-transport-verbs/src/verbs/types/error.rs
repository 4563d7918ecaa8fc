//! Error types, one per family of calls. They contain data to match on, and their sources.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::access::Access;
use super::keys::RemoteKey;
use super::queue_pair_attributes::QpNum;
use super::queue_pair_state::{Attribute, QpState, QpType};
use super::window_type::WindowType;
use super::wr_id::WrId;

/// The process was forked after the device was opened. None of the device's objects works in the
/// child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the device was opened before fork(), and works in the parent only; a child has to start a program (exec) that opens its own"
)]
pub struct Forked;

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No device has this name.
    #[error(
        "there is no device named '{name}' (known here: {known}). Devices are named by the program, or by the environment variable VERBLINE_DEVICE"
    )]
    UnknownDevice {
        /// The requested name.
        name: String,
        /// The names of existing devices, separated by commas.
        known: String,
    },
    /// The device is an RDMA device, and this program was built without kernel verbs.
    #[error(
        "'{name}' is an RDMA device, and this program was built without kernel verbs: build it with the Cargo feature `rdma` of rpc-transport-verbs (docs/rdma.md says what that needs)"
    )]
    NotInThisBuild {
        /// The device.
        name: String,
    },
    /// The device is an iWARP device, which can connect through rdma_cm only.
    #[error(
        "'{name}' is an iWARP device. Verbline connects queue pairs itself, over its own TCP connection, which InfiniBand and RoCE permit and iWARP does not"
    )]
    Iwarp {
        /// The device.
        name: String,
    },
    /// libibverbs cannot be loaded.
    #[error(
        "RDMA devices need libibverbs, which cannot be loaded: {source}. Install it (on Debian and Ubuntu: apt install libibverbs1 ibverbs-providers)"
    )]
    LibraryMissing {
        /// The dynamic linker's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The kernel has the device, but libibverbs has no driver for it.
    #[error(
        "the kernel has the device '{name}', and libibverbs has no driver for it (it drives: {known}). Install the drivers (on Debian and Ubuntu: apt install ibverbs-providers)"
    )]
    NoUserDriver {
        /// The device.
        name: String,
        /// The devices for which it has a driver, separated by commas.
        known: String,
    },
    /// The device's file does not exist.
    #[error(
        "the device '{name}' has no file in /dev/infiniband: load the kernel's module (modprobe ib_uverbs), and where devices are hidden pass the file on (docker run --device=/dev/infiniband; PrivateDevices=no for a service of systemd)"
    )]
    NoDeviceFile {
        /// The device.
        name: String,
    },
    /// This user is not permitted to open the device's file.
    #[error(
        "the device '{name}' may not be opened by this user: {source}. Its file in /dev/infiniband needs read and write rights (the kernel gives them to everybody: `ls -l /dev/infiniband` shows whether they were taken away), and where devices are restricted the device has to be permitted (docker run --device=/dev/infiniband; DeviceAllow=char-infiniband_verbs rw for a service of systemd)"
    )]
    Permission {
        /// The device.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The operating system refused a resource or operation that the device needs.
    #[error("the device '{name}' cannot {action}: {source}")]
    Os {
        /// The device.
        name: String,
        /// The action that failed: "create its socket".
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The process was forked after its first device was opened.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why an object could not be created or queried. The call changed nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// A parameter is outside the range that the device supports (`EINVAL`).
    #[error("{call}: {parameter} = {value} is outside {min}..={max}")]
    OutOfRange {
        /// The verb.
        call: &'static str,
        /// The parameter's name.
        parameter: &'static str,
        /// The value passed.
        value: u64,
        /// The smallest valid value.
        min: u64,
        /// The largest valid value.
        max: u64,
    },
    /// An argument breaks a rule (`EINVAL`).
    #[error("{call}: {argument} = {value}: {reason}")]
    InvalidArgument {
        /// The verb.
        call: &'static str,
        /// The argument's name.
        argument: &'static str,
        /// The value passed, as a number.
        value: u64,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// A parameter is not a multiple of the required number (`EINVAL`).
    #[error("{call}: {parameter} = {value} is not a multiple of {multiple_of}")]
    Misaligned {
        /// The call.
        call: &'static str,
        /// The parameter's name.
        parameter: &'static str,
        /// The value passed.
        value: u64,
        /// The required divisor.
        multiple_of: u64,
    },
    /// Remote write and remote atomic access require local write access as well (`EINVAL`).
    #[error("register: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well")]
    RemoteWithoutLocalWrite,
    /// Memory of slots, whose bytes are handed out as slices, cannot be accessible to peers.
    #[error(
        "register: {access:?} opens memory to peers, which slots must not be: ProtectionDomain::expose registers such memory"
    )]
    ExposedSlots {
        /// The requested access rights.
        access: Access,
    },
    /// The device does not support the request (`EOPNOTSUPP`).
    #[error("{call}: the device '{device}' does not support {what}")]
    NotSupported {
        /// The verb.
        call: &'static str,
        /// The device.
        device: String,
        /// The missing feature, by the name of the field or type.
        what: &'static str,
    },
    /// Two objects that must belong to the same context do not.
    #[error("{call}: {object} belongs to another context")]
    ForeignObject {
        /// The verb.
        call: &'static str,
        /// The object of the other context.
        object: &'static str,
    },
    /// The device has no more resources of a kind (`ENOMEM`).
    #[error("{call}: all {limit} {what} of the device are in use")]
    Exhausted {
        /// The verb.
        call: &'static str,
        /// The exhausted resource: "queue pairs".
        what: &'static str,
        /// The number of resources that exist.
        limit: u64,
    },
    /// More completions arrived than the queue holds. The queue and its queue pairs are unusable.
    #[error(
        "the completion queue of {capacity} entries overran: its depth must be at least the sum of the depths of the queues that complete to it"
    )]
    CompletionQueueOverrun {
        /// Entries of the queue.
        capacity: usize,
    },
    /// The completion queue was created without a completion channel, so it cannot raise events.
    #[error(
        "req_notify_cq: the completion queue has no completion channel (create it with one: create_cq_with_channel)"
    )]
    NoCompletionChannel,
    /// The memory cannot be locked (`ENOMEM`, or `EPERM` if the limit is 0).
    #[error(
        "{} KiB cannot be registered: the limit of locked memory is {limit} ({source}). Raise it: `ulimit -l unlimited` in a shell whose hard limit permits it, `memlock` in /etc/security/limits.conf for logins, LimitMEMLOCK=infinity for a service of systemd, --ulimit memlock=-1 for a container",
        .len.div_ceil(1024)
    )]
    MemoryLocked {
        /// Number of bytes to register.
        len: usize,
        /// The current limit, in words.
        limit: String,
        /// The system's error.
        source: io::Error,
    },
    /// The memory of a queue could not be allocated (`ENOMEM`).
    #[error(
        "{call}: {source}. Many devices lock the memory of their queues, too: the limit of locked memory is {limit} (see `ulimit -l`)"
    )]
    QueueMemory {
        /// The verb.
        call: &'static str,
        /// The current limit of locked memory, in words.
        limit: String,
        /// The system's error.
        source: io::Error,
    },
    /// The device does not count by context.
    #[error(
        "the device does not count by context: see rnr_counters, and the port's counters in /sys/class/infiniband"
    )]
    NotCounted,
    /// The operating system or the device's driver refused the call.
    #[error("{call}: {source}")]
    Os {
        /// The verb.
        call: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The process was forked after the device was opened.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why a queue pair was not modified. All its attributes are unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// The transition does not exist.
    #[error("a queue pair cannot go from {from} to {to}")]
    Transition {
        /// The current state (or the one in `current_state`).
        from: QpState,
        /// The requested state.
        to: QpState,
    },
    /// A required attribute is missing.
    #[error("{from} to {to} needs the attribute {attribute}")]
    Missing {
        /// The current state.
        from: QpState,
        /// The requested state.
        to: QpState,
        /// The first missing attribute.
        attribute: Attribute,
    },
    /// An attribute was passed that the transition does not allow.
    #[error("{from} to {to} does not take the attribute {attribute}")]
    Superfluous {
        /// The current state.
        from: QpState,
        /// The requested state.
        to: QpState,
        /// The first attribute that is not allowed.
        attribute: Attribute,
    },
    /// The device does not support an attribute's value.
    #[error("{from} to {to}: attribute {attribute} = {value}: {reason}")]
    Value {
        /// The current state.
        from: QpState,
        /// The requested state.
        to: QpState,
        /// The attribute.
        attribute: Attribute,
        /// The value passed, as a number.
        value: u64,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// The send queue is still draining. Until it has drained, the queue pair can only move to ERR
    /// and, on some devices, to RESET.
    #[error("the send queue is still draining")]
    Draining,
    /// The remote GID cannot be reached.
    #[error("the remote device {gid} cannot {action}: {source}")]
    Unreachable {
        /// The remote GID.
        gid: super::gid::Gid,
        /// The action that failed: "be reached".
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The operating system refused the call.
    #[error("modify: cannot {action}: {source}")]
    Os {
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The process was forked after the device was opened.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// A chain of work requests was not posted completely.
///
/// The requests before index `taken` are posted. The request at `taken` and all later ones are not,
/// and remain in the caller's list, which now begins with the rejected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {taken} of the list was refused: {reason}")]
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
    #[error("all {capacity} slots of the queue are taken")]
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
    #[error("{len} bytes are more than the {slot_len} of the slot")]
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
    #[error("{operation}: the queue pair's max_rd_atomic is 0, so that it would wait for ever")]
    NoReads {
        /// The operation.
        operation: &'static str,
    },
    /// A datagram does not fit one packet of the port's MTU (`EINVAL`). Some devices accept it and
    /// complete it in error.
    #[error("a datagram of {len} bytes is longer than the {limit} that the port takes")]
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
        "a queue pair of type {qp_type} sends to the one that it is connected to, and takes no destination"
    )]
    UselessDestination {
        /// The queue pair's type.
        qp_type: QpType,
    },
    /// The range for a window ends before it begins (`EINVAL`).
    #[error("a window cannot be bound to {start}..{end}: the range ends before it begins")]
    InvertedRange {
        /// Index of the first byte.
        start: usize,
        /// Index after the last byte.
        end: usize,
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

/// An object is still in use and was not destroyed (`EBUSY`).
///
/// You need not destroy objects explicitly: they may be dropped in any order, and each is destroyed
/// once nothing uses it. The explicit calls exist to find out whether an object is still in use.
#[derive(thiserror::Error)]
#[error("{call}: in use: a clone of it, something that was made from it, or a request in flight")]
pub struct Busy<T> {
    /// The verb.
    pub call: &'static str,
    /// The object, unchanged.
    pub object: T,
}

impl<T> fmt::Debug for Busy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Busy")
            .field("call", &self.call)
            .finish_non_exhaustive()
    }
}

impl<T> Busy<T> {
    /// Drops `shared` if this is its only owner. Otherwise returns the error with the object that
    /// `whole` restores.
    pub(crate) fn unless_sole<S>(
        call: &'static str,
        shared: Arc<S>,
        whole: impl FnOnce(Arc<S>) -> T,
    ) -> Result<(), Self> {
        match Arc::try_unwrap(shared) {
            Ok(sole) => {
                drop(sole);
                Ok(())
            }
            Err(shared) => Err(Self {
                call,
                object: whole(shared),
            }),
        }
    }
}

/// A completion that names no work request in flight on this queue.
///
/// The completion belongs to another queue, was kept while its entry was reused, or was reported
/// twice by the device; no memory was released. Or it belongs to a receive of several elements,
/// which [`claim_recv_elements`](crate::verbs::QueuePair::claim_recv_elements) would have returned; these
/// elements are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{wr_id} of queue pair {qp_num} names no work request that is in flight here, or a receive of several elements, which claim_recv_elements claims"
)]
pub struct ClaimError {
    /// The id in the completion.
    pub wr_id: WrId,
    /// The queue pair that reported it.
    pub qp_num: QpNum,
}
