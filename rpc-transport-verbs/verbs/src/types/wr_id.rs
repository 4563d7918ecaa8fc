//! Work request ids: the number that the device copies from a work request to its completion.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use super::verbs_error::VerbsError;

/// The id of a work request in flight (`wr_id` in `ibv_post_send(3)` and `ibv_poll_cq(3)`).
///
/// ```text
///  63 62 61                          32 31                              0
/// ┌─────┬──────────────────────────────┬─────────────────────────────────┐
/// │kind │ queue                        │ number                          │
/// └─────┴──────────────────────────────┴─────────────────────────────────┘
/// ```
///
/// * **kind**: send or receive. It is needed because a failed completion has no valid opcode;
/// * **queue**: the queue's number in this process, never reused. A completion therefore cannot
///   release memory of another queue, or of a later queue pair with the same number;
/// * **number**: identifies the request in its queue. For a send, it is the number of earlier
///   sends; for a receive, its index in the queue's table and how often that entry had been used
///   before. A completion that is late, duplicated or was kept is therefore recognized as stale,
///   until the numbers wrap around: after 2³² sends, or when an entry of a receive queue has been
///   used as often as the bits beside its index can count (2¹⁷ times in a shared receive queue of
///   1,024).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WrId(u64);

/// The kind of request that a [`WrId`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkKind {
    /// A request of a send queue.
    Send,
    /// A request of a receive queue, shared or not.
    Receive,
}

/// The number of a queue pair or shared receive queue, unique in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueTag(u32);

impl QueueTag {
    /// Returns the next number, or an error after 2³⁰ queues, because numbers are never reused.
    pub(crate) fn allocate(call: &'static str) -> Result<Self, VerbsError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only uniqueness matters; the number orders no other memory access.
        NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            (next < 1 << QUEUE_BITS).then_some(next + 1)
        })
        .map(Self)
        .map_err(|limit| VerbsError::Exhausted {
            call,
            what: "queue numbers of the process",
            limit: u64::from(limit),
        })
    }
}

/// Bits of an entry's index in the largest receive table.
const MAX_INDEX_BITS: u32 = 20;
const NUMBER_BITS: u32 = 32;
const QUEUE_BITS: u32 = 30;
const KIND_SHIFT: u32 = NUMBER_BITS + QUEUE_BITS;
const KIND_SEND: u64 = 1;
const KIND_RECEIVE: u64 = 2;

/// Maximum work requests per queue: half of the entries that can be numbered, since a receive
/// queue's table has two entries for each request.
pub(crate) const MAX_DEPTH: u64 = 1 << (MAX_INDEX_BITS - 1);

/// How a receive queue's table splits a request number: the lower bits are the entry's index, the
/// upper bits its generation, which counts how often the entry has been used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbering {
    index_mask: u32,
}

impl Numbering {
    /// Numbers a table of `entries` entries, which may grow by the factor `growth`.
    pub(crate) fn new(entries: usize, growth: usize) -> Self {
        let entries = entries.saturating_mul(growth).max(2);
        let index_bits = (usize::BITS - (entries - 1).leading_zeros()).min(MAX_INDEX_BITS);
        Self {
            index_mask: (1 << index_bits) - 1,
        }
    }

    /// Returns how many entries can be numbered.
    pub(crate) fn max_entries(self) -> usize {
        self.index_mask as usize + 1
    }

    /// Returns the index of the entry that a request has.
    #[inline]
    pub(crate) fn index(self, number: u32) -> u32 {
        number & self.index_mask
    }

    /// Returns the number of the entry's next request, of the next generation.
    #[inline]
    pub(crate) fn next(self, number: u32) -> u32 {
        number.wrapping_add(self.index_mask + 1)
    }
}

/// Rejects a depth for which not all entries could be numbered.
pub(crate) fn check_depth(
    call: &'static str,
    parameter: &'static str,
    depth: usize,
) -> Result<(), VerbsError> {
    let value = depth as u64;
    if value <= MAX_DEPTH {
        return Ok(());
    }
    Err(VerbsError::OutOfRange {
        call,
        parameter,
        value,
        min: 0,
        max: MAX_DEPTH,
    })
}

impl WrId {
    /// The id of no request.
    pub(crate) const NONE: Self = Self(0);

