//! What a TCP link between two queue pairs carries: bytes, without sockets or memory.
//!
//! [`hello`] is the first message of each direction of a link that one process dials at another;
//! [`header`] begins every message after it. All numbers are little endian.

pub(crate) mod header;
pub(crate) mod hello;
