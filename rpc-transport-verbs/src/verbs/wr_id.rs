//! The number that the device carries from a work request to its completion.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use super::error::VerbsError;

/// Names a work request in flight.
///
/// ```text
///  63 62 61                          32 31         20 19                  0
/// ┌─────┬──────────────────────────────┬─────────────┬─────────────────────┐
/// │kind │ queue                        │ generation  │ index               │
/// └─────┴──────────────────────────────┴─────────────┴─────────────────────┘
/// ```
///
/// * **kind**: send or receive; an error completion has no valid opcode, so this is what tells;
/// * **queue**: the queue's number in this process, never used twice, so that a completion can
///   release nothing of another queue, and nothing of a later queue pair with the same number;
/// * **generation**: how often the place had been used, so that a completion which comes late or
///   twice is seen to be stale;
/// * **index**: the place in the queue's table.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WrId(u64);

/// What kind of work a [`WrId`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkKind {
    /// A request of a send queue.
    Send,
    /// A request of a receive queue, shared or not.
    Receive,
}

/// The number of a queue pair or shared receive queue in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueTag(u32);

impl QueueTag {
    /// The next one; an error after 2³⁰ queues, because none may be used twice.
    pub(super) fn allocate(call: &'static str) -> Result<Self, VerbsError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Only the number's uniqueness counts; it orders nothing.
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

const INDEX_BITS: u32 = 20;
/// After 4,096 uses of one place a completion that is late by exactly that would go unnoticed.
/// It would have to be the device's mistake: no right device reports a request twice.
pub(super) const GENERATION_BITS: u32 = 12;
const QUEUE_BITS: u32 = 30;
const QUEUE_SHIFT: u32 = INDEX_BITS + GENERATION_BITS;
const KIND_SHIFT: u32 = QUEUE_SHIFT + QUEUE_BITS;
const KIND_SEND: u64 = 1;
const KIND_RECEIVE: u64 = 2;

/// Work requests that a queue can have: half as many as places can be numbered, since a receive
/// queue's table has two places for each.
pub(super) const MAX_DEPTH: u64 = 1 << (INDEX_BITS - 1);

/// Places that can be numbered.
pub(super) const MAX_PLACES: usize = 1 << INDEX_BITS;

/// Refuses a queue that is deeper than its places can be numbered.
pub(super) fn check_depth(
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
    pub(super) fn new(kind: WorkKind, queue: QueueTag, index: u32, generation: u32) -> Self {
        let kind = match kind {
            WorkKind::Send => KIND_SEND,
            WorkKind::Receive => KIND_RECEIVE,
        };
        let generation = u64::from(generation & ((1 << GENERATION_BITS) - 1));
        Self(
            kind << KIND_SHIFT
                | u64::from(queue.0) << QUEUE_SHIFT
                | generation << INDEX_BITS
                | u64::from(index),
        )
    }

    /// The number as the device gives it back.
    #[cfg(any(feature = "rdma", test))]
    pub(crate) fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The number given to the device.
    pub fn to_raw(self) -> u64 {
        self.0
    }

    /// Whether it names a send or a receive; `None` if this layer did not make it.
    pub fn kind(self) -> Option<WorkKind> {
        match self.0 >> KIND_SHIFT {
            KIND_SEND => Some(WorkKind::Send),
            KIND_RECEIVE => Some(WorkKind::Receive),
            _ => None,
        }
    }

    /// Whether it is of this kind and was posted to this queue.
    pub(super) fn belongs_to(self, kind: WorkKind, queue: QueueTag) -> bool {
        let mine = Self::new(kind, queue, 0, 0);
        self.0 >> QUEUE_SHIFT == mine.0 >> QUEUE_SHIFT
    }

    /// How often the place had been used.
    pub fn generation(self) -> u32 {
        (self.0 >> INDEX_BITS) as u32 & ((1 << GENERATION_BITS) - 1)
    }

    /// The place in its queue's table.
    pub fn index(self) -> u32 {
        self.0 as u32 & ((1 << INDEX_BITS) - 1)
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
            Some(WorkKind::Send) => write!(f, "send {}.{}", self.index(), self.generation()),
            Some(WorkKind::Receive) => write!(f, "receive {}.{}", self.index(), self.generation()),
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
        let id = WrId::new(WorkKind::Receive, LAST_QUEUE, (1 << INDEX_BITS) - 1, 4095);
        assert_eq!(id.kind(), Some(WorkKind::Receive));
        assert_eq!(id.index(), (1 << INDEX_BITS) - 1);
        assert_eq!(id.generation(), 4095);
        assert!(id.belongs_to(WorkKind::Receive, LAST_QUEUE));
        assert!(!id.belongs_to(WorkKind::Send, LAST_QUEUE));
        assert!(!id.belongs_to(WorkKind::Receive, QueueTag(0)));
        assert_eq!(WrId::from_raw(id.to_raw()), id);
    }

    #[test]
    fn a_generation_that_comes_round_does_not_reach_its_neighbours() {
        let id = WrId::new(WorkKind::Send, QueueTag(3), 7, 1 << GENERATION_BITS);
        assert_eq!((id.index(), id.generation()), (7, 0));
        assert!(id.belongs_to(WorkKind::Send, QueueTag(3)));
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
