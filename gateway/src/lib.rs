//! HTTP/2 gRPC in front of a Verbline server: stock gRPC clients and tools call it, in any language.
//!
//! A gateway is a client of the server like any other. It takes requests of HTTP/2, and makes each
//! of them a call of a [`Channel`](verbline::Channel). Messages stay bytes.
//!
//! ```no_run
//! use verbline::{Channel, Device};
//! use verbline_gateway::Gateway;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let channel = Channel::connect(&Device::best()?, "127.0.0.1:50051").await?;
//! let gateway = Gateway::builder(channel).max_connections(100);
//! println!("{}", gateway.limits());
//! gateway.serve("127.0.0.1:50052", std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The program `verbline-gateway` does this in a process of its own: see its `--help`. The guide is
//! `docs/gateway.md` in the repository.
//!
//! # One call
//!
//! 1. A connection begins with the handshake of TLS, if the gateway has a certificate (`security.rs`),
//!    and with the preface of HTTP/2 (`preface.rs`). Then hyper takes it over (`connection.rs`).
//! 2. The path of a request is looked up among the methods that the server has named
//!    (`upstream.rs`), its headers become metadata and a deadline (`headers.rs`).
//! 3. Its body becomes messages (`request_body.rs`), which go out by the channel (`call.rs`). **Only a
//!    body that ends with `END_STREAM` ends**; any other one is torn, and its call is cancelled.
//! 4. The responses become the body of the response, and the end of the call its trailers
//!    (`response_body.rs`, `grpc_status.rs`). A client that stops taking them loses its call
//!    (`stalls.rs`).
//!
//! # The way back
//!
//! [`GrpcChannel`] calls any gRPC server from a client that Verbline has generated, and [`AnyChannel`]
//! a server of either kind, as its configuration says.
//!
//! # What clients can do
//!
//! Nothing that a client sends panics or blocks the gateway, and the memory that clients can make it
//! take is bounded: [`GatewayLimits`] prints the bound.
#![forbid(unsafe_code)]

mod any_channel;
mod builder;
mod call;
mod client;
mod connection;
mod grpc_channel;
mod grpc_status;
mod headers;
mod limits;
mod memory;
mod preface;
mod request_body;
mod response_body;
mod security;
mod server;
mod stalls;
mod unread;
mod upstream;

pub use self::any_channel::{AnyChannel, AnyConnectError};
pub use self::builder::{Gateway, GatewayBuilder};
pub use self::grpc_channel::{GrpcChannel, GrpcConnectError};
pub use self::limits::GatewayLimits;

/// The programs of the guide are compiled.
#[cfg(all(doctest, feature = "tls"))]
#[doc = include_str!("../../docs/gateway.md")]
struct Guide;
