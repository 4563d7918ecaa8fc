//! Registered memory, and the rights that were given on it.

use std::fmt;
use std::ops::BitOr;
use std::sync::Arc;

use super::slot::Slot;
use super::types::error::VerbsError;
use crate::provider;

/// What a region may be used for, with the bits of `enum ibv_access_flags`. Local read is implied.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
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
    /// Memory windows may be bound to it.
    pub const MW_BIND: Self = Self(16);
    /// Remote addresses are offsets from its first byte.
    pub const ZERO_BASED: Self = Self(32);
    /// Pages need not be there before they are touched.
    pub const ON_DEMAND: Self = Self(64);
    /// It lies in huge pages.
    pub const HUGETLB: Self = Self(128);
    /// Peers may flush it to where all processors see it.
    pub const FLUSH_GLOBAL: Self = Self(256);
    /// Peers may flush it to where it outlives the power.
    pub const FLUSH_PERSISTENT: Self = Self(512);
    /// The device may write it out of order, where that is quicker.
    pub const RELAXED_ORDERING: Self = Self(1 << 20);

    const NAMES: [(Self, &'static str); 11] = [
        (Self::LOCAL_WRITE, "LOCAL_WRITE"),
        (Self::REMOTE_WRITE, "REMOTE_WRITE"),
        (Self::REMOTE_READ, "REMOTE_READ"),
        (Self::REMOTE_ATOMIC, "REMOTE_ATOMIC"),
        (Self::MW_BIND, "MW_BIND"),
        (Self::ZERO_BASED, "ZERO_BASED"),
        (Self::ON_DEMAND, "ON_DEMAND"),
        (Self::HUGETLB, "HUGETLB"),
        (Self::FLUSH_GLOBAL, "FLUSH_GLOBAL"),
        (Self::FLUSH_PERSISTENT, "FLUSH_PERSISTENT"),
        (Self::RELAXED_ORDERING, "RELAXED_ORDERING"),
    ];

    /// As a device says them; bits that this layer has no name for are kept.
    #[cfg(feature = "rdma")]
    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The same without any of `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
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

/// The names, with `|` between them; bits without a name as a number.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut separator = "";
        for (access, name) in Self::NAMES {
            if self.contains(access) {
                write!(f, "{separator}{name}")?;
                rest &= !access.0;
                separator = "|";
            }
        }
        match (rest, separator) {
            (0, "") => f.write_str("NONE"),
            (0, _) => Ok(()),
            _ => write!(f, "{separator}{rest:#x}"),
        }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
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
/// It is two-sided memory: only this process's requests name it (memory for peers is
/// [`ExposedMemory`](super::ExposedMemory)), so its slots can be plain bytes
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

impl RegisteredMemory {
    pub(super) fn new(
        raw: provider::MemoryRegion,
        domain: Arc<provider::ProtectionDomain>,
    ) -> Self {
        Self {
            raw,
            _domain: domain,
        }
    }
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
