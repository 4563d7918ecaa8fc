//! The tests of the transport, one module for each subject. A test that looks at its whole process, or
//! disturbs it, is in a program of its own.

#[path = "../other_address/mod.rs"]
mod other_address;
#[path = "../transport_harness/mod.rs"]
mod transport_harness;

mod full_server;
mod handler_blocks;
mod over_tcp;
mod server_shutdown;
mod transport_frames;
mod transport_handshake;
mod transport_handshake_golden;
mod transport_keepalive;
mod transport_processes;
mod transport_reserve;
mod transport_sleep;
mod transport_stopped_peer;
