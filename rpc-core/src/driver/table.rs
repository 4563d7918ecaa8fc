//! [`Table`]: things of one kind, by keys.
//!
//! A look-up by a key whose thing is gone is a bug in the driver. In builds with debug assertions, as
//! tests are, a key knows its thing from a later one at the same place, and such a look-up panics.
//! Numbers that come from outside, from peers and from the application's threads, are no keys:
//! [`Table::key_at`] makes a key of them, if there is such a thing.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use slab::Slab;

/// Where a thing is in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    index: u32,
    /// How many things were in the table before.
    #[cfg(debug_assertions)]
    generation: u32,
}

impl Place {
    /// Returns the index.
    #[inline]
    pub(crate) fn number(self) -> u32 {
        self.index
    }

    #[cfg(test)]
    pub(crate) fn test(index: u32) -> Self {
        Self {
            index,
            #[cfg(debug_assertions)]
            generation: 0,
        }
    }
}

/// Identifies a thing for as long as it is in its table.
pub(crate) trait Key: Copy + Eq + Debug {
    fn at(place: Place) -> Self;

    fn place(self) -> Place;

    /// Returns the index of the thing, which a later one may have again.
    #[inline]
    fn index(self) -> usize {
        self.place().number() as usize
    }
}

/// Defines the type of the keys of a table.
macro_rules! table_key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) struct $name($crate::driver::table::Place);

        impl $name {
            /// Returns the index of the thing, as a number that leaves the driver.
            #[allow(dead_code)]
            #[inline]
            pub(crate) fn number(self) -> u32 {
                self.0.number()
            }
        }

        impl $crate::driver::table::Key for $name {
            #[inline]
            fn at(place: $crate::driver::table::Place) -> Self {
                Self(place)
            }

            #[inline]
            fn place(self) -> $crate::driver::table::Place {
                self.0
            }
        }
    };
}
pub(crate) use table_key;

/// Things of one kind.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    things: Slab<V>,
    /// Of the thing at each index, or of the latest one.
    #[cfg(debug_assertions)]
    generations: Vec<u32>,
    #[cfg(debug_assertions)]
    inserted: u32,
    keys: PhantomData<fn() -> K>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self {
            things: Slab::new(),
            #[cfg(debug_assertions)]
            generations: Vec::new(),
            #[cfg(debug_assertions)]
            inserted: 0,
            keys: PhantomData,
        }
    }
}

impl<K: Key, V> Table<K, V> {
    /// Returns the key of the thing that is inserted next.
    pub(crate) fn next_key(&self) -> K {
        K::at(Place {
            index: self.things.vacant_key() as u32,
            #[cfg(debug_assertions)]
            generation: self.inserted,
        })
    }

    /// Adds a thing. At most `u32::MAX` fit.
    pub(crate) fn insert(&mut self, thing: V) -> K {
        let key = self.next_key();
        #[cfg(debug_assertions)]
        {
            let index = key.index();
            self.generations
                .resize(self.generations.len().max(index + 1), 0);
            self.generations[index] = self.inserted;
            self.inserted = self.inserted.wrapping_add(1);
        }
        self.things.insert(thing);
        key
    }

    /// Removes a thing.
    ///
    /// # Panics
    ///
    /// Panics if it is gone.
    pub(crate) fn remove(&mut self, key: K) -> V {
        self.check(key);
        self.things.remove(key.index())
    }

    /// Returns the thing of a key, unless it is gone.
    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.is_latest(key).then(|| self.things.get(key.index()))?
    }

    /// As [`get`](Self::get), to change the thing.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        match self.is_latest(key) {
            true => self.things.get_mut(key.index()),
            false => None,
        }
    }

    /// Returns true unless the thing of a key is gone.
    pub(crate) fn contains(&self, key: K) -> bool {
        self.get(key).is_some()
    }

    /// Returns the key of the thing at an index, if there is one.
    pub(crate) fn key_at(&self, number: u32) -> Option<K> {
        let index = number as usize;
        self.things.contains(index).then(|| self.key(index))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        let things = self.things.iter();
        things.map(|(index, thing)| (self.key(index), thing))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut V)> {
        #[cfg(debug_assertions)]
        let generations = &self.generations;
        self.things.iter_mut().map(move |(index, thing)| {
            let place = Place {
                index: index as u32,
                #[cfg(debug_assertions)]
                generation: generations[index],
            };
            (K::at(place), thing)
        })
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.things.iter().map(|(_, thing)| thing)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.things.iter_mut().map(|(_, thing)| thing)
    }

    pub(crate) fn len(&self) -> usize {
        self.things.len()
    }

    /// Returns the number of indices that were ever used.
    pub(crate) fn indices(&self) -> u32 {
        self.things.capacity() as u32
    }

    fn key(&self, index: usize) -> K {
        K::at(Place {
            index: index as u32,
            #[cfg(debug_assertions)]
            generation: self.generations[index],
        })
    }

    #[cfg(debug_assertions)]
    fn is_latest(&self, key: K) -> bool {
        self.generations.get(key.index()) == Some(&key.place().generation)
    }

    #[cfg(not(debug_assertions))]
    #[inline]
    fn is_latest(&self, _: K) -> bool {
        true
    }

    #[inline]
    fn check(&self, key: K) {
        debug_assert!(
            self.get(key).is_some(),
            "{key:?} is gone: the latest at this place has the generation {:?}, of {} in all",
            self.latest(key),
            self.things.len(),
        );
    }

    #[cfg(debug_assertions)]
    fn latest(&self, key: K) -> Option<u32> {
        self.generations.get(key.index()).copied()
    }

    #[cfg(not(debug_assertions))]
    fn latest(&self, _: K) -> Option<u32> {
        None
    }
}

impl<K: Key, V> Index<K> for Table<K, V> {
    type Output = V;

    #[inline]
    fn index(&self, key: K) -> &V {
        self.check(key);
        &self.things[key.index()]
    }
}

impl<K: Key, V> IndexMut<K> for Table<K, V> {
    #[inline]
    fn index_mut(&mut self, key: K) -> &mut V {
        self.check(key);
        &mut self.things[key.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    table_key!(TestKey);

    #[test]
    fn a_key_finds_its_thing_and_not_a_later_one_at_its_place() {
        let mut table: Table<TestKey, &str> = Table::default();
        let first = table.insert("first");
        assert_eq!(table[first], "first");
        assert_eq!(table.remove(first), "first");
        let second = table.insert("second");
        assert_eq!(second.index(), first.index());
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table[second], "second");
        assert_eq!(table.key_at(second.number()), Some(second));
        assert_eq!(table.key_at(1), None);
    }

    #[test]
    #[should_panic(expected = "is gone")]
    fn a_look_up_by_the_key_of_a_thing_that_is_gone_panics() {
        let mut table: Table<TestKey, u8> = Table::default();
        let key = table.insert(1);
        table.remove(key);
        table.insert(2);
        let _ = table[key];
    }
}
