//! [`ReadySet`] and [`Waiting`]: who waits for a turn. Each is there once, so that nobody else has to
//! remember it.

use std::collections::VecDeque;

use super::table::Key;

/// Keys that wait, in the order of their arrival, each once.
#[derive(Debug)]
pub(crate) struct ReadySet<K> {
    /// May also contain keys that have left, with the numbers of their arrivals.
    order: VecDeque<(K, u64)>,
    /// By the index of the key: its latest arrival, while it waits.
    arrivals: Vec<Option<u64>>,
    arrived: u64,
    len: usize,
}

impl<K> Default for ReadySet<K> {
    fn default() -> Self {
        Self {
            order: VecDeque::new(),
            arrivals: Vec::new(),
            arrived: 0,
            len: 0,
        }
    }
}

impl<K: Key> ReadySet<K> {
    /// Adds a key behind the others. Returns false if it is there already.
    pub(crate) fn insert(&mut self, key: K) -> bool {
        let index = key.index();
        if self.arrivals.len() <= index {
            self.arrivals.resize(index + 1, None);
        }
        if self.arrivals[index].is_some() {
            return false;
        }
        self.arrived += 1;
        self.arrivals[index] = Some(self.arrived);
        self.order.push_back((key, self.arrived));
        self.len += 1;
        true
    }

    /// Takes the key that has waited longest.
    pub(crate) fn pop(&mut self) -> Option<K> {
        while let Some((key, arrival)) = self.order.pop_front() {
            let latest = &mut self.arrivals[key.index()];
            if *latest == Some(arrival) {
                *latest = None;
                self.len -= 1;
                return Some(key);
            }
        }
        None
    }

    /// Returns the key that has waited longest.
    pub(crate) fn first(&mut self) -> Option<K> {
        while let Some((key, arrival)) = self.order.front().copied() {
            if self.arrivals[key.index()] == Some(arrival) {
                return Some(key);
            }
            self.order.pop_front();
        }
        None
    }

    /// Removes a key. Returns false if it was not there.
    // Who ends is removed from everywhere, and mostly waits nowhere.
    #[inline]
    pub(crate) fn remove(&mut self, key: K) -> bool {
        self.len > 0 && self.remove_from_some(key)
    }

    fn remove_from_some(&mut self, key: K) -> bool {
        let arrival = self.arrivals.get_mut(key.index());
        if arrival.and_then(Option::take).is_none() {
            return false;
        }
        self.len -= 1;
        // Keys may come and go while nobody has a turn.
        if self.order.len() > 2 * self.len + 8 {
            let arrivals = &self.arrivals;
            self.order
                .retain(|(key, arrival)| arrivals[key.index()] == Some(*arrival));
        }
        true
    }

    /// Returns the keys, in their order.
    #[cfg(debug_assertions)]
    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        let waits = |(key, arrival): &&(K, u64)| self.arrivals[key.index()] == Some(*arrival);
        self.order.iter().filter(waits).map(|(key, _)| *key)
    }

    /// Returns the number of keys.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Keys that wait, each once, in groups which take turns: mostly those of a connection. In a group,
/// they wait in the order of their arrival.
#[derive(Debug)]
pub(crate) struct Waiting<G, K> {
    /// Groups with keys, in the order of their turns.
    groups: ReadySet<G>,
    /// By the index of the group.
    queues: Vec<Queue<K>>,
    /// By the index of the key: its group and its latest arrival, while it waits.
    members: Vec<Option<(G, u64)>>,
    arrived: u64,
    len: usize,
}

#[derive(Debug)]
struct Queue<K> {
    /// May also contain keys that have left, with the numbers of their arrivals.
    order: VecDeque<(K, u64)>,
    len: usize,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self {
            order: VecDeque::new(),
            len: 0,
        }
    }
}

impl<G, K> Default for Waiting<G, K> {
    fn default() -> Self {
        Self {
            groups: ReadySet::default(),
            queues: Vec::new(),
            members: Vec::new(),
            arrived: 0,
            len: 0,
        }
    }
}

