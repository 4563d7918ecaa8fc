//! Support for tests of `rpc-core` and of the crates above it: pollers on one thread, with a simulated
//! clock, network and faults. What must see the inside of `rpc-core` is in its hidden module
//! `for_testing`, of which this crate re-exports what tests use.
//!
//! - [`Clock::manual`]: a clock that stands still until it is advanced;
//! - [`Node`]: a poller over any transport, stepped by hand;
//! - [`block_on_between_turns`]: `block_on` of a client that steps other nodes on its thread;
//! - [`SharedNode`]: a shared channel whose poller is stepped by hand;
//! - [`Loopback`]: a transport between the nodes of a [`Network`], which counts every slot and
//!   every frame that finds no receive;
//! - [`Faults`]: the kinds and rates of its faults, generated from a seed;
//! - [`Pair`]: a client and a server, stepped until quiet;
//! - [`Mix`]: calls of all kinds that check their messages;
//! - [`RawPeer`]: a peer without a driver, which sends any frames;
//! - [`model`]: both sides of a connection, in every state that they can reach;
//! - [`is_alone`]: a process of its own for a test of the log;
//! - [`hostile`]: the inputs of peers that violate the protocol, as functions of bytes.
//!
//! ```
//! # use rpc_core_testing::Pair;
//! # use rpc_core::{MethodKind, MethodSpec, Idempotency, Request, Response};
//! # const ECHO: MethodSpec =
//! #     MethodSpec::new("demo.Echo/Echo", MethodKind::Unary, Idempotency::Unknown, "u64", "u64");
//! # use rpc_core::Caller;
//! let pair = Pair::new(|methods| {
//!     methods.unary(&ECHO, |request: Request<u64>| async { Ok(Response::new(request.into_inner())) });
//! });
//! let channel = pair.connect();
//! let answer = pair.run(channel.unary::<u64, u64>(&ECHO, Request::new(7)));
//! assert_eq!(answer.unwrap().into_inner(), 7);
//! pair.assert_nothing_left();
//! ```
#![forbid(unsafe_code)]

mod alone;
mod faults;
pub mod hostile;
mod loopback;
mod mix;
mod network;
mod node;
mod raw_peer;
mod shared;

pub mod model {
    //! A model of both sides of a connection: every state that they can reach.
    pub use rpc_core::for_testing::{Plan, Reached};
}
pub use alone::is_alone;
pub use faults::Faults;
pub use loopback::{Loopback, SlotCounts};
pub use mix::{Ending, Mix, MixCall, Order};
pub use network::{Network, Pair};
pub use node::{LoopbackNode, Node};
pub use raw_peer::RawPeer;
#[doc(inline)]
pub use rpc_core::for_testing::{Clock, Random, block_on_between_turns, disable_coalescing};
pub use shared::SharedNode;
