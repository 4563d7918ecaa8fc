//! [`KeyHistory`]: what becomes of a look-up that must find something, and does not.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::panic::Location;

/// Changes of a table that are remembered under test, the latest: more than most tests make.
const REMEMBERED: usize = 1024;

/// Changes of one index that a panic shows, the latest.
const SHOWN: usize = 64;

/// The misses of a table, and under test what has become of its indexes.
///
/// A table is asked for most of its entries by those who know that they are there: a list that an
/// entry leaves when it is removed, or a caller that has just found it. A miss is then a fault of this
/// crate. Under test, it panics, and says when the index was given and taken; otherwise it is counted,
/// and the work for the entry is left out.
pub struct KeyHistory {
    /// What the table has.
    kind: &'static str,
    missed: u64,
    /// Empty but under test.
    changes: VecDeque<Change>,
}

#[derive(Clone, Copy)]
struct Change {
    index: u32,
    generation: u32,
    is_added: bool,
    place: &'static Location<'static>,
}

impl KeyHistory {
    /// Creates the history of a table that has nothing yet. `kind` names what it will have.
    #[must_use]
    pub fn new(kind: &'static str) -> Self {
        // From the start, since no path of a call allocates.
        let remembered = if cfg!(debug_assertions) {
            REMEMBERED
        } else {
            0
        };
        Self {
            kind,
            missed: 0,
            changes: VecDeque::with_capacity(remembered),
        }
    }

    /// Records that an entry was added.
    #[inline]
    #[track_caller]
    pub fn added(&mut self, index: u32, generation: u32) {
        self.changed(index, generation, true);
    }

    /// Records that an entry was removed.
    #[inline]
    #[track_caller]
    pub fn removed(&mut self, index: u32, generation: u32) {
        self.changed(index, generation, false);
    }

    #[inline]
    #[track_caller]
    fn changed(&mut self, index: u32, generation: u32, is_added: bool) {
        if cfg!(debug_assertions) {
            if self.changes.len() == REMEMBERED {
                self.changes.pop_front();
            }
            self.changes.push_back(Change {
                index,
                generation,
                is_added,
                place: Location::caller(),
            });
        }
    }

    /// Counts a look-up that found nothing.
    ///
    /// # Panics
    ///
    /// Panics under test.
    #[cold]
    #[inline(never)]
    #[track_caller]
    pub fn missed(&mut self, index: u32) {
        self.missed += 1;
        let (kind, place) = (self.kind, Location::caller());
        debug_assert!(false, "there is no {kind} {index}: {}", self.of(index));
        log_limited!(
            warn,
            index,
            %place,
            "a poller has lost track of a {kind}, which is a fault of Verbline: please report it. Work for it was left out"
        );
    }

    /// Returns how many look-ups have found nothing.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.missed
    }

    /// Returns what has become of an index, in words.
    #[must_use]
    pub fn of(&self, index: u32) -> String {
        let of_it = |change: &&Change| change.index == index;
        let changes: Vec<_> = self.changes.iter().filter(of_it).collect();
        let latest = &changes[changes.len().saturating_sub(SHOWN)..];
        let mut text = String::new();
        for change in latest {
            // Writing to a string does not fail.
            let _ = write!(text, "{change}; ");
        }
        match latest {
            [] => "it was never there".to_owned(),
            _ => text,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (generation, place) = (self.generation, self.place);
        let what = if self.is_added { "added" } else { "removed" };
        write!(f, "generation {generation} {what} at {place}")
    }
}

impl fmt::Debug for KeyHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyHistory")
            .field("kind", &self.kind)
            .field("missed", &self.missed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_has_its_own_history() {
        let mut history = KeyHistory::new("thing");
        assert_eq!(history.of(3), "it was never there");
        for index in 0..8 {
            for generation in 0..100 {
                history.added(index, generation);
                history.removed(index, generation);
            }
        }
        assert_eq!(
            history.of(0),
            "it was never there",
            "the oldest are forgotten"
        );
        let last = history.of(7);
        assert_eq!(last.matches("added").count(), SHOWN / 2);
        assert_eq!(last.matches("removed").count(), SHOWN / 2);
        assert!(last.starts_with("generation 68 added at "), "{last}");
        assert!(last.contains("generation 99 removed at "), "{last}");
        assert!(last.contains(file!()), "{last}");
    }

    /// Without the assertions, a miss is counted.
    #[test]
    #[cfg_attr(
        debug_assertions,
        should_panic(expected = "there is no thing 7: generation 2 added")
    )]
    fn a_miss_panics_with_the_history_or_is_counted() {
        let mut history = KeyHistory::new("thing");
        history.added(7, 2);
        history.missed(7);
        assert_eq!(history.misses(), 1);
    }
}
