//! Verbline's code generator: services in `.proto` files become Rust in a build script, with nothing to install.
//!
//! ```text
//!   greeter.proto ──▶ protox (or protoc) ──▶ descriptors ──▶ prost: messages  ──▶ OUT_DIR/demo.rs
//!                     compile.rs             check.rs        ours: services
//!                                                            model.rs ─▶ server.rs, client.rs, methods.rs
//! ```
//!
//! # The common case
//!
//! A `.proto` file beside `Cargo.toml`,
//!
//! ```proto
//! syntax = "proto3";
//! package demo;
//!
//! service Greeter {
//!   rpc SayHello(HelloRequest) returns (HelloReply);
//! }
//! message HelloRequest { string name = 1; }
//! message HelloReply { string message = 1; }
//! ```
//!
//! a line in `build.rs`,
//!
//! ```no_run
//! fn main() -> Result<(), rpc_codegen::Error> {
//!     rpc_codegen::compile_protos("greeter.proto")
//! }
//! ```
//!
//! and a line in `lib.rs` or `main.rs`, inside of whatever module suits:
//!
//! ```ignore
//! pub mod demo {
//!     rpc_core::include_proto!("demo");
//! }
//! ```
//!
//! The package depends on `rpc-core` and build-depends on this crate; what else generated code needs, it finds through
//! `rpc-core`.
//!
//! # What there is then
//!
//! | for service `Greeter` | |
//! | --- | --- |
//! | `trait Greeter` | implement it, with an `async fn` for each method, to be a server; its futures are `Send` |
//! | `trait LocalGreeter` | the same without `Send`, for a service that stays on one thread |
//! | `GreeterServer` | makes either into what is added to a `Server`; `on_executor` has the handlers run on a runtime such as tokio's |
//! | `GreeterClient` | has an `async fn` for each method, which takes a message or a `Request` |
//! | `mod greeter_methods` | a constant for each method that says what is known of it |
//!
//! They stand beside the messages, which are prost's, in the module of the package. A method whose name is a keyword of
//! Rust is a raw identifier (`r#type`); `new`, `clone`, `into` and `try_into`, and the few keywords that cannot be raw,
//! get an underscore (`new_`, `self_`). Comments become documentation, and `deprecated` services and methods
//! `#[deprecated]`.
//!
//! # Other cases
//!
//! [`configure`] has the settings, by the names that they have in tonic: attributes on messages, `Bytes` instead of
//! `Vec<u8>`, types that are elsewhere, only one half of the stubs, several packages that use one another:
//!
//! ```no_run
//! fn main() -> Result<(), rpc_codegen::Error> {
//!     rpc_codegen::configure()
//!         .bytes(".shop.Image.data")
//!         .type_attribute(".shop.Order", "#[derive(serde::Serialize)]")
//!         .include_file("shop.rs")
//!         .compile_protos(&["proto/shop/orders.proto", "proto/shop/images.proto"], &["proto"])
//! }
//! ```
//!
//! # Not yet
//!
//! Methods that stream and files that say `edition` are refused, by an error that says so. Otherwise every [`Error`]
//! points to the place, as a compiler does:
//!
//! ```text
//! Error: greeter.proto:5:16: name 'HelloRequest' is not defined
//!   |
//! 5 |   rpc SayHello(HelloRequest) returns (HelloReply);
//!   |                ^^^^^^^^^^^^ found here
//! ```
#![forbid(unsafe_code)]

mod builder;
mod check;
mod client;
mod comments;
mod compile;
mod emit;
mod error;
mod generate;
mod methods;
mod model;
mod names;
mod output;
mod problem;
mod server;

pub use builder::{Builder, compile_protos, configure};
pub use error::Error;
pub use problem::{Place, Problem};
