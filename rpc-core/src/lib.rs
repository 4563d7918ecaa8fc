//! Verbline is an RPC framework for Rust: services are defined in `.proto` files, and calls travel
//! as messages over RDMA, or over shared memory on a host without it. This crate is its core, which
//! holds everything that a program uses at run time except the device.
//!
//! # A program
//!
//! A server and its client. `Greeter` and `GreeterClient` are generated from `greeter.proto` by
//! `rpc-codegen`, and the device comes from `rpc-transport-verbs`:
//!
//! ```
//! use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
//! use rpc_core::{Channel, Request, Response, Server, Status, block_on};
//! use rpc_transport_verbs::Device;
//!
//! struct MyGreeter;
//!
//! impl Greeter for MyGreeter {
//!     async fn say_hello(
//!         &self,
//!         request: Request<HelloRequest>,
//!     ) -> Result<Response<HelloReply>, Status> {
//!         let HelloRequest { name } = request.into_inner();
//!         if name.is_empty() {
//!             return Err(Status::invalid_argument("a greeting needs a name"));
//!         }
//!         let message = format!("Hello, {name}!");
//!         Ok(Response::new(HelloReply { message }))
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // The software device. `Device::best()` prefers an RDMA device if there is one.
//!     let device = Device::open("soft")?;
//!
//!     let server = Server::builder(&device)
//!         .add_service(GreeterServer::new(MyGreeter))
//!         .bind("127.0.0.1:0")?
//!         .spawn();
//!     let address = server.local_addr().to_string();
//!
//!     let reply = block_on(async {
//!         let channel = Channel::connect(&device, &address).await?;
//!         let greeter = GreeterClient::new(channel);
//!         let request = HelloRequest { name: "Ada".to_owned() };
//!         Ok::<_, Box<dyn std::error::Error>>(greeter.say_hello(request).await?)
//!     })?;
//!     assert_eq!(reply.into_inner().message, "Hello, Ada!");
//!
//!     server.shutdown()?;
//!     Ok(())
//! }
//! ```
//!
//! # Threads
//!
//! A *poller* is a thread that polls a device. It owns its connections and their calls, so nothing
//! on the data path is locked or shared.
//!
//! - A [`Server`] runs as many pollers as [`ServerBuilder::pollers`] says, and distributes
//!   connections over them. Handlers run on the poller's thread and may await anything. A handler
//!   that keeps the thread without awaiting delays every other call of its poller; the server
//!   detects it, counts it and logs its name ([`BlockedMethods`]). Run services that need an
//!   async runtime's sockets and timers, or that compute for long, on an [`Executor`]
//!   ([`ServerBuilder::executor`]).
//! - A [`Channel`] is a client for any thread and any executor. Its pollers run on threads of their
//!   own, and it reconnects when its connection ends. Many channels may share [`Pollers`].
//! - A [`LocalPoller`] makes the application's own thread the poller of its clients, which saves
//!   the handover between threads: the lowest latency. Its [`LocalChannel`]s stay on that thread.
//!
//! [`Waiting`] trades an idle poller's CPU time for latency.
//!
//! # The life of a call
//!
//! A call is a future. It takes a credit, which the server granted, and a send slot, and waits in
//! order of arrival while there is none. Its request is encoded once, into registered memory; the
//! server decodes it there and runs the handler; the response returns the same way.
//!
//! - Dropping the future cancels the call. The request is not sent if it still waited. Otherwise the
//!   server is told, and drops the handler at its next await; the call still gets one response,
//!   which is discarded. The calls that the handler has made are cancelled in turn.
//! - [`Request::with_timeout`] sets a deadline. It travels with the request: the server drops the
//!   handler when it passes. The calls that the handler makes inherit it ([`CurrentDeadline`]).
//! - A call fails with a [`CallError`]. [`CallError::execution`] tells whether the handler may have
//!   run, which decides whether a retry is safe.
//! - [`ServerHandle::shutdown`] lets calls in flight finish first.
//!
//! # Streams
//!
//! Methods of all four of gRPC's kinds: either side may send any number of messages.
//!
//! - A client reads a stream of responses with [`Streaming::message`] or as a [`Stream`]. It sends
//!   any `Stream`, or feeds a [`sender`]; dropping the [`Sender`] half-closes the call.
//! - A handler reads a `Streaming` too. It returns any `Stream` of results, or a loop that sends:
//!   [`stream()`].
//! - Dropping a client's `Streaming` before its end cancels the call.
//! - Each direction of a stream has a window in bytes ([`Limits::stream_window`]). A reader that does
//!   not read stops its own stream, and no other call.
//! - Messages that wait together travel in one frame. One that is alone is sent at once.
//!
//! # Features
//!
//! - `test-util`, off by default: internal, for the tests of Verbline's own crates.
//!
//! # Where to look next
//!
//! - [`Server`] and [`ServerBuilder`]; [`Channel`] and [`ChannelBuilder`]; [`LocalPoller`]
//! - [`Caller`] and [`SendCaller`]: the channels as generic code takes them
//! - [`Request`], [`Response`], [`Metadata`], [`Status`], [`CallError`]: what a call carries and
//!   returns
//! - [`error_details`]: typed details of a [`Status`], as in gRPC's rich error model
//! - [`Intents`]: the workload, from which every size is derived; [`Limits`]: the sizes
//! - [`stats`]: what is counted, as a table and for Prometheus
//! - [`transport`]: the interface to implement for another kind of network
#![forbid(unsafe_code)]
// What `for_testing` re-exports is public, and nothing else reaches it.
#![cfg_attr(not(feature = "test-util"), allow(unreachable_pub))]

