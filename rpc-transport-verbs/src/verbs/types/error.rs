//! What can go wrong, one enum per family of calls: data to match on, the source kept.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::access::Access;
use super::keys::RemoteKey;
use super::queue_pair_attributes::QpNum;
use super::queue_pair_state::{Attribute, QpState, QpType};
use super::window_type::WindowType;
use super::wr_id::WrId;

/// The process was forked after the device was opened: in the child, no object of it works.
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
        /// The name that was asked for.
        name: String,
        /// The names that would do, with commas.
        known: String,
    },
    /// It is an RDMA device, and this program was built without kernel verbs.
    #[error(
        "'{name}' is an RDMA device, and this program was built without kernel verbs: build it with the Cargo feature `rdma` of rpc-transport-verbs (docs/rdma.md says what that needs)"
    )]
    NotInThisBuild {
        /// The device.
        name: String,
    },
    /// An iWARP device: it can connect through rdma_cm only.
    #[error(
        "'{name}' is an iWARP device. Verbline connects queue pairs itself, over its own TCP connection, which InfiniBand and RoCE permit and iWARP does not"
    )]
    Iwarp {
        /// The device.
        name: String,
    },
    /// The library of kernel verbs is not there.
    #[error(
        "RDMA devices need libibverbs, which cannot be loaded: {source}. Install it (on Debian and Ubuntu: apt install libibverbs1 ibverbs-providers)"
    )]
    LibraryMissing {
        /// What the dynamic linker said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The kernel has the device, and libibverbs has no driver for it.
    #[error(
        "the kernel has the device '{name}', and libibverbs has no driver for it (it drives: {known}). Install the drivers (on Debian and Ubuntu: apt install ibverbs-providers)"
    )]
    NoUserDriver {
        /// The device.
        name: String,
        /// The devices that it does drive, with commas.
        known: String,
    },
    /// The device's file is not there.
    #[error(
        "the device '{name}' has no file in /dev/infiniband: load the kernel's module (modprobe ib_uverbs), and where devices are hidden pass the file on (docker run --device=/dev/infiniband; PrivateDevices=no for a service of systemd)"
    )]
    NoDeviceFile {
        /// The device.
        name: String,
    },
    /// This user may not open the device's file.
    #[error(
        "the device '{name}' may not be opened by this user: {source}. Its file in /dev/infiniband needs read and write rights (the kernel gives them to everybody: `ls -l /dev/infiniband` shows whether they were taken away), and where devices are restricted the device has to be permitted (docker run --device=/dev/infiniband; DeviceAllow=char-infiniband_verbs rw for a service of systemd)"
    )]
    Permission {
        /// The device.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// The operating system refused something that the device needs.
    #[error("the device '{name}' cannot {action}: {source}")]
    Os {
        /// The device.
        name: String,
        /// What it tried: "create its socket".
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The process was forked after its first device was opened.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why an object could not be made or asked. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// A parameter is outside what the device takes (`EINVAL`).
    #[error("{call}: {parameter} = {value} is outside {min}..={max}")]
    OutOfRange {
        /// The verb.
        call: &'static str,
        /// The parameter's name.
        parameter: &'static str,
        /// What was given.
        value: u64,
        /// The least that is taken.
        min: u64,
        /// The most that is taken.
        max: u64,
    },
    /// An argument breaks a rule (`EINVAL`).
    #[error("{call}: {argument} = {value}: {reason}")]
    InvalidArgument {
        /// The verb.
        call: &'static str,
        /// The argument's name.
        argument: &'static str,
        /// What was given, as a number.
        value: u64,
        /// The rule.
        reason: &'static str,
    },
    /// A parameter is not a multiple of what it has to be (`EINVAL`).
    #[error("{call}: {parameter} = {value} is not a multiple of {multiple_of}")]
    Misaligned {
        /// The call.
        call: &'static str,
        /// The parameter's name.
        parameter: &'static str,
        /// What was given.
        value: u64,
        /// What would do.
        multiple_of: u64,
    },
    /// Remote write or remote atomic access needs local write access as well (`EINVAL`).
    #[error("register: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well")]
    RemoteWithoutLocalWrite,
    /// Memory whose bytes are handed out as slices cannot be open to peers.
    #[error(
        "register: {access:?} opens memory to peers, which slots must not be: ProtectionDomain::expose registers such memory"
    )]
    ExposedSlots {
        /// What was asked for.
        access: Access,
    },
    /// The device cannot do it (`EOPNOTSUPP`).
    #[error("{call}: the device '{device}' does not support {what}")]
    NotSupported {
        /// The verb.
        call: &'static str,
        /// The device.
        device: String,
        /// What it lacks, by the name of the field or type.
        what: &'static str,
    },
    /// Two objects that have to belong to the same context do not.
    #[error("{call}: {object} belongs to another context")]
    ForeignObject {
        /// The verb.
        call: &'static str,
        /// Which object.
        object: &'static str,
    },
    /// The device has no more of something (`ENOMEM`).
    #[error("{call}: all {limit} {what} of the device are in use")]
    Exhausted {
        /// The verb.
        call: &'static str,
        /// What ran out: "queue pairs".
        what: &'static str,
        /// How many there are.
        limit: u64,
    },
    /// More completions came than the queue holds. It is dead, and so are its queue pairs.
    #[error(
        "the completion queue of {capacity} entries overran: its depth must be at least the sum of the depths of the queues that complete to it"
    )]
    CompletionQueueOverrun {
        /// How many entries it has.
        capacity: usize,
    },
    /// The completion queue was made without a completion channel: its events would go nowhere.
    #[error(
        "req_notify_cq: the completion queue has no completion channel (create it with one: create_cq_with_channel)"
    )]
    NoCompletionChannel,
    /// The memory may not be locked (`ENOMEM`, or `EPERM` if the limit is 0).
    #[error(
        "{} KiB cannot be registered: the limit of locked memory is {limit} ({source}). Raise it: `ulimit -l unlimited` in a shell whose hard limit permits it, `memlock` in /etc/security/limits.conf for logins, LimitMEMLOCK=infinity for a service of systemd, --ulimit memlock=-1 for a container",
        .len.div_ceil(1024)
    )]
    MemoryLocked {
        /// Bytes that were to be registered.
        len: usize,
        /// The present limit, in words.
        limit: String,
        /// What the system said.
        source: io::Error,
    },
    /// A queue could not have its memory (`ENOMEM`).
    #[error(
        "{call}: {source}. Many devices lock the memory of their queues, too: the limit of locked memory is {limit} (see `ulimit -l`)"
    )]
    QueueMemory {
        /// The verb.
        call: &'static str,
        /// The present limit of locked memory, in words.
        limit: String,
        /// What the system said.
        source: io::Error,
    },
    /// The device does not count by context.
    #[error(
        "the device does not count by context: see rnr_counters, and the port's counters in /sys/class/infiniband"
    )]
    NotCounted,
    /// The operating system, or the device's driver, refused.
    #[error("{call}: {source}")]
    Os {
        /// The verb.
        call: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The process was forked after the device was opened.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why a queue pair was not modified. None of its attributes has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// There is no such transition.
    #[error("a queue pair cannot go from {from} to {to}")]
    Transition {
        /// The state it is in (or that `current_state` claimed).
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// The transition needs an attribute that was not given.
    #[error("{from} to {to} needs the attribute {attribute}")]
    Missing {
        /// The state it is in.
        from: QpState,
        /// The state asked for.
        to: QpState,
        /// The first one that is missing.
        attribute: Attribute,
    },
    /// The transition does not take an attribute that was given.
    #[error("{from} to {to} does not take the attribute {attribute}")]
    Superfluous {
        /// The state it is in.
        from: QpState,
        /// The state asked for.
        to: QpState,
        /// The first one that is too many.
        attribute: Attribute,
    },
    /// An attribute has a value that the device does not take.
    #[error("{from} to {to}: attribute {attribute} = {value}: {reason}")]
    Value {
        /// The state it is in.
        from: QpState,
        /// The state asked for.
        to: QpState,
        /// Which.
        attribute: Attribute,
        /// What was given, as a number.
        value: u64,
        /// What would do.
        reason: &'static str,
    },
    /// The send queue is still draining; only ERR can be reached before it has, and on some devices
    /// RESET.
    #[error("the send queue is still draining")]
    Draining,
    /// What the remote GID names cannot be reached.
    #[error("the remote device {gid} cannot {action}: {source}")]
    Unreachable {
        /// The remote GID.
        gid: super::gid::Gid,
        /// What was tried: "be reached".
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The operating system refused.
    #[error("modify: cannot {action}: {source}")]
    Os {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The process was forked after the device was opened.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// A list of work requests was not taken whole.
///
/// Those before `taken` are posted. The one at `taken` and all after it were not, and are still in
/// the caller's list, which now begins with the one that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {taken} of the list was refused: {reason}")]
pub struct PostError {
    /// How many were posted: the index of the one that was refused.
    pub taken: usize,
    /// Why that one was refused.
    pub reason: PostErrorReason,
}

/// Why a work request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorReason {
    /// No slot of the queue is free (`ENOMEM`). A slot of a send queue becomes free only when a
    /// completion that covers it has been polled and completed.
    #[error("all {capacity} slots of the queue are taken")]
    QueueFull {
        /// How many there are.
        capacity: usize,
    },
    /// The queue pair's state does not permit it (`EINVAL`).
    #[error("the queue pair is in {state}")]
    State {
        /// The state.
        state: QpState,
    },
    /// More bytes than the slot has (`EINVAL`).
    #[error("{len} bytes are more than the {slot_len} of the slot")]
    TooLong {
        /// Bytes to send.
        len: usize,
        /// Bytes in the slot.
        slot_len: usize,
    },
    /// More bytes than can be sent inline (`EINVAL`).
    #[error("{len} bytes are more than the {limit} that can be inline")]
    InlineTooLong {
        /// Bytes to send.
        len: usize,
        /// The queue pair's `max_inline_data`.
        limit: usize,
    },
    /// Queue pairs of this type cannot be asked for it (`EINVAL`).
    #[error("a queue pair of type {qp_type} cannot {operation}")]
    NotForType {
        /// What was asked for: "RDMA READ".
        operation: &'static str,
        /// The queue pair's type.
        qp_type: QpType,
    },
    /// More scatter/gather elements than were granted (`EINVAL`).
    #[error("{count} scatter/gather elements are more than the {limit} that were granted")]
    TooManyElements {
        /// Elements of the request.
        count: usize,
        /// The queue pair's `max_send_sge` or `max_recv_sge`.
        limit: usize,
    },
    /// It does not send bytes of this side, so they cannot be inline (`EINVAL`).
    #[error("{operation} cannot be inline: it sends no bytes of this side")]
    NotInline {
        /// What was asked for.
        operation: &'static str,
    },
    /// The result of an atomic has eight bytes (`EINVAL`).
    #[error("{operation}: the result has eight bytes, and the elements have {len}")]
    AtomicLength {
        /// What was asked for.
        operation: &'static str,
        /// Bytes of the elements together.
        len: usize,
    },
    /// The number that an atomic works on has an address that is a multiple of eight (`EINVAL`). Some devices
    /// leave it to the peer's to refuse.
    #[error("the address of an atomic is a multiple of eight, and {addr:#x} is not")]
    AtomicAlignment {
        /// The remote address.
        addr: u64,
    },
    /// The queue pair was told to have no reads and atomics outstanding (`EINVAL`): on some devices the
    /// request would wait for ever.
    #[error("{operation}: the queue pair's max_rd_atomic is 0, so that it would wait for ever")]
    NoReads {
        /// What was asked for.
        operation: &'static str,
    },
    /// A datagram is one packet, and has to fit the port's MTU (`EINVAL`). Some devices take it, and complete
    /// it in error.
    #[error("a datagram of {len} bytes is longer than the {limit} that the port takes")]
    DatagramTooLong {
        /// Bytes to send.
        len: usize,
        /// The port's MTU.
        limit: usize,
    },
    /// A datagram without a destination (`EINVAL`).
    #[error("a datagram needs a destination: WorkRequest::to")]
    NoDestination,
    /// A destination on a queue pair that is connected (`EINVAL`).
    #[error(
        "a queue pair of type {qp_type} sends to the one that it is connected to, and takes no destination"
    )]
    UselessDestination {
        /// The queue pair's type.
        qp_type: QpType,
    },
    /// A window cannot be bound to a range that ends before it begins (`EINVAL`).
    #[error("a window cannot be bound to {start}..{end}: the range ends before it begins")]
    InvertedRange {
        /// The first byte.
        start: usize,
        /// The end.
        end: usize,
    },
    /// Windows of this type are bound in another way (`EINVAL`).
    #[error("a memory window of type {} is bound by {by}", *.window_type as u32)]
    WindowType {
        /// The window's type.
        window_type: WindowType,
        /// What binds it.
        by: &'static str,
    },
    /// The key of a memory window is its own, but for the lower eight bits (`EINVAL`).
    #[error("the key {:#x} is not of the window that has {:#x}: the upper 24 bits are the window's", .key.0, .window.0)]
    WindowKey {
        /// What was asked for.
        key: RemoteKey,
        /// The key that the window has.
        window: RemoteKey,
    },
    /// There is nothing to be invalidated (`EINVAL`). Most devices find that out themselves, and complete the
    /// request in error.
    #[error("the key {:#x} is of a memory window that is bound to nothing", .key.0)]
    WindowNotBound {
        /// The key.
        key: RemoteKey,
    },
    /// Something in it belongs to another protection domain than the rest (`EINVAL`). Some devices find that
    /// out themselves, and complete the request in error.
    #[error("{object} belongs to another protection domain")]
    OtherDomain {
        /// What.
        object: &'static str,
    },
    /// Something in it belongs to another device or context (`EINVAL`).
    #[error("{object} belongs to another context")]
    ForeignObject {
        /// What.
        object: &'static str,
    },
    /// Something in it belongs to another protection domain (`EINVAL`).
    #[error("{object} belongs to another protection domain than the queue pair")]
    ForeignDomain {
        /// What.
        object: &'static str,
    },
    /// The device refused it for another reason, by the number of the error.
    #[error("{}", io::Error::from_raw_os_error(*.errno))]
    Refused {
        /// The number.
        errno: i32,
    },
    /// The queue pair receives from a shared receive queue: post there (`EINVAL`).
    #[error("the queue pair receives from a shared receive queue; post there")]
    HasSharedReceiveQueue,
    /// The process was forked after the device was opened.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// An object is still in use, and was not destroyed (`EBUSY`).
///
/// Nothing has to be destroyed by hand: dropping objects in any order destroys each as soon as nothing needs
/// it any more. This is for who wants to know.
#[derive(thiserror::Error)]
#[error("{call}: in use: a clone of it, something that was made from it, or a request in flight")]
pub struct Busy<T> {
    /// The verb.
    pub call: &'static str,
    /// The object, as it was.
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
    /// Drops what `shared` holds, unless somebody else shares it; `whole` makes the object again.
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
/// It belongs to another queue, or was kept while its place was used again, or the device reported the same
/// request twice: nothing was released. Or it is of a receive of several elements, which
/// [`claim_recv_elements`](crate::verbs::QueuePair::claim_recv_elements) would have given back: they are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{wr_id} of queue pair {qp_num} names no work request that is in flight here, or a receive of several elements, which claim_recv_elements claims"
)]
pub struct ClaimError {
    /// What the completion named.
    pub wr_id: WrId,
    /// The queue pair that it came from.
    pub qp_num: QpNum,
}
