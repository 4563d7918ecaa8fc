//! Why a device could not be opened.

use std::io;

use super::device_name_error::DeviceNameError;
use super::forked::Forked;

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No device has this name.
    #[error(
        "there is no device named '{name}' (known here: {known}). Devices are named by the program, or by the environment variable VERBLINE_DEVICE"
    )]
    UnknownDevice {
        /// The requested name.
        name: String,
        /// The names of existing devices, separated by commas.
        known: String,
    },
    /// The text names no device.
    #[error(transparent)]
    Malformed(#[from] DeviceNameError),
    /// No RDMA device has an active port with such a GID.
    #[error("no active port of an RDMA device has a GID {wanted} (known here: {known})")]
    NoGidOf {
        /// Which GID is wanted, in words: "of the netdev 'eth0'".
        wanted: String,
        /// The GIDs of each device, with their network devices; or why it cannot be opened.
        known: String,
    },
    /// The device is an RDMA device, and this program was built without kernel verbs.
    #[error(
        "'{name}' is an RDMA device, and this program was built without kernel verbs: build it with the Cargo feature `rdma` of verbline, or of rpc-transport-verbs (docs/rdma.md says what that needs)"
    )]
    NotInThisBuild {
        /// The device.
        name: String,
    },
    /// The device is an iWARP device, which can connect through rdma_cm only.
    #[error(
        "'{name}' is an iWARP device. Verbline connects queue pairs itself, over its own TCP connection, which InfiniBand and RoCE permit and iWARP does not"
    )]
    Iwarp {
        /// The device.
        name: String,
    },
    /// libibverbs cannot be loaded.
    #[error(
        "RDMA devices need libibverbs, which cannot be loaded: {source}. Install it (on Debian and Ubuntu: apt install libibverbs1 ibverbs-providers)"
    )]
    LibraryMissing {
        /// The dynamic linker's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The kernel has the device, but libibverbs has no driver for it.
    #[error(
        "the kernel has the device '{name}', and libibverbs has no driver for it (it drives: {known}). Install the drivers (on Debian and Ubuntu: apt install ibverbs-providers)"
    )]
    NoUserDriver {
        /// The device.
        name: String,
        /// The devices for which it has a driver, separated by commas.
        known: String,
    },
    /// The device's file does not exist.
    #[error(
        "the device '{name}' has no file in /dev/infiniband: load the kernel's module (modprobe ib_uverbs), and where devices are hidden pass the file on (docker run --device=/dev/infiniband; PrivateDevices=no for a service of systemd)"
    )]
    NoDeviceFile {
        /// The device.
        name: String,
    },
    /// This user is not permitted to open the device's file.
    #[error(
        "the device '{name}' may not be opened by this user: {source}. Its file in /dev/infiniband needs read and write rights (the kernel gives them to everybody: `ls -l /dev/infiniband` shows whether they were taken away), and where devices are restricted the device has to be permitted (docker run --device=/dev/infiniband; DeviceAllow=char-infiniband_verbs rw for a service of systemd)"
    )]
    Permission {
        /// The device.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The operating system refused a resource or operation that the device needs.
    #[error("the device '{name}' cannot {action}: {source}")]
    Os {
        /// The device.
        name: String,
        /// The action that failed: "create its socket".
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The process was forked after its first device was opened.
    #[error(transparent)]
    Forked(#[from] Forked),
}
