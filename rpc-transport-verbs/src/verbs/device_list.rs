//! The devices that can be opened: `ibv_get_device_list`, and the software device.

use std::fmt;

use super::types::guid::Guid;
use crate::provider;

/// A device that is there, before it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// What [`Context::open`](super::Context::open) is told.
    pub name: String,
    /// Its number; zero for a device that has none before it is opened.
    pub guid: Guid,
    /// What it is in its network.
    pub node_type: NodeType,
    /// What its packets are.
    pub transport: TransportType,
}

/// The devices that this build can open: RDMA devices in the order of libibverbs, then `soft`.
///
/// What the kernel has and this build cannot drive is not in it; [`Context::open`](super::Context::open) says why,
/// given its name.
pub fn devices() -> Vec<DeviceInfo> {
    provider::devices()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Context;

    #[test]
    fn the_software_device_is_always_there_and_last_and_what_is_listed_can_be_named_once() {
        let all = devices();
        let soft = all.last().unwrap();
        assert_eq!(
            (&*soft.name, soft.transport),
            ("soft", TransportType::Memory)
        );
        Context::open(&soft.name).unwrap();
        let mut names: Vec<_> = all.iter().map(|device| &device.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn numbers_that_nobody_knows_are_kept() {
        for code in (-2..1).chain(8..20) {
            assert_eq!(NodeType::from_code(code), NodeType::Unknown(code));
        }
        for code in [-2, -1, 5, 6, i32::MAX] {
            let transport = TransportType::from_code(code);
            assert_eq!(transport, TransportType::Unknown(code));
            assert_eq!(transport.to_string(), format!("transport {code}"));
        }
        assert_eq!(NodeType::from_code(4).to_string(), "iWARP adapter");
        assert_eq!(TransportType::from_code(1), TransportType::Iwarp);
    }
}
