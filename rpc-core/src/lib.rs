//! The core of Verbline: what an RPC is, without a socket, a device, an async runtime or a line of
//! unsafe code.
//!
//! Services are defined in `.proto` files; `rpc-codegen` turns them into the traits and clients
//! that a program uses, all in terms of this crate. A *transport* below it moves frames into
//! registered memory of the peer; `rpc-transport-verbs` has the one over RDMA verbs and its
//! software twin. This crate is what lies between:
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
//! # The way of a call
//!
//! 1. The stub makes a [`Request`] and gives it to its [`Caller`] ([`client`]).
//! 2. The poller notes the deadline and takes a credit, a place among the calls under way, and the
//!    promise of a receive for the answer; a call that lacks one waits in line ([`credit`]).
//! 3. It reserves a send slot of exactly the frame's length; [`frame`] and message are written into
//!    it, once; the transport takes it.
//! 4. The server's poller takes the frame in its next turn. [`connection`] checks what the peer may
//!    send; the method is found by its number; the message is decoded where it lies, and the slot
//!    goes back, before the handler runs ([`dispatch`]).
//! 5. The answer goes the same way back, and finds its call by the index in its id.
//!
//! # Threads
//!
//! Everything here belongs to one *poller*, and a poller to one thread: nothing on the way of a call
//! is locked or shared. [`Server`] runs as many pollers as it is told and spreads connections over
//! them; [`LocalPoller`] makes the application's own thread one.
//!
//! A handler runs on its poller's thread and may await whatever wakes it from anywhere, such as the
//! calls that it makes. What it must not do is to keep the thread: the other calls of that poller wait
//! for it. One that does is noticed, counted and named ([`BlockedMethods`]). A service that waits for
//! sockets of some runtime, or computes for long, is put on an [`Executor`] instead.
//!
//! # Features
//!
//! - `metrics`: `metrics`, what is counted, through the facade of that name.
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

/// Includes what `rpc-codegen` generated for a package: `include_proto!("demo.v1")`.
///
/// The code is expected where a build script puts it, in `OUT_DIR`, under the package's name.
#[macro_export]
macro_rules! include_proto {
    ($package:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
    };
}
