//! A device before it is opened.

use std::fmt;

use super::guid::Guid;

/// A device that is there, before it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// What [`Context::open`](crate::verbs::Context::open) is told.
    pub name: String,
    /// Its number; zero for a device that has none before it is opened.
    pub guid: Guid,
    /// What it is in its network.
    pub node_type: NodeType,
    /// What its packets are.
    pub transport: TransportType,
}

/// What a device is in its network (`enum ibv_node_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodeType {
    /// The adapter of a computer.
    ChannelAdapter,
    /// A switch.
    Switch,
    /// A router between subnets.
    Router,
    /// The adapter of a computer, for iWARP.
    Rnic,
    /// Cisco's usNIC.
    Usnic,
    /// Cisco's usNIC, over UDP.
    UsnicUdp,
    /// It says that it is none of these.
    Unspecified,
    /// Another one, by its number.
    Unknown(i32),
}

impl NodeType {
    /// The one with this number.
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

/// What a device's packets are (`enum ibv_transport_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportType {
    /// InfiniBand's, over InfiniBand or Ethernet (RoCE).
    InfiniBand,
    /// iWARP: over TCP.
    Iwarp,
    /// Cisco's usNIC.
    Usnic,
    /// Cisco's usNIC, over UDP.
    UsnicUdp,
    /// It says that it is none of these.
    Unspecified,
    /// Memory of this host: the software device.
    Memory,
    /// Another one, by its number.
    Unknown(i32),
}

impl TransportType {
    /// The one with this number.
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
            Self::Unknown(number) => return write!(f, "transport {number}"),
        })
    }
}
