//! How much of everything a context of this device has.

use super::shared::request_message::REMOTE_LEN;
use super::shared::ring::MAX_IN_RING;
use crate::verbs::types::VerbsError;

/// Work requests of one queue. The layer above numbers them in 20 bits and keeps twice as many
/// places for receives as can be posted.
pub(super) const MAX_WR: usize = 1 << 16;
/// Entries of a completion queue: enough for 64 of the deepest queues.
pub(super) const MAX_CQE: usize = 1 << 22;
/// Completion queues, and shared receive queues, of one context.
pub(super) const MAX_QUEUES: usize = 1 << 16;
/// Bytes of a region: a message's length has 31 bits, and so has an offset that ends one.
pub(super) const MAX_REGION_LEN: usize = 1 << 36;
/// Scatter/gather elements of a request: as many descriptors of long pieces as one slot of a ring holds.
pub(super) const MAX_SGE: usize = 8;
/// Bytes that any request can carry in its slot of the ring: a WRITE says first where they go.
pub(super) const MAX_INLINE: usize = MAX_IN_RING - REMOTE_LEN;
/// Bytes of the longest message.
pub(super) const MAX_MESSAGE_LEN: usize = 1 << 31;

pub(super) fn exhausted(call: &'static str, what: &'static str, limit: usize) -> VerbsError {
    VerbsError::Exhausted {
        call,
        what,
        limit: limit as u64,
    }
}

/// A place in one of a context's tables, which are all limited to far less than 2³².
pub(super) fn place32(place: usize) -> u32 {
    place as u32
}
