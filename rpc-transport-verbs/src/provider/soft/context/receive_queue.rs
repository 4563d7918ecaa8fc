//! Receive queues, shared or not.

use std::collections::VecDeque;
use std::ptr::NonNull;

use crate::provider::work::{ReceiveList, ReceiveWork, Sge};
use crate::verbs::types::{LocalKey, ReceiveOrder, WrId};

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedReceives {
    pub(crate) queue: ReceiveQueue,
    pub(crate) number: u32,
    pub(crate) domain: u32,
}

/// A receive queue, shared or not.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    posted: VecDeque<ReceiveWork>,
    /// The elements of the receives that do not have exactly one, in order. They are stored apart
    /// so that ordinary receives stay small; such a receive has no address of its own in `posted`.
    lists: VecDeque<(WrId, Box<[Sge]>)>,
    /// Which of the posted receives the next message takes.
    order: ReceiveOrder,
    capacity: usize,
    /// The limit of a shared receive queue; 0 if not armed.
    limit: usize,
}

impl ReceiveQueue {
    pub(crate) fn new(capacity: usize, order: ReceiveOrder) -> Self {
        Self {
            posted: VecDeque::with_capacity(capacity),
            lists: VecDeque::new(),
            order,
            capacity,
            limit: 0,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Adds receives in order. Returns how many fit.
    pub(crate) fn push(&mut self, work: &[ReceiveWork]) -> usize {
        let taken = work
            .len()
            .min(self.capacity.saturating_sub(self.posted.len()));
        self.posted.extend(&work[..taken]);
        taken
    }

    /// Adds receives of any number of elements in order. Returns how many fit.
    pub(crate) fn push_lists(&mut self, work: &[ReceiveList], elements: &[Sge]) -> usize {
        let taken = work
            .len()
            .min(self.capacity.saturating_sub(self.posted.len()));
        for work in &work[..taken] {
            let list = work.elements(elements);
            let wr_id = work.wr_id;
            if let [only] = list {
                self.posted.push_back(ReceiveWork {
                    wr_id,
                    addr: only.addr,
                    len: only.len,
                    local_key: only.local_key,
                });
                continue;
            }
            let total: u64 = list.iter().map(|element| u64::from(element.len)).sum();
            self.posted.push_back(ReceiveWork {
                wr_id,
                addr: NonNull::dangling(),
                len: u32::try_from(total).unwrap_or(u32::MAX),
                local_key: LocalKey(0),
            });
            self.lists.push_back((wr_id, list.into()));
        }
        taken
    }

    /// Returns true if any receive does not have exactly one element.
    #[inline]
    pub(crate) fn has_lists(&self) -> bool {
        !self.lists.is_empty()
    }

    /// Returns the elements of the next receive, if it does not have exactly one.
    #[inline]
    pub(crate) fn next_list(&self) -> Option<&[Sge]> {
        let (wr_id, list) = match self.order {
            ReceiveOrder::OldestFirst => self.lists.front()?,
            ReceiveOrder::NewestFirst => self.lists.back()?,
        };
        (self.next()?.wr_id == *wr_id).then_some(&**list)
    }

    pub(crate) fn len(&self) -> usize {
        self.posted.len()
    }

    pub(crate) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// Returns the receive that the next message takes.
    #[inline]
    pub(crate) fn next(&self) -> Option<&ReceiveWork> {
        match self.order {
            ReceiveOrder::OldestFirst => self.posted.front(),
            ReceiveOrder::NewestFirst => self.posted.back(),
        }
    }

    /// Removes the next receive. Returns `true` if fewer receives than the limit are left, for the
    /// first time since it was armed.
    #[inline]
    pub(crate) fn consume(&mut self) -> bool {
        if !self.lists.is_empty() {
            self.consume_list();
        }
        match self.order {
            ReceiveOrder::OldestFirst => self.posted.pop_front(),
            ReceiveOrder::NewestFirst => self.posted.pop_back(),
        };
        let reached = self.posted.len() < self.limit;
        if reached {
            self.limit = 0;
        }
        reached
    }

    /// Removes the elements of the next receive, if it does not have exactly one.
    #[cold]
    fn consume_list(&mut self) {
        if self.next_list().is_some() {
            match self.order {
                ReceiveOrder::OldestFirst => self.lists.pop_front(),
                ReceiveOrder::NewestFirst => self.lists.pop_back(),
            };
        }
    }

    pub(crate) fn clear(&mut self) {
        self.posted.clear();
        self.lists.clear();
    }
}
