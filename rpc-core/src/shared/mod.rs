//! [`Channel`]: a client that any thread may use, on any executor or on none.
//!
//! A channel has one or more pollers, each with its own thread and connection. A call takes these
//! steps:
//!
//! ```text
//!  caller's thread                          poller's thread
//!  take a permit, or wait for one
//!  encode into the permit's buffer
//!  ── submission ────────────────────────▶  a credit, or the backlog
//!  (wait)                                   send: a short frame inline, from
//!                                           the permit's buffer
//!                                           …
//!                                           copy the response out of its slot
//!  ◀──────────────────────── wake ────────  settle the permit
//!  decode; release the permit
//! ```
//!
//! There are as many permits as the queue between the two threads has entries, so the queue is
//! never full (`permits.rs`). A sleeping poller is woken with one system call; a spinning poller
//! needs none (`driver/wakeup.rs`).
//!
//! Streams take no permit, and are encoded into memory of their own. They and the calls whose futures
//! are dropped reach the poller through `notices.rs`; an open stream is between its caller and the
//! poller's driver alone.
//!
//! The poller maintains the connection (`poller.rs`). When the connection ends, the calls in flight
//! end with it, and the poller reconnects with growing, randomized delays (`backoff.rs`).
//! [`ConnectivityState`] is the state of the channel's connections.

mod allocate;
mod backoff;
mod builder;
mod call;
mod calls;
mod channel;
mod connectivity;
mod error;
mod notices;
mod permits;
mod poller;
mod pushback;
mod reconnect;
mod start;
mod stream_call;
mod streams;
mod submissions;

pub use self::builder::ChannelBuilder;
pub use self::channel::Channel;
pub use self::connectivity::{ConnectivityState, Watch};
pub use self::error::ChannelError;
#[cfg(feature = "test-util")]
pub(crate) use self::poller::SharedPoller;
#[cfg(feature = "test-util")]
pub(crate) use self::reconnect::Spawner;
