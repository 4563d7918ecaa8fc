//! The search for the RDMA device that has a GID, of which a user knows the network device or the
//! address.

use std::path::Path;

use super::device_name::{self, DeviceName, GidFilter};
use super::types::gid::{Gid, GidEntry};
use super::types::open_error::OpenError;
use super::types::port_attributes::PortState;
use super::types::verbs_error::VerbsError;
use crate::provider::{self, Context};

/// Opens the first RDMA device, in the order of libibverbs, that has an active port with a GID as the
/// name asks for.
///
/// # Errors
///
/// [`OpenError::NoGidOf`] lists what each device has instead, or why it cannot be opened;
/// [`OpenError::NotInThisBuild`] without the feature `rdma`.
pub(super) fn open(name: &DeviceName) -> Result<Context, OpenError> {
    if cfg!(not(feature = "rdma")) {
        return Err(OpenError::NotInThisBuild {
            name: name.to_string(),
        });
    }
    let gids = name.wish.gids.as_ref();
    let (mut fitting, mut known) = (Vec::new(), Vec::new());
    for device in provider::rdma_device_names()? {
        let opened = Context::open(&device);
        let ports = opened
            .map_err(|error| error.to_string())
            .and_then(|context| {
                let ports = ports(&context).map_err(|error| error.to_string())?;
                Ok((context, ports))
            });
        match ports {
            Ok((context, ports)) if ports.iter().any(|port| port.has(gids)) => {
                fitting.push((device, context));
            }
            Ok((_, ports)) => known.extend(ports.iter().map(|port| port.described(&device))),
            Err(error) => known.push(error),
        }
    }
    let names: Vec<_> = fitting.iter().map(|(device, _)| &**device).collect();
    if let [first, _, ..] = names[..] {
        let all = names.join(", ");
        tracing::info!(%name, device = first, %all, "several devices have such a GID: took the first");
    }
    match fitting.into_iter().next() {
        Some((_, context)) => Ok(context),
        None => Err(OpenError::NoGidOf {
            wanted: gids.map(wanted).unwrap_or_default(),
            known: match known.is_empty() {
                true => "no RDMA device".to_owned(),
                false => known.join("; "),
            },
        }),
    }
}

/// Returns the filter in words, and whether it is the network device that is missing.
fn wanted(filter: &GidFilter) -> String {
    let wanted = filter.in_words();
    match filter {
        GidFilter::Netdev(name) if !has_netdev(name) => {
            format!("{wanted}, and there is no such network device here (ip link)")
        }
        _ => wanted,
    }
}

/// Returns false if the kernel lists its network devices, and not this one.
fn has_netdev(name: &str) -> bool {
    let folder = Path::new("/sys/class/net");
    folder.join(name).exists() || !folder.exists()
}

/// A port of a device, and its table of GIDs.
struct Port {
    number: u8,
    state: PortState,
    gids: Vec<GidEntry>,
}

fn ports(context: &Context) -> Result<Vec<Port>, VerbsError> {
    let numbers = 1..=context.query_device().port_count;
    let ports = numbers.map(|number| {
        Ok(Port {
            number,
            state: context.query_port(number)?.state,
            gids: context.query_gid_table(number)?,
        })
    });
    ports.collect()
}

impl Port {
    /// Returns true if the port can send from a GID that the filter accepts.
    fn has(&self, filter: Option<&GidFilter>) -> bool {
        let accepts = |entry| filter.is_none_or(|filter| filter.accepts(entry));
        let mut used = self.gids.iter().filter(|entry| entry.gid != Gid([0; 16]));
        self.state == PortState::Active && used.any(accepts)
    }

    fn described(&self, device: &str) -> String {
        let gids = device_name::listed(&self.gids);
        let state = match self.state {
            PortState::Active => String::new(),
            state => format!(", {state}"),
        };
        format!("{device} (port {}{state}): {gids}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use crate::GidType;

    fn port(state: PortState, table: &[(&str, &str)]) -> Port {
        let gids = table.iter().zip(0..);
        Port {
            number: 2,
            state,
            gids: gids
                .map(|(&(netdev, address), index)| GidEntry {
                    index,
                    gid: Gid(address.parse::<Ipv6Addr>().unwrap().octets()),
                    gid_type: GidType::RoceV2,
                    netdev: Some(netdev.to_owned()),
                })
                .collect(),
        }
    }

    fn filter(name: &str) -> Option<GidFilter> {
        name.parse::<DeviceName>().unwrap().wish.gids
    }

    #[test]
    fn a_port_fits_if_it_is_active_and_has_the_gid() {
        let table = [
            ("eth0", "fe80::1"),
            ("eth0", "fe80::1"),
            ("eth0", "::ffff:192.0.2.1"),
            ("eth1", "::"),
        ];
        let active = port(PortState::Active, &table);
        for name in ["@eth0", "@192.0.2.1", "@192.0.2.0/24", "@fe80::/10"] {
            assert!(active.has(filter(name).as_ref()), "{name}");
            assert!(!port(PortState::Down, &table).has(filter(name).as_ref()));
        }
        // An entry that is not in use has a network device and no address.
        for name in ["@eth1", "@eth", "@192.0.2.2", "@203.0.113.0/24", "@::"] {
            assert!(!active.has(filter(name).as_ref()), "{name}");
        }
    }

    #[test]
    fn what_there_is_is_said_once() {
        let table = [
            ("d0", "fe80::1"),
            ("d0", "::ffff:192.0.2.1"),
            ("d0", "::ffff:192.0.2.1"),
            ("", "::"),
        ];
        let text = port(PortState::Active, &table).described("rxe0");
        assert_eq!(text, "rxe0 (port 2): d0 fe80::1, d0 192.0.2.1");
        let text = port(PortState::Down, &[]).described("rxe0");
        assert_eq!(text, "rxe0 (port 2, down): no GID");
    }

    #[test]
    fn a_network_device_that_is_missing_is_told_from_one_without_an_rdma_device() {
        let said = |name| wanted(&filter(name).unwrap());
        assert_eq!(said("@lo"), "of the netdev 'lo'");
        assert_eq!(
            said("@verbline-none"),
            "of the netdev 'verbline-none', and there is no such network device here (ip link)"
        );
        assert_eq!(said("@192.0.2.1"), "with the address 192.0.2.1");
    }

    #[test]
    fn a_device_that_nothing_has_is_refused_with_what_was_looked_for() {
        // TEST-NET-3: no machine has it.
        let name = "@203.0.113.0/24";
        let error = crate::Context::open(name).unwrap_err();
        match &error {
            OpenError::NotInThisBuild { name: named } => assert_eq!(named, name),
            OpenError::NoGidOf { .. } => {
                let shown = error.to_string();
                assert!(shown.contains("in the subnet 203.0.113.0/24"), "{shown}");
                assert!(shown.contains("(known here: "), "{shown}");
            }
            // The program has the feature, and the machine lacks the library.
            OpenError::LibraryMissing { .. } => {}
            _ => panic!("{error}"),
        }
    }
}
