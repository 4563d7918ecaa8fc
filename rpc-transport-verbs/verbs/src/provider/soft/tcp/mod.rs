//! The carrier over TCP: writes the requests of a queue pair to its connection, with the responses and
//! acknowledgements that the peer waits for, and reads the peer's.
//!
//! * [`batch`] and [`write`](mod@write): one system call writes headers and payloads of many messages. The
//!   kernel takes payloads from where they lie.
//! * [`read`]: one system call reads many messages, or a long payload to where it belongs.
//!
//! All bytes of a link, in both directions, go through its
//! [`LinkStream`](super::context::link_stream::LinkStream): as they are, or in the records of a layer.
//!
//! TCP loses nothing, so the timers of lost packets have no equivalent here. Everything else follows
//! the specification: sequence numbers, acknowledgements, RNR NAKs, which make the sender go back,
//! and fatal NAKs. Both sides bound what they keep for the other: responses by `max_dest_rd_atomic`,
//! everything else by constants. Nothing here knows whether a request may begin or be executed: see
//! [`reliable`](super::reliable).

pub(super) mod batch;
pub(super) mod read;
pub(super) mod write;
