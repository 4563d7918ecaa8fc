//! The UD queue pairs that receive to one completion queue.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::types::QpNum;

/// The UD queue pairs, whose completions name the source of a message. Some drivers also write a
/// source into completions of connected queue pairs, where it is meaningless.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    /// Number of UD queue pairs; 0 for most queues.
    count: AtomicUsize,
    numbers: Mutex<Vec<QpNum>>,
}

impl Datagrams {
    pub(super) fn insert(&self, qp_num: QpNum) {
        let mut numbers = self.numbers();
        numbers.push(qp_num);
        self.count.store(numbers.len(), Ordering::Relaxed);
    }

    pub(super) fn remove(&self, qp_num: QpNum) {
        let mut numbers = self.numbers();
        numbers.retain(|number| *number != qp_num);
        self.count.store(numbers.len(), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn contains(&self, qp_num: QpNum) -> bool {
        // Relaxed: the queue pair was created before it received, and the polling thread learned of
        // that through the device.
        self.count.load(Ordering::Relaxed) != 0 && self.numbers().contains(&qp_num)
    }

    fn numbers(&self) -> MutexGuard<'_, Vec<QpNum>> {
        // A poisoned lock is usable: the vector is changed in one step.
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
