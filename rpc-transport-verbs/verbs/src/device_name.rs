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
use super::types::gid::GidEntry;

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
            Some(part) => part.parse().map(Some).map_err(|_| malformed()),
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
            // `parse` also takes a sign.
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits
                .parse()
                .ok()
                .filter(|&len| len <= max)
                .ok_or_else(|| DeviceNameError::Prefix { name: name(), max })?,
            Some(_) => return Err(DeviceNameError::Prefix { name: name(), max }),
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

/// Returns true if Linux would accept the name for a network device (`dev_valid_name`).
fn is_netdev(name: &str) -> bool {
    let is_of_it = |c: char| !c.is_whitespace() && !matches!(c, '/' | ':');
    /// Bytes of a name, without the zero that ends it (`IFNAMSIZ`).
    const MAX_LEN: usize = 15;
    (1..=MAX_LEN).contains(&name.len()) && name != "." && name != ".." && name.chars().all(is_of_it)
}

/// Returns an entry of a GID table as an operator knows it: `d0 192.0.2.1`.
pub(crate) fn shown(entry: &GidEntry) -> String {
    let address = Ipv6Addr::from(entry.gid.0).to_canonical();
    match &entry.netdev {
        Some(netdev) => format!("{netdev} {address}"),
        None => address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gid, GidType};

    fn parsed(text: &str) -> DeviceName {
        let name = text.parse::<DeviceName>().unwrap();
        assert_eq!(name.to_string(), text);
        name
    }

    fn filter(text: &str) -> GidFilter {
        let name = parsed(text);
        assert_eq!(
            (name.device, name.wish.port, name.wish.gid_index),
            (None, None, None)
        );
        name.wish.gids.unwrap()
    }

    fn entry(netdev: Option<&str>, address: &str) -> GidEntry {
        let address = address.parse::<IpAddr>().unwrap();
        let address = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        GidEntry {
            index: 0,
            gid: Gid(address.octets()),
            gid_type: GidType::RoceV2,
            netdev: netdev.map(str::to_owned),
        }
    }

    #[test]
    fn a_port_and_a_gid_may_follow_a_name() {
        for (text, port, gid_index) in [
            ("mlx5_0", None, None),
            ("mlx5_0:2", Some(2), None),
            ("mlx5_0:2:3", Some(2), Some(3)),
        ] {
            let name = parsed(text);
            assert_eq!(name.device.as_deref(), Some("mlx5_0"));
            let wish = AddressWish {
                port,
                gid_index,
                gids: None,
            };
            assert_eq!(name.wish, wish);
        }
        // Not a network device: only an `@` makes it one.
        assert_eq!(parsed("eth0").device.as_deref(), Some("eth0"));
    }

    #[test]
    fn a_network_device_may_be_named() {
        for name in ["eth0", "eth0.100", "enp1s0f0np0", "1.2.3", "bond0-a"] {
            let expected = GidFilter::Netdev(name.to_owned());
            assert_eq!(filter(&format!("@{name}")), expected);
        }
        let of_vlan = filter("@eth0.100");
        assert!(of_vlan.accepts(&entry(Some("eth0.100"), "192.0.2.1")));
        for other in [Some("eth0"), Some("eth0.10"), None] {
            assert!(!of_vlan.accepts(&entry(other, "192.0.2.1")), "{other:?}");
        }
    }

    #[test]
    fn an_address_is_that_of_one_gid_and_a_subnet_has_many() {
        for (text, inside, outside) in [
            (
                "@192.0.2.1",
                &["192.0.2.1"][..],
                &["192.0.2.0", "::192.0.2.1"][..],
            ),
            (
                "@192.0.2.0/24",
                &["192.0.2.0", "192.0.2.255"],
                &["192.0.3.0", "192.0.1.255", "fe80::1", "::192.0.2.1"],
            ),
            // The address of a host with the prefix of its network, as `ip addr` prints it.
            ("@10.1.2.3/9", &["10.127.255.255"], &["10.128.0.0"]),
            ("@192.0.2.1/31", &["192.0.2.0"], &["192.0.2.2"]),
            ("@0.0.0.0/0", &["203.0.113.7"], &["fe80::1", "::1"]),
            ("@2001:db8::1", &["2001:db8::1"], &["2001:db8::2"]),
            (
                "@2001:db8::/33",
                &["2001:db8:7fff::1"],
                &["2001:db8:8000::1", "192.0.2.1"],
            ),
            ("@fe80::/10", &["fe80::1", "febf::1"], &["fec0::1"]),
            ("@::/0", &["fe80::1", "192.0.2.1"], &[]),
        ] {
            let filter = filter(text);
            for (addresses, is_inside) in [(inside, true), (outside, false)] {
                for address in addresses {
                    let is_accepted = filter.accepts(&entry(Some("eth0"), address));
                    assert_eq!(is_accepted, is_inside, "{address} in {text}");
                }
            }
        }
    }

    /// The whole length of an address, and a mapped address, have a shorter form.
    #[test]
    fn other_ways_to_write_a_name_mean_the_same() {
        for (text, shown) in [
            ("@192.0.2.1/32", "@192.0.2.1"),
            ("@2001:db8::1/128", "@2001:db8::1"),
            ("@::ffff:192.0.2.1", "@192.0.2.1"),
            ("@::ffff:192.0.2.0/120", "@192.0.2.0/24"),
            ("@2001:DB8:0::1", "@2001:db8::1"),
        ] {
            let name = text.parse::<DeviceName>().unwrap();
            assert_eq!(name.to_string(), shown);
            assert_eq!(name, parsed(shown));
        }
    }

    #[test]
    fn a_text_that_names_nothing_is_refused_with_the_forms_that_do() {
        for text in [
            "",
            ":1",
            "@",
            "@/24",
            "@/",
            "@.",
            "@..",
            "mlx5_0:",
            "mlx5_0:x",
            "mlx5_0:256",
            "mlx5_0:1:-1",
            "mlx5_0:1:2:3",
            "mlx5_0::3",
            "@eth0:1",
            "@eth0::1",
            "@eth0/24",
            "@eth 0",
            "@a.name.of.sixteen",
            "@192.0.2.1:1",
            "@1.2.3.4.5/24",
            "@fe80::1%eth0",
            "@[fe80::1]",
        ] {
            let error = text.parse::<DeviceName>().unwrap_err();
            let name = text.to_owned();
            assert_eq!(error, DeviceNameError::Malformed { name });
            let shown = error.to_string();
            assert!(
                shown.starts_with(&format!("'{text}' is no name")),
                "{shown}"
            );
            assert!(shown.contains("mlx5_0:1:3") && shown.contains("@eth0"));
        }
    }

    #[test]
    fn a_prefix_that_is_longer_than_the_address_is_refused_with_the_longest() {
        for (text, max) in [
            ("@1.2.3.4/33", 32),
            ("@1.2.3.4/256", 32),
            ("@1.2.3.4/", 32),
            ("@1.2.3.4/+8", 32),
            ("@1.2.3.4/-1", 32),
            ("@1.2.3.4/8/8", 32),
            ("@1.2.3.4/255.0.0.0", 32),
            ("@fe80::/129", 128),
            ("@fe80::/x", 128),
        ] {
            let error = text.parse::<DeviceName>().unwrap_err();
            let name = text.to_owned();
            assert_eq!(error, DeviceNameError::Prefix { name, max });
            assert!(error.to_string().contains(&format!("0 to {max} bits")));
        }
    }

    #[test]
    fn a_filter_and_a_gid_are_said_as_an_operator_knows_them() {
        assert_eq!(filter("@d0").in_words(), "of the netdev 'd0'");
        let subnet = filter("@192.0.2.0/24").in_words();
        assert_eq!(subnet, "in the subnet 192.0.2.0/24");
        let address = filter("@192.0.2.1").in_words();
        assert_eq!(address, "with the address 192.0.2.1");
        assert_eq!(shown(&entry(Some("d0"), "192.0.2.1")), "d0 192.0.2.1");
        assert_eq!(shown(&entry(None, "fe80::1")), "fe80::1");
    }
}
