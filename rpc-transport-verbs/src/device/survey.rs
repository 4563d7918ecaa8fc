//! Lists this machine's devices with their attributes, and determines which one
//! [`Device::best`](crate::Device::best) opens.

use std::fmt;

use verbline_verbs::for_transport;
use verbline_verbs::{
    AddressWish, Context, DeviceAttributes, GidEntry, OpenError, PortAddress, PortAttributes,
};

use crate::device::DEVICE_VARIABLE;
use crate::transport::endpoint::TCP;

/// The name of the software device, which exists on every machine.
pub(crate) const SOFT: &str = "soft";

/// The devices of this machine: RDMA devices in the order of the system, then `soft`. Its `Display`
/// output is a readable report.
#[derive(Debug)]
pub struct Survey {
    /// The devices, each examined as it would be when it is opened for use.
    pub devices: Vec<SurveyedDevice>,
    /// The value of the environment variable `VERBLINE_DEVICE`, if set. `Device::best` then opens
    /// the devices it names.
    pub named: Option<String>,
}

/// A device, and whether it can be used.
#[derive(Debug)]
pub struct SurveyedDevice {
    /// The device's name.
    pub name: String,
    /// The device's attributes, if it could be opened.
    pub attributes: Option<DeviceAttributes>,
    /// The device's ports, counted from 1, if it could be opened.
    pub ports: Vec<SurveyedPort>,
    /// The address it would send from, or a sentence that says why it cannot be used.
    pub verdict: Result<PortAddress, String>,
}

/// A port of a device.
#[derive(Debug)]
pub struct SurveyedPort {
    /// The port's number, counted from 1.
    pub number: u8,
    /// The port's attributes.
    pub attributes: PortAttributes,
    /// The addresses that the port can send from.
    pub gids: Vec<GidEntry>,
}

impl Survey {
    /// Examines every device by opening it. Takes some milliseconds for each device.
    pub(crate) fn take() -> Self {
        // Use the library's order, which users also see elsewhere (ibv_devices). Without the
        // library, list the kernel's devices; opening one of them then fails with an error that
        // says that the library is missing.
        let mut names = for_transport::rdma_device_names().unwrap_or_default();
        for name in for_transport::kernel_device_names() {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.push(SOFT.to_owned());
        Self {
            devices: names
                .iter()
                .map(|name| SurveyedDevice::query(name))
                .collect(),
            named: named_by_environment(),
        }
    }

    /// Returns the first usable device, which `Device::best` opens first unless the environment
    /// variable names another.
    #[must_use]
    pub fn best(&self) -> Option<&SurveyedDevice> {
        self.devices.iter().find(|device| device.verdict.is_ok())
    }
}

impl SurveyedDevice {
    fn query(name: &str) -> Self {
        let mut device = Self {
            name: name.to_owned(),
            attributes: None,
            ports: Vec::new(),
            verdict: Err(String::new()),
        };
        match Context::open(name) {
            Ok(context) => device.query_context(&context),
            Err(error) => device.verdict = Err(error.to_string()),
        }
        device
    }

    fn query_context(&mut self, context: &Context) {
        let attributes = context.query_device();
        self.attributes = Some(attributes);
        for number in 1..=attributes.port_count {
            // The verdict reports a port that cannot be queried.
            if let Ok(port) = context.query_port(number) {
                self.ports.push(SurveyedPort {
                    number,
                    attributes: port,
                    gids: context.query_gid_table(number).unwrap_or_default(),
                });
            }
        }
        self.verdict = if attributes.max_srq == 0 {
            Err("it has no shared receive queues, which Verbline receives through".to_owned())
        } else {
            context
                .choose_address(AddressWish::default())
                .map_err(|error| error.to_string())
        };
    }

    /// Returns true if this is the software device.
    #[must_use]
    pub fn is_soft(&self) -> bool {
        self.name == SOFT
    }
}

impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for device in &self.devices {
            writeln!(f, "{device}")?;
        }
        if let Some(named) = &self.named {
            return write!(
                f,
                "Device::best() opens {named}: the environment variable {DEVICE_VARIABLE} names it."
            );
        }
        match self.best() {
            None => f.write_str("None of them can be used."),
            Some(best) if best.is_soft() => {
                let others = self.devices.len() > 1;
                let why = if others {
                    "no RDMA device can be used"
                } else {
                    "there is no RDMA device here"
                };
                write!(
                    f,
                    "Device::best() takes soft, and tcp if the program allows it: {why}."
                )
            }
            Some(best) => write!(
                f,
                "Device::best() takes {}: it is the first that can be used. It takes soft as well, for \
                 peers on this host that have no other, and tcp for the rest if the program allows it.",
                best.name
            ),
        }
    }
}

