//! [`QueuePairs`]: the queue pairs of one context, by their indexes.

use std::ops::{Index, IndexMut};

use slab::Slab;

use super::queue_pair::SoftQueuePair;
use crate::key_history::KeyHistory;
use crate::provider::soft::capacities::index32;
use crate::types::QpNum;

/// The queue pairs of one context. An index is given to another queue pair at once, a number only after a
/// long time.
#[derive(Debug)]
pub(crate) struct QueuePairs {
    table: Slab<SoftQueuePair>,
    history: KeyHistory,
}

impl QueuePairs {
    pub(crate) fn new() -> Self {
        Self {
            table: Slab::new(),
            history: KeyHistory::new("queue pair"),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &SoftQueuePair> {
        self.table.iter().map(|(_, qp)| qp)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut SoftQueuePair> {
        self.table.iter_mut().map(|(_, qp)| qp)
    }

    /// Adds a queue pair, and tells it its index.
    #[track_caller]
    pub(crate) fn insert(&mut self, mut qp: SoftQueuePair) -> u32 {
        let entry = self.table.vacant_entry();
        let index = index32(entry.key());
        self.history.added(index, qp.core.number.0);
        qp.core.index = index;
        entry.insert(qp);
        index
    }

    /// Removes a queue pair, which is in no list any more.
    #[track_caller]
    pub(crate) fn remove(&mut self, index: u32) {
        let qp = self.table.remove(index as usize);
        debug_assert!(qp.listed.is_empty(), "queue pair {index}: {:?}", qp.listed);
        self.history.removed(index, qp.core.number.0);
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn get(&self, index: usize) -> Option<&SoftQueuePair> {
        self.table.get(index)
    }

    /// Looks up a queue pair that may be gone: what names it comes from outside of the context.
    #[inline]
    pub(crate) fn find(&mut self, index: u32, number: QpNum) -> Option<&mut SoftQueuePair> {
        let qp = self.table.get_mut(index as usize)?;
        (qp.core.number == number).then_some(qp)
    }

    /// Looks up a queue pair that must be there: a list has its index.
    ///
    /// # Panics
    ///
    /// Panics under test if it is not there, with what has become of the index. Otherwise, that is logged.
    #[inline]
    #[track_caller]
    pub(crate) fn at(&mut self, index: u32) -> Option<&mut SoftQueuePair> {
        let qp = self.table.get_mut(index as usize);
        if qp.is_none() {
            self.history.missed(index);
        }
        qp
    }

    /// Under test, says more than the table's own panic.
    #[inline]
    #[track_caller]
    fn assert_has(&self, index: u32) {
        debug_assert!(
            self.table.contains(index as usize),
            "there is no queue pair {index}: {}",
            self.history.of(index)
        );
    }
}

/// For those who cannot do without, and panic: the owner of the queue pair, and the path of every message.
impl Index<u32> for QueuePairs {
    type Output = SoftQueuePair;

    #[inline]
    #[track_caller]
    fn index(&self, index: u32) -> &SoftQueuePair {
        self.assert_has(index);
        &self.table[index as usize]
    }
}

impl IndexMut<u32> for QueuePairs {
    #[inline]
    #[track_caller]
    fn index_mut(&mut self, index: u32) -> &mut SoftQueuePair {
        self.assert_has(index);
        &mut self.table[index as usize]
    }
}
