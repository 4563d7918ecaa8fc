//! For tests of this and other crates: a poller's world on one thread, where time, the network and
//! its faults are values. Behind the feature `test-util`.
//!
//! - [`Clock::manual`](crate::clock::Clock::manual): the time stands still until it is moved;
//! - [`Node`]: a poller over any transport, stepped by hand;
//! - [`SharedNode`]: a shared channel whose poller is stepped by hand;
//! - [`Loopback`]: a transport between the nodes of a [`Network`], which keeps count of every slot and
//!   of every frame that finds no receive;
//! - [`Faults`]: what goes wrong on it, and how often, from a seed;
//! - [`Pair`]: a client and a server, stepped until quiet.
//! - [`hostile`]: what peers may send that break the rules, as functions of bytes.
//!
//! ```
//! # use rpc_core::testing::Pair;
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

mod faults;
pub mod hostile;
mod loopback;
mod network;
mod node;
mod shared;

pub use faults::{Faults, Random};
pub use loopback::{Loopback, Places};
pub use network::{Network, Pair};
pub use node::Node;
pub use shared::SharedNode;
