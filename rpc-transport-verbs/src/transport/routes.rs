//! Looks up connections by queue pair number, for every completion.

use verbline_verbs::QpNum;

/// A small hash table with open addressing. The device assigns queue pair numbers for the whole
/// process (or host), so they are not dense within one poller. But no peer can choose them, so none
/// can make them collide.
#[derive(Debug)]
pub(crate) struct Routes {
    /// At most half full. The length is a power of two.
    entries: Box<[Entry]>,
    /// The index is taken from the upper bits of the 32-bit hash: `32 - log2(entries.len())`.
    shift: u32,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    qp_num: u32,
    index: u32,
}

/// An empty entry. No queue pair has this number, as queue pair numbers have 24 bits.
const VACANT: u32 = u32::MAX;

/// 2^32 divided by the golden ratio. Devices assign consecutive numbers, and this spreads them over
/// the table.
const MULTIPLIER: u32 = 0x9e37_79b9;

impl Routes {
    /// Creates a table for `capacity` connections that does not need to grow.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let len = (capacity.max(8) * 2).next_power_of_two();
        let vacant = Entry {
            qp_num: VACANT,
            index: 0,
        };
        Self {
            entries: vec![vacant; len].into_boxed_slice(),
            shift: 32 - len.trailing_zeros(),
            len: 0,
        }
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the index of the connection.
    #[inline]
    pub(crate) fn get(&self, qp_num: QpNum) -> Option<u32> {
        let mut position = self.home(qp_num.0);
        loop {
            let entry = self.entries[position & (self.entries.len() - 1)];
            if entry.qp_num == qp_num.0 {
                return Some(entry.index);
            }
            if entry.qp_num == VACANT {
                return None;
            }
            position += 1;
        }
    }

    /// Inserts an entry, or replaces the index of an existing one.
    pub(crate) fn insert(&mut self, qp_num: QpNum, index: u32) {
        if (self.len + 1) * 2 > self.entries.len() {
            self.grow();
        }
        let mask = self.entries.len() - 1;
        let mut position = self.home(qp_num.0) & mask;
        while self.entries[position].qp_num != VACANT && self.entries[position].qp_num != qp_num.0 {
            position = (position + 1) & mask;
        }
        if self.entries[position].qp_num == VACANT {
            self.len += 1;
        }
        self.entries[position] = Entry {
            qp_num: qp_num.0,
            index,
        };
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, qp_num: QpNum) {
        let mask = self.entries.len() - 1;
        let mut hole = self.home(qp_num.0) & mask;
        loop {
            match self.entries[hole].qp_num {
                VACANT => return,
                number if number == qp_num.0 => break,
                _ => hole = (hole + 1) & mask,
            }
        }
        self.len -= 1;
        // Move the following entries into the hole, except where that would put an entry before its
        // home position. Thus no search stops too early at a hole, and no tombstones are needed.
        let mut next = hole;
        loop {
            next = (next + 1) & mask;
            let entry = self.entries[next];
            if entry.qp_num == VACANT {
                break;
            }
            let home = self.home(entry.qp_num) & mask;
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.entries[hole] = entry;
                hole = next;
            }
        }
        self.entries[hole].qp_num = VACANT;
    }

    fn home(&self, qp_num: u32) -> usize {
        (qp_num.wrapping_mul(MULTIPLIER) >> self.shift) as usize
    }

    fn grow(&mut self) {
        let mut grown = Self::with_capacity(self.entries.len());
        for entry in self.entries.iter().filter(|e| e.qp_num != VACANT) {
            grown.insert(QpNum(entry.qp_num), entry.index);
        }
        *self = grown;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the table with a `HashMap`. The numbers are close together, so they collide and
        /// are reused.
        #[test]
        fn behaves_as_a_map(operations in prop::collection::vec((0u32..48, any::<bool>()), 0..400)) {
            let mut routes = Routes::with_capacity(4);
            let mut map = HashMap::new();
            for (step, (number, insert)) in operations.into_iter().enumerate() {
                if insert {
                    routes.insert(QpNum(number), step as u32);
                    map.insert(number, step as u32);
                } else {
                    routes.remove(QpNum(number));
                    map.remove(&number);
                }
                for number in 0..48 {
                    prop_assert_eq!(routes.get(QpNum(number)), map.get(&number).copied());
                }
                prop_assert_eq!(routes.len, map.len());
            }
        }
    }
}
