//! The addresses of a port, and the keys of the partitions that it is in.

use std::fmt;

/// A global identifier: the address of a port.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&std::net::Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// What kind of packets leave from a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: Ethernet frames, which no router forwards.
    RoceV1,
    /// RoCE version 2: UDP.
    RoceV2,
    /// The software device's.
    Soft,
    /// The system does not say, or says a number that is newer than this layer.
    Unknown,
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Soft => "soft",
            Self::Unknown => "type unknown",
        })
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its place in the table.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// The kind of packets that leave from it.
    pub gid_type: GidType,
    /// The network device that it belongs to, if any is seen from here.
    pub netdev: Option<String>,
}

/// The key of a partition (P_Key): packets are taken from members of the same partition only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartitionKey(pub u16);

impl PartitionKey {
    /// The partition that everybody is in at first, as a full member.
    pub const DEFAULT: Self = Self(0xffff);

    /// The partition: 15 bits. 0 is none, so that the entry of the table is empty.
    pub const fn partition(self) -> u16 {
        self.0 & 0x7fff
    }

    /// Whether it is a full member, which may talk to all. Limited members may talk to full ones.
    pub const fn is_full_member(self) -> bool {
        self.0 & 0x8000 != 0
    }
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let member = match (self.partition(), self.is_full_member()) {
            (0, _) => "none",
            (_, true) => "full member",
            (_, false) => "limited member",
        };
        write!(f, "{:#06x} ({member})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_key_says_which_partition_and_which_member() {
        assert_eq!(PartitionKey::DEFAULT.to_string(), "0xffff (full member)");
        assert_eq!(PartitionKey(0x7fff).to_string(), "0x7fff (limited member)");
        assert_eq!(PartitionKey(0).to_string(), "0x0000 (none)");
        assert_eq!(PartitionKey(0x8001).partition(), 1);
    }
}
