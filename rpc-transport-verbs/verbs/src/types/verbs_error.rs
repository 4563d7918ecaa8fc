//! Why an object could not be created, queried or changed.

use std::io;

use super::access::Access;
use super::forked::Forked;

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
