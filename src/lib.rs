//! Verbline is an RPC framework for Rust: services are defined in `.proto` files, and calls travel
//! as messages over RDMA, and without it over shared memory or TCP.
//!
//! This package is the one that programs depend on. It consists of names from the packages that do
//! the work: `rpc-core` (calls, servers, channels) and `rpc-transport-verbs` (devices, and a safe
//! layer over RDMA verbs for programs without calls).
//!
//! # A program
//!
//! A program needs two packages in its `Cargo.toml`: `verbline`, and `rpc-codegen` for its build
//! script, which generates `Greeter`, `GreeterServer` and `GreeterClient` from `greeter.proto`.
//!
//! ```
//! use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
//! use verbline::{Channel, Device, Request, Response, Server, Status, block_on};
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
//! - A [`Server`] runs as many pollers as
//!   [`ServerBuilder::pollers`](server::ServerBuilder::pollers) says. Handlers run on the poller's
//!   thread, or on an [`Executor`] that
//!   [`ServerBuilder::executor`](server::ServerBuilder::executor) names, such as tokio.
//! - A [`Channel`] is a client for any thread and any executor. It reconnects when its connection
//!   ends. Channels have threads of their own, or share those of [`Pollers`].
//! - A [`LocalPoller`] makes the application's own thread the poller of its clients, which saves
//!   the handover between threads: the lowest latency. Its [`LocalChannel`]s stay on that thread.
//!
//! [`Waiting`] trades an idle poller's processor time for latency.
//!
//! # The life of a call
//!
//! A call is a future.
//!
//! - Dropping the future cancels the call. The request is not sent if it still waited. Otherwise the
//!   server is told, and drops the handler at its next await. The calls that the handler has made
//!   are cancelled in turn.
//! - [`Request::with_timeout`] sets a deadline. It travels with the request: the server drops the
//!   handler when it passes. The calls that the handler makes inherit it.
//! - A call fails with a [`CallError`]. [`CallError::execution`] tells whether the handler may have
//!   run, and [`CallError::is_retryable`] whether the call may be made again.
//! - [`ServerHandle::shutdown`] and [`Server::serve_with_shutdown`] let calls in flight finish.
//!
//! Streams work in both directions: [`Streaming`] receives, and any [`Stream`] or a [`sender`]
//! sends.
//!
//! # Features
//!
//! All are off by default.
//!
//! - `rdma`: RDMA devices. The build needs the headers of libibverbs and librdmacm.
//! - `tokio`: `TokioExecutor`, which runs handlers on tokio.
//! - `health`: the module `health`, with gRPC's health service.
//! - `tls`: the module `tls`, with TLS for who connects and for what crosses a network. `tls-aws-lc` is the
//!   same with another library for cryptography.
//! - `reflection`: the module `reflection`, with gRPC's reflection, which describes the services of a
//!   server.
//!
//! # Where to look next
//!
//! - [`ServerBuilder`](server::ServerBuilder), [`ChannelBuilder`](client::ChannelBuilder) and
//!   [`Intents`] have the settings; [`Limits`] prints the sizes that follow from them.
//! - The guides in the folder `docs` of the repository: from tonic, errors and retries, shutdown,
//!   testing, deploying, sizing, streams, memory, threads, RDMA.
#![forbid(unsafe_code)]

#[cfg(feature = "health")]
pub mod health;
pub mod intercept;
#[cfg(feature = "reflection")]
pub mod reflection;
#[cfg(feature = "tokio")]
mod tokio_executor;

#[doc(inline)]
pub use rpc_core::{
    CallError, Channel, ChannelError, Code, Execution, Executor, Intents, Keepalive, Limits,
    LocalChannel, LocalPoller, Metadata, MetadataKey, Pollers, Request, Response, SendError,
    Sender, Server, ServerError, ServerHandle, Shutdown, Status, Streaming, Waiting, block_on,
    error_details, include_proto, include_protos, sender, stats, stream,
};

#[doc(inline)]
pub use rpc_core::transport::ConnectError;

#[doc(no_inline)]
pub use rpc_core::Stream;

#[doc(inline)]
pub use rpc_transport_verbs::{Device, DeviceError};

#[cfg(feature = "tokio")]
pub use self::tokio_executor::TokioExecutor;

/// What generated code names.
#[doc(hidden)]
pub use rpc_core::codegen;

/// Clients: the builders and the state of channels, the causes of errors, and what a type implements
/// to make calls.
pub mod client {
    #[doc(inline)]
    pub use rpc_core::transport::{CloseReason, VersionRange};
    #[doc(inline)]
    pub use rpc_core::{
        BlockOnInTurn, Caller, Cause, ChannelBuilder, ConnectivityState, CurrentDeadline,
        Idempotency, LengthLimit, LocalPollerBuilder, MessageSource, MethodKind, MethodSpec,
        PollerSource, PollersBuilder, RemoteMethods, SendCaller, Watch,
    };
}

/// Servers: the builder, the peers of requests, the handles of statistics, and the types of streams.
pub mod server {
    #[doc(inline)]
    pub use rpc_core::{
        CertificateTooLong, DeadlinePolicy, Forwarded, Methods, Peer, PeerCertificate,
        ResponseSender, Responses, ServedService, ServerBuilder, Service, Spawned, StatsReader,
    };
}

/// Messages and metadata: how they are encoded, and the memory that they use.
pub mod message {
    /// The crates whose types generated code has in its messages and signatures.
    #[doc(no_inline)]
    pub use rpc_core::{bytes, prost, prost_types};

    #[doc(inline)]
    pub use rpc_core::transport::MessageMemory;
    #[doc(inline)]
    pub use rpc_core::{
        Allocate, BY_REFERENCE_LEN, BegunDecode, BytesCodec, Chunks, Codec, DecodeError,
        DecodeFuture, Decoded, Extensions, IntoMetadataKey, IntoMetadataValue, IntoRequest,
        IntoStreamingRequest, LONGEST_MESSAGE, LengthChanged, MessageBuf, Messages, MetadataError,
        MetadataIter, ProstCodec, SLOT_MESSAGE_LEN, allocate,
    };
}

/// TLS 1.3: who a server and its clients are, and whom they believe. A
/// [`Device`] takes both: `Device::with_server_tls`, `Device::with_client_tls`.
#[cfg(feature = "tls")]
pub mod tls {
    #[doc(inline)]
    pub use verbline_tls::{
        ClientAuth, ClientTls, Expect, Identity, Origin, PemProblem, Roots, ServerTls, TlsError,
        UnreadableCertificate,
    };
}

/// Devices: what this machine has, the cores of threads, and the bound of functions that take any
/// device.
pub mod device {
    #[doc(inline)]
    pub use rpc_core::OtherDevice;
    #[doc(inline)]
    pub use rpc_core::transport::{Fabric, FabricError};
    #[doc(inline)]
    pub use rpc_transport_verbs::{
        CompletionVector, DEVICE_VARIABLE, FabricSettings, Sizing, Survey, SurveyedDevice,
        SurveyedPort, unpinned,
    };
}
