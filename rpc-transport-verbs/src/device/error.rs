//! [`DeviceError`]: why a device could not be opened.

use std::fmt;

use rpc_core::transport::{Attempt, Remedy};
use verbline_verbs::{AddressError, DeviceNameError, OpenError};

use crate::transport::path::SettingError;

/// Why a device could not be opened.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No device has this name.
    #[error("there is no device named '{name}'; there are: {available}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The available names, separated by commas.
        available: String,
    },
    /// A list names a device more than once.
    #[error("'{list}' names the device '{name}' more than once; name each device once")]
    Twice {
        /// The requested list.
        list: String,
        /// The name that occurs twice.
        name: String,
    },
    /// A text is no name of a device.
    #[error(transparent)]
    Malformed(#[from] DeviceNameError),
    /// A setting of the device's fabric cannot be in force.
    #[error("'{device}' cannot have {setting}={value}: {reason}")]
    Setting {
        /// The device.
        device: String,
        /// The setting, as it is called in the name of a device.
        setting: String,
        /// The requested value.
        value: String,
        /// Why it cannot be in force, and what to do.
        reason: String,
    },
    /// The device cannot be opened.
    #[error("{0}{remedy}", remedy = Remedy(Attempt::Local, .0))]
    Open(OpenError),
    /// The device has no port or no address to send from.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A device of a list cannot be used.
    #[error(
        "{error}. '{list}' asks for the device '{name}': leave it out, or write '?{name}' if it may be absent"
    )]
    InList {
        /// The requested list.
        list: String,
        /// The name of the device.
        name: String,
        /// What is wrong with it.
        error: Box<DeviceError>,
    },
}

impl From<SettingError> for DeviceError {
    fn from(error: SettingError) -> Self {
        let SettingError {
            device,
            setting,
            value,
            reason,
        } = error;
        Self::Setting {
            device,
            setting,
            value,
            reason,
        }
    }
}

impl From<OpenError> for DeviceError {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

/// Prints the message, because a `main` that returns an error prints it with `Debug`.
impl fmt::Debug for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
