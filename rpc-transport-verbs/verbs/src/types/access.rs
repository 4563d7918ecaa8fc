//! Rights on registered memory.

use std::fmt;
use std::ops::BitOr;

/// Access rights of a region, with the bits of `enum ibv_access_flags`. Local read is implied.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Access(u32);

impl Access {
    /// Local read only: sufficient for sends.
    pub const NONE: Self = Self(0);
    /// The device may write: required for receives.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may write.
    pub const REMOTE_WRITE: Self = Self(2);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(4);
    /// Peers may execute atomic operations.
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// Memory windows may be bound to it.
    pub const MW_BIND: Self = Self(16);
    /// Remote addresses are offsets from the region's first byte.
    pub const ZERO_BASED: Self = Self(32);
    /// On-demand paging: pages need not be present before they are accessed.
    pub const ON_DEMAND: Self = Self(64);
    /// The memory consists of huge pages.
    pub const HUGETLB: Self = Self(128);
    /// Peers may flush writes to global visibility.
    pub const FLUSH_GLOBAL: Self = Self(256);
    /// Peers may flush writes to persistence.
    pub const FLUSH_PERSISTENT: Self = Self(512);
    /// The device may reorder writes, where that is faster.
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

    /// Wraps the bits that a device reports. Bits unknown to this layer are kept.
    #[cfg(any(feature = "rdma", feature = "shim"))]
    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns the bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the rights without those of `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns true if all flags of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if any right of `other` is included.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Writes the names separated by `|`, and unnamed bits as a number.
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
