//! [`FabricSettings`] of a [`Device`], and as text: in its name, and in the limits of a poller.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use verbline_verbs::{AckTimeout, Context};

use super::{Device, DeviceError, try_open};
use crate::transport::path::{
    CompletionVector, FabricSettings, SettingError, Source, vector_count,
};

const UNKNOWN: &str = "there is no such setting; there are tc, sl, pkey, mtu, timeout, retries and \
                       vector, as in mlx5_0?tc=104&mtu=1024&vector=spread";

impl Device {
    /// Returns the same devices, with settings for how the packets of each RDMA device among them
    /// travel. A setting that the device's name has, as in `"mlx5_0?tc=104"`, is the operator's: it
    /// stays. `soft` and `tcp`, which have no fabric, are used as before.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Setting`] if a device cannot have a setting, or if there is a setting and no RDMA
    /// device in the list. So it fails for what [`best`](Self::best) opens on a machine without one. An
    /// optional device that cannot have a setting is left out, with a warning, if another RDMA device
    /// is left. As for [`open`](Self::open) if a device is gone.
    pub fn with_fabric(self, settings: FabricSettings) -> Result<Self, DeviceError> {
        let (mut names, mut refused) = (Vec::new(), None);
        for name in self.names.iter() {
            let mut name = name.clone();
            if name.has_fabric() {
                name.fabric = name.fabric.or(settings);
                match try_open(&name) {
                    Ok(_) => {}
                    Err(error) if name.is_optional => {
                        tracing::warn!(%error, "a device cannot be used and is left out");
                        refused.get_or_insert(error);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            names.push(name);
        }
        if !names.iter().any(|name| name.has_fabric())
            && let Some(error) = settings.without_fabric(&self.name)
        {
            return Err(refused.unwrap_or(error.into()));
        }
        let list: Vec<_> = names.iter().map(|name| name.to_string()).collect();
        Ok(Self {
            name: list.join(",").into(),
            names: names.into(),
            ..self
        })
    }
}

impl FabricSettings {
    /// Parses what follows the `?` after the name `device`: `tc=104&mtu=1024`.
    pub(super) fn parse(device: &str, text: &str) -> Result<Self, SettingError> {
        let mut settings = Self::default();
        for item in text.split('&').filter(|item| !item.is_empty()) {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            let refuse = |reason: String| SettingError {
                device: device.to_owned(),
                setting: key.to_owned(),
                value: value.to_owned(),
                reason,
            };
            let was_set = settings.is_set(key);
            let set = settings.set(key, value);
            set.map_err(|reason| refuse(reason.to_owned()))?;
            if was_set {
                return Err(refuse(
                    "the setting is there twice; leave one out".to_owned(),
                ));
            }
        }
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        match key {
            "tc" => {
                let class = number(value)
                    .ok_or("a traffic class is a number up to 255, four times the DSCP")?;
                self.traffic_class = Some(class);
            }
            "sl" => {
                let level = number(value).ok_or("a service level is a number up to 15")?;
                self.service_level = Some(level);
            }
            "pkey" => {
                let key = number(value).ok_or("a P_Key is a number of 16 bits, as in 0x8001")?;
                self.pkey = Some(key);
            }
            "mtu" => {
                let mtu = number(value)
                    .ok_or("an MTU is a number of bytes: 256, 512, 1024, 2048 or 4096")?;
                self.max_mtu = Some(mtu);
            }
            "timeout" => {
                let time = time(value)
                    .ok_or("a timeout is a time, as in 500us, 268ms or 1s, or a code up to 31, where 16 is 268 ms")?;
                self.ack_timeout = Some(time);
            }
            "retries" => {
                let count = number(value).ok_or("the retries are a number up to 6")?;
                self.retries = Some(count);
            }
            "vector" => {
                let only = || number(value).map(CompletionVector::Only);
                let vector = match value {
                    "spread" => Some(CompletionVector::Spread),
                    _ => only(),
                };
                let vector = vector.ok_or("a completion vector is a number from 0, or 'spread'")?;
                self.vector = Some(vector);
            }
            _ => return Err(UNKNOWN),
        }
        Ok(())
    }
}

/// Parses a decimal number, or a hexadecimal one after `0x`.
fn number<T: TryFrom<u64>>(text: &str) -> Option<T> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // `from_str_radix` also takes a sign.
    let number = u64::from_str_radix(digits, radix).ok();
    T::try_from(number.filter(|_| !digits.starts_with('+'))?).ok()
}

/// Parses a time with a unit, or the code of an acknowledgement timeout.
fn time(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit());
    let Some(unit_at) = unit_at else {
        let code = AckTimeout::new(number(text)?)?;
        // 0, for ever, which is refused when the device is opened.
        return Some(code.duration().unwrap_or_default());
    };
    let (count, unit) = text.split_at(unit_at);
    let count = number(count)?;
    match unit {
        "ns" => Some(Duration::from_nanos(count)),
        "us" => Some(Duration::from_micros(count)),
        "ms" => Some(Duration::from_millis(count)),
        "s" => Some(Duration::from_secs(count)),
        _ => None,
    }
}

/// Writes the settings as they are written after the name of a device, or nothing if there are none.
pub(super) struct AsSuffix<'a>(pub(super) &'a FabricSettings);

