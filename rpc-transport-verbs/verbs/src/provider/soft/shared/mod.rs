//! Data that processes share: sealed memory, rings, commit words, announcements to a context, and
//! the keys and queue pairs that a context publishes.

pub(super) mod announcements;
pub(super) mod commit;
pub(super) mod copy;
pub(super) mod descriptor;
pub(super) mod memory;
pub(super) mod peer_file;
#[cfg(feature = "shim")]
pub(super) mod program_pages;
pub(super) mod published;
pub(super) mod request_message;
pub(super) mod ring;
mod sequence_lock;
pub(super) mod sync;
pub(super) mod wake;
pub(super) mod wake_socket;
