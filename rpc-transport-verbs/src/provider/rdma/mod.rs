//! RDMA devices: kernel verbs, through libibverbs. The only place that names rdma-sys.
//!
//! ```text
//!   provider (the seam)
//!      │  context, memory, region, windows, completion_queue, completion_channel, shared_receive_queue,
//!      │  queue_pair: one object each. What a queue pair does: modify, post (plain messages), requests (the
//!      │  rest), binding (of windows)
//!      ▼
//!   rdma-sys: the structs, and what the header does inline     library: everything else, looked up
//!      │       (post, poll, arm: through a table)               in libibverbs.so.1 at run time
//!      ▼                                                        ▼
//!   the device's driver in user space ──── doorbell ────► the device, or the kernel's software one
//! ```
//!
//! * **One binary everywhere.** rdma-sys's functions would make the program depend on libibverbs, and
//!   refuse to start without it. So they are not used: [`library`] looks each one up when the first
//!   device is opened, and a missing library is an error with a sentence.
//! * **rdma-sys's types are right, some of its functions are not** (it is not maintained): the legacy
//!   calls are used alone, but for `ibv_create_qp_ex` ([`extended`]), port attributes are zeroed before they
//!   are asked for, and asynchronous events and the GID table are read through structs of our own
//!   ([`async_events`], [`gid_table`]).
//! * **Parents are held by `Arc`**, so that an object is destroyed after everything made from it. A
//!   destructor that the device refuses is logged, and what it would have freed is leaked.
//! * **After `fork()`**, the child's copies of the objects do nothing: the device's file is shared
//!   with the parent, whose objects they would destroy.

mod async_events;
mod binding;
mod completion_channel;
mod completion_queue;
mod context;
mod decode;
mod device_list;
mod extended;
mod fork;
mod gid_table;
mod library;
mod memory;
mod modify;
mod pages;
mod port_counters;
mod post;
mod queue_pair;
mod raw_attributes;
mod region;
mod requests;
mod shared_receive_queue;
mod windows;

pub(super) use completion_channel::CompletionChannel;
pub(super) use completion_queue::CompletionQueue;
pub(super) use context::Context;
pub(super) use device_list::{device_names, devices};
pub(super) use fork::{fork_init, is_fork_initialized};
pub(super) use memory::ProtectionDomain;
pub(super) use queue_pair::QueuePair;
pub(super) use region::MemoryRegion;
pub(super) use shared_receive_queue::SharedReceiveQueue;
pub(super) use windows::{AddressHandle, AddressName, MemoryWindow, RegionName, WindowName};

use std::io;
use std::os::raw::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_sys::ibv_sge;

use crate::verbs::types::{LocalKey, VerbsError};
use context::Handle;

/// Work requests or completions that are built on the stack at a time. As many as the transport's
/// longest chain, so that a chain is one doorbell.
const BATCH: usize = 32;

/// A number that names a queue in asynchronous events: kept in the verbs object's own context field.
fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    // Only its uniqueness counts.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// An error from `errno`, for the calls that give a null pointer.
fn os_error(call: &'static str) -> VerbsError {
    let source = io::Error::last_os_error();
    match source.kind() {
        // Drivers of network cards lock the memory of their queues, too.
        io::ErrorKind::OutOfMemory => VerbsError::QueueMemory {
            call,
            limit: memory::memlock_limit(),
            source,
        },
        _ => VerbsError::Os { call, source },
    }
}

/// The same, where a device that lacks `what` has a number of its own for that.
fn not_supported(
    handle: &Handle,
    call: &'static str,
    what: &'static str,
    error: VerbsError,
) -> VerbsError {
    match &error {
        VerbsError::Os { source, .. } if source.kind() == io::ErrorKind::Unsupported => {
            VerbsError::NotSupported {
                call,
                device: handle.name.clone(),
                what,
            }
        }
        _ => error,
    }
}

/// An error from the value returned, for the calls that return one. Some return it negated.
fn check(call: &'static str, returned: c_int) -> Result<(), VerbsError> {
    match returned {
        0 => Ok(()),
        errno => Err(VerbsError::Os {
            call,
            source: io::Error::from_raw_os_error(errno.saturating_abs()),
        }),
    }
}

/// One scatter/gather element, of a send or a receive.
#[inline]
fn sge(addr: NonNull<u8>, len: u32, local_key: LocalKey) -> ibv_sge {
    ibv_sge {
        addr: addr.as_ptr().addr() as u64,
        length: len,
        lkey: local_key.0,
    }
}

/// What a destructor can do about a refusal.
fn log_leak(call: &'static str, returned: c_int) {
    if let Err(error) = check(call, returned) {
        tracing::error!(%error, "a verbs object cannot be destroyed, and is leaked");
    }
}

/// A length for a field of 32 bits.
fn to_u32(call: &'static str, parameter: &'static str, value: usize) -> Result<u32, VerbsError> {
    u32::try_from(value).map_err(|_| VerbsError::OutOfRange {
        call,
        parameter,
        value: value as u64,
        min: 0,
        max: u32::MAX.into(),
    })
}

/// A limit that the device says as a signed number.
fn limit(value: c_int) -> usize {
    usize::try_from(value).unwrap_or(0)
}
