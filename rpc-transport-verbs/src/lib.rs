//! rpc-transport-verbs

mod handshake;

mod provider;
pub mod verbs;