    #[inline]
    pub(crate) fn new(kind: WorkKind, queue: QueueTag, number: u32) -> Self {
        let kind = match kind {
            WorkKind::Send => KIND_SEND,
            WorkKind::Receive => KIND_RECEIVE,
        };
        Self(kind << KIND_SHIFT | u64::from(queue.0) << NUMBER_BITS | u64::from(number))
    }

    /// Returns the id of request `number` in the queue of this id, whose own number is 0.
    #[inline]
    pub(crate) fn with_number(self, number: u32) -> Self {
        Self(self.0 | u64::from(number))
    }

    /// Wraps the number that the device returned.
    #[cfg(any(feature = "rdma", feature = "shim", test))]
    pub(crate) fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the number that the device carries.
    pub fn to_raw(self) -> u64 {
        self.0
    }

    /// Returns whether it names a send or a receive; `None` if this layer did not create it.
    pub fn kind(self) -> Option<WorkKind> {
        match self.0 >> KIND_SHIFT {
            KIND_SEND => Some(WorkKind::Send),
            KIND_RECEIVE => Some(WorkKind::Receive),
            _ => None,
        }
    }

    /// Returns true if it names a request of this kind.
    #[inline]
    #[doc(hidden)]
    pub fn is(self, kind: WorkKind) -> bool {
        let kind = match kind {
            WorkKind::Send => KIND_SEND,
            WorkKind::Receive => KIND_RECEIVE,
        };
        self.0 >> KIND_SHIFT == kind
    }

    /// Returns true if it is of this kind and belongs to this queue.
    #[inline]
    pub(crate) fn belongs_to(self, kind: WorkKind, queue: QueueTag) -> bool {
        let mine = Self::new(kind, queue, 0);
        self.0 >> NUMBER_BITS == mine.0 >> NUMBER_BITS
    }

    /// Returns the request's number in its queue.
    #[inline]
    pub fn number(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Debug for WrId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for WrId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            Some(WorkKind::Send) => write!(f, "send {}", self.number()),
            Some(WorkKind::Receive) => write!(f, "receive {:#x}", self.number()),
            None => write!(f, "wr_id {:#x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST_QUEUE: QueueTag = QueueTag((1 << QUEUE_BITS) - 1);

    #[test]
    fn every_field_comes_back_from_the_packed_number() {
        let id = WrId::new(WorkKind::Receive, LAST_QUEUE, u32::MAX - 1);
        assert_eq!(id.kind(), Some(WorkKind::Receive));
        assert_eq!(id.number(), u32::MAX - 1);
        assert!(id.belongs_to(WorkKind::Receive, LAST_QUEUE));
        assert!(!id.belongs_to(WorkKind::Send, LAST_QUEUE));
        assert!(!id.belongs_to(WorkKind::Receive, QueueTag(0)));
        assert_eq!(WrId::from_raw(id.to_raw()), id);
    }

    #[test]
    fn tables_of_every_size_number_their_entries_and_use_what_is_left_for_generations() {
        for entries in [1, 2, 3, 4, 1000, 1 << 20] {
            let numbering = Numbering::new(entries, 1);
            assert!(numbering.max_entries() >= entries);
            let index = entries as u32 - 1;
            assert_eq!(numbering.index(index), index);
            let mut number = index;
            for _ in 0..10 {
                let next = numbering.next(number);
                assert_eq!(numbering.index(next), index);
                assert_ne!(next, number);
                number = next;
            }
        }
        // All upper bits count generations: with 20 bits for the index, 12 are left.
        let numbering = Numbering::new(1 << 20, 1);
        let first = 7;
        let mut number = numbering.next(first);
        let mut generations = 1;
        while number != first {
            number = numbering.next(number);
            generations += 1;
        }
        assert_eq!(generations, 1 << 12);
        assert_eq!(Numbering::new(1000, 16).max_entries(), 1 << 14);
        assert_eq!(Numbering::new(usize::MAX, 16).max_entries(), 1 << 20);
    }

    #[test]
    fn a_foreign_number_has_no_kind() {
        assert_eq!(WrId::from_raw(0).kind(), None);
        assert_eq!(WrId::from_raw(u64::MAX).kind(), None);
    }

    #[test]
    fn no_two_queues_have_the_same_number() {
        assert_ne!(
            QueueTag::allocate("test").unwrap(),
            QueueTag::allocate("test").unwrap()
        );
    }
}
