//! Verbline's code generator: services in `.proto` files become Rust in a build script.
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
