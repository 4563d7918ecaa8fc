//! Streams: calls with any number of messages in one direction or both.
//!
//! The application holds one end of each direction, and the driver the other: [`StreamCore`]
//! (`core.rs`) lies between them.

pub(crate) mod batch;
pub(crate) mod core;
pub(crate) mod inbound;
pub(crate) mod outbound;
