//! The software device: verbs between processes of one host, over shared memory.
//!
//! ```text
//!   process A                                          process B
//!   ┌────────────────────┐   link (Unix socket):       ┌────────────────────┐
//!   │ node: GID, engine  │── arenas, ready bits, ─────►│ node: GID, engine  │
//!   │  └ context         │   rings, at set-up only     │  └ context         │
//!   │     └ queue pair ──┼──► ring of B's queue pair ──┼──► receive, CQ     │
//!   │        CQ ◄────────┼─── ring of A's queue pair ◄─┼─── queue pair      │
//!   └────────────────────┘                             └────────────────────┘
//! ```
//!
//! The modules, bottom up:
//!
//! * shared memory: [`shared_memory`] (sealed files and mappings), [`ring`] with [`commit`] and
//!   [`descriptor`] (one direction of a connection), [`wake`] (cold rings, ready bits, sleep) with
//!   [`wake_file`];
//! * one context: [`owner`] (one thread at a time), [`domain`] (the state), and the operations on
//!   it: [`transmit`], [`receive`], [`progress`], [`sleep`], [`retry`], [`failure`]; set-up in
//!   [`queue_pair`]; events of armed completion queues in [`completion_channel`];
//! * the process: [`node`] (GID, links, directory), [`link`] and [`link_message`], [`peer`],
//!   [`engine`] (the device's only thread);
//! * unreliable queue pairs, which need no rings because they reach only queue pairs of their own
//!   process: [`unreliable`] (sends), [`message`] (from one context to another), [`datagram`];
//! * [`objects`]: the types that the provider interface above uses.
//!
//! **Write access.** The receiver creates a ring's memory; each cache line of the ring has one
//! writer. Only the owning process can write an arena; the kernel enforces this. Everything that
//! comes from another process is validated before use: an invalid value fails that connection, with
//! a completion or an event, and never the process. These checks protect against accidents between
//! processes of one user, not against malice.
//!
//! **Stricter than kernel software RDMA**, so that mistakes that network cards punish also show up
//! on a laptop: only polled completions free send queue entries, local keys are checked against
//! protection domain and access rights, and a completion queue that overflows is unusable
//! afterwards.

mod answers;
mod commit;
mod completion_channel;
mod datagram;
mod descriptor;
mod device;
mod domain;
mod engine;
mod event_queue;
mod execute;
mod failure;
mod faults;
mod general_send;
#[cfg(all(any(test, fuzzing), not(loom)))]
pub(crate) mod hostile;
mod issue;
mod link;
mod link_message;
mod message;
mod multicast;
mod node;
mod objects;
mod owner;
mod peer;
mod progress;
mod queue_pair;
mod receive;
mod regions;
mod request_message;
mod retry;
mod ring;
mod shared_copy;
mod shared_memory;
#[cfg(feature = "test-util")]
mod simulated;
mod sleep;
mod sync;
mod transmit;
mod unreliable;
mod unsupported;
mod wake;
mod wake_file;
mod window_table;
mod windows;
mod work_queues;

use super::limits::AttributeLimits;

pub(super) use completion_channel::CompletionChannel;
pub(super) use device::device_info;
pub(super) use objects::{
    CompletionQueue, Context, MemoryRegion, ProtectionDomain, QueuePair, SharedReceiveQueue,
};

pub(super) use windows::{AddressHandle, AddressName, MemoryWindow, WindowName};

#[cfg(feature = "test-util")]
pub(crate) use simulated::{Killer, SimulatedProcess};

/// The name under which applications open the device.
pub(super) const DEVICE_NAME: &str = "soft";

/// Maximum number of RDMA reads and atomics in flight, as reported to queue pairs.
const MAX_RD_ATOMIC: u8 = 16;

const ATTRIBUTE_LIMITS: AttributeLimits = AttributeLimits {
    port_count: 1,
    pkey_count: 1,
    max_rd_atomic: MAX_RD_ATOMIC,
    max_dest_rd_atomic: MAX_RD_ATOMIC,
};
