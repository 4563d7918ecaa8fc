//! [`Device`]: the one name that users of this crate need.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use rpc_core::limits::Intents;
use rpc_core::transport::{Admission, Fabric, FabricError, Listener};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::accept::Port;
use crate::control::{self, Door};
use crate::setup;
use crate::sizing::Sizing;
use crate::transport::VerbsTransport;
use crate::verbs::{Context, OpenError};

/// The environment variable that names the device that [`Device::best`] opens.
pub const DEVICE_VARIABLE: &str = "VERBLINE_DEVICE";

/// The software device, which is there everywhere.
const SOFT: &str = "soft";

/// Where the kernel lists its RDMA devices.
const KERNEL_DEVICES: &str = "/sys/class/infiniband";

/// A device that messages travel over, chosen at run time; no type says which. Or several, in an order
/// of preference: a server is then reached over each of them, and a connection goes over the first
/// of the server's that both sides have.
///
/// Cheap to clone, usable from any thread. What it opens is driven by `rpc-core`: hand a reference to
/// `Server::builder`, `LocalPoller::new` or `Channel::connect`.
#[derive(Clone)]
pub struct Device {
    /// One name, or several with commas between them.
    name: Arc<str>,
    sizing: Arc<Sizing>,
}

/// Why there is no such device.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Nothing has this name.
    #[error("there is no device named '{name}'; there are: {available}")]
    Unknown {
        /// As it was asked for.
        name: String,
        /// The names that would do, with commas.
        available: String,
    },
    /// A list names a device more than once.
    #[error("'{list}' names the device '{name}' more than once; name each device once")]
    Twice {
        /// As it was asked for.
        list: String,
        /// What is there twice.
        name: String,
    },
    /// It is an RDMA device, which this build cannot drive.
    #[error(
        "'{name}' is an RDMA device, and kernel verbs are not in this build yet; '{SOFT}' runs everywhere"
    )]
    KernelVerbs {
        /// As it was asked for.
        name: String,
    },
    /// It is there, but cannot be opened.
    #[error("the device '{name}' cannot be opened: {source}")]
    Open {
        /// As it was asked for.
        name: String,
        /// What it said.
        source: OpenError,
    },
}

/// The sentence: a `main` that returns an error prints it with `Debug`.
impl fmt::Debug for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Device {
    /// Opens the best device of this host, or the one that the environment variable
    /// `VERBLINE_DEVICE` names, and logs which it is and why.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn best() -> Result<Self, DeviceError> {
        match std::env::var(DEVICE_VARIABLE) {
            Ok(name) if !name.is_empty() => {
                let device = Self::open(&name)?;
                tracing::info!(device = %device.name, "named by {DEVICE_VARIABLE}");
                Ok(device)
            }
            _ => {
                let device = Self::open(SOFT)?;
                tracing::info!(
                    device = %device.name,
                    "the software device: kernel verbs are not in this build yet"
                );
                Ok(device)
            }
        }
    }

    /// Opens a device by name, or several by their names with commas between them, as in
    /// `"rxe0,soft"`. `"soft"` is there everywhere.
    ///
    /// With several, a client offers all of them, and a server takes the first of its own that the
    /// client has too and that reaches the client. The first has to be there; if one of the others
    /// cannot be opened, a warning is logged and the list goes on without it.
    ///
    /// # Errors
    ///
    /// If a name is there more than once; if there is no such device as the first, if it is one that
    /// this build cannot drive, or if it does not open.
    pub fn open(names: &str) -> Result<Self, DeviceError> {
        let mut opened: Vec<&str> = Vec::new();
        let mut seen = HashSet::new();
        for (index, name) in names.split(',').map(str::trim).enumerate() {
            if !seen.insert(name) {
                return Err(DeviceError::Twice {
                    list: names.to_owned(),
                    name: name.to_owned(),
                });
            }
            match try_open(name) {
                Ok(()) => opened.push(name),
                Err(error) if index == 0 => return Err(error),
                Err(error) => tracing::warn!(%error, "a device is left out"),
            }
        }
        Ok(Self {
            name: opened.join(",").into(),
            sizing: Arc::default(),
        })
    }

    /// The same device, with numbers of an expert's in place of those that are otherwise derived.
    #[must_use]
    pub fn with_sizing(self, sizing: Sizing) -> Self {
        Self {
            sizing: Arc::new(sizing),
            ..self
        }
    }

    /// Its name; of several, their names with commas between them, without those that could not be
    /// opened.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Opens a device and closes it again. Each poller opens a context of its own; this is to say now what
/// would fail then.
fn try_open(name: &str) -> Result<(), DeviceError> {
    if name != SOFT {
        let name = name.to_owned();
        return Err(if is_kernel_device(&name) {
            DeviceError::KernelVerbs { name }
        } else {
            DeviceError::Unknown {
                name,
                available: SOFT.to_owned(),
            }
        });
    }
    Context::open(name)
        .map(drop)
        .map_err(|source| DeviceError::Open {
            name: name.to_owned(),
            source,
        })
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name)
            .field("sizing", &self.sizing)
            .finish()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Whether the kernel has an RDMA device of this name, or drivers name theirs so: on another host
