//! [`Name`]: a requested device, which may be optional.

use std::fmt;

use verbline_verbs::{AddressWish, Context, DeviceName, DeviceNameError};

/// A requested device: `mlx5_0`, `mlx5_0:1:3`, `@eth0` ([`DeviceName`]). With a `?` before it, it is
/// used if it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// As the user named it.
    requested: DeviceName,
    /// The device's name. Of a network device or an address: the request, until the device is found.
    pub(crate) device: String,
    /// Whether it may be absent.
    pub(crate) is_optional: bool,
}

impl Name {
    pub(super) fn parse(text: &str) -> Result<Self, DeviceNameError> {
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
        self.requested.fmt(f)
    }
}
