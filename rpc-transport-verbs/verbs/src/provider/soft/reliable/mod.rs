//! Reliable connections: requests go into rings, come out of them, and are acknowledged.

mod acks;
pub(super) mod execute;
pub(super) mod failure;
pub(super) mod issue;
pub(super) mod poll;
pub(super) mod post;
pub(super) mod progress;
mod read_in_place;
pub(super) mod receive;
pub(super) mod responses;
pub(super) mod retry;
pub(super) mod sleep;
mod tcp;
pub(super) mod transmit;
