//! One process: its GID, its links to others, and its engine.

mod accept;
pub(super) mod claims;
pub(super) mod credentials;
mod dial;
pub(super) mod engine;
pub(super) mod gid;
pub(super) mod greeting;
pub(super) mod inbound;
pub(super) mod link;
pub(super) mod link_message;
mod links;
pub(super) mod multicast;
pub(super) mod node;
pub(super) mod outbound;
mod tcp_accept;
pub(super) mod tcp_port;
mod unix_accept;
mod usage;

#[cfg(test)]
mod tests;