impl fmt::Display for AsSuffix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (setting, value)) in self.0.items().enumerate() {
            let before = if index == 0 { '?' } else { '&' };
            write!(f, "{before}{setting}={value}")?;
        }
        Ok(())
    }
}

/// The completion vector of a poller, and how many the device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Vector {
    pub(super) number: u32,
    count: u32,
}

impl Vector {
    /// Returns the vector for one more poller, which [`FabricSettings::check`] has permitted.
    pub(super) fn next(settings: &FabricSettings, context: &Context) -> Self {
        let count = vector_count(context);
        let number = match settings.vector {
            None => 0,
            Some(CompletionVector::Only(number)) => number,
            Some(CompletionVector::Spread) => next_of(context.device_name(), count),
        };
        Self { number, count }
    }
}

/// Returns the vector, one of `count`, for one more poller of the process.
fn next_of(device: &str, count: u32) -> u32 {
    /// The number of pollers so far that each device's interrupts were spread over.
    static POLLERS: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());
    let mut pollers = POLLERS.lock().unwrap_or_else(PoisonError::into_inner);
    let next = pollers.entry(device.to_owned()).or_default();
    let number = *next % count;
    *next = next.wrapping_add(1);
    number
}

/// Returns what is in force of the settings that are set, for people; empty if there are none.
pub(super) fn in_force(settings: &FabricSettings, source: &Source, vector: Vector) -> String {
    let path = &source.path;
    let mut parts = Vec::new();
    if let Some(class) = settings.traffic_class {
        parts.push(format!("traffic class {class} (DSCP {})", class >> 2));
    }
    if let Some(level) = settings.service_level {
        parts.push(format!("service level {level}"));
    }
    if let Some(key) = path.pkey {
        parts.push(format!("P_Key {key} at index {}", path.pkey_index));
    }
    if settings.max_mtu.is_some() {
        parts.push(format!("MTU up to {}", source.address.mtu));
    }
    if let Some(timeout) = path.timeout {
        parts.push(format!("acknowledgements within {timeout}"));
    }
    if let Some(retries) = path.retries {
        parts.push(match retries.code() {
            1 => "1 retry".to_owned(),
            count => format!("{count} retries"),
        });
    }
    if settings.vector.is_some() {
        parts.push(format!(
            "completion vector {} of {}",
            vector.number, vector.count
        ));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use verbline_verbs::{LinkLayer, PortAddress};

    use super::super::name::Name;
    use super::*;

    fn parsed(name: &str) -> FabricSettings {
        Name::parse(name).unwrap().fabric
    }

    #[test]
    fn settings_follow_a_name_and_are_printed_as_they_were_written() {
        let all = "mlx5_0:1:3?tc=104&sl=3&pkey=0x8001&mtu=1024&timeout=16&retries=5&vector=3";
        let name = Name::parse(all).unwrap();
        assert_eq!(name.to_string(), all);
        assert_eq!((&*name.device, name.wish().gid_index), ("mlx5_0", Some(3)));
        let settings = FabricSettings {
            traffic_class: Some(104),
            service_level: Some(3),
            pkey: Some(0x8001),
            max_mtu: Some(1024),
            ack_timeout: AckTimeout::new(16).unwrap().duration(),
            retries: Some(5),
            vector: Some(CompletionVector::Only(3)),
        };
        assert_eq!(name.fabric, settings);
        assert!(!name.is_optional);
        let optional = Name::parse("?mlx5_0?vector=spread").unwrap();
        assert!(optional.is_optional);
        assert_eq!(optional.fabric.vector, Some(CompletionVector::Spread));
        for none in ["mlx5_0", "mlx5_0?", "?mlx5_0?", "mlx5_0?&"] {
            assert_eq!(parsed(none), FabricSettings::default(), "{none}");
            assert_eq!(Name::parse(none).unwrap().to_string(), "mlx5_0");
        }
    }

    #[test]
    fn times_and_numbers_are_written_in_several_ways() {
        // Printed is the time that was asked for, as a code if there is one for it.
        for (text, printed) in [
            ("268ms", "268ms"),
            ("268435us", "268435us"),
            ("268435456ns", "16"),
            ("1000ms", "1s"),
            ("8192ns", "1"),
            ("0", "0s"),
            ("9999999ms", "9999999ms"),
            ("18446744073709551615s", "18446744073709551615s"),
        ] {
            let name = Name::parse(&format!("a?timeout={text}")).unwrap();
            assert_eq!(name.to_string(), format!("a?timeout={printed}"));
            assert_eq!(Name::parse(&name.to_string()).unwrap(), name);
        }
        assert_eq!(parsed("a?pkey=32769"), parsed("a?pkey=0x8001"));
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_the_reason() {
        for (settings, reason) in [
            ("class=3", "class=3: there is no such setting; there are tc"),
            ("tc", "tc=: a traffic class is a number up to 255"),
            ("tc=256", "tc=256: a traffic class"),
            ("tc=-1", "tc=-1: a traffic class"),
            ("tc=+8", "tc=+8: a traffic class"),
            ("pkey=0x+1", "pkey=0x+1: a P_Key is a number of 16"),
            ("=1", "=1: there is no such setting"),
            ("sl=x", "sl=x: a service level"),
            ("pkey=0x10000", "pkey=0x10000: a P_Key is a number of 16"),
            ("mtu=1k", "mtu=1k: an MTU is a number of bytes"),
            ("timeout=32", "timeout=32: a timeout is a time"),
            ("timeout=3h", "timeout=3h: a timeout is a time"),
            ("timeout=ms", "timeout=ms: a timeout is a time"),
            (
                "retries=many",
                "retries=many: the retries are a number up to 6",
            ),
            ("vector=all", "vector=all: a completion vector is a number"),
            ("tc=1&mtu=256&tc=1", "tc=1: the setting is there twice"),
            ("tc=1?mtu=256", "tc=1?mtu=256: a traffic class"),
        ] {
            let error = Device::open(&format!("mlx5_0:1?{settings}")).unwrap_err();
            assert!(matches!(error, DeviceError::Setting { .. }), "{error}");
            let expected = format!("'mlx5_0:1' cannot have {reason}");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
        let error = Device::open("??soft").unwrap_err();
        assert!(matches!(error, DeviceError::Malformed(_)), "{error}");
        let error = Device::open("?mlx5_0?soft").unwrap_err().to_string();
        assert!(
            error.starts_with("'mlx5_0' cannot have soft=: there is no"),
            "{error}"
        );
    }

    #[test]
    fn devices_without_a_fabric_have_no_settings() {
        let settings = FabricSettings {
            max_mtu: Some(1024),
            ..FabricSettings::default()
        };
        for name in [
            "soft?mtu=1024",
            "tcp?tc=104",
            "soft?vector=0",
            "soft,tcp?sl=1",
            // It is never in force, so that the device may be absent does not excuse it.
            "?soft:1?tc=1",
            "soft,?tcp?tc=1",
        ] {
            let error = Device::open(name).unwrap_err().to_string();
            assert!(error.contains("it has no fabric"), "{error}");
            assert!(error.ends_with("give it to an RDMA device"), "{error}");
        }
        assert_eq!(Device::open("soft?").unwrap().name(), "soft");
        let device = Device::open("soft,tcp").unwrap();
        let error = device.clone().with_fabric(settings).unwrap_err();
        let expected = "'soft,tcp' cannot have mtu=1024: it has no fabric";
        assert!(error.to_string().starts_with(expected), "{error}");
        let device = device.with_fabric(FabricSettings::default()).unwrap();
        assert_eq!(device.name(), "soft,tcp");
    }

    #[test]
    fn the_operators_settings_stay() {
        let program = parsed("a?tc=8&mtu=1024");
        let operator = parsed("a?tc=104&retries=2");
        let both = parsed("a?tc=104&mtu=1024&retries=2");
        assert_eq!(operator.or(program), both);
    }

    #[test]
    fn pollers_are_spread_over_the_vectors_in_turn() {
        let context = Context::open("soft").unwrap();
        let settings = parsed("a?vector=spread");
        for _ in 0..3 {
            let vector = Vector::next(&settings, &context);
            assert_eq!((vector.number, vector.count), (0, 1));
        }
        let numbers: Vec<_> = (0..5).map(|_| next_of("card_0", 3)).collect();
        assert_eq!(numbers, [0, 1, 2, 0, 1]);
        assert_eq!(next_of("card_1", 3), 0);
    }

    #[test]
    fn what_is_in_force_is_printed() {
        let context = Context::open("soft").unwrap();
        let address = context.choose_address(Default::default()).unwrap();
        let address = PortAddress {
            link_layer: LinkLayer::Ethernet,
            ..address
        };
        let shown = |settings: FabricSettings| {
            let source = settings.check(&context, address.clone()).unwrap();
            let (number, count) = (3, 16);
            in_force(&settings, &source, Vector { number, count })
        };
        assert_eq!(shown(FabricSettings::default()), "");
        assert_eq!(
            shown(parsed(
                "a?tc=104&sl=3&pkey=0x7fff&mtu=1024&timeout=268ms&retries=5&vector=spread"
            )),
            "traffic class 104 (DSCP 26), service level 3, P_Key 0xffff (full member) at index 0, MTU up \
             to 1024, acknowledgements within 268.435ms, 5 retries, completion vector 3 of 16"
        );
    }
}
