//! A fixed piece of a registered region, as a token.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use super::registered_memory::RegisteredMemory;
use super::types::keys::LocalKey;

/// Which piece of its region a slot is, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotIndex(pub u32);

/// A piece of a registered region, in hand: its bytes can be read and written, and nobody else,
/// the device included, touches them.
///
/// It is the only token of its bytes. Posting moves it into a queue, and the device's word moves
/// it back. Moving it costs nothing; it shares ownership of its region, so that the region outlives
/// it. Dropping it gives its bytes up for as long as the region lives.
pub struct Slot {
    start: NonNull<u8>,
    len: u32,
    index: SlotIndex,
    region: Arc<RegisteredMemory>,
}

// SAFETY: a slot is the only token of its bytes (`cut` makes one for each disjoint piece, and
// consumes the region), so sending it sends the exclusive right to them; what it shares with other
// slots, the registration, is Sync.
unsafe impl Send for Slot {}
// SAFETY: through a shared slot its bytes can only be read.
unsafe impl Sync for Slot {}

impl Slot {
    /// As many as fit, or as can be counted in 32 bits.
    pub(super) fn cut(region: &Arc<RegisteredMemory>, len: u32) -> Vec<Self> {
        let count = region.raw.len() / len as usize;
        (0..u32::try_from(count).unwrap_or(u32::MAX))
            .map(|index| Self {
                // SAFETY: index < count, so that the piece ends inside the region's `raw.len()`
                // bytes, which the provider keeps mapped until the registration is dropped.
                start: unsafe { region.raw.start().add(index as usize * len as usize) },
                len,
                index: SlotIndex(index),
                region: Arc::clone(region),
            })
            .collect()
    }

    /// Which piece of its region it is.
    pub fn index(&self) -> SlotIndex {
        self.index
    }

    /// Address of its first byte, for the device.
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
        // SAFETY: the bytes are mapped while `region` lives, initialised (the provider hands out
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
