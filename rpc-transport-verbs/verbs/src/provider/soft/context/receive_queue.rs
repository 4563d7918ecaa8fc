//! Receive queues, shared or not.

use std::collections::VecDeque;
use std::ptr::NonNull;

use slab::Slab;

use crate::provider::work::{ReceiveList, ReceiveWork, Sge};
use crate::types::{LocalKey, ReceiveOrder, WrId};

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
    /// The posted receives are those from number `oldest` to before number `end`. The lower bits of
    /// a number are the receive's place, so the count of places is a power of two. A place that
    /// holds no receive is `None`.
    places: Box<[Option<ReceiveWork>]>,
    oldest: usize,
    end: usize,
    /// Which of the posted receives the next message takes.
    order: ReceiveOrder,
    /// The limit of a shared receive queue; 0 if not armed.
    limit: usize,
    capacity: usize,
    /// The elements of the receives that do not have exactly one, in order. They are stored apart
    /// so that ordinary receives stay small; such a receive has no address of its own in `places`.
    lists: VecDeque<(WrId, Box<[Sge]>)>,
}

impl ReceiveQueue {
    /// Returns the queue that a queue pair takes its receives from: the shared one if it has one,
    /// or its own.
    #[inline(always)]
    pub(crate) fn of<'a>(
        shared: &'a mut Slab<SharedReceives>,
        srq: Option<usize>,
        own: &'a mut Self,
    ) -> &'a mut Self {
        match srq {
            Some(srq) => &mut shared[srq].queue,
            None => own,
        }
    }

    pub(crate) fn new(capacity: usize, order: ReceiveOrder) -> Self {
        Self {
            places: vec![None; capacity.next_power_of_two()].into(),
            oldest: 0,
            end: 0,
            order,
            limit: 0,
            capacity,
            lists: VecDeque::new(),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets the capacity, which is at least the number of posted receives.
    pub(crate) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
        if capacity > self.places.len() {
            let mut places: Vec<_> = (0..self.len())
                .map(|index| self.places[self.place(self.oldest.wrapping_add(index))])
                .collect();
            self.oldest = 0;
            self.end = places.len();
            places.resize(capacity.next_power_of_two(), None);
            self.places = places.into();
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.end.wrapping_sub(self.oldest)
    }

    /// Returns how many places hold a receive.
    pub(super) fn filled(&self) -> usize {
        self.places.iter().flatten().count()
    }

    #[inline]
    fn place(&self, number: usize) -> usize {
        number & (self.places.len() - 1)
    }

    #[inline]
    fn add(&mut self, receive: ReceiveWork) {
        let place = self.place(self.end);
        self.places[place] = Some(receive);
        self.end = self.end.wrapping_add(1);
    }

    fn room(&self) -> usize {
        self.capacity.saturating_sub(self.len())
    }

    /// Adds receives in order. Returns how many fit.
    #[inline]
    pub(crate) fn push(&mut self, work: &[ReceiveWork]) -> usize {
        let taken = work.len().min(self.room());
        for receive in &work[..taken] {
            self.add(*receive);
        }
        taken
    }

    /// Adds receives of any number of elements in order. Returns how many fit.
    pub(crate) fn push_lists(&mut self, work: &[ReceiveList], elements: &[Sge]) -> usize {
        let taken = work.len().min(self.room());
        for work in &work[..taken] {
            let list = work.elements(elements);
            let wr_id = work.wr_id;
            if let [only] = list {
                self.add(ReceiveWork {
                    wr_id,
                    addr: only.addr,
                    len: only.len,
                    local_key: only.local_key,
                });
                continue;
            }
            let total = Sge::total_len(list);
            self.add(ReceiveWork {
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
    fn next_list(&self) -> Option<&[Sge]> {
        let (wr_id, list) = match self.order {
            ReceiveOrder::OldestFirst => self.lists.front()?,
            ReceiveOrder::NewestFirst => self.lists.back()?,
        };
        (self.next()?.wr_id == *wr_id).then_some(&**list)
    }

    /// Returns the elements of the next receive; `only` is the one of an ordinary receive.
    pub(crate) fn next_elements<'a>(&'a self, only: &'a mut [Sge; 1]) -> Option<&'a [Sge]> {
        let receive = self.next()?;
        if let Some(list) = self.next_list() {
            return Some(list);
        }
        *only = [Sge {
            addr: receive.addr,
            len: receive.len,
            local_key: receive.local_key,
        }];
        Some(only)
    }

    #[inline(always)]
    fn next_place(&self) -> usize {
        self.place(match self.order {
            ReceiveOrder::OldestFirst => self.oldest,
            ReceiveOrder::NewestFirst => self.end.wrapping_sub(1),
        })
    }

    /// Returns the receive that the next message takes.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<&ReceiveWork> {
        self.places[self.next_place()].as_ref()
    }

    /// Returns the receive that the next message takes, and its place for
    /// [`consume_at`](Self::consume_at), if every receive has exactly one element.
    #[inline(always)]
    pub(crate) fn next_single(&self) -> Option<(usize, &ReceiveWork)> {
        let place = self.next_place();
        let receive = self.places[place].as_ref()?;
        (!self.has_lists()).then_some((place, receive))
    }

    /// Removes the next receive; there is one. Returns `true` if fewer receives than the limit are
    /// left, for the first time since it was armed.
    pub(crate) fn consume(&mut self) -> bool {
        if self.has_lists() {
            self.consume_list();
        }
        self.consume_at(self.next_place())
    }

    /// Does the same, with the place of the next receive, which has one element.
    #[inline(always)]
    pub(crate) fn consume_at(&mut self, place: usize) -> bool {
        self.places[place] = None;
        match self.order {
            ReceiveOrder::OldestFirst => self.oldest = self.oldest.wrapping_add(1),
            ReceiveOrder::NewestFirst => self.end = self.end.wrapping_sub(1),
        }
        let reached = self.len() < self.limit;
        if reached {
            self.limit = 0;
        }
        reached
    }

    /// Removes the elements of the next receive, if it does not have exactly one.
    #[cold]
    #[inline(never)]
    fn consume_list(&mut self) {
        if self.next_list().is_some() {
            match self.order {
                ReceiveOrder::OldestFirst => self.lists.pop_front(),
                ReceiveOrder::NewestFirst => self.lists.pop_back(),
            };
        }
    }

    pub(crate) fn clear(&mut self) {
        self.places.fill(None);
        self.oldest = self.end;
        self.lists.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Post(usize),
        PostList,
        Consume,
        Grow(usize),
        Clear,
        Arm(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..4_usize).prop_map(Step::Post),
            Just(Step::PostList),
            Just(Step::Consume),
            Just(Step::Consume),
            (0..4_usize).prop_map(Step::Grow),
            Just(Step::Clear),
            (0..4_usize).prop_map(Step::Arm),
        ];
        proptest::collection::vec(step, 0..64)
    }

    fn wr_id(number: u32) -> WrId {
        WrId::from_raw(number.into())
    }

    fn receive(number: u32) -> ReceiveWork {
        ReceiveWork {
            wr_id: wr_id(number),
            addr: NonNull::dangling(),
            len: number,
            local_key: LocalKey(0),
        }
    }

    proptest! {
        #[test]
        fn receives_are_taken_in_their_order(steps in steps(), newest in any::<bool>()) {
            let order = if newest { ReceiveOrder::NewestFirst } else { ReceiveOrder::OldestFirst };
            let mut queue = ReceiveQueue::new(3, order);
            let mut expected: VecDeque<(u32, bool)> = VecDeque::new();
            let (mut capacity, mut limit, mut number) = (3, 0, 0);
            for step in steps {
                match step {
                    Step::Post(count) => {
                        let list: Vec<_> = (0..count as u32).map(|at| receive(number + at)).collect();
                        let taken = count.min(capacity - expected.len());
                        prop_assert_eq!(queue.push(&list), taken);
                        expected.extend((0..taken as u32).map(|at| (number + at, false)));
                        number += count as u32;
                    }
                    Step::PostList => {
                        let list = ReceiveList { wr_id: wr_id(number), first: 0, count: 0 };
                        if queue.push_lists(&[list], &[]) == 1 {
                            expected.push_back((number, true));
                        }
                        number += 1;
                    }
                    Step::Consume if expected.is_empty() => {
                        prop_assert!(queue.next().is_none());
                    }
                    Step::Consume => {
                        let next = if newest { expected.back() } else { expected.front() };
                        let next_wr_id = next.map(|(number, _)| wr_id(*number));
                        prop_assert_eq!(queue.next().map(|next| next.wr_id), next_wr_id);
                        let is_list = next.is_some_and(|(_, is_list)| *is_list);
                        prop_assert_eq!(queue.next_list().is_some(), is_list);
                        if newest { expected.pop_back() } else { expected.pop_front() };
                        let reached = expected.len() < limit;
                        prop_assert_eq!(queue.consume(), reached);
                        limit = if reached { 0 } else { limit };
                    }
                    Step::Grow(by) => {
                        capacity += by;
                        queue.set_capacity(capacity);
                    }
                    Step::Clear => {
                        queue.clear();
                        expected.clear();
                    }
                    Step::Arm(at) => {
                        limit = at;
                        queue.set_limit(at);
                    }
                }
                prop_assert_eq!(queue.len(), expected.len());
                prop_assert_eq!(queue.has_lists(), expected.iter().any(|(_, is_list)| *is_list));
            }
        }
    }
}
