//! Reliable connections: posted, written, received and acknowledged.
//!
//! ```text
//!   (verbs, peers, the engine)  attach ─┐
//!                                       ├▶ progress ─▶ read ─▶ receive ─▶ send ─▶ connect
//!   (a thread that polls)       poll ───┘
//! ```
//!
//! Calls go in the direction of the arrows only, though not through all of these.
//!
//! * [`connect`]: a queue pair's transitions, its link, and its end, which flushes what was posted.
//! * [`send`]: requests are posted, and written to the ring or the TCP connection.
//! * [`receive`]: what a ring brings, and what follows a message or an acknowledgement over either link.
//! * [`read`]: what a TCP connection brings. [`answers`]: what the answers among it mean.
//! * [`execute`]: the peer's requests are executed, those of a ring and those over TCP.
//! * [`progress`]: the loop over all queue pairs of a context. [`poll`]: a completion queue's polls, which
//!   mostly need no loop. [`attach`]: what comes to a context from outside of its polls.

mod answers;
pub(super) mod attach;
pub(super) mod connect;
mod execute;
pub(super) mod poll;
pub(super) mod progress;
pub(super) mod read;
pub(super) mod receive;
pub(super) mod send;
