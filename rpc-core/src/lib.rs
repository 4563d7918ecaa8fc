//! rpc-core
#![forbid(unsafe_code)]
pub mod limits;
pub mod transport;
