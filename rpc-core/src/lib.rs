//! rpc-core
#![forbid(unsafe_code)]
pub mod call_error;
pub mod credit;
pub mod frame;
pub mod limits;
pub mod message;
pub mod metadata;
pub mod method;
pub mod status;
pub mod transport;

pub use status::{Code, Status};
