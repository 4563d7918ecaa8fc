//! The list of devices that can be opened: `ibv_get_device_list(3)`, plus the software device.

use super::types::device_info::DeviceInfo;
use crate::provider;

/// Returns the devices that this build can open: RDMA devices in the order of libibverbs, then
/// `soft` and `tcp`, which are the software device over shared memory and over TCP.
///
/// A device that the kernel has but this build cannot drive is not listed. Passing its name to
/// [`Context::open`](super::Context::open) returns the reason.
pub fn devices() -> Vec<DeviceInfo> {
    provider::devices()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, NodeType, TransportType};

    #[test]
    fn the_software_device_is_always_there_and_last_and_what_is_listed_can_be_named_once() {
        let all = devices();
        let [.., soft, tcp] = &all[..] else {
            panic!("{all:?}");
        };
        for (device, name, transport) in [
            (soft, "soft", TransportType::Memory),
            (tcp, "tcp", TransportType::Tcp),
        ] {
            assert_eq!((&*device.name, device.transport), (name, transport));
            Context::open(name).unwrap();
        }
        let mut names: Vec<_> = all.iter().map(|device| &device.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn numbers_that_nobody_knows_are_kept() {
        for code in (-2..1).chain(8..20) {
            assert_eq!(NodeType::from_code(code), NodeType::Unknown(code));
        }
        for code in [-2, -1, 5, 6, i32::MAX] {
            let transport = TransportType::from_code(code);
            assert_eq!(transport, TransportType::Unknown(code));
            assert_eq!(transport.to_string(), format!("transport {code}"));
        }
        assert_eq!(NodeType::from_code(4).to_string(), "iWARP adapter");
        assert_eq!(TransportType::from_code(1), TransportType::Iwarp);
    }
}
