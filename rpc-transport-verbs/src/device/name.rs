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
        let name = Self::parse_address(text)?;
        let fabric = FabricSettings::parse(&name.requested.to_string(), settings)?;
        let name = Self { fabric, ..name };
        // That an optional device may be absent is no reason to ignore a setting which it never has.
        match name.fabric.without_fabric(&name.device) {
            Some(error) if !name.has_fabric() => Err(error.into()),
            _ => Ok(name),
        }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Settings as users write them: most keys exist, and most values are numbers or times.
    fn settings() -> impl Strategy<Value = String> {
        let key = proptest::sample::select(vec![
            "tc", "sl", "pkey", "mtu", "timeout", "retries", "vector", "TC", "", "class",
        ]);
        let number = prop_oneof![0..40_u64, 250..260_u64, any::<u64>()];
        let unit = proptest::sample::select(vec!["", "ns", "us", "ms", "s", "m", "+", " "]);
        let value = prop_oneof![
            (number, unit).prop_map(|(number, unit)| format!("{number}{unit}")),
            any::<u32>().prop_map(|number| format!("{number:#x}")),
            proptest::sample::select(vec![
                "", "spread", "0x", "+8", "-1", "0x+8", "=1", "\u{0661}"
            ])
            .prop_map(str::to_owned),
            any::<String>(),
        ];
        let item = (key, value).prop_map(|(key, value)| format!("{key}={value}"));
        let items = prop::collection::vec(item, 0..4);
        let device = proptest::sample::select(vec!["mlx5_0", "?mlx5_0:1", "@eth0", "soft", "?tcp"]);
        (device, items).prop_map(|(device, items)| format!("{device}?{}", items.join("&")))
    }

    proptest! {
        /// Any text is a device with its settings or is refused, and is printed as it can be read again.
        #[test]
        fn what_is_read_is_printed_so_that_it_is_read_again(
            text in prop_oneof![any::<String>(), "[?@a-z0-9_:.&=/,]{0,24}", settings()],
        ) {
            match Name::parse(&text) {
                Ok(name) => {
                    let printed = name.to_string();
                    let again = Name::parse(&printed).unwrap();
                    prop_assert_eq!(again.to_string(), printed);
                    // Of a device that is there nobody asks any more whether it may be absent.
                    let is_optional = name.is_optional;
                    prop_assert_eq!(Name { is_optional, ..again }, name);
                }
                Err(error) => prop_assert!(error.to_string().contains(" cannot have ")
                    || error.to_string().contains(" is no name of "), "{}", error),
            }
        }
    }
}
