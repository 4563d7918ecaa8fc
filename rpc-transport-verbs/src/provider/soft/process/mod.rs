//! One process: its GID, its links to others, and its engine.

pub(super) mod engine;
pub(super) mod link;
pub(super) mod link_message;
pub(super) mod multicast;
pub(super) mod node;