/// it may well be one.
fn is_kernel_device(name: &str) -> bool {
    /// The drivers of rdma-core, by how they name their devices.
    const DRIVERS: [&str; 14] = [
        "mlx4_", "mlx5_", "rxe", "siw", "irdma", "bnxt_re", "efa", "hns_", "hfi1_", "qedr",
        "cxgb4_", "erdma", "mana_", "ionic_",
    ];
    /// The persistent names that udev gives, by what they are made from.
    const UDEV: [&str; 3] = ["rocep", "ibp", "iwp"];
    // A name with a slash would look elsewhere.
    let is_listed = !name.contains('/') && Path::new(KERNEL_DEVICES).join(name).exists();
    let is_named_so = |prefix: &&str| {
        name.strip_prefix(*prefix)
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    !name.is_empty() && (is_listed || DRIVERS.iter().chain(&UDEV).any(is_named_so))
}

impl Fabric for Device {
    type Transport = VerbsTransport;
    type Port = Port;

    fn open(&self, intents: &Intents) -> Result<VerbsTransport, FabricError> {
        setup::open(&self.name, intents, &self.sizing)
    }

    fn port(&self, transport: &VerbsTransport) -> Port {
        transport.port()
    }

    fn listen(
        &self,
        address: &str,
        ports: Vec<Port>,
        admission: Arc<dyn Admission>,
    ) -> Result<Box<dyn Listener>, FabricError> {
        let refused = |source| FabricError::Listen {
            address: address.to_owned(),
            source,
        };
        let listener = TcpListener::bind(address).map_err(refused)?;
        let door = Door { ports, admission };
        let listening = control::control()
            .and_then(|control| control.listen(listener, door))
            .map_err(refused)?;
        Ok(Box::new(listening))
    }

    fn allowed_cores(&self) -> Vec<usize> {
        match sched_getaffinity(None) {
            Ok(cores) => (0..CpuSet::MAX_CPU)
                .filter(|&core| cores.is_set(core))
                .collect(),
            Err(error) => {
                tracing::warn!(%error, "the system does not say which cores this process may use");
                Vec::new()
            }
        }
    }

    fn pin_current_thread(&self, core: usize) -> Result<(), io::Error> {
        if core >= CpuSet::MAX_CPU {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("there is no core {core}"),
            ));
        }
        let mut cores = CpuSet::new();
        cores.set(core);
        // No pid: the calling thread.
        let this_thread: Option<Pid> = None;
        Ok(sched_setaffinity(this_thread, &cores)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nothing_has_is_told_what_there_is() {
        for name in ["", "sofft", "eth0", "mlx5_", "../etc"] {
            let error = Device::open(name).unwrap_err();
            assert!(matches!(error, DeviceError::Unknown { .. }), "{error}");
            assert!(error.to_string().ends_with("there are: soft"), "{error}");
        }
    }

    #[test]
    fn a_list_is_opened_in_its_order_without_what_is_not_there() {
        for (list, name) in [
            ("soft", "soft"),
            (" soft ", "soft"),
            ("soft,rxe0", "soft"),
            ("soft, mlx5_0 ,nothing", "soft"),
            ("soft,", "soft"),
        ] {
            assert_eq!(Device::open(list).unwrap().name(), name, "{list:?}");
        }
    }

    #[test]
    fn the_first_of_a_list_has_to_be_there() {
        let error = Device::open("nothing,soft").unwrap_err();
        assert!(matches!(error, DeviceError::Unknown { .. }), "{error}");
        let error = Device::open("rxe0,soft").unwrap_err();
        assert!(matches!(error, DeviceError::KernelVerbs { .. }), "{error}");
    }

    #[test]
    fn a_device_that_is_named_twice_is_refused() {
        for list in ["soft,soft", "soft, soft", "soft,rxe0,rxe0"] {
            let error = Device::open(list).unwrap_err();
            assert!(matches!(error, DeviceError::Twice { .. }), "{error}");
            assert!(error.to_string().contains("more than once"), "{error}");
        }
    }

    #[test]
    fn an_rdma_device_is_told_that_kernel_verbs_are_missing() {
        for name in [
            "mlx5_0",
            "rxe0",
            "rocep1s0f0",
            "siw_eth0".replace("_eth", "").as_str(),
        ] {
            let error = Device::open(name).unwrap_err();
            assert!(matches!(error, DeviceError::KernelVerbs { .. }), "{error}");
        }
    }

    #[test]
    fn a_thread_is_pinned_to_an_allowed_core_and_to_no_other() {
        let device = Device::open(SOFT).unwrap();
        let cores = device.allowed_cores();
        let last = *cores.last().unwrap();
        std::thread::spawn(move || {
            device.pin_current_thread(last).unwrap();
            assert_eq!(device.allowed_cores(), [last]);
            assert!(device.pin_current_thread(usize::MAX).is_err());
        })
        .join()
        .unwrap();
    }
}
