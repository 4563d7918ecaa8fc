//! Verbline's code generator: compiles the services of `.proto` files to Rust, in a build script.
//! It needs no `protoc`.
//!
//! ```text
//!   greeter.proto ──▶ protox (or protoc) ──▶ descriptors ──▶ prost: messages  ──▶ OUT_DIR/demo.rs
//!                     compile.rs             check.rs        ours: services
//!                     text.rs, link.rs, resolve.rs
//!                                                            model.rs ─▶ client.rs, server.rs, methods.rs
//!                                                            ours: a codec, from prost's messages
//!                                                            structs.rs ─▶ messages.rs ─▶ codec.rs
//! ```
//!
//! # Getting started
//!
//! Depend on `verbline` and build-depend on `rpc-codegen`. Generated code finds everything else
//! through `verbline`. Then write three files:
//!
//! 1. `greeter.proto`, beside `Cargo.toml`:
//!
//!    ```proto
//!    syntax = "proto3";
//!    package demo;
//!
//!    // Greets people by name.
//!    service Greeter {
//!      // Says hello.
//!      rpc SayHello(HelloRequest) returns (HelloReply);
//!    }
//!    message HelloRequest { string name = 1; }
//!    message HelloReply { string message = 1; }
//!    ```
//!
//! 2. `build.rs`:
//!
//!    ```no_run
//!    fn main() -> Result<(), rpc_codegen::Error> {
//!        rpc_codegen::compile_protos("greeter.proto")
//!    }
//!    ```
//!
//! 3. `lib.rs` or `main.rs`, which includes the generated code in a module of your choice:
//!
//!    ```ignore
//!    pub mod demo {
//!        verbline::include_proto!("demo");
//!    }
//!    ```
//!
//! # What is generated
//!
//! The module has prost's messages and, for the service `Greeter`:
//!
//! | item | purpose |
//! | --- | --- |
//! | `GreeterClient` | Calls the service: an `async fn` per method, which takes a message, a stream of messages, or a `Request` of either. |
//! | `Greeter` | The trait to implement for a server, with an `async fn` per method. The futures are `Send`. |
//! | `GreeterServer` | Wraps an implementation for a `Server`. Its `executor` runs the handlers on a runtime such as tokio's, and `on_poller` keeps them on the pollers. |
//! | `greeter_server::LocalGreeter` | `Greeter` without `Send`, for a service that stays on one poller. |
//! | `greeter_methods` | A constant per method that describes it. |
//!
//! The signatures of a method are, for `rpc Go(Q) returns (S)` and with `stream` before `Q`, `S` or
//! both:
//!
//! | kind | client | server |
//! | --- | --- | --- |
//! | unary | `go(Q) -> Response<S>` | `go(&self, Request<Q>) -> Response<S>` |
//! | client streaming | `go(impl Stream<Item = Q>) -> Response<S>` | `go(&self, Request<Streaming<Q>>) -> Response<S>` |
//! | server streaming | `go(Q) -> Response<Streaming<S>>` | `go(&self, Request<Q>) -> Response<impl Stream<Item = Result<S, Status>>>` |
//! | both | `go(impl Stream<Item = Q>) -> Response<Streaming<S>>` | `go(&self, Request<Streaming<Q>>) -> Response<impl Stream<Item = Result<S, Status>>>` |
//!
//! All of them are `async` and return a `Result`. A server's stream may borrow from `self`;
//! `rpc_core::stream` turns a loop that sends into a stream. Write `impl Stream<…>` in the signature,
//! even for a stream whose type has a name: for any other type, rustc's lint `refining_impl_trait`
//! warns. A signature need not say `Send`: the compiler checks that the futures and streams of a
//! `Greeter` are.
//!
//! The client and the server are in modules `greeter_client` and `greeter_server`, from which the
//! first three items are re-exported. `LocalGreeter` is not: it has the same methods as `Greeter`,
//! and with `use demo::*` calls of these methods would be ambiguous.
//!
//! An item is not re-exported either if something else has its name, such as a message `GreeterClient`.
//! The documentation of its module says so. Messages and enums always have their names, then the traits
//! of services, then clients and servers: beside a service called `GreeterClient`, the client of `Greeter`
//! is `greeter_client::GreeterClient`. If two services would have the same trait, as `Log1a` and `Log_1a`
//! would, the first in alphabetical order has it.
//!
//! If a method's name is a Rust keyword, it becomes a raw identifier (`r#type`). `new`, `clone`,
//! `into` and `try_into`, and the few keywords that cannot be raw identifiers, get an underscore
//! (`new_`, `self_`). Comments become documentation; services and methods marked `deprecated` get
//! `#[deprecated]`.
//!
//! # The codec
//!
//! Messages are prost's, with its derive: every message is a [`prost::Message`]. Stubs do not call
//! prost, however, but a codec (`rpc_core::Codec`), and the generator writes one for the messages
//! that it generates and that a method uses: those of requests and responses, and those in their
//! fields. It is straight-line code for the known fields, in the order in which prost encodes them.
//! Eight `fixed64` fields are encoded in 28 instructions instead of 316, and decoded in 40 instead of
//! 608.
//!
//! Bytes, values and errors are prost's:
//!
//! - Encoding gives the same bytes.
//! - Decoding covers messages whose fields are all known, occur in prost's order and are
//!   well-formed, up to 32 levels deep. Anything else makes prost decode the whole message again
//!   from its first byte: unknown fields, another order or wire type, a second occurrence that must
//!   be merged, groups, deep nesting, and what is not valid. prost's recursion limit counts from the
//!   outermost message, so the decoder cannot begin at a nested one.
//! - A nested message of a foreign type is encoded by prost. If it occurs, prost decodes the whole
//!   message too, unless it is a well-known type without messages inside, such as `Timestamp`.
//!
//! The generator reads prost's code to learn what prost has made of a field: its Rust name, its type, and
//! whether it is packed or optional, from the attributes that prost's derive reads too. So the codec
//! follows a prost-build that decides otherwise. An attribute that the generator does not understand is
//! an error ([`Error::NoCodec`]). Tests and a fuzz target compare the codec with prost's
//! derived code.
//!
//! Two other ways were considered. Whole `Message` implementations instead of the derive would
//! repeat prost's internal interface (`encode_raw`, `merge_field`), and would still be slow:
//! `merge_field` takes one field at a time from any `Buf`, and nested messages are merged with it.
//! An `encode` and a `decode` beside the derive are not possible, because the derive writes the whole
//! implementation. The codec is a type of its own instead of a method of a trait that all messages
//! have, because that trait could not be implemented for foreign messages. Stubs name one codec for
//! each request and response: `GeneratedCodec`, or `ProstCodec` for a foreign type.
//!
//! [`build_codec(false)`](Builder::build_codec) turns it off, and prost encodes and decodes
//! everything. [`codec_for_all_messages(true)`](Builder::codec_for_all_messages) generates it for
//! messages that no method uses, too.
//!
//! # Settings
//!
//! [`configure`] returns a [`Builder`], whose settings have the same names as tonic's. This program
//! generates only clients and uses `Bytes` for a field. In a build script it would leave out
//! `out_dir`, and the code would go to cargo's `OUT_DIR`.
//!
//! ```
//! use std::fs;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let dir = tempfile::tempdir()?;
//!     let proto = dir.path().join("images.proto");
//!     fs::write(
//!         &proto,
//!         r#"
//!             syntax = "proto3";
//!             package shop;
//!             service Images { rpc Get(Key) returns (Image); }
//!             message Key { string name = 1; }
//!             message Image { bytes data = 1; }
//!         "#,
//!     )?;
//!
//!     rpc_codegen::configure()
//!         .build_server(false)
//!         .bytes(".shop.Image.data")
//!         .out_dir(dir.path())
//!         .compile_protos(&[&proto], &[dir.path()])?;
//!
//!     let code = fs::read_to_string(dir.path().join("shop.rs"))?;
//!     assert!(code.contains("pub struct ImagesClient"));
//!     assert!(code.contains("pub data: ::rpc_core::codegen::v1::prost::bytes::Bytes"));
//!     assert!(!code.contains("ImagesServer"));
//!     Ok(())
//! }
//! ```
//!
//! # Several packages
//!
//! Packages that use one another's messages must be nested as their names are.
//! [`include_file`](Builder::include_file) writes a file that does so:
//!
//! ```no_run
//! fn main() -> Result<(), rpc_codegen::Error> {
//!     rpc_codegen::configure()
//!         .include_file("shop.rs")
//!         .compile_protos(&["proto/shop/orders.proto", "proto/shop/images.proto"], &["proto"])
//! }
//! ```
//!
//! Include that file instead of the packages:
//!
//! ```ignore
//! verbline::include_protos!("shop.rs");
//! ```
//!
//! If a package has the name of a message with nested types, as `plant.valve` beside the message
//! `plant.Valve` has, both have the module `valve`. The types nested in `Valve` are then in the file of
//! `plant.valve`. Whoever includes `plant` has to nest that file in it.
//!
//! # Without a build script
//!
//! `protoc-gen-verbline` is a plugin of `protoc`, for `buf` and Bazel too: `cargo install rpc-codegen`
//! installs it. It writes what a build script writes, and takes the settings as options
//! ([`protoc_plugin`] lists them):
//!
//! ```text
//! mkdir -p src/generated
//! protoc --verbline_out=src/generated --verbline_opt=include_file=mod.rs -I proto proto/greeter.proto
//! ```
//!
//! With `pub mod generated;` in `lib.rs` or `main.rs`, package `demo` is `generated::demo`. It needs the
//! dependency `verbline`.
//!
//! The same in a `buf.gen.yaml`, for `buf generate proto`:
//!
//! ```yaml
//! version: v2
//! plugins:
//!   - local: protoc-gen-verbline
//!     out: src/generated
//!     opt: [include_file=mod.rs]
//! ```
//!
//! # The runtime's path
//!
//! Generated code finds the runtime through one crate: `verbline`, or `rpc-core` if the package does not
//! depend on `verbline`. The name is read from the package's `Cargo.toml`, so the dependency may be
//! renamed. [`crate_path`](Builder::crate_path) sets another path.
//!
//! # Mocks
//!
//! To test code that uses a client, implement the service's trait and serve it in the process of the
//! test, as the example `in_process` does over the device `soft`. The client is the real one, so
//! calls of all four kinds have metadata, deadlines, cancellation and flow control. The mock of a
//! method that streams responses returns any stream: for example one that yields two messages and
//! then an `Err`, or one that does not end.
//!
//! # Limits
//!
//! Files with an `edition` statement are read by protoc only: set [`protoc`](Builder::protoc). Their
//! features become what proto3 has for them. A `required` field through which a message would require
//! itself becomes `optional`, because such a message has no end. Where the built-in parser rejects a file, the error says
//! that protoc may take it. Names that are different in Protobuf may be equal in Rust, such as those
//! of the fields `fooBar` and `foo_bar`. The error [`NameTaken`](Error::NameTaken) shows both items; one
//! of them has to be renamed. Like a compiler, an error shows the location of the mistake:
//!
//! ```text
//! Error: greeter.proto:5:16: name 'HelloRequest' is not defined
//!   |
//! 5 |   rpc SayHello(HelloRequest) returns (HelloReply);
//!   |                ^^^^^^^^^^^^ found here
//! ```
#![forbid(unsafe_code)]

mod aliases;
mod attributes;
mod builder;
mod by_reference;
mod check;
mod client;
mod codec;
mod comments;
mod compile;
mod descriptors;
mod editions;
mod emit;
mod error;
mod generate;
mod includes;
mod link;
mod messages;
mod methods;
mod model;
mod names;
mod output;
mod paths;
mod plugin;
mod problem;
mod reexports;
mod reflection;
mod required;
mod resolve;
mod runtime_path;
mod server;
mod services;
mod shared_modules;
mod structs;
mod text;
mod well_known;

pub use builder::{Builder, compile_protos, configure};
pub use error::Error;
pub use plugin::protoc_plugin;
pub use problem::{Place, Problem};
#[doc(no_inline)]
pub use prost_build::Config;
#[doc(no_inline)]
pub use prost_types::FileDescriptorSet;
