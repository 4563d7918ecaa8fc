//! [`Device`]: the entry point of this crate.
//!
//! A [`Device`] is a list of device names, and a client or server offers all of them.
//! [`Device::best`] is the first usable RDMA device followed by `soft` and `tcp`. A server on a
//! machine with a network card thus also serves a client on the same machine that was built without
//! RDMA.

mod cores;
mod error;
mod fabric;
mod memory;
pub(crate) mod name;
pub(crate) mod opened;
mod pinned;
mod rpc_fabric;
mod security;
pub(crate) mod setup;
pub(crate) mod sizing;
pub(crate) mod survey;
#[cfg(feature = "tls")]
mod tls;

use std::fmt;
use std::sync::Arc;

use verbline_verbs::{Context, OpenError, SoftPath};

pub use self::error::DeviceError;
use self::name::Name;
use self::security::Security;
use self::sizing::Sizing;
use self::survey::{SOFT, Survey};
use crate::transport::endpoint::TCP;
use crate::transport::queue_pairs::Plaintext;

/// The environment variable whose value [`Device::best`] opens.
pub const DEVICE_VARIABLE: &str = "VERBLINE_DEVICE";

/// A device that carries messages, chosen at run time: no type parameter names it. It can also be a
/// list of devices in order of preference. A server is then reachable over each of them, and a
/// connection uses the first of the server's devices that both sides have.
///
/// Cheap to clone, and usable from any thread. Pass a reference to `Server::builder`,
/// `LocalPoller::new` or `Channel::connect`: `rpc-core` opens transports through it and polls them.
#[derive(Clone)]
pub struct Device {
    /// One name, or several names separated by commas.
    name: Arc<str>,
    /// The same names, parsed.
    names: Arc<[Name]>,
    /// The operator has named the devices, so the program adds none.
    is_named_by_environment: bool,
    /// Whether `tcp` may be used without encryption, if connections are not secured.
    plaintext: Plaintext,
    security: Security,
    sizing: Arc<Sizing>,
}