// First, because the others use its macro.
#[macro_use]
mod log_limit;

mod call_error;
mod catch_panic;
mod client;
mod clock;
mod codec;
mod deadline;
mod driver;
mod limits;
mod message;
mod metadata;
mod method;
mod offload;
mod outcome;
mod peer;
mod peer_memory;
mod peer_sentence;
mod poller;
mod protocol;
mod server;
mod service;
mod shared;
mod status;
mod stream;

pub mod error_details;
pub mod intercept;
pub mod stats;
pub mod transport;

#[doc(inline)]
pub use call_error::{CallError, Cause, Execution};
#[doc(inline)]
pub use client::{Caller, LocalChannel, SendCaller};
#[doc(inline)]
pub use codec::{
    Allocate, BY_REFERENCE_LEN, BegunDecode, BytesCodec, Chunks, Codec, DecodeError, DecodeFuture,
    Decoded, LengthChanged, MessageBuf, ProstCodec,
};
#[doc(inline)]
pub use deadline::{CurrentDeadline, DeadlinePolicy};
#[doc(inline)]
pub use limits::{
    FRAME_OVERHEAD, Intents, Keepalive, LONGEST_MESSAGE, LengthLimit, Limits, OtherDevice,
    SLOT_MESSAGE_LEN, Waiting,
};
#[doc(inline)]
pub use message::{Extensions, IntoRequest, Request, Response};
#[doc(inline)]
pub use metadata::{
    IntoMetadataKey, IntoMetadataValue, Metadata, MetadataError, MetadataIter, MetadataKey,
};
#[doc(inline)]
pub use method::remote::RemoteMethods;
#[doc(inline)]
pub use method::{Idempotency, MethodKind, MethodSpec};
#[doc(inline)]
pub use offload::Spawned;
pub use peer::{CertificateTooLong, Forwarded, Peer, PeerCertificate};
#[doc(inline)]
pub use poller::{BlockOnInTurn, LocalPoller, LocalPollerBuilder, allocate, block_on};
#[doc(inline)]
pub use server::{Server, ServerBuilder, ServerError, ServerHandle, Shutdown};
#[doc(inline)]
pub use service::dispatch::{Methods, ServedService, Service};
#[doc(inline)]
pub use service::executor::Executor;
#[doc(inline)]
pub use shared::{
    Channel, ChannelBuilder, ChannelError, ConnectivityState, PollerSource, Pollers,
    PollersBuilder, Watch,
};
#[doc(inline)]
pub use stream::from_fn::{ResponseSender, stream};
#[doc(inline)]
pub use stream::request::IntoStreamingRequest;
#[doc(inline)]
pub use stream::responses::Responses;
#[doc(inline)]
pub use stream::sender::{Messages, SendError, Sender, sender};
#[doc(inline)]
pub use stream::source::MessageSource;
#[doc(inline)]
pub use stream::streaming::Streaming;

#[doc(no_inline)]
pub use futures_core::Stream;

/// The crates whose types generated code has in its messages and signatures.
#[doc(no_inline)]
pub use {bytes, prost, prost_types};

#[doc(inline)]
pub use stats::{BlockedMethod, BlockedMethods, Stats, StatsReader};
#[doc(inline)]
pub use status::{Code, Status};

#[doc(hidden)]
pub mod codegen;

#[cfg(feature = "test-util")]
#[doc(hidden)]
pub mod for_testing;

/// Internal, without any promise: the layout of frames and sessions, for benchmarks and tests.
#[doc(hidden)]
pub use protocol::{frame, session};

/// Internal, without any promise: the violations for which a connection is closed, for tests.
#[doc(hidden)]
pub use protocol::{
    connection::{ProtocolError, Role},
    credit::CreditError,
};

/// Includes the code that `rpc-codegen` generated for a package: `include_proto!("demo.v1")`.
///
/// The code is expected where a build script puts it, in `OUT_DIR`, under the package's name as in the
/// `.proto`.
#[macro_export]
macro_rules! include_proto {
    ($package:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
    };
}

/// Includes the file of all packages that `rpc-codegen` wrote (`Builder::include_file`), in modules
/// nested like them: `include_protos!("shop.rs")`. Packages that use one another's messages need it.
#[macro_export]
macro_rules! include_protos {
    ($file:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $file));
    };
}
