//! Selection of the port and the GID to send from.
//!
//! The first active port is chosen. GIDs are ranked: RoCE version 2 before 1, with a network device
//! before without, global before link-local, then by index. `Limits` prints the choice, and the log
//! gives the reason.

use std::cmp::Reverse;
use std::fmt;
use std::net::Ipv6Addr;

use super::context::Context;
use super::device_name::{self, AddressWish, GidFilter};
use super::types::gid::{Gid, GidEntry, GidType};
use super::types::port_attributes::{LinkLayer, PortAttributes, PortState};
use super::types::queue_pair_attributes::Mtu;
use super::types::verbs_error::VerbsError;

/// The local address of a device's queue pairs, and why it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAddress {
    /// Port number, from 1.
    pub port: u8,
    /// Index of the GID in the port's table.
    pub gid_index: u8,
    /// The GID.
    pub gid: Gid,
    /// The kind of packets sent from the GID.
    pub gid_type: GidType,
    /// The network device that the GID belongs to, if one is visible in this network namespace.
    pub netdev: Option<String>,
    /// The port's local identifier (LID); 0 on links without LIDs.
    pub lid: u16,
    /// The port's link layer.
    pub link_layer: LinkLayer,
    /// The port's MTU. Two peers use the smaller of theirs.
    pub mtu: Mtu,
    /// Why this port and this GID were chosen, in words.
    pub reason: String,
}

impl fmt::Display for PortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.link_layer {
            LinkLayer::Memory => return f.write_str("shared memory of this host"),
            LinkLayer::Tcp => return f.write_str("TCP connections"),
            _ => {}
        }
        write!(
            f,
            "port {}, GID {} {} ({}",
            self.port, self.gid_index, self.gid, self.gid_type
        )?;
        if let Some(netdev) = &self.netdev {
            write!(f, ", netdev {netdev}")?;
        }
        if self.lid != 0 {
            write!(f, ", LID {}", self.lid)?;
        }
        write!(f, "), MTU {}", self.mtu)
    }
}

/// Why a device has no address to send from.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The device has no port with this number.
    #[error("'{device}' has no port {port}; it has {count}")]
    NoSuchPort {
        /// The device.
        device: String,
        /// The requested port.
        port: u8,
        /// Number of ports.
        count: u8,
    },
    /// No port is active.
    #[error(
        "no port of '{device}' is active ({states}). Check the cable, that its network device is up (ip link set … up), and on InfiniBand that a subnet manager runs"
    )]
    PortDown {
        /// The device.
        device: String,
        /// The state of each port that was checked, in words.
        states: String,
    },
    /// The port has no usable GID.
    #[error(
        "port {port} of '{device}' has no usable GID. Give its network device an address (ip addr add … dev …), and in a container use the host's network (docker run --network=host)"
    )]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
    },
    /// The port's GID table has no entry at this index.
    #[error("port {port} of '{device}' has no GID {index}; in use are: {known}")]
    NoSuchGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The requested index.
        index: u8,
        /// The indexes in use, separated by commas.
        known: String,
    },
    /// No active port has a GID among those that the name asks for.
    #[error("no active port of '{device}' has a GID {wanted}; in use are: {known}")]
    NoGidOf {
        /// The device.
        device: String,
        /// Which GID is wanted, in words: "of the netdev 'eth0'".
        wanted: String,
        /// The GIDs in use, with their network devices, separated by commas.
        known: String,
    },
    /// A query of the device failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

impl Context {
    /// Chooses the port and the GID to send from.
    ///
    /// It takes the first active port, and from its table the GID with the widest reach: RoCE
    /// version 2 before 1, entries with a network device before entries without, global before
    /// link-local addresses, then the lowest index. What `wish` leaves open, the name may decide
    /// under which the device was opened: the port and GID of `mlx5_0:1:3`, the first active port
    /// that has a GID of `@eth0`.
    ///
    /// # Errors
    ///
    /// [`AddressError`] names what is missing: the port, a link, or a usable GID.
    pub fn choose_address(&self, wish: AddressWish) -> Result<PortAddress, AddressError> {
        let wish = wish.or(&self.wish);
        let device = self.device_name().to_owned();
        let count = self.query_device().port_count;
        if let Some(port) = wish.port
            && !(1..=count).contains(&port)
        {
            return Err(AddressError::NoSuchPort {
                device,
                port,
                count,
            });
        }
        let ports = match wish.port {
            Some(port) => port..=port,
            None => 1..=count,
        };
        // An entry that is named by its index need not be among those that the name asks for.
        let filter = wish.gids.as_ref().filter(|_| wish.gid_index.is_none());
        let (mut down, mut active) = (Vec::new(), Vec::new());
        for port in ports {
            let attributes = self.query_port(port)?;
            if attributes.state != PortState::Active {
                down.push(format!("port {port}: {}", attributes.state));
                continue;
            }
            let gids = self.query_gid_table(port)?;
            if let Some(filter) = filter
                && !gids
                    .iter()
                    .any(|it| it.gid != Gid([0; 16]) && filter.accepts(it))
            {
                active.push(gids);
                continue;
            }
            let why = match wish.port {
                Some(_) => "it was named",
                None if count == 1 => "the only one",
                None if filter.is_some() => "the first active one with a GID as it was named",
                None => "the first that is active",
            };
            return choose_gid(&device, port, &attributes, &gids, &wish, why);
        }
        Err(nothing_chosen(device, filter, &down, &active))
    }
}

