//! Registered memory.

use std::fmt;
use std::sync::Arc;

use super::registered_memory::RegisteredMemory;
use super::slot::Slot;
use super::types::error::VerbsError;
use super::types::keys::LocalKey;

/// A registered region, whole. [`into_slots`](Self::into_slots) cuts it up.
///
/// It is two-sided memory: only this process's requests name it (memory for peers is
/// [`ExposedMemory`](super::ExposedMemory)), so its slots can be plain bytes
/// while they are in hand. The registration ends when the region and all of its slots are gone.
pub struct MemoryRegion {
    pub(super) shared: Arc<RegisteredMemory>,
}

impl MemoryRegion {
    pub(super) fn new(memory: RegisteredMemory) -> Self {
        Self {
            shared: Arc::new(memory),
        }
    }

    /// Bytes registered: what was asked for, or a little more.
    pub fn len(&self) -> usize {
        self.shared.raw.len()
    }

    /// Never: an empty region cannot be registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key for work requests of this side.
    pub fn local_key(&self) -> LocalKey {
        self.shared.raw.local_key()
    }

    /// Cuts the region into as many slots of `slot_len` bytes as fit, in the order of their
    /// addresses.
    ///
    /// # Errors
    ///
    /// If `slot_len` is 0, more than the region has, or does not fit 32 bits, or is not a multiple of 64 (a cache line, so that no two
    /// slots share one).
    pub fn into_slots(self, slot_len: usize) -> Result<Vec<Slot>, VerbsError> {
        let (call, parameter, value) = ("into_slots", "slot_len", slot_len as u64);
        let fits = |len: &u32| (1..=self.len()).contains(&(*len as usize));
        let Some(len) = u32::try_from(slot_len).ok().filter(fits) else {
            let (min, max) = (1, (self.len() as u64).min(u32::MAX.into()));
            return Err(VerbsError::OutOfRange {
                call,
                parameter,
                value,
                min,
                max,
            });
        };
        if !slot_len.is_multiple_of(64) {
            return Err(VerbsError::Misaligned {
                call,
                parameter,
                value,
                multiple_of: 64,
            });
        }
        Ok(Slot::cut(&self.shared, len))
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("len", &self.len())
            .field("local_key", &self.local_key())
            .finish_non_exhaustive()
    }
}
