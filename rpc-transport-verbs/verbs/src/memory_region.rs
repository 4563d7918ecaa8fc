//! Memory regions (`ibv_reg_mr(3)`).

use std::fmt;
use std::sync::Arc;

use super::protection_domain::ProtectionDomain;
use super::registered_memory::RegisteredMemory;
use super::slot::Slot;
use super::types::access::Access;
use super::types::keys::LocalKey;
use super::types::verbs_error::VerbsError;

/// A whole registered region. [`into_slots`](Self::into_slots) divides it.
///
/// Only this process's requests may name it (memory for peers is
/// [`ExposedMemory`](super::ExposedMemory)), so its slots are plain bytes while they are not
/// posted. The registration ends when the region and all of its slots are dropped.
pub struct MemoryRegion {
    pub(super) shared: Arc<RegisteredMemory>,
}

impl ProtectionDomain {
    /// Allocates at least `len` bytes of memory that suits the device, and registers them for local
    /// use only (`ibv_reg_mr(3)`). The memory is zeroed and page-aligned.
    ///
    /// # Errors
    ///
    /// * [`VerbsError::ExposedSlots`] if `access` grants a peer access; use
    ///   [`expose`](Self::expose) for that.
    /// * [`VerbsError::OutOfRange`] if the device does not support this length.
    /// * [`VerbsError::NotSupported`] if the device lacks one of the access rights.
    /// * [`VerbsError::MemoryLocked`] if the limit of locked memory is too low.
    /// * [`VerbsError::Os`] or [`VerbsError::Exhausted`] if memory or regions run out,
    ///   [`VerbsError::Forked`] in a forked child.
    pub fn register(&self, len: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        if access.intersects(remote | Access::MW_BIND) {
            return Err(VerbsError::ExposedSlots { access });
        }
        Ok(MemoryRegion::new(self.reg_mr(len, access)?))
    }
}

impl MemoryRegion {
    fn new(memory: RegisteredMemory) -> Self {
        Self {
            shared: Arc::new(memory),
        }
    }

    /// Returns the registered length in bytes: at least what was requested.
    pub fn len(&self) -> usize {
        self.shared.raw.len()
    }

    /// Returns false: an empty region cannot be registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the key for local work requests.
    pub fn local_key(&self) -> LocalKey {
        self.shared.raw.local_key()
    }

    /// Divides the region into as many slots of `slot_len` bytes as fit, in address order.
    ///
    /// # Errors
    ///
    /// * [`VerbsError::OutOfRange`] if `slot_len` is 0, exceeds the region, or does not fit 32
    ///   bits.
    /// * [`VerbsError::Misaligned`] if `slot_len` is not a multiple of 64, the size of a cache
    ///   line: slots must not share a cache line.
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
