//! The services of Verbline's examples, benchmarks and interop tests, with their stubs.
//!
//! The `.proto` files are in this package's directory. `build.rs` compiles them, and each module
//! here includes the generated code of one file. To define your own services, follow the same three
//! steps:
//!
//! 1. write `greeter.proto` (copy [the one here][greeter.proto]) and put it next to your
//!    `Cargo.toml`;
//! 2. depend on `verbline`, add `rpc-codegen` as a build dependency, and write this `build.rs`:
//!
//!    ```ignore
//!    fn main() -> Result<(), rpc_codegen::Error> {
//!        rpc_codegen::compile_protos("greeter.proto")
//!    }
//!    ```
//! 3. include the generated code in a module of any name:
//!
//!    ```ignore
//!    pub mod greeter {
//!        verbline::include_proto!("verbline.greeter");
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

/// A minimal service that greets a person by name.
pub mod greeter {
    rpc_core::include_proto!("verbline.greeter");
}

/// An echo service.
pub mod echo {
    rpc_core::include_proto!("verbline.echo");
}

/// The benchmark services.
pub mod bench {
    rpc_core::include_proto!("verbline.bench");
}

/// gRPC's route guide, which has a method of each kind.
pub mod routeguide {
    rpc_core::include_proto!("routeguide");
}

/// A chat room.
pub mod chat {
    rpc_core::include_proto!("chat");
}

/// A store whose changes can be watched.
pub mod watch {
    rpc_core::include_proto!("watch");
}

/// The benchmark service for messages of any size.
pub mod bulk {
    rpc_core::include_proto!("verbline.bulk");
}

/// A store of blobs of any size.
pub mod blobs {
    rpc_core::include_proto!("blobs");
}

/// The services of gRPC's interop tests, which are in the package `grpc.testing`.
pub mod interop {
    rpc_core::include_proto!("grpc.testing");
}

/// The session messages that both sides' rpc-core exchange when they connect.
pub mod session {
    rpc_core::include_proto!("verbline.session.v1");
}
