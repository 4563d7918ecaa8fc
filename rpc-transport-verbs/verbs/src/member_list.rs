//! Lists whose members know that they are in them.
//!
//! A member holds a [`Listed`], with a bit for each list that it can be in. The lists alone change the
//! bits, so a bit and its list cannot differ. The bit lies in the member and not in the list: whoever
//! asks has the member at hand, on the path of each message, and tests one bit there.

use std::collections::VecDeque;
use std::fmt::Debug;

/// In which lists something is. Only the lists change it.
#[derive(Debug, Default)]
pub struct Listed(u8);

/// The order in which a list gives its members back: `Vec`, the last first; `VecDeque`, the first
/// first.
pub trait MemberOrder: Debug + Default {
    /// Adds a member.
    fn push(&mut self, index: u32);
    /// Takes the next member out.
    fn pop(&mut self) -> Option<u32>;
    /// Removes a member.
    fn remove(&mut self, index: u32);
    /// Returns the members.
    fn members(&self) -> impl ExactSizeIterator<Item = u32>;
}

/// A list of members by their indexes, each of which is in it once at most. `BIT` is the bit, from 0
/// to 7, by which its members know that they are in it: no other list of them has it.
#[derive(Debug, Default)]
pub struct MemberList<const BIT: u8, M = Vec<u32>> {
    members: M,
}

impl Listed {
    /// Returns true if this is in no list.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }
}

impl<const BIT: u8> MemberList<BIT> {
    /// Creates an empty list that can take this many members without an allocation.
    #[must_use]
    pub fn with_capacity(count: usize) -> Self {
        let members = Vec::with_capacity(count);
        Self { members }
    }

    /// Returns the members, in no order.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        &self.members
    }

    /// Removes an index, at a place of [`as_slice`](Self::as_slice), that has no member.
    pub fn discard_at(&mut self, place: usize) {
        self.members.swap_remove(place);
    }

    /// Removes the member at a place of [`as_slice`](Self::as_slice), where the last one comes then.
    ///
    /// # Panics
    ///
    /// Panics if there is no such place.
    #[inline]
    pub fn remove_at(&mut self, place: usize, listed: &mut Listed) {
        self.members.swap_remove(place);
        self.taken(listed);
    }
}

impl<const BIT: u8, M: MemberOrder> MemberList<BIT, M> {
    const MASK: u8 = 1 << BIT;

    /// Adds the member with this index and these bits. Returns false if it is in the list already.
    #[inline]
    pub fn insert(&mut self, listed: &mut Listed, index: u32) -> bool {
        if self.contains(listed) {
            return false;
        }
        listed.0 |= Self::MASK;
        self.members.push(index);
        true
    }

    /// Takes the next member out. The caller looks it up, and passes its bits to
    /// [`taken`](Self::taken).
    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        self.members.pop()
    }

    /// Records in its bits that a member was taken out.
    #[inline]
    pub fn taken(&self, listed: &mut Listed) {
        debug_assert!(self.contains(listed), "it was not in list {BIT}");
        listed.0 &= !Self::MASK;
    }

    /// Removes a member. Returns false if it was not in the list.
    pub fn remove(&mut self, listed: &mut Listed, index: u32) -> bool {
        let was_there = self.contains(listed);
        if was_there {
            self.members.remove(index);
            self.taken(listed);
        }
        was_there
    }

    /// Returns true if the member with these bits is in the list.
    #[inline]
    pub fn contains(&self, listed: &Listed) -> bool {
        listed.0 & Self::MASK != 0
    }

    /// Returns true if the list has no members.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of members.
    #[inline]
    pub fn len(&self) -> usize {
        self.members.members().len()
    }

    /// Asserts that a member with this index is in the list once if its bits say so, and otherwise
    /// not.
    ///
    /// # Panics
    ///
    /// Panics if that is not so.
    pub fn assert_member(&self, index: u32, listed: &Listed) {
        let places = self.members.members().filter(|&other| other == index);
        let (places, bit) = (places.count(), self.contains(listed));
        assert_eq!(
            places,
            usize::from(bit),
            "member {index} has the bit of list {BIT}: {bit}; it is there {places} times"
        );
    }

    /// Asserts that the list has no other members than these, which are all that there can be.
    ///
    /// # Panics
    ///
    /// Panics if one is missing or too many.
    pub fn assert_members<'a>(&self, all: impl Iterator<Item = (u32, &'a Listed)>) {
        let mut listed_count = 0;
        for (index, listed) in all {
            self.assert_member(index, listed);
            listed_count += usize::from(self.contains(listed));
        }
        let len = self.len();
        assert_eq!(
            len, listed_count,
            "list {BIT} has {len} members, and {listed_count} have its bit"
        );
    }
}

