//! Streams: calls with any number of messages in one direction or both.
//!
//! The application holds one end of each direction, and the driver the other: [`StreamCore`]
//! (`core.rs`) lies between them.

pub(crate) mod batch;
pub(crate) mod core;
pub(crate) mod from_fn;
pub(crate) mod inbound;
pub(crate) mod outbound;
pub(crate) mod pump;
pub(crate) mod request;
pub(crate) mod responses;
pub(crate) mod sender;
pub(crate) mod streaming;

#[cfg(test)]
mod tests;
