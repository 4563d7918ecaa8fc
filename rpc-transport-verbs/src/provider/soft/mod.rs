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
//! * [`shared`]: memory that two processes map. [`shared::ring`] is one direction of a connection,
//!   with [`shared::commit`] and [`shared::descriptor`]; [`shared::wake`] holds cold rings, ready
//!   bits and sleep.
//! * [`context`]: the state of one context, and [`context::owner`], which admits one thread at a
//!   time.
//! * [`process`]: the node (GID, links, directory), the links to other processes, and the engine,
//!   which is the device's only thread.
//! * [`reliable`]: the operations of RC queue pairs: transmit, receive, progress, sleep, retry,
//!   failure.
//! * [`unreliable`]: UC and UD queue pairs. They need no rings because they reach only queue pairs
//!   of their own process.
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

pub(super) mod capacities;
mod context;
#[cfg(all(any(test, fuzzing), not(loom)))]
pub(crate) mod hostile;
pub(super) mod names;
mod objects;
mod process;
mod reliable;
mod shared;
#[cfg(feature = "test-util")]
mod simulated;
mod unreliable;

pub(super) use capacities::DEVICE_NAME;
pub(super) use objects::completion_channel::CompletionChannel;
pub(super) use objects::device::device_info;
pub(super) use objects::{
    CompletionQueue, Context, MemoryRegion, ProtectionDomain, QueuePair, SharedReceiveQueue,
};

pub(super) use objects::windows::{AddressHandle, MemoryWindow};

#[cfg(feature = "test-util")]
pub(crate) use simulated::{Killer, SimulatedProcess};