impl MemberOrder for Vec<u32> {
    #[inline]
    fn push(&mut self, index: u32) {
        self.push(index);
    }

    #[inline]
    fn pop(&mut self) -> Option<u32> {
        self.pop()
    }

    fn remove(&mut self, index: u32) {
        self.retain(|&other| other != index);
    }

    #[inline]
    fn members(&self) -> impl ExactSizeIterator<Item = u32> {
        self.iter().copied()
    }
}

impl MemberOrder for VecDeque<u32> {
    #[inline]
    fn push(&mut self, index: u32) {
        self.push_back(index);
    }

    #[inline]
    fn pop(&mut self) -> Option<u32> {
        self.pop_front()
    }

    fn remove(&mut self, index: u32) {
        self.retain(|&other| other != index);
    }

    #[inline]
    fn members(&self) -> impl ExactSizeIterator<Item = u32> {
        self.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is done to a list, with one of eight members.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Insert(u32),
        Remove(u32),
        Pop,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0..8u32).prop_map(Step::Insert),
            1 => (0..8u32).prop_map(Step::Remove),
            1 => Just(Step::Pop),
        ];
        prop::collection::vec(step, 0..100)
    }

    /// Does the steps to a list, and to a list of indexes without bits. Its members are in another list
    /// too, which must not notice.
    fn compare<M: MemberOrder>(steps: &[Step], pop: fn(&mut Vec<u32>) -> Option<u32>) {
        let mut members: Vec<_> = (0..8).map(|_| Listed::default()).collect();
        let (mut list, mut other) = (MemberList::<7, M>::default(), MemberList::<0>::default());
        for index in (0..8).step_by(2) {
            other.insert(&mut members[index], index as u32);
        }
        let mut expected = Vec::new();
        for &step in steps {
            match step {
                Step::Insert(index) => {
                    let is_new = !expected.contains(&index);
                    let inserted = list.insert(&mut members[index as usize], index);
                    assert_eq!(inserted, is_new, "{step:?}");
                    expected.extend(is_new.then_some(index));
                }
                Step::Remove(index) => {
                    let place = expected.iter().position(|&other| other == index);
                    let removed = list.remove(&mut members[index as usize], index);
                    assert_eq!(removed, place.is_some(), "{step:?}");
                    place.map(|place| expected.remove(place));
                }
                Step::Pop => {
                    let index = list.pop();
                    assert_eq!(index, pop(&mut expected));
                    if let Some(index) = index {
                        list.taken(&mut members[index as usize]);
                    }
                }
            }
            assert_eq!(
                (list.len(), list.is_empty()),
                (expected.len(), expected.is_empty())
            );
            list.assert_members((0..).zip(&members));
            other.assert_members((0..).zip(&members));
        }
    }

    proptest! {
        #[test]
        fn a_list_has_what_was_put_into_it_once(steps in steps()) {
            compare::<Vec<u32>>(&steps, Vec::pop);
            compare::<VecDeque<u32>>(&steps, |all| (!all.is_empty()).then(|| all.remove(0)));
        }
    }

    #[test]
    #[should_panic(expected = "member 3 has the bit of list 1: true; it is there 0 times")]
    fn a_member_that_was_taken_and_still_has_its_bit_is_found() {
        let (mut list, mut listed) = (MemberList::<1>::default(), Listed::default());
        list.insert(&mut listed, 3);
        list.pop();
        list.assert_members([(3, &listed)].into_iter());
    }

    #[test]
    #[should_panic(expected = "list 1 has 1 members, and 0 have its bit")]
    fn a_member_that_is_gone_and_still_in_the_list_is_found() {
        let (mut list, mut listed) = (MemberList::<1>::default(), Listed::default());
        list.insert(&mut listed, 3);
        list.assert_members(std::iter::empty());
    }
}
