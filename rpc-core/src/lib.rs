//! The core of Verbline: RPC without sockets, devices, an async runtime or unsafe code.
//!
//! Services are defined in `.proto` files. `rpc-codegen` generates from them the traits and clients
//! that a program uses, in terms of this crate. Below this crate, a *transport* moves frames into
//! registered memory of the peer. `rpc-transport-verbs` has a transport over RDMA verbs, on RDMA
//! devices and on a software device. This crate is the layer in between:
//!
//! ```text
//!  generated client ── Caller ──▶ client/ ──▶ outgoing.rs ─┐            ┌─▶ incoming.rs ──▶ service/ ──▶ handler
//!                                                          ▼            │
//!                                             protocol/ ── driver/ (a turn)
//!                                                          │            ▲
//!                                                          ▼            │
//!                                        Transport: reserve, send, flush, poll, release
//! ```
//!
//! # A program
//!
//! With a generated `Greeter`, and a device from `rpc-transport-verbs`, this is a client:
//!
//! ```ignore
//! let poller = LocalPoller::new(&Device::best()?)?;
//! let greeter = GreeterClient::new(poller.connect("127.0.0.1:50051")?);
//! let reply = poller.block_on(greeter.say_hello(HelloRequest { name: "Ada".into() }))?;
//! ```
//!
//! and this a server:
//!
//! ```ignore
//! Server::builder(&Device::best()?).add_service(GreeterServer::new(MyGreeter)).bind("127.0.0.1:50051")?.run()?;
//! ```
//!
//! # The steps of a call
//!
//! 1. The stub creates a [`Request`] and passes it to its [`Caller`] ([`client`]).
//! 2. The poller registers the deadline and takes a credit, one unit of the in-flight limit, and a
//!    promised receive for the response. A call that lacks one of them is queued ([`credit`]).
//! 3. It reserves a send slot of exactly the frame's length. [`frame`] and message are written into
//!    the slot, once, and the transport sends it.
//! 4. The server's poller receives the frame in its next turn. [`connection`] checks that the peer
//!    may send it. The method is found by its number, the message is decoded in place, and the slot
//!    is released before the handler runs ([`dispatch`]).
//! 5. The response takes the same path back, and finds its call by the index in its id.
//!
//! # Threads
//!
//! All state belongs to one *poller*, and a poller to one thread: nothing on the path of a call is
//! locked or shared. [`Server`] runs the configured number of pollers and spreads connections over
//! them; [`LocalPoller`] is a poller on the application's own thread.
//!
//! A handler runs on its poller's thread. It may await anything, such as the calls that it makes,
//! and may be woken from any thread. It must not block the thread, because the other calls of that
//! poller wait for it. A handler that blocks is detected, counted and reported by name
//! ([`BlockedMethods`]). Services that wait for sockets of a runtime, or compute for long, run on an
//! [`Executor`] instead.
//!
//! # Features
//!
//! - `metrics`: the module `metrics`, which publishes the statistics through the facade of that name.
//! - `test-util`: `testing`, where time, network and faults are values.
#![forbid(unsafe_code)]

pub mod call_error;
pub mod client;
pub mod clock;
pub mod codegen;
mod driver;
pub mod limits;
pub mod message;
pub mod metadata;
pub mod method;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod poller;
#[doc(hidden)]
pub mod protocol;
pub mod server;
pub mod service;
pub mod shared;
pub mod stats;
pub mod status;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod transport;

pub use call_error::{CallError, Cause, Execution};
pub use client::{Caller, LocalChannel};
pub use limits::{Intents, Limits, Waiting};
pub use message::{Extensions, IntoRequest, Request, Response};
pub use metadata::Metadata;
pub use method::{Idempotency, MethodKind, MethodSpec};
pub use poller::{LocalPoller, block_on};
#[doc(hidden)]
pub use protocol::{connection, credit, frame, session};
pub use server::{Server, ServerError, ServerHandle, Shutdown};
pub use service::{Executor, Methods, Service, dispatch, executor};
pub use shared::{Channel, ChannelError, ConnectivityState};
pub use stats::{BlockedMethod, BlockedMethods, Observer, Stats};
pub use status::{Code, Status};

/// Includes the code that `rpc-codegen` generated for a package: `include_proto!("demo.v1")`.
///
/// The code is expected where a build script puts it, in `OUT_DIR`, under the package's name.
#[macro_export]
macro_rules! include_proto {
    ($package:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
    };
}
