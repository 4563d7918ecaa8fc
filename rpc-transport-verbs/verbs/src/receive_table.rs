//! The entries of a receive table, which can grow while other threads read it.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::slot::Slot;
use super::types::wr_id::Numbering;

/// One entry, empty or with a slot in it.
pub(super) struct ReceiveEntry {
    /// The number of the entry's request, or of its next one, and the phase ([`state`]).
    pub(super) state: AtomicU64,
    pub(super) slot: UnsafeCell<MaybeUninit<Slot>>,
}

/// The entry is empty; only the holder of the posting lock may fill it.
pub(super) const FREE: u64 = 0;
/// The entry holds a slot that the device owns.
pub(super) const POSTED: u64 = 1;
/// A thread is claiming the slot and moving it out.
pub(super) const CLAIMING: u64 = 2;
/// The entry represents a receive of several elements, which are not stored in the table.
pub(super) const POSTED_LIST: u64 = 3;
const PHASE_BITS: u32 = 2;
const PHASE_MASK: u64 = (1 << PHASE_BITS) - 1;

/// Returns the state of an entry whose request has this number.
#[inline]
pub(super) fn state(number: u32, phase: u64) -> u64 {
    u64::from(number) << PHASE_BITS | phase
}

/// Returns the number in a state.
#[inline]
pub(super) fn number_in(state: u64) -> u32 {
    (state >> PHASE_BITS) as u32
}

/// Returns true if the state is that of an empty entry.
#[inline]
pub(super) fn is_free(state: u64) -> bool {
    state & PHASE_MASK == FREE
}

impl ReceiveEntry {
    fn new(index: usize) -> Self {
        Self {
            // Cannot truncate: the number of entries fits 32 bits. The first generation is 0.
            state: AtomicU64::new(state(index as u32, FREE)),
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
        Self::numbered(0, count)
    }

    fn numbered(start: usize, end: usize) -> Self {
        Self {
            first: (start..end).map(ReceiveEntry::new).collect(),
            added: OnceLock::new(),
        }
    }

    /// Returns an entry of the initial capacity.
    #[inline]
    pub(super) fn get_first(&self, index: usize) -> Option<&ReceiveEntry> {
        self.first.get(index)
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
        match last.added.set(Box::new(Self::numbered(total, count))) {
            Ok(()) => count,
            // Unreachable with one thread at a time; otherwise another thread has just grown the
            // table.
            Err(_) => total,
        }
    }

    /// Returns the number of entries that are not free at the moment.
    pub(super) fn taken(&self) -> usize {
        let is_taken = |entry: &&ReceiveEntry| !is_free(entry.state.load(Ordering::Relaxed));
        let added = self.added.get().map_or(0, |added| added.taken());
        self.first.iter().filter(is_taken).count() + added
    }

    /// Empties every entry and passes its slot to `release`. If `release` panics, it owns the slot
    /// that it was passed, and the others remain here.
    pub(super) fn drain(&mut self, numbering: Numbering, release: &mut impl FnMut(Slot)) {
        for entry in &mut self.first {
            let before = *entry.state.get_mut();
            if !is_free(before) {
                *entry.state.get_mut() = state(numbering.next(number_in(before)), FREE);
            }
            if before & PHASE_MASK == POSTED {
                // SAFETY: POSTED means that the slot is initialized, `&mut self` excludes a
                // concurrent claim, and the entry was marked free above, so the slot is not read a
                // second time.
                release(unsafe { entry.slot.get_mut().assume_init_read() });
            }
        }
        if let Some(added) = self.added.get_mut() {
            added.drain(numbering, release);
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
            let entry = table.get(index).unwrap();
            let number = number_in(entry.state.load(Ordering::Relaxed));
            assert_eq!(number as usize, index, "of generation 0");
            let taken = state(number, POSTED_LIST);
            entry.state.store(taken, Ordering::Relaxed);
        }
        assert_eq!(table.taken(), 2);
        let numbering = Numbering::new(4, 1);
        table.drain(numbering, &mut |_| unreachable!("lists are kept elsewhere"));
        assert_eq!(table.taken(), 0);
        let drained = table.get(3).unwrap().state.load(Ordering::Relaxed);
        assert_eq!(drained, state(3 + 4, FREE), "of the next generation");
    }
}
