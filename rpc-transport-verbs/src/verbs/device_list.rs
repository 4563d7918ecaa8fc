//! The list of devices that can be opened: `ibv_get_device_list(3)`, plus the software device.

use std::fmt;

use super::guid::Guid;
use crate::provider;

/// A device in the list, not yet opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The name, as [`Context::open`](super::Context::open) takes it.
    pub name: String,
    /// The node GUID; zero if the device has none before it is opened.
    pub guid: Guid,
    /// The role of the device in its network.
    pub node_type: NodeType,
    /// The transport protocol of the device.
    pub transport: TransportType,
}

/// Returns the devices that this build can open: RDMA devices in the order of libibverbs, then
/// `soft`.
///
/// A device that the kernel has but this build cannot drive is not listed. Passing its name to
/// [`Context::open`](super::Context::open) returns the reason.
pub fn devices() -> Vec<DeviceInfo> {
    provider::devices()
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
    /// A transport unknown to this layer, by its number.
    Unknown(i32),
}

impl TransportType {
    /// Returns the transport with this number.
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
