//! [`Name`]: a requested device, with an optional port, GID index and settings of its fabric.

use std::fmt;

use verbline_verbs::AddressWish;

use super::DeviceError;
use super::fabric::AsSuffix;
use crate::transport::endpoint::{SOFT, TCP};
use crate::transport::path::FabricSettings;

/// A requested device, with an optional port and GID index: `mlx5_0`, `mlx5_0:2`, `mlx5_0:2:3`. With a
/// `?` before it, it is used if it is there. Settings of its fabric may follow another `?`:
/// `mlx5_0:2?tc=104&mtu=1024`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) device: String,
    pub(crate) wish: AddressWish,
    /// Whether it may be absent.
    pub(crate) is_optional: bool,
    pub(crate) fabric: FabricSettings,
}

impl Name {
    pub(super) fn parse(text: &str) -> Result<Self, DeviceError> {
        // A `?` at the start says that the device may be absent.
        let mut others = text.char_indices().skip(1);
        let (text, settings) = match others.find(|(_, c)| *c == '?') {
            Some((at, _)) => (&text[..at], &text[at + 1..]),
            None => (text, ""),
        };
        let fabric = FabricSettings::parse(text, settings)?;
        let name = Self::parse_address(text)?;
        Ok(Self { fabric, ..name })
    }

    /// Returns true if there is a fabric that settings can be for.
    pub(super) fn has_fabric(&self) -> bool {
        !matches!(&*self.device, SOFT | TCP)
    }

    fn parse_address(text: &str) -> Result<Self, DeviceError> {
        let malformed = || DeviceError::Malformed {
            name: text.to_owned(),
        };
        let number = |part: Option<&str>| match part {
            None => Ok(None),
            Some(part) => part.parse().map(Some).map_err(|_| malformed()),
        };
        let named = text.strip_prefix('?');
        let mut parts = named.unwrap_or(text).split(':');
        let device = parts.next().unwrap_or_default().to_owned();
        let wish = AddressWish {
            port: number(parts.next())?,
            gid_index: number(parts.next())?,
        };
        if parts.next().is_some() {
            return Err(malformed());
        }
        Ok(Self {
            device,
            wish,
            is_optional: named.is_some(),
            fabric: FabricSettings::default(),
        })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.device)?;
        for part in [self.wish.port, self.wish.gid_index].into_iter().flatten() {
            write!(f, ":{part}")?;
        }
        AsSuffix(&self.fabric).fmt(f)
    }
}
