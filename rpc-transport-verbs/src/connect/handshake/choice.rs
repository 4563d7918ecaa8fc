//! Chooses the device of a connection: the first in the server's order that the client also has and
//! that reaches the client.
//!
//! The client's hello has an endpoint for each address of its lanes: the software device may have two,
//! for shared memory and for TCP. The server tries its own devices in the order in which they were
//! named. It takes a device if
//!
//! * the client has an endpoint of the same kind (such as `soft`, `tcp` or `roce`),
//! * the addresses do not rule it out (another host, another subnet, IPv4 against IPv6),
//! * and the queue pair can be connected.
//!
//! Otherwise it tries its next device. The reply names the chosen endpoint of the client, and the
//! client destroys the queue pairs of its other lanes. Both sides log the choice.

use crate::transport::endpoint::{DeviceAddress, Endpoint, INFINIBAND, ROCE, SOFT};

/// Why a device of this side cannot serve a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndpointMismatch {
    /// The client has no device of this kind.
    #[error("the client offers no device of its kind")]
    NotOffered,
    /// The client has a device of this kind, but the two cannot reach each other.
    #[error("{obstacle}")]
    Unreachable {
        /// Why they cannot.
        obstacle: &'static str,
    },
}

/// Returns the indexes of the client's endpoints that a device of this side may connect to: those
/// of its kind that their addresses do not rule out, in the client's order. There is at least one;
/// otherwise the error says why there is none.
pub(crate) fn matching_endpoints(
    local: DeviceAddress<'_>,
    client: &[Endpoint],
) -> Result<Vec<usize>, EndpointMismatch> {
    let mut mismatch = EndpointMismatch::NotOffered;
    let mut fit = Vec::new();
    for (index, remote) in client.iter().enumerate() {
        if remote.kind != local.kind {
            continue;
        }
        match obstacle(local, remote.device_address()) {
            None => fit.push(index),
            Some(obstacle) => mismatch = EndpointMismatch::Unreachable { obstacle },
        }
    }
    if fit.is_empty() {
        Err(mismatch)
    } else {
        Ok(fit)
    }
}

/// Returns why two devices of one kind cannot reach each other, if their addresses show it. Other
/// obstacles are detected when the queue pairs are connected.
fn obstacle(local: DeviceAddress<'_>, remote: DeviceAddress<'_>) -> Option<&'static str> {
    match local.kind {
        SOFT if soft_prefix(&local.gid) != soft_prefix(&remote.gid) => Some(
            "the software device reaches only processes of the same host, with /proc mounted, and not those in containers with namespaces of their own",
        ),
        ROCE if is_ipv4(&local.gid) != is_ipv4(&remote.gid) => {
            Some("one side has an IPv4 address, and the other an IPv6 address")
        }
        INFINIBAND if local.gid[..SUBNET_LEN] != remote.gid[..SUBNET_LEN] => {
            Some("the two are on different InfiniBand subnets")
        }
        _ => None,
    }
}

/// Length of the subnet prefix of an InfiniBand GID.
const SUBNET_LEN: usize = 8;

/// Length of the prefix of a soft GID that identifies the host and the namespaces. Two processes
/// that can reach each other have the same prefix. The bytes that identify the process follow.
const SOFT_PREFIX_LEN: usize = 6;

fn soft_prefix(gid: &[u8; 16]) -> &[u8] {
    &gid[..SOFT_PREFIX_LEN]
}

/// Returns true if a GID contains an IPv4 address. RoCE represents it as an IPv4-mapped IPv6
/// address, `::ffff:192.0.2.1`.
fn is_ipv4(gid: &[u8; 16]) -> bool {
    std::net::Ipv6Addr::from(*gid).to_ipv4_mapped().is_some()
}

/// Formats the devices of one side for a message: "rxe0 (roce), soft".
pub(crate) fn list<'a>(devices: impl Iterator<Item = DeviceAddress<'a>>) -> String {
    let names: Vec<_> = devices
        .map(|address| match address.kind == address.device {
            true => address.kind.to_owned(),
            false => format!("{} ({})", address.device, address.kind),
        })
        .collect();
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::super::endpoint::tests::sample;
    use super::*;

    fn endpoint(kind: &str, gid: &str) -> Endpoint {
        Endpoint {
            kind: kind.to_owned(),
            gid: gid.parse::<Ipv6Addr>().unwrap().octets(),
            ..sample()
        }
    }

    const V4: &str = "::ffff:192.0.2.1";
    const V6: &str = "2001:db8::1";
    /// Soft GIDs of two processes on one host.
    const HERE: [&str; 2] = ["fe80:7662:6c6e:1::17", "fe80:7662:6c6e:2::18"];

    #[test]
    fn the_first_of_its_kind_is_met_whatever_else_is_on_offer() {
        let client = [
            endpoint(INFINIBAND, "fe80::1"),
            endpoint(SOFT, HERE[1]),
            endpoint(ROCE, V4),
            endpoint(ROCE, V4),
        ];
        let matching =
            |kind, gid| matching_endpoints(endpoint(kind, gid).device_address(), &client);
        assert_eq!(matching(ROCE, V4), Ok(vec![2, 3]));
        assert_eq!(matching(SOFT, HERE[0]), Ok(vec![1]));
        assert_eq!(matching(INFINIBAND, "fe80::2"), Ok(vec![0]));
        assert_eq!(matching("pigeon", V4), Err(EndpointMismatch::NotOffered));
        assert_eq!(
            matching_endpoints(endpoint(ROCE, V4).device_address(), &[]),
            Err(EndpointMismatch::NotOffered)
        );
    }

    #[test]
    fn one_that_cannot_be_reached_is_passed_over_for_one_that_can() {
        let local = endpoint(ROCE, V6);
        let client = [endpoint(ROCE, V4), endpoint(ROCE, V6)];
        assert_eq!(
            matching_endpoints(local.device_address(), &client),
            Ok(vec![1])
        );
        let mismatch = matching_endpoints(local.device_address(), &client[..1]).unwrap_err();
        assert!(mismatch.to_string().contains("IPv4"), "{mismatch}");
    }

    #[test]
    fn what_is_between_two_of_a_kind_is_said() {
        for (kind, local, remote, hint) in [
            (SOFT, HERE[0], V6, "the same host"),
            (ROCE, V4, V6, "IPv4"),
            (ROCE, V6, V4, "IPv6"),
            (
                INFINIBAND,
                "fe80::1",
                "fec0::1",
                "different InfiniBand subnets",
            ),
        ] {
            let (local, remote) = (endpoint(kind, local), endpoint(kind, remote));
            let text = obstacle(local.device_address(), remote.device_address()).unwrap();
            assert!(text.contains(hint), "{kind}: {text}");
            assert_eq!(
                obstacle(local.device_address(), local.device_address()),
                None
            );
        }
    }

    #[test]
    fn a_list_names_the_kind_where_the_name_does_not() {
        let mut first = endpoint(ROCE, V4);
        first.device = "rxe0".to_owned();
        let second = endpoint(SOFT, HERE[0]);
        let devices = [first.device_address(), second.device_address()];
        assert_eq!(list(devices.into_iter()), "rxe0 (roce), soft");
        assert_eq!(list(devices[..0].iter().copied()), "none");
    }
}
