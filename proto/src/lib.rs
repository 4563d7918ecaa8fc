//! The services that Verbline's examples and benchmarks speak, with their stubs.
//!
//! The `.proto` files are in this package's directory; `build.rs` compiles them, and each module here holds what came
//! of one. To have services of your own, do the same three things:
//!
//! 1. write `greeter.proto` (copy [the one here][greeter.proto]) and put it beside your `Cargo.toml`;
//! 2. depend on `rpc-core`, build-depend on `rpc-codegen`, and let `build.rs` be
//!
//!    ```ignore
//!    fn main() -> Result<(), rpc_codegen::Error> {
//!        rpc_codegen::compile_protos("greeter.proto")
//!    }
//!    ```
//! 3. include what was generated, under whatever name suits:
//!
//!    ```ignore
//!    pub mod greeter {
//!        rpc_core::include_proto!("verbline.greeter");
//!    }
//!    ```
//!
//! A server then implements the trait, and a client calls the methods:
//!
//! ```
//! use proto::greeter::{Greeter, HelloReply, HelloRequest};
//! use rpc_core::{Request, Response, Status};
//!
//! struct Polite;
//!
//! impl Greeter for Polite {
//!     async fn say_hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
//!         let HelloRequest { name } = request.into_inner();
//!         Ok(Response::new(HelloReply { message: format!("Hello, {name}!") }))
//!     }
//! }
//! ```
//!
//! [greeter.proto]: https://github.com/verbline/verbline/blob/main/proto/greeter.proto
#![forbid(unsafe_code)]

/// The smallest service: somebody is greeted by name.
pub mod greeter {
    rpc_core::include_proto!("verbline.greeter");
}

/// Bytes there and back.
pub mod echo {
    rpc_core::include_proto!("verbline.echo");
}

/// What the benchmarks call.
pub mod bench {
    rpc_core::include_proto!("verbline.bench");
}

/// What the cores of both sides tell each other when they connect.
pub mod session {
    rpc_core::include_proto!("verbline.session.v1");
}
