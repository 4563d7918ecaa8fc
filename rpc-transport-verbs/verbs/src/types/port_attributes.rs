//! Port attributes: `ibv_query_port(3)`.

use std::fmt;
use std::time::Duration;

use super::flags::flags;
use super::lines::{Bytes, Lines};
use super::port_capabilities::PortCapabilities;
use super::queue_pair_attributes::Mtu;
use super::rate::Rate;

/// A snapshot of a port's attributes (`struct ibv_port_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortAttributes {
    /// Logical state, as set by the subnet manager.
    pub state: PortState,
    /// Physical state of the link.
    pub physical_state: PhysicalState,
    /// Link layer that carries the packets.
    pub link_layer: LinkLayer,
    /// Largest MTU that the port supports, in bytes.
    pub max_mtu: PortMtu,
    /// MTU in use, in bytes.
    pub active_mtu: PortMtu,
    /// Longest message, in bytes.
    pub max_msg_len: usize,
    /// Link rate; `None` if the port does not report it.
    pub rate: Option<Rate>,
    /// Local identifier (LID); 0 on links without LIDs.
    pub lid: u16,
    /// LID mask control: the number of low LID bits that select a path. The port has 2^lmc LIDs.
    pub lmc: u8,
    /// LID of the subnet manager; 0 before there is one.
    pub sm_lid: u16,
    /// Service level for packets to the subnet manager.
    pub sm_sl: u8,
    /// Time that the subnet manager may take to respond to a trap; `None` on links without a
    /// subnet.
    pub subnet_timeout: Option<Duration>,
    /// What the subnet manager preserved when it initialized the port (four bits); 0 if not
    /// reported.
    pub init_type_reply: u8,
    /// Number of virtual lanes, encoded.
    pub virtual_lanes: VirtualLanes,
    /// Optional features.
    pub capabilities: PortCapabilities,
    /// Requirements on users of the port.
    pub flags: PortFlags,
    /// Entries in the GID table.
    pub gid_count: u32,
    /// Entries in the partition key table.
    pub pkey_count: u16,
    /// Packets dropped because of a wrong partition key.
    pub bad_pkey_count: u32,
    /// Datagrams dropped because of a wrong Q_Key.
    pub qkey_violation_count: u32,
}

/// Writes one line per attribute.
impl fmt::Display for PortAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Lines::new(f, 20);
        lines.line("state", self.state)?;
        lines.line("physical_state", self.physical_state)?;
        lines.line("link_layer", self.link_layer)?;
        lines.line("max_mtu", self.max_mtu)?;
        lines.line("active_mtu", self.active_mtu)?;
        lines.line("max_msg_len", Bytes(self.max_msg_len as u64))?;
        match self.rate {
            Some(rate) => lines.line("rate", rate)?,
            None => lines.line("rate", "unknown")?,
        }
        lines.line("lid", format_args!("{:#06x}", self.lid))?;
        lines.line("lmc", self.lmc)?;
        lines.line("sm_lid", format_args!("{:#06x}", self.sm_lid))?;
        lines.line("sm_sl", self.sm_sl)?;
        match self.subnet_timeout {
            Some(timeout) => lines.line("subnet_timeout", format_args!("{timeout:.3?}"))?,
            None => lines.line("subnet_timeout", "none")?,
        }
        lines.line("init_type_reply", self.init_type_reply)?;
        lines.line("virtual_lanes", self.virtual_lanes)?;
        lines.line("capabilities", self.capabilities)?;
        lines.line("flags", self.flags)?;
        lines.line("gid_count", self.gid_count)?;
        lines.line("pkey_count", self.pkey_count)?;
        lines.line("bad_pkey_count", self.bad_pkey_count)?;
        lines.line("qkey_violation_count", self.qkey_violation_count)
    }
}

/// Logical state of a port (`enum ibv_port_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortState {
    /// No state reported; in a request to change the state, no change.
    #[default]
    Nop,
    /// No link.
    Down,
    /// Link up, not yet configured by a subnet manager.
    Init,
    /// Configured, not yet in use.
    Armed,
    /// Ready for data.
    Active,
    /// Ready for data, while the link recovers from an error.
    ActiveDefer,
    /// A state unknown to this layer, by its number.
    Unknown(u32),
}

impl PortState {
    /// Returns the state with this number.
    pub const fn from_code(code: u32) -> Self {
        match code {
            0 => Self::Nop,
            1 => Self::Down,
            2 => Self::Init,
            3 => Self::Armed,
            4 => Self::Active,
            5 => Self::ActiveDefer,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nop => "no state",
            Self::Down => "down",
            Self::Init => "initializing",
            Self::Armed => "armed",
            Self::Active => "active",
            Self::ActiveDefer => "active (deferred)",
            Self::Unknown(number) => return write!(f, "in state {number}"),
        })
    }
}

