//! Unreliable connections and datagrams, within one process.

pub(super) mod datagram;
pub(super) mod deliver;
pub(super) mod message;
pub(super) mod send;