/// Returns why no port was chosen: of the `active` ones, whose GIDs these are, none is accepted by the
/// filter, or there are none.
fn nothing_chosen(
    device: String,
    filter: Option<&GidFilter>,
    down: &[String],
    active: &[Vec<GidEntry>],
) -> AddressError {
    if let Some(filter) = filter
        && !active.is_empty()
    {
        return AddressError::NoGidOf {
            device,
            wanted: filter.in_words(),
            known: device_name::listed(active.iter().flatten()),
        };
    }
    let states = down.join(", ");
    AddressError::PortDown { device, states }
}

/// Chooses the GID of one port.
fn choose_gid(
    device: &str,
    port: u8,
    attributes: &PortAttributes,
    gids: &[GidEntry],
    wish: &AddressWish,
    why_port: &str,
) -> Result<PortAddress, AddressError> {
    let usable: Vec<&GidEntry> = gids
        .iter()
        .filter(|entry| entry.gid != Gid([0; 16]))
        .collect();
    let (entry, why_gid) = match wish.gid_index {
        Some(index) => {
            let entry = usable.iter().find(|entry| entry.index == index);
            let entry = *entry.ok_or_else(|| AddressError::NoSuchGid {
                device: device.to_owned(),
                port,
                index,
                known: usable
                    .iter()
                    .map(|entry| entry.index.to_string())
                    .collect::<Vec<_>>()
                    .join(", "),
            })?;
            (entry, "it was named".to_owned())
        }
        None => {
            let filter = wish.gids.as_ref();
            let accepted = usable
                .iter()
                .filter(|entry| filter.is_none_or(|filter| filter.accepts(entry)));
            let count = accepted.clone().count();
            // The lowest index among the entries of the highest rank.
            let best = accepted.max_by_key(|entry| (rank(entry), Reverse(entry.index)));
            let entry = *best.ok_or_else(|| AddressError::NoGid {
                device: device.to_owned(),
                port,
            })?;
            let why = match count {
                1 if attributes.link_layer == LinkLayer::Ethernet && is_link_local(entry.gid) => {
                    "the only one, and link-local: its netdev has no other address".to_owned()
                }
                1 => "the only one".to_owned(),
                count => format!("the best of {count}, being {}", describe(entry)),
            };
            (entry, why)
        }
    };
    Ok(PortAddress {
        port,
        gid_index: entry.index,
        gid: entry.gid,
        gid_type: entry.gid_type,
        netdev: entry.netdev.clone(),
        lid: match attributes.link_layer {
            LinkLayer::InfiniBand => attributes.lid,
            _ => 0,
        },
        link_layer: attributes.link_layer,
        mtu: attributes.active_mtu.usable(),
        reason: format!("port {port}: {why_port}; GID {}: {why_gid}", entry.index),
    })
}

/// Ranks a GID by how far its packets reach: higher is better.
fn rank(entry: &GidEntry) -> (u8, bool, bool) {
    let by_type = match entry.gid_type {
        // A context that has both prefers shared memory.
        GidType::Soft => 3,
        GidType::RoceV2 | GidType::InfiniBand | GidType::Tcp => 2,
        // An older library does not report the type; it may be version 2.
        GidType::Unknown => 1,
        GidType::RoceV1 => 0,
    };
    (by_type, entry.netdev.is_some(), !is_link_local(entry.gid))
}

/// Returns the rank in words.
fn describe(entry: &GidEntry) -> String {
    let netdev = match &entry.netdev {
        Some(netdev) => format!("on netdev {netdev}"),
        None => "without a netdev".to_owned(),
    };
    let reach = if is_link_local(entry.gid) {
        "link-local"
    } else {
        "global"
    };
    format!("{}, {netdev}, {reach}", entry.gid_type)
}

fn is_link_local(gid: Gid) -> bool {
    let address = Ipv6Addr::from(gid.0);
    match address.to_ipv4_mapped() {
        Some(address) => address.is_link_local(),
        None => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests;