impl<G: Key, K: Key> Waiting<G, K> {
    /// Adds a key behind the others of its group. Returns false if it waits already.
    pub(crate) fn insert(&mut self, group: G, key: K) -> bool {
        let is_new = self.join(group, key);
        if is_new {
            let arrival = (key, self.arrived);
            self.queues[group.index()].order.push_back(arrival);
        }
        is_new
    }

    /// Adds a key before the others of its group. Returns false if it waits already.
    pub(crate) fn insert_first(&mut self, group: G, key: K) -> bool {
        let is_new = self.join(group, key);
        if is_new {
            let arrival = (key, self.arrived);
            self.queues[group.index()].order.push_front(arrival);
        }
        is_new
    }

    fn join(&mut self, group: G, key: K) -> bool {
        let index = key.index();
        if self.members.len() <= index {
            self.members.resize(index + 1, None);
        }
        if let Some((other, _)) = self.members[index] {
            assert_eq!(other, group, "{key:?} waits in another group");
            return false;
        }
        if self.queues.len() <= group.index() {
            self.queues.resize_with(group.index() + 1, Queue::default);
        }
        self.arrived += 1;
        self.members[index] = Some((group, self.arrived));
        self.queues[group.index()].len += 1;
        self.len += 1;
        self.groups.insert(group);
        true
    }

    /// Takes the key of a group that has waited longest.
    pub(crate) fn pop(&mut self, group: G) -> Option<K> {
        while let Some((key, arrival)) = self.queues.get_mut(group.index())?.order.pop_front() {
            if self.members[key.index()] == Some((group, arrival)) {
                self.leave(key, group);
                return Some(key);
            }
        }
        None
    }

    /// Returns the key that has waited longest of the group whose turn it is.
    pub(crate) fn first(&mut self) -> Option<K> {
        let group = self.groups.first()?;
        let queue = &mut self.queues[group.index()];
        while let Some((key, arrival)) = queue.order.front().copied() {
            if self.members[key.index()] == Some((group, arrival)) {
                return Some(key);
            }
            queue.order.pop_front();
        }
        unreachable!("{group:?} has a turn and no keys");
    }

    /// Takes all keys of a group.
    pub(crate) fn take(&mut self, group: G) -> Vec<K> {
        let mut taken = Vec::with_capacity(self.len_of(group));
        while let Some(key) = self.pop(group) {
            taken.push(key);
        }
        taken
    }

    /// Removes a key. Returns false if it does not wait.
    #[inline]
    pub(crate) fn remove(&mut self, key: K) -> bool {
        self.len > 0 && self.remove_from_some(key)
    }

    fn remove_from_some(&mut self, key: K) -> bool {
        let Some((group, _)) = self.members.get(key.index()).copied().flatten() else {
            return false;
        };
        self.leave(key, group);
        // Keys may come and go while the group has no turn.
        let queue = &mut self.queues[group.index()];
        if queue.order.len() > 2 * queue.len + 8 {
            let members = &self.members;
            queue
                .order
                .retain(|(key, arrival)| members[key.index()] == Some((group, *arrival)));
        }
        true
    }

    fn leave(&mut self, key: K, group: G) {
        self.members[key.index()] = None;
        self.len -= 1;
        let queue = &mut self.queues[group.index()];
        queue.len -= 1;
        if queue.len == 0 {
            queue.order.clear();
            self.groups.remove(group);
        }
    }

    /// Returns true if a key waits.
    pub(crate) fn contains(&self, key: K) -> bool {
        self.members.get(key.index()).is_some_and(Option::is_some)
    }

    /// Ends the turn of the group whose turn it is, which is then the last one. Returns it.
    pub(crate) fn next_group(&mut self) -> Option<G> {
        let group = self.groups.pop()?;
        self.groups.insert(group);
        Some(group)
    }

