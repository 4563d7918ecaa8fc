//! [`KeyTable`]: entries of a lane that the driver refers to by number.

use verbline_verbs::for_transport::KeyHistory;

/// Bits of a number that hold the index of the entry, above the lane's number.
const INDEX_BITS: u32 = 16;

/// Entries by number. A number whose entry was removed refers to nothing, until the generations of
/// its index have come round.
///
/// ```text
///  31                              0
/// +------------+------------+------+
/// | generation | index (16) | lane |     as many bits for the lane as a connection's index has
/// +------------+------------+------+
/// ```
#[derive(Debug)]
pub(super) struct KeyTable<T> {
    entries: Vec<Entry<T>>,
    vacant: Vec<u32>,
    lane: u32,
    lane_bits: u32,
    history: KeyHistory,
}

#[derive(Debug)]
struct Entry<T> {
    /// The number of the entry that is or will be here.
    key: u32,
    value: Option<T>,
}

impl<T> KeyTable<T> {
    /// Creates the table of lane number `lane`, whose entries are called `kind`. `lane_mask` has the bits
    /// of the lane's number.
    pub(super) fn new(kind: &'static str, lane: u32, lane_mask: u32) -> Self {
        Self {
            entries: Vec::new(),
            vacant: Vec::new(),
            lane,
            lane_bits: lane_mask.count_ones(),
            history: KeyHistory::new(kind),
        }
    }

    fn index_of(&self, key: u32) -> usize {
        (key >> self.lane_bits) as usize & ((1 << INDEX_BITS) - 1)
    }

    /// Returns true if an entry can be added.
    pub(super) fn has_room(&self) -> bool {
        !self.vacant.is_empty() || self.entries.len() >> INDEX_BITS == 0
    }

    /// Returns how often the index of this number was used before.
    fn generation_of(&self, key: u32) -> u32 {
        key >> (INDEX_BITS + self.lane_bits)
    }

    /// Adds an entry. Returns the value if there are too many.
    #[track_caller]
    pub(super) fn insert(&mut self, value: T) -> Result<u32, T> {
        let index = match self.vacant.pop() {
            Some(index) => index,
            None => {
                let index = self.entries.len() as u32;
                if !self.has_room() {
                    return Err(value);
                }
                self.entries.push(Entry {
                    key: index << self.lane_bits | self.lane,
                    value: None,
                });
                index
            }
        };
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        let key = entry.key;
        self.history.added(index, self.generation_of(key));
        Ok(key)
    }

    /// Looks up an entry that may have been removed, for reading.
    pub(super) fn get(&self, key: u32) -> Option<&T> {
        let entry = self.entries.get(self.index_of(key))?;
        entry.value.as_ref().filter(|_| entry.key == key)
    }

    /// Looks up an entry that may have been removed: the driver has its number for longer.
    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        let index = self.index_of(key);
        let entry = self.entries.get_mut(index)?;
        entry.value.as_mut().filter(|_| entry.key == key)
    }

    /// Looks up an entry that must be there.
    ///
    /// # Panics
    ///
    /// Panics under test if it is not there, with what has become of its index.
    #[track_caller]
    pub(super) fn at(&mut self, key: u32) -> Option<&mut T> {
        let index = self.index_of(key);
        if let Some(entry) = self.entries.get_mut(index)
            && entry.key == key
            && let Some(value) = &mut entry.value
        {
            return Some(value);
        }
        self.history.missed(index as u32);
        None
    }

    /// Removes an entry that must be there.
    ///
    /// # Panics
    ///
    /// As [`at`](Self::at) does.
    #[track_caller]
    pub(super) fn remove(&mut self, key: u32) -> Option<T> {
        self.at(key)?;
        let index = self.index_of(key);
        self.history.removed(index as u32, self.generation_of(key));
        let entry = &mut self.entries[index];
        // The next generation.
        entry.key = key.wrapping_add(1 << (INDEX_BITS + self.lane_bits));
        self.vacant.push(index as u32);
        entry.value.take()
    }

    /// Returns how many look-ups have not found what must be there.
    pub(super) fn misses(&self) -> u64 {
        self.history.misses()
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    /// Returns all entries.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> + Clone {
        self.entries.iter().filter_map(|entry| entry.value.as_ref())
    }

    /// Returns the numbers of the entries that `is_it` accepts.
    pub(super) fn keys_of(&self, is_it: impl Fn(&T) -> bool) -> Vec<u32> {
        let key =
            |entry: &Entry<T>| Some(entry.key).filter(|_| entry.value.as_ref().is_some_and(&is_it));
        self.entries.iter().filter_map(key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_one_entry_only() {
        let mut table = KeyTable::new("thing", 2, 3);
        let first = table.insert('a').unwrap();
        assert_eq!(first & 3, 2, "the lane's number");
        assert_eq!(table.remove(first), Some('a'));
        let second = table.insert('b').unwrap();
        assert_ne!(first, second);
        assert_eq!((table.get(first), table.get(second)), (None, Some(&'b')));
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.keys_of(|_| true), [second]);
        assert_eq!(table.get(u32::MAX), None);
    }

    #[test]
    #[cfg_attr(
        debug_assertions,
        should_panic(expected = "there is no thing 0: generation 0 added")
    )]
    fn a_number_whose_entry_is_gone_is_no_other_entry() {
        let mut table = KeyTable::new("thing", 0, 0);
        let first = table.insert('a').unwrap();
        assert_eq!(table.at(first), Some(&mut 'a'));
        table.remove(first);
        table.insert('b').unwrap();
        assert_eq!(table.remove(first), None);
        assert_eq!(table.misses(), 1);
    }

    #[test]
    fn generations_come_round_without_changing_the_index() {
        let mut table = KeyTable::new("thing", 0, 1);
        let kept = table.insert(0).unwrap();
        for value in 1..100_000 {
            let key = table.insert(value).unwrap();
            assert_ne!(key, kept);
            assert_eq!(table.remove(key), Some(value));
        }
        assert_eq!(table.get(kept), Some(&0));
    }

    #[test]
    fn there_are_only_so_many() {
        let mut table = KeyTable::new("thing", 0, 0);
        for _ in 0..1 << INDEX_BITS {
            assert!(table.insert(()).is_ok());
        }
        assert!(table.insert(()).is_err());
        assert!(table.remove(7).is_some());
        assert!(table.insert(()).is_ok());
    }
}
