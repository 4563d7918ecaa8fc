//! [`Channel`]: a client that any thread may use, on any executor or on none.
//!
//! Behind it is a poller on a thread of its own (or several), which has the connection. A call runs
//! like this:
//!
//! ```text
//!  caller's thread                          poller's thread
//!  a ticket, or wait for one
//!  encode into the ticket's buffer
//!  ── submission ────────────────────────▶  a credit, or the backlog
//!  (wait)                                   copy into a send slot; send
//!                                           …
//!                                           copy the answer out of its slot
//!  ◀──────────────────────── wake ────────  settle the ticket
//!  decode; the ticket goes back
//! ```
//!
//! There are as many tickets as there are places in the queue between the two, so the queue is never
//! full (`permits.rs`). A poller that spins is not woken; one that sleeps is, for one system call
//! (`driver/wakeup.rs`).
//!
//! The connection is the poller's to keep (`poller.rs`): when it ends, calls on their way end with it,
//! and the poller connects again, with waits that grow and are never alike (`backoff.rs`). How things
//! stand is the channel's [`ConnectivityState`].

mod backoff;
mod builder;
mod call;
mod channel;
mod connectivity;
mod error;
mod permits;
mod poller;
mod start;
mod submissions;

pub use self::builder::ChannelBuilder;
pub use self::channel::Channel;
pub use self::connectivity::{ConnectivityState, Watch};
pub use self::error::ChannelError;
#[cfg(feature = "test-util")]
pub(crate) use self::poller::{Elsewhere, SharedPoller};
