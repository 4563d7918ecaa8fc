//! [`DeviceName`]: how users name devices, wherever they can name one.
//!
//! ```text
//! mlx5_0          a device
//! mlx5_0:1        its port 1
//! mlx5_0:1:3      its port 1, and entry 3 of the port's GID table
//! @eth0           the device behind a network device, and the GIDs of that network device
//! @192.0.2.1      the device that has this address
//! @192.0.2.0/24   the device that has an address in this subnet
//! ```
//!
//! An IPv6 address contains colons, so neither a port nor a GID index follows an `@`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use super::types::device_name_error::DeviceNameError;
use super::types::gid::{Gid, GidEntry};

/// A device as a user names it: `mlx5_0:1:3`, `@eth0` or `@192.0.2.0/24`.
/// [`Context::open`](crate::Context::open) takes the same text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceName {
    /// The device's name. `None` stands for the first device with such a GID as `wish` asks for.
    pub device: Option<String>,
    /// The port and the GID to send from, as far as they are named.
    pub wish: AddressWish,
}

/// Which GIDs of a device may be used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidFilter {
    /// Those of the network device with this name.
    Netdev(String),
    /// Those whose first bits are those of an address.
    Subnet {
        /// The address. An IPv4 address is mapped, as in GIDs: `::ffff:192.0.2.0`.
        address: Ipv6Addr,
        /// How many bits count, 0 to 128.
        prefix_len: u8,
    },
}

/// The user's requirements for the address; what is `None` is chosen by
/// [`Context::choose_address`](crate::Context::choose_address).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AddressWish {
    /// The port to use.
    pub port: Option<u8>,
    /// The index in the port's GID table to use.
    pub gid_index: Option<u8>,
    /// The GIDs among which to choose. Not considered if an index is named.
    pub gids: Option<GidFilter>,
}

impl AddressWish {
    /// Returns this wish, completed by what the device's name asks for.
    pub(crate) fn or(self, named: &Self) -> Self {
        // An index in the table of one port says nothing about that of another.
        let is_of_port = self.port.is_none() || self.port == named.port;
        let is_free = self.gid_index.is_none() && self.gids.is_none();
        Self {
            port: self.port.or(named.port),
            gid_index: self
                .gid_index
                .or(named.gid_index.filter(|_| is_free && is_of_port)),
            gids: self.gids.or_else(|| named.gids.clone()),
        }
    }
}

impl FromStr for DeviceName {
    type Err = DeviceNameError;

    fn from_str(text: &str) -> Result<Self, DeviceNameError> {
        let malformed = || DeviceNameError::Malformed {
            name: text.to_owned(),
        };
        if let Some(found) = text.chars().find(|c| OF_LISTS.contains(c)) {
            return Err(DeviceNameError::NotAlone {
                name: text.to_owned(),
                found,
            });
        }
        if let Some(selector) = text.strip_prefix('@') {
            let gids = GidFilter::parse(selector, text)?;
            return Ok(Self {
                device: None,
                wish: AddressWish {
                    gids: Some(gids),
                    ..AddressWish::default()
                },
            });
        }
        let number = |part: Option<&str>| match part {
            None => Ok(None),
            Some(part) => decimal(part).map(Some).ok_or_else(malformed),
        };
        let mut parts = text.split(':');
        let device = parts.next().filter(|device| !device.is_empty());
        let device = device.ok_or_else(malformed)?.to_owned();
        let wish = AddressWish {
            port: number(parts.next())?,
            gid_index: number(parts.next())?,
            gids: None,
        };
        if parts.next().is_some() {
            return Err(malformed());
        }
        Ok(Self {
            device: Some(device),
            wish,
        })
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(device) = &self.device {
            f.write_str(device)?;
        }
        if let Some(gids) = &self.wish.gids {
            write!(f, "@{gids}")?;
        }
        for part in [self.wish.port, self.wish.gid_index].into_iter().flatten() {
            write!(f, ":{part}")?;
        }
        Ok(())
    }
}

