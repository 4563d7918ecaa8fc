//! Slots: fixed pieces of a registered region, each an exclusive token for its bytes.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use super::prefetch;
use super::registered_memory::RegisteredMemory;
use super::types::keys::LocalKey;

/// Bytes of a slot that are prefetched for writing: a message of 4 KiB with its headers.
const PREFETCHED: usize = 4096 + 256;

/// The index of a slot in its region, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotIndex(pub u32);

/// A piece of a registered region. Its owner can read and write the bytes; nothing else, including
/// the device, touches them.
///
/// A slot is the only token for its bytes. Posting moves it into a queue, and the request's
/// completion moves it back. Moving it is cheap: it has the size of a pointer. It shares ownership
/// of its region, so the region outlives it. If you drop a slot, its bytes stay unused for as long
/// as the region lives.
///
/// It points to its record in the region's table, and owns one of the table's references.
pub struct Slot(NonNull<Record>);

/// The immutable description of one slot.
struct Record {
    start: NonNull<u8>,
    len: u32,
    index: SlotIndex,
    local_key: LocalKey,
    /// The table that this record is in, as [`Arc::as_ptr`] returns it.
    table: *const Table,
}

/// The records of all slots of one region. Each slot owns a reference to it, as if it held an
/// `Arc`.
struct Table {
    records: Box<[Record]>,
    _region: Arc<RegisteredMemory>,
}

// SAFETY: a slot is the only token for its bytes (`cut` consumes the region and makes one slot for
// each disjoint piece), so sending it transfers the exclusive right to them. The table, which it
// shares with other slots, is never changed, its reference count is atomic, and the registration in
// it is Sync.
unsafe impl Send for Slot {}
// SAFETY: a shared slot only permits reading its bytes and its record, which is never changed.
unsafe impl Sync for Slot {}

impl Slot {
    /// Divides a region into slots of `len` bytes: as many as fit, at most `u32::MAX`.
    pub(super) fn cut(region: &Arc<RegisteredMemory>, len: u32) -> Vec<Self> {
        let count = region.raw.len() / len as usize;
        let records = (0..u32::try_from(count).unwrap_or(u32::MAX))
            .map(|index| Record {
                // SAFETY: index < count, so the piece ends inside the region's `raw.len()` bytes,
                // which the provider keeps mapped until the registration is dropped.
                start: unsafe { region.raw.start().add(index as usize * len as usize) },
                len,
                index: SlotIndex(index),
                local_key: region.raw.local_key(),
                table: ptr::null(),
            })
            .collect();
        let table = Arc::new_cyclic(|weak: &std::sync::Weak<Table>| {
            let mut records: Box<[Record]> = records;
            for record in &mut records {
                record.table = weak.as_ptr();
            }
            Table {
                records,
                _region: Arc::clone(region),
            }
        });
        table
            .records
            .iter()
            .map(|record| {
                // Each slot owns one reference, which `drop` gives back.
                let _owned_by_slot = ManuallyDrop::new(Arc::clone(&table));
                Self(NonNull::from(record))
            })
            .collect()
    }

    #[inline]
    fn record(&self) -> &Record {
        // SAFETY: the slot owns a reference to the table, so the record lives as long as the slot.
        // Records are never changed, and their box never moves them.
        unsafe { self.0.as_ref() }
    }

    /// Returns the slot's index in its region.
    #[inline]
    pub fn index(&self) -> SlotIndex {
        self.record().index
    }

    /// Returns the address of its first byte, for the device.
    #[inline]
    pub(super) fn start(&self) -> NonNull<u8> {
        self.record().start
    }

    /// Requests the cache lines of the first `len` bytes for writing, at most those of `PREFETCHED`
    /// bytes, without waiting for them. For a slot that is written next: the peer's core has read
    /// the lines of its last message, and requested one by one they would arrive one after the
    /// other.
    #[inline]
    #[doc(hidden)]
    pub fn prefetch_for_write(&self, len: usize) {
        let start: *const u8 = self.start().as_ptr();
        let mut offset = 0;
        while offset < len.min(PREFETCHED) {
            prefetch::to_write(start.wrapping_add(offset));
            offset += prefetch::LINE_LEN;
        }
    }

    #[inline]
    pub(super) fn len32(&self) -> u32 {
        self.record().len
    }

    #[inline]
    pub(super) fn local_key(&self) -> LocalKey {
        self.record().local_key
    }
}

impl Drop for Slot {
    // Always inlined, and passes the pointer by value: a slot whose address is passed cannot be in a
    // register, nor can the value that contains it.
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the slot owns one reference, which `cut` did not give back, and the record is not
        // used after this.
        unsafe { give_back(self.0) }
    }
}

/// Gives back a slot's reference to its table.
///
/// # Safety
///
/// The slot must own the reference, and not use its record after this.
// Slots are dropped with their queue or their pool, not while messages are exchanged.
#[cold]
#[inline(never)]
unsafe fn give_back(record: NonNull<Record>) {
    // SAFETY: the slot's reference keeps the table, and so the record, alive until here.
    let table = unsafe { record.as_ref() }.table;
    // SAFETY: the pointer is that of the `Arc`, and the caller guarantees that the slot owns one of its
    // references.
    unsafe { Arc::decrement_strong_count(table) };
}

impl Deref for Slot {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let record = self.record();
        // SAFETY: the bytes are mapped while the table lives, which holds the region; initialized
        // (the provider allocates zeroed memory); and belong to this token alone: a slot that the
        // device may touch has been moved into a queue and cannot be borrowed here.
        unsafe { slice::from_raw_parts(record.start.as_ptr(), record.len as usize) }
    }
}

impl DerefMut for Slot {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let record = self.record();
        // SAFETY: as in `deref`; `&mut self` makes this the only borrow of the only token.
        unsafe { slice::from_raw_parts_mut(record.start.as_ptr(), record.len as usize) }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = self.record();
        f.debug_struct("Slot")
            .field("index", &record.index.0)
            .field("len", &record.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Context};

    #[test]
    fn a_region_lives_until_its_last_slot_is_dropped() {
        let domain = Context::open("soft").unwrap().alloc_pd().unwrap();
        let region = domain.register(4 * 64, Access::LOCAL_WRITE).unwrap();
        let memory = Arc::downgrade(&region.shared);
        let mut slots = region.into_slots(64).unwrap();
        let mut last = slots.swap_remove(3);
        drop(slots);
        assert!(memory.upgrade().is_some());
        last.fill(7);
        assert_eq!((last.index(), last.len()), (SlotIndex(3), 64));
        drop(last);
        assert!(memory.upgrade().is_none());
    }

    #[test]
    fn a_slot_is_as_large_as_a_pointer() {
        assert_eq!(size_of::<Option<Slot>>(), size_of::<usize>());
    }
}
