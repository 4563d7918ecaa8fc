//! Registered memory, and the rights that were given on it.

use std::fmt;
use std::ops::BitOr;
use std::sync::Arc;

use super::slot::Slot;
use crate::provider;

/// What a region may be used for, with the bits of `enum ibv_access_flags`. Local read is implied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u32);

impl Access {
    /// Local read only: fit for sends.
    pub const NONE: Self = Self(0);
    /// The device may write: needed for receives.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may write.
    pub const REMOTE_WRITE: Self = Self(2);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(4);
    /// Peers may do atomics.
    pub const REMOTE_ATOMIC: Self = Self(8);

    /// As a device says them; bits that this layer has no name for are kept.
    #[cfg(feature = "rdma")]
    pub(crate) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `other` is in it.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is in it.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Names a region in this side's work requests (lkey).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalKey(pub u32);

/// Names a region in a peer's work requests (rkey). Unrelated to the local key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub u32);

/// A registered region, whole. [`into_slots`](Self::into_slots) cuts it up.
///
/// It is two-sided memory: only this process's requests name it, so its slots can be plain bytes
/// while they are in hand. The registration ends when the region and all of its slots are gone.
pub struct MemoryRegion {
    pub(super) shared: Arc<RegisteredMemory>,
}

/// The registration, owned by the region or by its slots together.
pub(super) struct RegisteredMemory {
    // Before the domain: a field is dropped before the ones below it, and a domain with regions
    // cannot be destroyed.
    pub(super) raw: provider::MemoryRegion,
    _domain: Arc<provider::ProtectionDomain>,
}

impl MemoryRegion {
    pub(super) fn new(
        raw: provider::MemoryRegion,
        domain: Arc<provider::ProtectionDomain>,
    ) -> Self {
        Self {
            shared: Arc::new(RegisteredMemory {
                raw,
                _domain: domain,
            }),
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

    /// The key for work requests of peers. Worth nothing without a remote access flag.
    pub fn remote_key(&self) -> RemoteKey {
        self.shared.raw.remote_key()
    }

    /// Cuts the region into as many slots of `slot_len` bytes as fit, in the order of their
    /// addresses.
    ///
    /// # Panics
    ///
    /// If `slot_len` is 0, not a multiple of 64 (a cache line, so that no two slots share one), or
    /// does not fit 32 bits.
    pub fn into_slots(self, slot_len: usize) -> Vec<Slot> {
        assert!(
            slot_len > 0 && slot_len.is_multiple_of(64),
            "a slot has a multiple of 64 bytes"
        );
        Slot::cut(&self.shared, slot_len)
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
