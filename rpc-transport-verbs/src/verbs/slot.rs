//! Slots: fixed pieces of a registered region, each an exclusive token for its bytes.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use super::registered_memory::RegisteredMemory;
use super::types::keys::LocalKey;

/// The index of a slot in its region, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotIndex(pub u32);

/// A piece of a registered region. Its owner can read and write the bytes; nothing else, including
/// the device, touches them.
///
/// A slot is the only token for its bytes. Posting moves it into a queue, and the request's
/// completion moves it back. Moving it is cheap. It shares ownership of its region, so the region
/// outlives it. If you drop a slot, its bytes stay unused for as long as the region lives.
pub struct Slot {
    start: NonNull<u8>,
    len: u32,
    index: SlotIndex,
    region: Arc<RegisteredMemory>,
}

// SAFETY: a slot is the only token for its bytes (`cut` consumes the region and makes one slot for
// each disjoint piece), so sending it transfers the exclusive right to them. The registration,
// which it shares with other slots, is Sync.
unsafe impl Send for Slot {}
// SAFETY: a shared slot only permits reading its bytes.
unsafe impl Sync for Slot {}

impl Slot {
    /// Divides a region into slots of `len` bytes: as many as fit, at most `u32::MAX`.
    pub(super) fn cut(region: &Arc<RegisteredMemory>, len: u32) -> Vec<Self> {
        let count = region.raw.len() / len as usize;
        (0..u32::try_from(count).unwrap_or(u32::MAX))
            .map(|index| Self {
                // SAFETY: index < count, so the piece ends inside the region's `raw.len()` bytes,
                // which the provider keeps mapped until the registration is dropped.
                start: unsafe { region.raw.start().add(index as usize * len as usize) },
                len,
                index: SlotIndex(index),
                region: Arc::clone(region),
            })
            .collect()
    }

    /// Returns the slot's index in its region.
    pub fn index(&self) -> SlotIndex {
        self.index
    }

    /// Returns the address of its first byte, for the device.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len32(&self) -> u32 {
        self.len
    }

    pub(super) fn local_key(&self) -> LocalKey {
        self.region.raw.local_key()
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are mapped while `region` lives, initialized (the provider allocates
        // zeroed memory), and belong to this token alone: a slot that the device may touch has been
        // moved into a queue and cannot be borrowed here.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes this the only borrow of the only token.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len as usize) }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("index", &self.index.0)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
