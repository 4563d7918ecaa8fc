//! [`Channel`]: a client that any thread may use, on any executor or on none.
//!
//! A channel has one or more pollers, with a connection at each. The pollers are its own, or those of
//! [`Pollers`], which many channels share. A call takes these steps:
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
//! poller's driver alone. Requests of both kinds wait in one backlog (`backlog.rs`), if they cannot be
//! sent at once.
//!
//! The poller maintains the connection (`reconnect.rs`). When the connection ends, the calls in flight
//! end with it, and the poller reconnects with growing, randomized delays (`backoff.rs`).
//! [`ConnectivityState`] is the state of the channel's connections.
//!
//! A poller finds the channels that have work without looking at the others (`poller.rs`, `marks.rs`).
//! A channel over a device is the only one of its pollers, which end with it (`poller_state.rs`).

mod backlog;
mod backoff;
mod builder;
mod call;
mod calls;
mod channel;
mod channels;
mod connectivity;
mod dial_threads;
mod error;
mod marks;
mod notices;
mod oneshot;
mod open;
mod permits;
mod polled_channel;
mod poller;
mod poller_state;
mod pollers;
mod pushback;
mod random;
mod reconnect;
mod source;
mod stream_call;
mod submissions;
mod unsent;
mod wakers;

pub use self::builder::ChannelBuilder;
pub use self::channel::Channel;
pub use self::connectivity::{ConnectivityState, Watch};
pub use self::error::ChannelError;
#[cfg(feature = "test-util")]
pub use self::poller::stepped::SteppedPoller;
pub use self::pollers::{Pollers, PollersBuilder};
pub use self::source::PollerSource;
