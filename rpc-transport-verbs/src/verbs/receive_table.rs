//! The entries of a receive table, which can grow while other threads read it.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::slot::Slot;

/// One entry, empty or with a slot in it.
pub(super) struct ReceiveEntry {
    /// `generation << 2 | phase`.
    pub(super) state: AtomicU32,
    pub(super) slot: UnsafeCell<MaybeUninit<Slot>>,
}

/// The entry is empty; only the holder of the posting lock may fill it.
pub(super) const FREE: u32 = 0;
/// The entry holds a slot that the device owns.
pub(super) const POSTED: u32 = 1;
/// A thread is claiming the slot and moving it out.
pub(super) const CLAIMING: u32 = 2;
/// The entry represents a receive of several elements, which are not stored in the table.
pub(super) const POSTED_LIST: u32 = 3;
pub(super) const PHASE_BITS: u32 = 2;
pub(super) const PHASE_MASK: u32 = (1 << PHASE_BITS) - 1;

impl ReceiveEntry {
    fn new() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            slot: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
}

impl fmt::Debug for ReceiveEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceiveEntry({:#x})", self.state.load(Ordering::Relaxed))
    }
}

/// The entries, by index: those of the initial capacity first, added ones after them.
#[derive(Debug)]
pub(super) struct ReceiveTable {
    first: Box<[ReceiveEntry]>,
    added: OnceLock<Box<ReceiveTable>>,
}

impl ReceiveTable {
    pub(super) fn new(count: usize) -> Self {
        Self {
            first: (0..count).map(|_| ReceiveEntry::new()).collect(),
            added: OnceLock::new(),
        }
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&ReceiveEntry> {
        match self.first.get(index) {
            Some(entry) => Some(entry),
            None => self.get_added(index),
        }
    }

    #[cold]
    fn get_added(&self, index: usize) -> Option<&ReceiveEntry> {
        self.added.get()?.get(index - self.first.len())
    }

    /// Grows to at least `count` entries, but to no more than `max_entries`, the number that can be
    /// numbered. Returns the new number of entries. Only one thread at a time may call it.
    pub(super) fn grow(&self, count: usize, max_entries: usize) -> usize {
        let mut last = self;
        let mut total = last.first.len();
        while let Some(added) = last.added.get() {
            last = added;
            total += last.first.len();
        }
        let count = count.min(max_entries);
        if count <= total {
            return total;
        }
        // At least doubles the size, so that the list of pieces stays short.
        let count = count.max(2 * total).min(max_entries);
        match last.added.set(Box::new(Self::new(count - total))) {
            Ok(()) => count,
            // Unreachable with one thread at a time; otherwise another thread has just grown the
            // table.
            Err(_) => total,
        }
    }

    /// Returns the number of entries that are not free at the moment.
    pub(super) fn taken(&self) -> usize {
        let is_taken =
            |entry: &&ReceiveEntry| entry.state.load(Ordering::Relaxed) & PHASE_MASK != FREE;
        let added = self.added.get().map_or(0, |added| added.taken());
        self.first.iter().filter(is_taken).count() + added
    }

    /// Empties every entry and passes its slot to `release`. If `release` panics, it owns the slot
    /// that it was passed, and the others remain here.
    pub(super) fn drain(&mut self, generation_mask: u32, release: &mut impl FnMut(Slot)) {
        for entry in &mut self.first {
            let state = *entry.state.get_mut();
            let phase = state & PHASE_MASK;
            if phase != FREE {
                let next = (state >> PHASE_BITS).wrapping_add(1) & generation_mask;
                *entry.state.get_mut() = next << PHASE_BITS | FREE;
            }
            if phase == POSTED {
                // SAFETY: POSTED means that the slot is initialized, `&mut self` excludes a
                // concurrent claim, and the entry was marked free above, so the slot is not read a
                // second time.
                release(unsafe { entry.slot.get_mut().assume_init_read() });
            }
        }
        if let Some(added) = self.added.get_mut() {
            added.drain(generation_mask, release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_entries_are_numbered_after_the_others_and_never_move() {
        let table = ReceiveTable::new(4);
        let third: *const ReceiveEntry = table.get(3).unwrap();
        assert!(table.get(4).is_none());
        assert_eq!(table.grow(5, 64), 8, "at least twice as many");
        assert_eq!(table.grow(8, 64), 8);
        assert_eq!(table.grow(9, 64), 16);
        assert!(std::ptr::eq(third, table.get(3).unwrap()));
        let mut seen: Vec<*const ReceiveEntry> = (0..16)
            .map(|index| table.get(index).unwrap() as *const _)
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 16);
        assert!(table.get(16).is_none());
    }

    #[test]
    fn there_are_never_more_entries_than_numbers() {
        let table = ReceiveTable::new(3);
        assert_eq!(table.grow(usize::MAX, 1 << 10), 1 << 10);
        assert_eq!(table.grow(usize::MAX, 1 << 10), 1 << 10);
        assert!(table.get((1 << 10) - 1).is_some());
        assert!(table.get(1 << 10).is_none());
    }

    #[test]
    fn taken_entries_are_counted_in_all_pieces() {
        let mut table = ReceiveTable::new(2);
        table.grow(4, 64);
        for index in [1, 3] {
            let state = &table.get(index).unwrap().state;
            state.store(5 << PHASE_BITS | POSTED_LIST, Ordering::Relaxed);
        }
        assert_eq!(table.taken(), 2);
        table.drain(u32::MAX >> 2, &mut |_| {
            unreachable!("lists are kept elsewhere")
        });
        assert_eq!(table.taken(), 0);
        let state = table.get(3).unwrap().state.load(Ordering::Relaxed);
        assert_eq!(state, 6 << PHASE_BITS | FREE, "of the next generation");
    }
}
