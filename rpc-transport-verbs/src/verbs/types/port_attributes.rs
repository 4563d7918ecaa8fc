//! What a port says of itself: `ibv_query_port`.

use std::fmt;
use std::time::Duration;

use super::flags::flags;
use super::lines::{Bytes, Lines};
use super::port_capabilities::PortCapabilities;
use super::queue_pair_attributes::Mtu;
use super::rate::Rate;

/// What a port says of itself at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortAttributes {
    /// Its state, as the subnet manager has put it.
    pub state: PortState,
    /// The state of its link.
    pub physical_state: PhysicalState,
    /// How its packets are carried.
    pub link_layer: LinkLayer,
    /// The largest MTU that it can use, in bytes.
    pub max_mtu: PortMtu,
    /// The MTU in use, in bytes.
    pub active_mtu: PortMtu,
    /// Bytes of the longest message.
    pub max_msg_len: usize,
    /// How fast its link is; `None` if it does not say.
    pub rate: Option<Rate>,
    /// Its local identifier; 0 where there are none.
    pub lid: u16,
    /// How many of the lower bits of a local identifier choose a path to this port: it has 2^lmc of them.
    pub lmc: u8,
    /// The local identifier of the subnet manager; 0 before there is one.
    pub sm_lid: u16,
    /// The service level to reach the subnet manager by.
    pub sm_sl: u8,
    /// How long the subnet manager may take to answer a trap; `None` where there is no subnet.
    pub subnet_timeout: Option<Duration>,
    /// What the subnet manager kept when it initialised the port, four bits; 0 if it does not tell.
    pub init_type_reply: u8,
    /// Its virtual lanes.
    pub virtual_lanes: VirtualLanes,
    /// What it can do.
    pub capabilities: PortCapabilities,
    /// What it requires.
    pub flags: PortFlags,
    /// Entries of its GID table.
    pub gid_count: u32,
    /// Entries of its table of partition keys.
    pub pkey_count: u16,
    /// Packets that were dropped because of another partition key.
    pub bad_pkey_count: u32,
    /// Datagrams that were dropped because of another Q_Key.
    pub qkey_violation_count: u32,
}

/// A line for each attribute.
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

/// State of a port (`enum ibv_port_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortState {
    /// It was not said: of a change, that there is none.
    #[default]
    Nop,
    /// Not connected.
    Down,
    /// Connected, and not yet configured by a subnet manager.
    Init,
    /// Configured, and not yet in use.
    Armed,
    /// Ready.
    Active,
    /// Ready, while its link is being repaired.
    ActiveDefer,
    /// Another state, by its number.
    Unknown(u32),
}

impl PortState {
    /// The state with this number.
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

/// State of a port's link (`phys_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PhysicalState {
    /// It drives nothing, and looks for nothing, to save power.
    Sleep,
    /// It looks for somebody at the other end.
    Polling,
    /// Switched off.
    Disabled,
    /// Both ends agree on width and speed.
    PortConfigurationTraining,
    /// Up.
    LinkUp,
    /// Up, and being repaired.
    LinkErrorRecovery,
    /// Being tested.
    PhyTest,
    /// Another state, by its number. 0 is what ports say that do not tell.
    Unknown(u8),
}

impl PhysicalState {
    /// The state with this number.
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

/// How a port's packets are carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// An InfiniBand subnet.
    #[default]
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
    /// Memory of this host.
    Memory,
    /// Another one, by its number.
    Other(u8),
}

impl LinkLayer {
    /// The one with this number. Devices that are older than the field leave it 0; they are InfiniBand.
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
            Self::Other(number) => write!(f, "link layer {number}"),
        }
    }
}

/// An MTU as a port says it: one that a queue pair can be given, or a code that is newer than this layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortMtu {
    /// One of the five.
    Known(Mtu),
    /// Another code. A port that is down may say 0.
    Unknown(u32),
}

impl PortMtu {
    /// The MTU with this code.
    pub fn from_code(code: u32) -> Self {
        Mtu::from_code(code).map_or(Self::Unknown(code), Self::Known)
    }

    /// The MTU, or the smallest of all if it is unknown: that fits any packet.
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

/// The virtual lanes of a port, as a code (`max_vl_num`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VirtualLanes(pub u8);

impl VirtualLanes {
    /// How many there are for data; `None` if the port does not say, or says a code that is unknown.
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
    /// What a port requires (`flags`).
    PortFlags(u8);
    /// One thing that a port may require.
    PortFlag;
    /// Every address vector has a global route.
    GrhRequired = 0, "GRH_REQUIRED";
}

#[cfg(test)]
mod tests;