impl fmt::Display for SurveyedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.verdict {
            Ok(address) => {
                writeln!(f, "{}: {address}", self.name)?;
                if !self.is_soft() {
                    writeln!(f, "  chosen      {}", address.reason)?;
                }
            }
            Err(why) => writeln!(f, "{}: cannot be used: {why}", self.name)?,
        }
        if let Some(limits) = self.attributes {
            writeln!(
                f,
                "  queues      {} queue pairs of up to {} work requests; completion queues of up to {} \
                 entries; {} shared receive queues of up to {} receives",
                limits.max_qp, limits.max_qp_wr, limits.max_cqe, limits.max_srq, limits.max_srq_wr
            )?;
            writeln!(
                f,
                "  memory      {} registrations of up to {}; messages of up to {} bytes inline",
                limits.max_mr,
                Gibibytes(limits.max_mr_len),
                limits.max_inline_data
            )?;
        }
        for port in &self.ports {
            port.fmt_in(f, self.verdict.as_ref().ok())?;
        }
        Ok(())
    }
}

/// A maximum length in bytes. Some devices report the largest possible number.
struct Gibibytes(usize);

impl fmt::Display for Gibibytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// 1 PiB, more than any machine has.
        const ENDLESS: usize = 1 << 50;
        if self.0 >= ENDLESS {
            return f.write_str("any length");
        }
        write!(f, "{} GiB", self.0 >> 30)
    }
}

impl SurveyedPort {
    fn fmt_in(&self, f: &mut fmt::Formatter<'_>, chosen: Option<&PortAddress>) -> fmt::Result {
        let port = &self.attributes;
        write!(
            f,
            "  port {}      {}, {}, MTU {}, messages of up to {} MiB",
            self.number,
            port.state,
            port.link_layer,
            port.active_mtu,
            port.max_msg_len >> 20
        )?;
        if port.lid != 0 {
            write!(f, ", LID {}", port.lid)?;
        }
        writeln!(f)?;
        for entry in &self.gids {
            let is_chosen = chosen.is_some_and(|chosen| {
                (chosen.port, chosen.gid_index) == (self.number, entry.index)
            });
            let mark = if is_chosen { '*' } else { ' ' };
            let netdev = entry.netdev.as_deref().unwrap_or("no netdev");
            writeln!(
                f,
                "    {mark} GID {:<3} {} ({}, {netdev})",
                entry.index, entry.gid, entry.gid_type
            )?;
        }
        Ok(())
    }
}

/// Returns the value of the environment variable, if it is set and not empty. One that is no text is
/// not ignored: no device has the name that it becomes.
pub(crate) fn named_by_environment() -> Option<String> {
    let names = std::env::var_os(DEVICE_VARIABLE)?;
    Some(names.to_string_lossy().into_owned()).filter(|names| !names.is_empty())
}

/// Returns true if this is the name of an RDMA device: the kernel lists it, or it begins like the
/// names that drivers or udev assign, so it may be a device of another host.
pub(crate) fn is_rdma_name(name: &str) -> bool {
    /// The prefixes with which the drivers of rdma-core name their devices.
    const DRIVERS: [&str; 14] = [
        "mlx4_", "mlx5_", "rxe", "siw", "irdma", "bnxt_re", "efa", "hns_", "hfi1_", "qedr",
        "cxgb4_", "erdma", "mana_", "ionic_",
    ];
    /// The prefixes of the persistent names that udev assigns.
    const UDEV: [&str; 3] = ["rocep", "ibp", "iwp"];
    let is_named_so = |prefix: &&str| {
        name.strip_prefix(*prefix)
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    for_transport::kernel_device_names()
        .iter()
        .any(|listed| listed == name)
        || DRIVERS.iter().chain(&UDEV).any(is_named_so)
}

/// Returns the device names available in this build on this machine, for an error message.
pub(crate) fn known_names() -> String {
    let mut names = for_transport::rdma_device_names().unwrap_or_default();
    names.extend([SOFT.to_owned(), TCP.to_owned()]);
    names.join(", ")
}

/// Returns true if an error means that this build lacks the feature `rdma`.
pub(crate) fn lacks_feature(name: &str, error: &OpenError) -> bool {
    cfg!(not(feature = "rdma"))
        && is_rdma_name(name)
        && matches!(
            error,
            OpenError::UnknownDevice { .. } | OpenError::NotInThisBuild { .. }
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_is_always_there_and_last() {
        let survey = Survey::take();
        let soft = survey.devices.last().unwrap();
        assert!(soft.is_soft() && soft.verdict.is_ok());
        assert!(survey.best().is_some());
        let text = survey.to_string();
        assert!(text.contains("soft: shared memory of this host"), "{text}");
        assert!(text.contains("Device::best() "), "{text}");
    }

    #[test]
    fn names_of_rdma_devices_are_known_where_there_are_none() {
        for name in ["mlx5_0", "rxe0", "rocep1s0f0", "siw0"] {
            assert!(is_rdma_name(name), "{name}");
        }
        for name in ["", "soft", "sofft", "eth0", "mlx5_", "../etc"] {
            assert!(!is_rdma_name(name), "{name}");
        }
    }
}
