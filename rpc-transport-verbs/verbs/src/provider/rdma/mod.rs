//! RDMA devices: kernel verbs through libibverbs. The only module that uses rdma-sys.
//!
//! ```text
//!   provider (the interface to devices)
//!      │  context, memory, region, windows, completion_queue, completion_channel,
//!      │  shared_receive_queue, queue_pair: one object each.
//!      │  Operations of a queue pair: modify, post (plain messages), requests (all other
//!      │  requests), binding (of windows)
//!      ▼
//!   rdma-sys: the structs, and the               library: all other functions, looked up
//!      │      header's inline functions             │     in libibverbs.so.1 at run time
//!      │      (post, poll, arm: by a table)         │
//!      ▼                                            ▼
//!   the device's driver in user space ── doorbell ──► the device, or the kernel's software device
//! ```
//!
//! * **One binary for all hosts.** Calling rdma-sys's functions would link the program to
//!   libibverbs, and it would not start on a host without the library. So they are not used:
//!   [`library`] looks up each function when the first device is opened, and a missing library is
//!   an ordinary error.
//! * **rdma-sys's types are correct, but some of its functions are not** (it is unmaintained).
//!   Therefore only the legacy calls are used, except for `ibv_create_qp_ex` ([`extended`]); port
//!   attributes are zeroed before they are queried, because libibverbs may write an older, shorter
//!   struct; asynchronous events and the GID table are read through structs of our own
//!   ([`async_events`], [`gid_table`]). For events, that is because a number that rdma-sys's enum
//!   lacks would be undefined behavior.
//! * **Objects hold their parents by `Arc`**, so an object is destroyed after everything created
//!   from it. If the device refuses to destroy an object, this is logged, and the object's memory
//!   is leaked.
//! * **After `fork()`**, calls in the child fail, and its destructors do nothing: the child shares
//!   the device's file with the parent, and would destroy the parent's objects.
//! * **The inline length is found by trying** to create queue pairs ([`context`]), because no call
//!   reports it.
//! * **Memory is registered at its exact length**, in huge pages if the system has reserved some
//!   ([`pages`]).

mod async_events;
mod binding;
mod completion_channel;
mod completion_queue;
mod context;
mod datagrams;
mod decode;
mod device_list;
mod extended;
mod fork;
mod gid_table;
mod handle;
mod inline_chain;
mod inline_probe;
mod interruption;
mod known_windows;
mod library;
mod locked_memory;
mod memory;
mod modify;
pub(super) mod names;
mod pages;
mod port_counters;
mod post;
mod post_results;
mod queue_events;
mod queue_pair;
mod raw_attributes;
mod raw_structs;
mod receives;
mod region;
mod request_lists;
mod requests;
mod shared_receive_queue;
mod windows;

pub(super) use completion_channel::CompletionChannel;
pub(super) use completion_queue::{CompletionQueue, HeldCompletions};
pub(super) use context::Context;
pub(super) use device_list::{device_names, devices};
pub(super) use fork::{fork_init, is_fork_initialized};
pub(super) use locked_memory::locked_memory;
pub(super) use memory::ProtectionDomain;
pub(super) use queue_pair::QueuePair;
pub(super) use region::MemoryRegion;
pub(super) use shared_receive_queue::SharedReceiveQueue;
pub(super) use windows::{AddressHandle, MemoryWindow};

use std::io;
use std::os::raw::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_sys::ibv_sge;

use crate::types::{LocalKey, VerbsError};

/// Work requests or completions that are built on the stack at a time. It is the length of the
/// transport's longest chain, so that one chain needs one doorbell.
const BATCH: usize = 32;

/// Returns a number that identifies a queue in asynchronous events. It is stored in the verbs
/// object's context field.
fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    // Relaxed: only uniqueness matters.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the error in `errno`, for calls that return a null pointer.
fn os_error(call: &'static str) -> VerbsError {
    let source = io::Error::last_os_error();
    match source.kind() {
        // Drivers of network cards lock the memory of their queues as well.
        io::ErrorKind::OutOfMemory => VerbsError::QueueMemory {
            call,
            limit: locked_memory::memlock_limit(),
            source,
        },
        _ => VerbsError::Os { call, source },
    }
}

/// Converts the return value of calls that return an error number. Some return it negated.
fn check(call: &'static str, returned: c_int) -> Result<(), VerbsError> {
    match returned {
        0 => Ok(()),
        errno => Err(VerbsError::Os {
            call,
            source: io::Error::from_raw_os_error(errno.saturating_abs()),
        }),
    }
}

/// Returns one scatter/gather element of a send or a receive.
#[inline]
fn sge(addr: NonNull<u8>, len: u32, local_key: LocalKey) -> ibv_sge {
    ibv_sge {
        addr: addr.as_ptr().addr() as u64,
        length: len,
        lkey: local_key.0,
    }
}

/// Logs that the device refused to destroy an object; a destructor cannot do more.
fn log_leak(call: &'static str, returned: c_int) {
    if let Err(error) = check(call, returned) {
        tracing::error!(%error, "the device did not destroy a verbs object: its memory is leaked");
    }
}

/// Converts a length to 32 bits.
fn to_u32(call: &'static str, parameter: &'static str, value: usize) -> Result<u32, VerbsError> {
    u32::try_from(value).map_err(|_| VerbsError::OutOfRange {
        call,
        parameter,
        value: value as u64,
        min: 0,
        max: u32::MAX.into(),
    })
}

/// Converts a limit that the device reports as a signed number.
fn limit(value: c_int) -> usize {
    usize::try_from(value).unwrap_or(0)
}