impl Device {
    /// Opens the best device of this host, or the devices that the environment variable
    /// `VERBLINE_DEVICE` names, and logs the choice and its reason.
    ///
    /// The best device is the first RDMA device that can be used (it has an active port and an
    /// address), followed by `soft`, shared memory, for peers on this host that have no RDMA device,
    /// and by `tcp` for all others. Without a usable RDMA device, it is `soft` and `tcp`. Over TCP,
    /// a server takes clients and a client offers itself only if the program says so: see
    /// [`allow_plaintext`](Self::allow_plaintext).
    /// [`survey`](Self::survey) reports the same choice without keeping a device open.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn best() -> Result<Self, DeviceError> {
        if let Some(names) = survey::named_by_environment() {
            let device = Self::open(&names)?;
            tracing::info!(device = %device.name, "using the device named by {DEVICE_VARIABLE}");
            return Ok(Self {
                is_named_by_environment: true,
                ..device
            });
        }
        let survey = Survey::take();
        for device in &survey.devices {
            if let Err(why) = &device.verdict {
                tracing::warn!(device = %device.name, %why, "a device of this machine cannot be used");
            }
        }
        match survey.best() {
            Some(best) if !best.is_soft() => {
                if let Ok(address) = &best.verdict {
                    tracing::info!(device = %best.name, %address, reason = %address.reason, "the first that can be used");
                }
                Self::open_without_plaintext(&format!("{},?{SOFT},?{TCP}", best.name))
            }
            _ => {
                tracing::info!(
                    "using shared memory, and TCP if the program allows it: no RDMA device can be used here"
                );
                Self::open_without_plaintext(&format!("{SOFT},?{TCP}"))
            }
        }
    }

    /// Opens devices of which `tcp` is not used, though it is in the list: nobody has asked for it.
    fn open_without_plaintext(names: &str) -> Result<Self, DeviceError> {
        let opened = Self::open(names).map_err(|error| match error {
            // Nobody has written the list.
            DeviceError::InList { error, .. } => *error,
            error => error,
        })?;
        Ok(Self {
            plaintext: Plaintext::Refused,
            ..opened
        })
    }

    /// Examines every device of this machine: its attributes, and which device [`best`](Self::best)
    /// opens.
    #[must_use]
    pub fn survey() -> Survey {
        Survey::take()
    }

    /// Opens a device by name, or several devices whose names are separated by commas, as in
    /// `"mlx5_0,soft"`. `"soft"`, shared memory, and `"tcp"` exist on every machine. A name may be
    /// followed by a port and by an index in the port's GID table: `"mlx5_0:2:3"`. Otherwise both are
    /// chosen automatically. An RDMA device may also be named by its network device, its address or
    /// its subnet: `"@eth0"`, `"@192.0.2.1"`, `"@192.0.2.0/24"`. It then sends from a GID of these.
    /// Behind a `?`, settings of the fabric may follow, separated by `&`: `"mlx5_0?tc=104&mtu=1024"`.
    /// They are the fields of [`FabricSettings`](crate::FabricSettings).
    ///
    /// With several devices, a client offers all of them. A server uses the first of its own
    /// devices that the client also has and that reaches the client. A device whose name follows a `?`,
    /// as in `"soft,?mlx5_0"`, is used if it is there. If it cannot be opened, or is too weak for the
    /// intents of a poller, a warning is logged and it is left out. All others have to be there.
    ///
    /// # Errors
    ///
    /// If a name occurs more than once or is malformed, or has a setting that does not exist or that
    /// `soft` and `tcp` do not have; or if a device without `?`, or each of the list, does not exist,
    /// is not supported by this build, cannot be opened, has no address to send from or cannot have
    /// its settings.
    pub fn open(names: &str) -> Result<Self, DeviceError> {
        let twice = |name: Name| DeviceError::Twice {
            list: names.to_owned(),
            name: name.device,
        };
        let mut wanted: Vec<Name> = Vec::new();
        for name in names.split(',').map(str::trim) {
            let name = Name::parse(name)?;
            if wanted.iter().any(|other| other.device == name.device) {
                return Err(twice(name));
            }
            wanted.push(name);
        }
        let (mut opened, mut absent) = (Vec::<Name>::new(), None);
        for name in wanted {
            match try_open(&name) {
                Ok(context) => {
                    let found = name.found(&context);
                    // A network device or an address may be another name of the same device.
                    if opened.iter().any(|other| other.device == found.device) {
                        return Err(twice(found));
                    }
                    opened.push(found);
                }
                Err(error) if name.is_optional => {
                    tracing::warn!(%error, "a device cannot be opened and is left out");
                    absent.get_or_insert(error);
                }
                Err(error) if !names.contains(',') => return Err(error),
                Err(error) => {
                    return Err(DeviceError::InList {
                        list: names.to_owned(),
                        name: name.to_string(),
                        error: Box::new(error),
                    });
                }
            }
        }
        match absent {
            Some(error) if opened.is_empty() => Err(error),
            _ => Ok(Self::of(opened)),
        }
    }

    fn of(opened: Vec<Name>) -> Self {
        let list: Vec<_> = opened.iter().map(Name::to_string).collect();
        Self {
            name: list.join(",").into(),
            plaintext: match opened.iter().any(|name| name.device == TCP) {
                true => Plaintext::Allowed,
                false => Plaintext::Refused,
            },
            names: opened.into(),
            is_named_by_environment: false,
            security: Security::default(),
            sizing: Arc::default(),
        }
    }

    /// Returns the same devices, and `tcp` behind them if it is not among them. Both sides need it for
    /// connections without shared memory and without RDMA, such as those between hosts, users and
    /// containers. Their calls travel over TCP and are **not encrypted**: see `docs/deploy.md`.
    ///
    /// - A server then takes such connections. Whoever reaches its port is let in.
    /// - A client then offers `tcp`. Whoever listens at the server's address gets its calls, such as
    ///   another user of the host while the server does not run. Without `tcp`, a server over `soft` is
    ///   a process of the client's own user. A channel that was connected over another device does not
    ///   offer `tcp` when it connects again.
    ///
    /// What it changes depends on how the devices were opened:
    ///
    /// - [`open`](Self::open), with names that contain `tcp`: nothing. It is used in any
    ///   case.
    /// - [`open`](Self::open), with other names: `tcp` is added.
    /// - [`best`](Self::best), which has chosen the devices: `tcp`, which is among them, is used.
    /// - [`best`](Self::best), with the devices that `VERBLINE_DEVICE` names: nothing. The program does
    ///   not widen the operator's list. If `tcp` is not in it, that is logged.
    ///
    /// With TLS, it says something else: a server that has TLS takes clients without it as well, on every
    /// device. A client that has TLS connects with it in any case.
    #[must_use]
    pub fn allow_plaintext(mut self) -> Self {
        self.security.allows_plaintext = true;
        let is_named = self.names.iter().any(|name| name.device == TCP);
        if self.is_named_by_environment {
            if !is_named {
                tracing::info!(device = %self.name, "the program allows calls over TCP, but {DEVICE_VARIABLE} names no tcp: there are none");
            }
            return self;
        }
        let mut names = self.names.to_vec();
        if !is_named {
            names.push(Name::of(TCP));
        }
        Self {
            security: self.security,
            sizing: self.sizing,
            ..Self::of(names)
        }
    }

    /// Returns the same device, which has no connection whose data is not encrypted: shared memory and
    /// RDMA are neither offered to servers nor taken from clients, and what remains is `tcp` with TLS. The
    /// side that has nothing else is told so. It is stronger than
    /// [`allow_plaintext`](Self::allow_plaintext).
    ///
    /// The feature `tls` has the other part: without `with_server_tls`, a server does not start, and without
    /// `with_client_tls`, a client does not connect.
    #[must_use]
    pub fn require_encryption(mut self) -> Self {
        self.security.requires_encryption = true;
        self
    }

    /// Returns the same device, with numbers set by an expert in place of the derived ones.
    #[must_use]
    pub fn with_sizing(self, sizing: Sizing) -> Self {
        Self {
            sizing: Arc::new(sizing),
            ..self
        }
    }

    /// Returns the device's name, or the names of several devices, separated by commas, without the
    /// devices that could not be opened.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Opens a device and closes it again, so that errors are reported early: each poller opens its own
