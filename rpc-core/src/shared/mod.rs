//! [`Channel`]: a client that any thread may use, on any executor or on none.
//!
//! Behind it is a poller on a thread of its own (or several), which has the connection. A call runs
//! like this:
//!
//! ```text
//!  caller's thread                          poller's thread
//!  a permit, or wait for one
//!  encode into the permit's buffer
//!  ── submission ────────────────────────▶  a credit, or the backlog
//!  (wait)                                   copy into a send slot; send
//!                                           …
//!                                           copy the answer out of its slot
//!  ◀──────────────────────── wake ────────  settle the permit
//!  decode; release the permit
//! ```
//!
//! There are as many permits as the queue between the two has entries, so the queue is never full
//! (`permits.rs`). A poller that spins is not woken; one that sleeps is, for one system call
//! (`driver/wakeup.rs`).
//!
//! The poller takes turns (`poller.rs`) for its calls (`calls.rs`) and for its connection
//! (`reconnect.rs`): when the connection ends, calls in flight end with it, and the poller connects
//! again after delays that grow and differ between clients (`backoff.rs`). The state of the
//! connection is the channel's [`ConnectivityState`].

mod backoff;
mod builder;
mod call;
mod calls;
mod channel;
mod connectivity;
mod error;
mod permits;
mod poller;
mod reconnect;
mod start;
mod submissions;

pub use self::builder::ChannelBuilder;
pub use self::channel::Channel;
pub use self::connectivity::{ConnectivityState, Watch};
pub use self::error::ChannelError;
#[cfg(feature = "test-util")]
pub(crate) use self::poller::SharedPoller;
#[cfg(feature = "test-util")]
pub(crate) use self::reconnect::Elsewhere;
