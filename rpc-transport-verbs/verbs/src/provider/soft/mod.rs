//! The software device: verbs between processes of one host over shared memory, and between any two
//! processes over TCP. The GID of the remote queue pair says which.
//!
//! ```text
//!   process A                                          process B
//!   ┌────────────────────┐   link (Unix socket):       ┌────────────────────┐
//!   │ node: GID, engine  │◄─ arenas, announcements, ─►│ node: GID, engine  │
//!   │  └ context         │   rings, at set-up only     │  └ context         │
//!   │     └ queue pair ──┼──► ring of B's queue pair ──┼──► receive, CQ     │
//!   │        CQ ◄────────┼─── ring of A's queue pair ◄─┼─── queue pair      │
//!   └────────────────────┘                             └────────────────────┘
//! ```
//!
//! The modules, bottom up:
//!
//! * [`shared`]: memory that two processes map. [`shared::ring`] is one direction of a connection,
//!   with [`shared::commit`] and [`shared::descriptor`]; [`shared::wake`] and
//!   [`shared::announcements`] hold cold rings and sleep.
//! * [`wire`]: what a TCP connection between two queue pairs carries, as bytes.
//! * [`context`]: the state of one context, which one thread at a time uses.
//! * [`process`]: the node (GID, links, directory), the links to other processes, and the engine,
//!   which is the device's only thread.
//! * [`rings`] and [`tcp`]: the two carriers of reliable connections. They move bytes and know no rules.
//! * [`reliable`]: RC queue pairs over either carrier, and the polls and ticks of a context. The rules for
//!   requests are [`context::initiator`]'s and [`context::responder`]'s.
//! * [`unreliable`]: UC and UD queue pairs. They need no rings because they reach only queue pairs
//!   of their own process.
//! * [`objects`]: the types that the provider interface above uses.
//!
//! **Write access.** The receiver creates a ring's memory; each cache line of the ring has one
//! writer. Only the owning process can write an arena, or the notes of a context: that it sleeps,
//! and the keys and queue pairs that it publishes. The kernel enforces this. Everything that comes
//! from another process is validated before use: an invalid value fails that connection, with a
//! completion or an event, and never the process.
//!
//! **What a peer can harm.** Whatever a peer can write, fill or shut down concerns that peer alone:
//! its rings, its own page of announcements for each context, its own socket to wake each context, its
//! link. Bytes that a peer may write at that moment are copied by [`shared::copy`] and then checked.
//! A peer of the same user can read the arenas of the contexts that it is connected to.
//!
//! **Stricter than kernel software RDMA**, so that mistakes that network cards punish also show up
//! on a laptop: only polled completions free send queue entries, local keys are checked against
//! protection domain and access rights, and a completion queue that overflows is unusable
//! afterwards.
//!
//! The device has queue pair states and attribute masks, protection checks, shared receive queues
//! with their limit event, receiver-not-ready handling with real timers, flushes and asynchronous
//! events. It works message by message, not packet by packet.
//!
//! * **Rings.** Each direction of a queue pair has one ring, in memory that the receiver created
//!   and sealed: fixed slots, with the commit word written last, and a buffer. Messages of up to 240
//!   bytes (WRITEs: 228) travel in a slot, inline ones of up to 1 KiB in the buffer. For a longer
//!   message the ring holds a descriptor, and the receiving side copies the bytes once, from the
//!   sender's arena, which it has mapped read-only.
//! * **READs in place.** The side that posts a READ copies from the arena of the other side to its
//!   destination, once. The keys and queue pairs that a context publishes
//!   ([`shared::published`]) say what may be read. Each record is a sequence lock, which the reader
//!   reads again after the copy. The side that owns the memory executes WRITEs and atomics, and the
//!   READs that must not overtake them. It also rejects what is not permitted:
//!   [`rings::reads`].
//! * **Links.** A pair of processes has one link, a Unix socket that either side has dialed. Both
//!   sides verify user and process, and agree on a version of the shared memory and on limits before
//!   anything else is sent. A thread never waits for a peer while it holds a lock, and never for
//!   long. A peer that sends what it may not, or does not receive, loses its link, and with it its
//!   connections; other peers lose nothing.
//! * **TCP.** A queue pair may be connected by a TCP connection of its own instead of two rings. The
//!   same thread that polls the rings of a context reads and writes its connections, or the engine
//!   does, under the same lock. A thread that sleeps on a completion channel waits for both.
//!   The two processes find each other by the GID of the accepting one, which says its address and
//!   contains a secret (`wire::hello`); or the layer above has made the connection and hands it
//!   over. Requests have sequence numbers and are acknowledged; one that finds no receive is
//!   discarded, and sent again. So no message of a peer holds up acknowledgements, and what a side
//!   keeps for its peer is bounded.
//! * **One lock per context** guards all its data-path state, and each poller has a context of its own.
//!   The lock is biased: it costs the poller no locked instruction. At a tick, the engine only tries
//!   to enter.
//! * **The straight path.** A poll that finds nothing loads the context's lock, one word of pending
//!   matters, the next announcement of one peer and the commit word of the only hot ring. A plain
//!   message goes from its slot into a posted receive and out of the poll as a completion, without
//!   passing the completion queue, when nothing else is pending and that queue is empty. A short
//!   inline send is copied into its slot when it is posted; a doorbell afterwards notifies a receiver
//!   that does not poll. Everything else takes the general path.
//! * **Hot rings** are polled directly: at most sixteen, each as long as few messages of other rings
//!   come between two of its own. The sender of a cold ring, which finds the ring's mark, announces the
//!   ring in the page that its process has for the context. Polls look at these pages in turns, and
//!   now and then at cold rings themselves, so that a message that nobody has announced is found
//!   within ten milliseconds by a context that is polled. A cold ring's messages are received in place.
//!   A ring whose next message names an arena that has not arrived is looked at when one arrives.
//! * **Sleeping.** A context with an armed completion queue has only cold rings, and its sleep note
//!   says that it sleeps. A sender that has announced a ring reads the note and sends a byte through its
//!   socket to the context. Senders cannot clear the note, so a sender that is killed between two
//!   steps leaves no context asleep. A thread that waits on a completion channel does the device's
//!   work, and goes back to sleep until an armed queue has a completion. An acknowledgement notifies
//!   no thread: the engine's next tick finds the completion of a send.
//! * **The engine** checks every 5 ms whether a context is polled. If it is not, the engine
//!   receives what has arrived, so that receives are consumed, and the limit event is raised, while
//!   a handler blocks. While all contexts of the process sleep and await nothing, it checks every
//!   50 ms.
//! * **UC and UD** reach only queue pairs of their own process: the posting thread carries a
//!   message from one context to the other, and is inside only one of them at a time.

pub(super) mod capacities;
mod context;
#[cfg(test)]
mod endings;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile_link;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile_tcp;
#[cfg(test)]
mod many_peers;
pub(super) mod names;
mod objects;
mod process;
mod reliable;
mod rings;
mod shared;
#[cfg(feature = "test-util")]
mod simulated;
mod tcp;
mod unreliable;
mod wire;

pub(super) use capacities::{DEVICE_NAME, TCP_DEVICE_NAME};
pub(super) use objects::completion_channel::CompletionChannel;
pub(super) use objects::device::device_infos;
pub(super) use objects::{
    CompletionQueue, Context, MemoryRegion, ProtectionDomain, QueuePair, SharedReceiveQueue,
};
pub use objects::{LinkBytes, LinkTarget};
pub use process::claims::AwaitedClaim;
pub(crate) use process::claims::{Nonce, OnClaim};
pub use process::credentials::Credentials;

pub(super) use objects::windows::{AddressHandle, MemoryWindow};

#[cfg(feature = "shim")]
pub(crate) use objects::{SharedMemory, make_private, make_private_after_fork, share};
#[cfg(feature = "test-util")]
pub use simulated::{Killer, SimulatedProcess};
