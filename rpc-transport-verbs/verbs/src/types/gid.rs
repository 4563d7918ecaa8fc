//! Port addresses (GIDs) and partition keys.

use std::fmt;

/// A global identifier (GID): the address of a port, in network byte order.
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

/// The kind of packets sent from a GID (`enum ibv_gid_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: Ethernet frames, which routers do not forward.
    RoceV1,
    /// RoCE version 2: UDP packets.
    RoceV2,
    /// The software device, for shared memory.
    Soft,
    /// The software device, for TCP connections.
    Tcp,
    /// Not reported by the system, or a number unknown to this layer.
    Unknown,
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Soft => "soft",
            Self::Tcp => "TCP",
            Self::Unknown => "type unknown",
        })
    }
}

/// An entry of a port's GID table (`struct ibv_gid_entry`, `ibv_query_gid_ex(3)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the table.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// The kind of packets sent from the GID.
    pub gid_type: GidType,
    /// The network device that the GID belongs to, if one is visible in this network namespace.
    pub netdev: Option<String>,
}

/// A partition key (P_Key): a port accepts packets only from members of the same partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartitionKey(pub u16);

impl PartitionKey {
    /// The default partition, as a full member.
    pub const DEFAULT: Self = Self(0xffff);

    /// Returns the partition number, 15 bits. 0 means that the table entry is empty.
    pub const fn partition(self) -> u16 {
        self.0 & 0x7fff
    }

    /// Returns true for a full member, which may communicate with every member. A limited member
    /// may communicate only with full members.
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
