//! Reliable connections over TCP: the same queue pairs, whose requests travel as messages.
//!
//! ```text
//!   post ─▶ send queue ─▶ transmit ─▶ socket ─ ─ ─▶ turn ─▶ receive ─▶ execute ─▶ posted receive,
//!                ▲                                                        │        memory
//!            acknowledge ◀─ receive ◀─ turn ◀─ ─ ─ socket ◀─ transmit ◀─ responses
//! ```
//!
//! * [`post`](super::post): requests stay in the send queue until they complete, because a request
//!   that finds no receive is sent again.
//! * [`gather`] and [`transmit`]: one system call writes headers and
//!   payloads of many messages. The kernel takes payloads from where they lie.
//! * [`turn`]: polls, and the engine for a context that no thread polls, look for links
//!   that can be read from.
//! * [`receive`] and [`messages`]: one system call reads many messages,
//!   or a long payload to where it belongs.
//! * [`execute`]: requests are checked and carried out.
//! * [`acknowledge`]: requests complete.
//!
//! All bytes of a link, in both directions, go through its
//! [`LinkStream`](crate::provider::soft::context::link_stream::LinkStream): as they are, or in the
//! records of a layer.
//!
//! TCP loses nothing, so the timers of lost packets have no equivalent here. Everything else follows
//! the specification: sequence numbers, acknowledgements, RNR NAKs, which make the sender go back,
//! and fatal NAKs. Both sides bound what they keep for the other: responses by `max_dest_rd_atomic`,
//! everything else by constants.

mod acknowledge;
mod batch;
mod execute;
mod gather;
mod messages;
mod receive;
mod transmit;
mod turn;
