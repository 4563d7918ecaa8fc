//! [`Device`]: the one name that users of this crate need.

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

/// A device that messages travel over, chosen at run time; no type says which.
///
/// Cheap to clone, usable from any thread. What it opens is driven by `rpc-core`: hand a reference to
/// `Server::builder`, `LocalPoller::new` or `Channel::connect`.
#[derive(Clone)]
pub struct Device {
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

    /// Opens a device by name. `"soft"` is there everywhere.
    ///
    /// # Errors
    ///
    /// If there is no such device, if it is one that this build cannot drive, or if it does not open.
    pub fn open(name: &str) -> Result<Self, DeviceError> {
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
        // Each poller opens a context of its own; this one is to say now what would fail then.
        Context::open(name).map_err(|source| DeviceError::Open {
            name: name.to_owned(),
            source,
        })?;
        Ok(Self {
            name: name.into(),
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

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
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