/// context later.
fn try_open(name: &Name) -> Result<Context, DeviceError> {
    let device = &name.device;
    let path = match &**device {
        TCP => SoftPath::Tcp { accept_at: None },
        _ => SoftPath::SharedMemory,
    };
    let context = opened::open_context(device, path).map_err(|error| match error {
        error if survey::lacks_feature(device, &error) => OpenError::NotInThisBuild {
            name: device.clone(),
        },
        OpenError::UnknownDevice { name, .. } => OpenError::UnknownDevice {
            name,
            known: survey::known_names(),
        },
        error => error,
    })?;
    let address = context.choose_address(name.wish().clone())?;
    let address = name.fabric.check(&context, address)?.address;
    let device = context.device_name();
    tracing::debug!(%name, %device, %address, reason = %address.reason, "chose the address to send from");
    Ok(context)
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name)
            .field("security", &self.security)
            .field("sizing", &self.sizing)
            .finish()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel_verbs_are_missing(error: &DeviceError) -> bool {
        matches!(
            error,
            DeviceError::Open(OpenError::NotInThisBuild { .. } | OpenError::UnknownDevice { .. })
                | DeviceError::Open(OpenError::LibraryMissing { .. })
        )
    }

    #[test]
    fn a_name_that_nothing_has_is_told_what_there_is() {
        for name in ["sofft", "eth0", "mlx5_", "../etc"] {
            let error = Device::open(name).unwrap_err();
            assert!(kernel_verbs_are_missing(&error), "{error}");
            let shown = error.to_string();
            assert!(
                shown.contains("soft") || shown.contains("libibverbs"),
                "{shown}"
            );
        }
    }

    #[test]
    fn a_port_and_a_gid_may_follow_a_name() {
        let wish = |text: &str| {
            let name = Name::parse(text).unwrap();
            assert_eq!(name.to_string(), text);
            (name.device.clone(), name.wish().port, name.wish().gid_index)
        };
        assert_eq!(wish("mlx5_0"), ("mlx5_0".into(), None, None));
        assert_eq!(wish("mlx5_0:2"), ("mlx5_0".into(), Some(2), None));
        assert_eq!(wish("mlx5_0:2:3"), ("mlx5_0".into(), Some(2), Some(3)));
        assert_eq!(Device::open("soft:1:0").unwrap().name(), "soft:1:0");
        for text in [
            "",
            "?",
            "soft,",
            "soft:",
            "soft:x",
            "soft:1:2:3",
            "soft:256",
            "soft:1:-1",
            "@",
            "?@",
            "@eth0:1",
            "soft,@1.2.3.4/33",
        ] {
            let error = Device::open(text).unwrap_err();
            assert!(matches!(error, DeviceError::Malformed { .. }), "{error}");
        }
        let error = Device::open("soft:2").unwrap_err();
        assert_eq!(error.to_string(), "'soft' has no port 2; it has 1");
    }

    /// No machine has these: an address for documentation, and a name that nobody gives.
    #[test]
    fn a_network_device_or_an_address_that_nothing_has_is_said() {
        for name in ["@203.0.113.0/24", "@verbline-none", "@2001:db8::5"] {
            let error = Device::open(name).unwrap_err();
            let is_missing = kernel_verbs_are_missing(&error)
                || matches!(error, DeviceError::Open(OpenError::NoGidOf { .. }));
            assert!(is_missing, "{error}");
            let opened = Device::open(&format!("?{name},soft")).unwrap();
            assert_eq!(opened.name(), "soft");
            let error = Device::open(&format!("{name},soft")).unwrap_err();
            assert!(matches!(error, DeviceError::InList { .. }), "{error}");
        }
    }

    #[test]
    fn a_list_is_opened_in_its_order_without_optional_devices_that_are_not_there() {
        for (list, name) in [
            ("soft", "soft"),
            (" soft ", "soft"),
            ("?soft", "soft"),
            ("soft,?mlx5_98", "soft"),
            ("?mlx5_98, soft ,?tcp", "soft,tcp"),
            ("soft, ?mlx5_99:2 ,?nothing", "soft"),
        ] {
            assert_eq!(Device::open(list).unwrap().name(), name, "{list:?}");
        }
        for list in ["?mlx5_98", "?mlx5_98,?nothing"] {
            let error = Device::open(list).unwrap_err();
            assert!(kernel_verbs_are_missing(&error), "{error}");
        }
    }

    /// A card that was named was left out with a line in the log, and calls went another way.
    #[test]
    fn every_named_device_of_a_list_has_to_be_there() {
        for (list, missing) in [
            ("nothing,soft", "nothing"),
            ("mlx5_99,soft", "mlx5_99"),
            ("soft,mlx5_98:2", "mlx5_98:2"),
            ("soft,tcp,nothing,?mlx5_98", "nothing"),
            ("?soft,sofft", "sofft"),
        ] {
            let error = Device::open(list).unwrap_err();
            let DeviceError::InList {
                name, error: why, ..
            } = &error
            else {
                panic!("{list}: {error}");
            };
            assert_eq!(name, missing);
            assert!(kernel_verbs_are_missing(why), "{error}");
            let remedy = format!("or write '?{missing}' if it may be absent");
            assert!(error.to_string().ends_with(&remedy), "{error}");
        }
    }

    #[test]
    fn a_device_that_is_named_twice_is_refused() {
        for list in ["soft,soft", "soft, soft", "soft,rxe0,rxe0"] {
            let error = Device::open(list).unwrap_err();
            assert!(matches!(error, DeviceError::Twice { .. }), "{error}");
            assert!(error.to_string().contains("more than once"), "{error}");
        }
    }
}