impl GidFilter {
    /// Parses what follows the `@` of the name `whole`.
    fn parse(selector: &str, whole: &str) -> Result<Self, DeviceNameError> {
        let name = || whole.to_owned();
        let (address, prefix_len) = match selector.split_once('/') {
            Some((address, prefix_len)) => (address, Some(prefix_len)),
            None => (selector, None),
        };
        let Ok(address) = address.parse::<IpAddr>() else {
            return match is_netdev(selector) {
                true => Ok(Self::Netdev(selector.to_owned())),
                false => Err(DeviceNameError::Malformed { name: name() }),
            };
        };
        let (address, max) = match address {
            IpAddr::V4(address) => (address.to_ipv6_mapped(), 32),
            IpAddr::V6(address) => (address, 128),
        };
        let prefix_len = match prefix_len {
            None => max,
            Some(digits) => decimal(digits)
                .filter(|&len| len <= max)
                .ok_or_else(|| DeviceNameError::Prefix { name: name(), max })?,
        };
        Ok(Self::Subnet {
            address,
            // An IPv4 address is the end of an IPv6 address.
            prefix_len: 128 - max + prefix_len,
        })
    }

    /// Returns true if this GID may be used.
    pub fn accepts(&self, entry: &GidEntry) -> bool {
        match self {
            Self::Netdev(name) => entry.netdev.as_deref() == Some(name),
            &Self::Subnet {
                address,
                prefix_len,
            } => {
                let different = u128::from(address) ^ u128::from_be_bytes(entry.gid.0);
                different.leading_zeros() >= u32::from(prefix_len)
            }
        }
    }

    /// Returns the filter in words, after "a GID".
    pub(crate) fn in_words(&self) -> String {
        match self {
            Self::Netdev(name) => format!("of the netdev '{name}'"),
            Self::Subnet {
                prefix_len: 128, ..
            } => format!("with the address {self}"),
            Self::Subnet { .. } => format!("in the subnet {self}"),
        }
    }
}

impl fmt::Display for GidFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Netdev(name) => f.write_str(name),
            &Self::Subnet {
                address,
                prefix_len,
            } => {
                let (address, max) = match address.to_ipv4_mapped() {
                    Some(address) if prefix_len >= 96 => (IpAddr::V4(address), 32),
                    _ => (IpAddr::V6(address), 128),
                };
                write!(f, "{address}")?;
                if prefix_len < 128 {
                    write!(f, "/{}", prefix_len + max - 128)?;
                }
                Ok(())
            }
        }
    }
}

/// What separates devices, and a device and its settings, where several may be named.
const OF_LISTS: [char; 4] = ['?', ',', '&', '='];

/// Parses a decimal number. `parse` would also take a sign.
fn decimal(text: &str) -> Option<u8> {
    let has_digits_only = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| has_digits_only)
}

/// Returns true if Linux would accept the name for a network device (`dev_valid_name`).
fn is_netdev(name: &str) -> bool {
    let is_of_it = |c: char| !c.is_whitespace() && !matches!(c, '/' | ':');
    /// Bytes of a name, without the zero that ends it (`IFNAMSIZ`).
    const MAX_LEN: usize = 15;
    (1..=MAX_LEN).contains(&name.len()) && name != "." && name != ".." && name.chars().all(is_of_it)
}

/// Returns those entries of GID tables that are in use, as an operator knows them: `d0 192.0.2.1`.
pub(crate) fn listed<'a>(entries: impl IntoIterator<Item = &'a GidEntry>) -> String {
    let used = entries
        .into_iter()
        .filter(|entry| entry.gid != Gid([0; 16]));
    let mut gids: Vec<_> = used.map(shown).collect();
    // RoCE lists each address once for each of its versions.
    gids.dedup();
    match gids.is_empty() {
        true => "no GID".to_owned(),
        false => gids.join(", "),
    }
}

fn shown(entry: &GidEntry) -> String {
    let address = Ipv6Addr::from(entry.gid.0).to_canonical();
    match &entry.netdev {
        Some(netdev) => format!("{netdev} {address}"),
        None => address.to_string(),
    }
}

#[cfg(test)]
mod tests;
