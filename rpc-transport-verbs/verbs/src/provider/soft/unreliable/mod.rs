//! Unreliable connections and datagrams, within one process.
//!
//! A message is delivered after the sender's lock was released and before the receiver's is
//! acquired, so a thread never holds two locks.

pub(super) mod datagram;
pub(super) mod deliver;
pub(super) mod message;
pub(super) mod send;
