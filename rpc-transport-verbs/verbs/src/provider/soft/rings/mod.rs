//! The carrier in shared memory: writes requests into the peer's ring, and takes the peer's out of this
//! side's.
//!
//! ```text
//!   put ─▶ the peer's ring ─ ─ ▶ take
//!   reads ◀─ ─ responses in the slots, or in the stages behind the ring
//! ```
//!
//! * [`put`]: a message, or a request of any kind, goes into slots; the doorbell follows.
//! * [`take`]: where the bytes of what has arrived are.
//! * [`reads`]: the bytes of READs and atomics come back; a READ that the peer's process need not
//!   execute is copied from its memory.
//!
//! Nothing here knows whether a request may begin or be executed: see
//! [`reliable`](super::reliable).

pub(super) mod put;
pub(super) mod reads;
pub(super) mod take;