/// Physical state of a port's link (`phys_state` of `struct ibv_port_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PhysicalState {
    /// The port drives no signal and does not detect one, to save power.
    Sleep,
    /// The port is looking for a device at the other end.
    Polling,
    /// Switched off.
    Disabled,
    /// Both ends are negotiating width and speed.
    PortConfigurationTraining,
    /// Up.
    LinkUp,
    /// Up, recovering from errors.
    LinkErrorRecovery,
    /// Being tested.
    PhyTest,
    /// A state unknown to this layer, by its number. 0 if the port does not report its state.
    Unknown(u8),
}

impl PhysicalState {
    /// Returns the state with this number.
    pub const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Sleep,
            2 => Self::Polling,
            3 => Self::Disabled,
            4 => Self::PortConfigurationTraining,
            5 => Self::LinkUp,
            6 => Self::LinkErrorRecovery,
            7 => Self::PhyTest,
            other => Self::Unknown(other),
        }
    }
}

impl Default for PhysicalState {
    fn default() -> Self {
        Self::Unknown(0)
    }
}

impl fmt::Display for PhysicalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sleep => "sleep",
            Self::Polling => "polling",
            Self::Disabled => "disabled",
            Self::PortConfigurationTraining => "port configuration training",
            Self::LinkUp => "link up",
            Self::LinkErrorRecovery => "link error recovery",
            Self::PhyTest => "phy test",
            Self::Unknown(number) => return write!(f, "in state {number}"),
        })
    }
}

/// Link layer of a port (`link_layer` of `struct ibv_port_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// An InfiniBand subnet.
    #[default]
    InfiniBand,
    /// Ethernet (RoCE).
    Ethernet,
    /// Memory of this host; the software device.
    Memory,
    /// TCP connections; the software device.
    Tcp,
    /// A link layer unknown to this layer, by its number.
    Other(u8),
}

impl LinkLayer {
    /// Returns the link layer with this number. Devices older than the field report 0; they are
    /// InfiniBand.
    pub const fn from_code(code: u8) -> Self {
        match code {
            0 | 1 => Self::InfiniBand,
            2 => Self::Ethernet,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::Ethernet => f.write_str("Ethernet"),
            Self::Memory => f.write_str("shared memory"),
            Self::Tcp => f.write_str("TCP"),
            Self::Other(number) => write!(f, "link layer {number}"),
        }
    }
}

/// An MTU as a port reports it: a value that a queue pair accepts, or a code unknown to this layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortMtu {
    /// One of the five MTUs.
    Known(Mtu),
    /// Another code. A port that is down may report 0.
    Unknown(u32),
}

impl PortMtu {
    /// Returns the MTU with this code.
    pub fn from_code(code: u32) -> Self {
        Mtu::from_code(code).map_or(Self::Unknown(code), Self::Known)
    }

    /// Returns the MTU, or if it is unknown the smallest one, which every link supports.
    pub fn usable(self) -> Mtu {
        match self {
            Self::Known(mtu) => mtu,
            Self::Unknown(_) => Mtu::Bytes256,
        }
    }
}

impl Default for PortMtu {
    fn default() -> Self {
        Self::Unknown(0)
    }
}

impl fmt::Display for PortMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(mtu) => fmt::Display::fmt(mtu, f),
            Self::Unknown(code) => write!(f, "code {code}"),
        }
    }
}

/// The number of virtual lanes of a port, as a code (`max_vl_num`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VirtualLanes(pub u8);

impl VirtualLanes {
    /// Returns the number of data lanes; `None` if the port does not report it or the code is
    /// unknown.
    pub const fn count(self) -> Option<u8> {
        match self.0 {
            1 => Some(1),
            2 => Some(2),
            3 => Some(4),
            4 => Some(8),
            5 => Some(15),
            _ => None,
        }
    }
}

impl fmt::Display for VirtualLanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count() {
            Some(count) => write!(f, "{count}"),
            None if self.0 == 0 => f.write_str("unknown"),
            None => write!(f, "code {}", self.0),
        }
    }
}

flags! {
    /// Requirements of a port (`flags` of `struct ibv_port_attr`).
    PortFlags(u8);
    /// One requirement of a port.
    PortFlag;
    /// Every address vector needs a global route header.
    GrhRequired = 0, "GRH_REQUIRED";
}

#[cfg(test)]
mod tests;
