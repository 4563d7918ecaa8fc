//! How connections are set up, and how the end of a peer is noticed.
//!
//! A TCP connection carries the handshake (`proto/handshake.proto`, which contains the core's part,
//! `proto/session.proto`). It stays open afterwards as the liveness socket. Both sides are ready to
//! receive before either side sends. Calls over TCP have a second connection ([`link`]), which the
//! client dials at the same port before the handshake ends. One control thread serves all
//! handshakes, as state machines over bytes, so a slow client delays no other client.
//!
//! TCP does not say which process has connected. For the software device, the client's process proves
//! that the GID that it offers is its own, by a message over a Unix socket, before the server admits
//! it. For RDMA devices there is no such proof: whoever reaches the server's port can offer any
//! address of the RDMA network, and whoever is on that network can connect to its queue pairs.

pub(crate) mod address;
pub(crate) mod client;
pub(crate) mod clock_exchange;
pub(crate) mod control_stream;
pub(crate) mod control_thread;
mod dial;
mod exchange;
pub(crate) mod handshake;
pub(crate) mod keepalive;
pub(crate) mod link;
pub(crate) mod liveness;
mod offers;
mod rpc_transport;
mod secure;
pub(crate) mod server;
