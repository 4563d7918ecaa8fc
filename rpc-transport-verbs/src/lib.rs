//! rpc-transport-verbs

mod handshake;
