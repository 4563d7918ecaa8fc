//! rpc-core
#![forbid(unsafe_code)]
mod call;
pub mod call_error;
mod channel;
pub mod client;
pub mod clock;
pub mod codegen;
pub mod connection;
pub mod credit;
pub mod dispatch;
mod driver;
pub mod frame;
mod idle;
pub mod limits;
pub mod message;
pub mod metadata;
pub mod method;
mod outgoing;
pub mod poller;
mod serve;
pub mod server;
pub mod session;
pub mod status;
mod task;
#[cfg(feature = "test-util")]
pub mod testing;
mod timers;
pub mod transport;
mod waiters;

pub use call_error::{CallError, Cause, Execution};
pub use client::{Caller, LocalChannel};
pub use dispatch::{Methods, Service};
pub use limits::{Intents, Limits};
pub use message::{Extensions, IntoRequest, Request, Response};
pub use metadata::Metadata;
pub use method::{Idempotency, MethodKind, MethodSpec};
pub use poller::LocalPoller;
pub use server::{Server, ServerError, ServerHandle};
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
