//! A device before it is opened.

use std::fmt;

use super::guid::Guid;

/// A device in the list, not yet opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The name to pass to [`Context::open`](crate::Context::open).
    pub name: String,
    /// The node GUID; zero if the device has none before it is opened.
    pub guid: Guid,
    /// The role of the device in its network.
    pub node_type: NodeType,
    /// The transport protocol of the device.
    pub transport: TransportType,
}

/// The role of a device in its network (`enum ibv_node_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodeType {
    /// A host's adapter.
    ChannelAdapter,
    /// A switch.
    Switch,
    /// A router between subnets.
    Router,
    /// A host's adapter for iWARP.
    Rnic,
    /// Cisco's usNIC.
    Usnic,
    /// Cisco's usNIC, over UDP.
    UsnicUdp,
    /// The device reports "unspecified".
    Unspecified,
    /// A type unknown to this layer, by its number.
    Unknown(i32),
}

impl NodeType {
    /// Returns the type with this number.
    pub const fn from_code(code: i32) -> Self {
        match code {
            1 => Self::ChannelAdapter,
            2 => Self::Switch,
            3 => Self::Router,
            4 => Self::Rnic,
            5 => Self::Usnic,
            6 => Self::UsnicUdp,
            7 => Self::Unspecified,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ChannelAdapter => "channel adapter",
            Self::Switch => "switch",
            Self::Router => "router",
            Self::Rnic => "iWARP adapter",
            Self::Usnic => "usNIC",
            Self::UsnicUdp => "usNIC over UDP",
            Self::Unspecified => "unspecified",
            Self::Unknown(number) => return write!(f, "node type {number}"),
        })
    }
}

/// The transport protocol of a device (`enum ibv_transport_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportType {
    /// InfiniBand transport, over InfiniBand or Ethernet (RoCE).
    InfiniBand,
    /// iWARP, over TCP.
    Iwarp,
    /// Cisco's usNIC.
    Usnic,
    /// Cisco's usNIC, over UDP.
    UsnicUdp,
    /// The device reports "unspecified".
    Unspecified,
    /// Memory of this host; the software device.
    Memory,
    /// TCP connections; the software device.
    Tcp,
    /// A type unknown to this layer, by its number.
    Unknown(i32),
}

impl TransportType {
    /// Returns the type with this number.
    pub const fn from_code(code: i32) -> Self {
        match code {
            0 => Self::InfiniBand,
            1 => Self::Iwarp,
            2 => Self::Usnic,
            3 => Self::UsnicUdp,
            4 => Self::Unspecified,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for TransportType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Iwarp => "iWARP",
            Self::Usnic => "usNIC",
            Self::UsnicUdp => "usNIC over UDP",
            Self::Unspecified => "unspecified",
            Self::Memory => "shared memory",
            Self::Tcp => "TCP",
            Self::Unknown(number) => return write!(f, "transport {number}"),
        })
    }
}
