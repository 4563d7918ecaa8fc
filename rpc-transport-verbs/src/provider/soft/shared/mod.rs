//! Data that processes share: sealed memory, rings, commit words, and the bits that wake a context.

pub(super) mod commit;
pub(super) mod copy;
pub(super) mod descriptor;
pub(super) mod memory;
pub(super) mod peer_file;
pub(super) mod request_message;
pub(super) mod ring;
pub(super) mod sync;
pub(super) mod wake;
pub(super) mod wake_socket;
