//! The device under test.

use rpc_transport_verbs::Device;

/// Opens the device that `VERBLINE_DEVICE` names, or `soft`.
pub(crate) fn device() -> Device {
    let name = std::env::var("VERBLINE_DEVICE").unwrap_or_else(|_| "soft".to_owned());
    Device::open(&name).unwrap()
}
