//! [`Name`]: a requested device, which may be optional, with settings of its fabric.

use std::fmt;

use verbline_verbs::{AddressWish, Context, DeviceName, DeviceNameError};

use super::DeviceError;
use super::fabric::AsSuffix;
use crate::transport::endpoint::{SOFT, TCP};
use crate::transport::path::FabricSettings;

/// A requested device: `mlx5_0`, `mlx5_0:1:3`, `@eth0` ([`DeviceName`]). With a `?` before it, it is
/// used if it is there. Settings of its fabric may follow another `?`: `mlx5_0:2?tc=104&mtu=1024`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// As the user named it.
    requested: DeviceName,
    /// The device's name. Of a network device or an address: the request, until the device is found.
    pub(crate) device: String,
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

    fn parse_address(text: &str) -> Result<Self, DeviceNameError> {
        let named = text.strip_prefix('?');
        let requested: DeviceName = named.unwrap_or(text).parse()?;
        let device = match &requested.device {
            Some(device) => device.clone(),
            None => requested.to_string(),
        };
        Ok(Self {
            requested,
            device,
            is_optional: named.is_some(),
            fabric: FabricSettings::default(),
        })
    }

    /// The name of a device, without a port and a GID.
    pub(super) fn of(device: &str) -> Self {
        Self {
            requested: DeviceName {
                device: Some(device.to_owned()),
                wish: AddressWish::default(),
            },
            device: device.to_owned(),
            is_optional: false,
            fabric: FabricSettings::default(),
        }
    }

    /// Returns the address that the user wants to send from.
    pub(crate) fn wish(&self) -> &AddressWish {
        &self.requested.wish
    }

    /// Returns the name of the device that was found under it. Pollers open that one.
    pub(super) fn found(self, context: &Context) -> Self {
        Self {
            device: context.device_name().to_owned(),
            ..self
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.requested.fmt(f)?;
        AsSuffix(&self.fabric).fmt(f)
    }
}
