//! The software device: verbs between processes of one host, through shared memory.
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
//! From the bottom up:
//!
//! * shared memory: [`shared_memory`](shared::memory) (sealed files and mappings), [`ring`](shared::ring) with [`commit`](shared::commit) and
//!   [`descriptor`](shared::descriptor) (one direction of a connection), [`wake`](shared::wake) (cold rings, ready bits, sleep) with [`wake_file`](crate::event_fd);
//! * one context: [`owner`](context::owner) (one thread at a time), [`domain`](process::domain) (its state), and what is done with it:
//!   [`transmit`](reliable::transmit), [`receive`](reliable::receive), [`progress`](reliable::progress), [`sleep`](reliable::sleep), [`retry`](reliable::retry), [`failure`](reliable::failure); set-up in
//!   [`queue_pair`](context::queue_pair); what armed queues raise in [`completion_channel`](objects::completion_channel);
//! * the process: [`node`](process::node) (GID, links, directory), [`link`](process::link) and [`link_message`](process::link_message), [`peer`](context::peer),
//!   [`engine`](process::engine) (the one thread);
//! * unreliable queue pairs, which have no rings, since they reach those of their own process alone:
//!   [`unreliable`](unreliable::send) (sends), [`message`](unreliable::message) (from one context to another), [`datagram`](unreliable::datagram);
//! * [`objects`]: what the seam above calls.
//!
//! **Who may write what.** A ring's memory is made by its receiver; each of its lines has one
//! writer. An arena is written by its own process alone, the kernel sees to that. Everything that
//! comes from another process is checked before it is used: a lie fails that connection, with a
//! completion or an event, and never the process. These checks stop accidents between processes of
//! one user, not malice.
//!
//! **Stricter than kernel software RDMA**, so that mistakes which network cards punish show on a
//! laptop: slots of a send queue are freed by polled completions alone, local keys are checked
//! against protection domain and rights, a full completion queue is dead.

mod capacities;
mod context;
#[cfg(all(any(test, fuzzing), not(loom)))]
pub(crate) mod hostile;
mod objects;
mod process;
mod reliable;
mod shared;
#[cfg(feature = "test-util")]
mod simulated;
mod unreliable;

use super::limits::AttributeLimits;

pub(super) use objects::completion_channel::CompletionChannel;
pub(super) use objects::device::device_info;
pub(super) use objects::{
    CompletionQueue, Context, MemoryRegion, ProtectionDomain, QueuePair, SharedReceiveQueue,
};

pub(super) use context::window_table::WindowName;
pub(super) use objects::windows::{AddressHandle, AddressName, MemoryWindow};

#[cfg(feature = "test-util")]
pub(crate) use simulated::{Killer, SimulatedProcess};

/// The name that it is opened by.
pub(super) const DEVICE_NAME: &str = "soft";

/// RDMA reads and atomics in flight, as queue pairs are told; they can be agreed on already.
const MAX_RD_ATOMIC: u8 = 16;

const ATTRIBUTE_LIMITS: AttributeLimits = AttributeLimits {
    port_count: 1,
    pkey_count: 1,
    max_rd_atomic: MAX_RD_ATOMIC,
    max_dest_rd_atomic: MAX_RD_ATOMIC,
};
