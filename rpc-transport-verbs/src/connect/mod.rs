//! How connections are set up, and how the end of a peer is noticed.

pub(crate) mod client;
pub(crate) mod control_thread;
pub(crate) mod handshake;
pub(crate) mod keepalive;
pub(crate) mod liveness;
mod rpc_transport;
pub(crate) mod server;