    /// Returns the keys, of one group after the other.
    #[cfg(debug_assertions)]
    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        let keys = self.queues.iter().flat_map(|queue| &queue.order);
        let waits = |(key, arrival): &&(K, u64)| {
            let member = self.members[key.index()];
            member.is_some_and(|(_, latest)| latest == *arrival)
        };
        keys.filter(waits).map(|(key, _)| *key)
    }

    /// Returns the number of groups with keys.
    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Returns the number of keys of a group.
    pub(crate) fn len_of(&self, group: G) -> usize {
        self.queues.get(group.index()).map_or(0, |queue| queue.len)
    }

    /// Returns the number of keys, of all groups.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::table::{Place, table_key};
    use super::*;

    table_key!(Group);
    table_key!(Member);

    fn group(index: u32) -> Group {
        Group::at(Place::test(index))
    }

    fn member(index: u32) -> Member {
        Member::at(Place::test(index))
    }

    proptest! {
        /// Compares with a plain list without doubles.
        #[test]
        fn keys_wait_once_and_leave_in_order(
            steps in proptest::collection::vec((0u32..12, 0u8..4), 1..200),
        ) {
            let mut set = ReadySet::default();
            let mut list: VecDeque<Member> = VecDeque::new();
            for (index, act) in steps {
                let key = member(index);
                match act {
                    0 | 1 => {
                        prop_assert_eq!(set.insert(key), !list.contains(&key));
                        if !list.contains(&key) {
                            list.push_back(key);
                        }
                    }
                    2 => {
                        prop_assert_eq!(set.remove(key), list.contains(&key));
                        list.retain(|other| *other != key);
                    }
                    _ => prop_assert_eq!(set.pop(), list.pop_front()),
                }
                prop_assert_eq!(set.len(), list.len());
                prop_assert!(set.order.len() <= 2 * set.len + 8 + 1);
            }
        }

        /// The same for each group.
        #[test]
        fn keys_of_groups_wait_once_and_leave_in_order(
            steps in proptest::collection::vec((0u32..12, 0u8..6), 1..200),
        ) {
            let mut waiting = Waiting::default();
            let mut lists: [VecDeque<Member>; 3] = Default::default();
            for (index, act) in steps {
                let (key, at) = (member(index), index as usize % 3);
                let of = group(at as u32);
                let list = &mut lists[at];
                let is_there = list.contains(&key);
                match act {
                    0 | 1 => {
                        prop_assert_eq!(waiting.insert(of, key), !is_there);
                        if !is_there {
                            list.push_back(key);
                        }
                    }
                    2 => {
                        prop_assert_eq!(waiting.insert_first(of, key), !is_there);
                        if !is_there {
                            list.push_front(key);
                        }
                    }
                    3 => {
                        prop_assert_eq!(waiting.remove(key), is_there);
                        list.retain(|other| *other != key);
                    }
                    4 => prop_assert_eq!(waiting.pop(of), list.pop_front()),
                    _ => prop_assert_eq!(waiting.take(of), Vec::from(std::mem::take(list))),
                }
                for (at, list) in (0..).zip(&lists) {
                    prop_assert_eq!(waiting.len_of(group(at)), list.len());
                }
                let all = lists.iter().map(VecDeque::len).sum::<usize>();
                prop_assert_eq!(waiting.len(), all);
                let groups = lists.iter().filter(|list| !list.is_empty()).count();
                prop_assert_eq!(waiting.groups(), groups);
            }
        }
    }

    #[test]
    fn groups_take_turns() {
        let mut waiting = Waiting::default();
        for index in [0, 3, 6, 1] {
            waiting.insert(group(index % 3), member(index));
        }
        let turns: Vec<_> = (0..4).filter_map(|_| waiting.next_group()).collect();
        assert_eq!(turns, [0, 1, 0, 1].map(group));
        assert_eq!(waiting.take(group(0)), [0, 3, 6].map(member));
        assert_eq!(waiting.next_group(), Some(group(1)));
        assert_eq!(waiting.groups(), 1);
    }
}
