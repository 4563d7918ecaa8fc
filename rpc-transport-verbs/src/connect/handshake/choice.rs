//! Which device a connection goes over: the first in the server's order that the client has too, and
//! that reaches it.

use crate::transport::endpoint::{Endpoint, INFINIBAND, ROCE, SOFT, Way};

/// Why a device of this side is of no use to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unfit {
    /// The client has none of its kind.
    #[error("the client has none of its kind")]
    NotOffered,
    /// The client has one that it cannot reach.
    #[error("{obstacle}")]
    Unreachable {
        /// What is between the two.
        obstacle: &'static str,
    },
}

/// Which of a client's endpoints a device of this side may meet: those, in the client's order, that are
/// of its kind and whose addresses do not rule it out. At least one, or why there is none.
pub(crate) fn meet(local: Way<'_>, client: &[Endpoint]) -> Result<Vec<usize>, Unfit> {
    let mut unfit = Unfit::NotOffered;
    let mut fit = Vec::new();
    for (index, remote) in client.iter().enumerate() {
        if remote.kind != local.kind {
            continue;
        }
        match obstacle(local, remote.way()) {
            None => fit.push(index),
            Some(obstacle) => unfit = Unfit::Unreachable { obstacle },
        }
    }
    if fit.is_empty() { Err(unfit) } else { Ok(fit) }
}

/// What keeps two devices of one kind from reaching each other, as far as their addresses say it.
/// What they do not say is found out when the queue pairs are connected.
fn obstacle(local: Way<'_>, remote: Way<'_>) -> Option<&'static str> {
    match local.kind {
        SOFT if soft_place(&local.gid) != soft_place(&remote.gid) => Some(
            "the software device reaches processes of its own host only, and none in a container with namespaces of its own",
        ),
        ROCE if is_ipv4(&local.gid) != is_ipv4(&remote.gid) => {
            Some("one side's address is of IPv4, and the other's of IPv6")
        }
        INFINIBAND if local.gid[..SUBNET_LEN] != remote.gid[..SUBNET_LEN] => {
            Some("the two are on different InfiniBand subnets")
        }
        _ => None,
    }
}

/// The bytes of a GID that name an InfiniBand subnet.
const SUBNET_LEN: usize = 8;

/// The first bytes of a soft GID, which name the host and the namespaces: two processes that can
/// reach each other have them in common. The process's own follow.
const SOFT_PLACE_LEN: usize = 6;

fn soft_place(gid: &[u8; 16]) -> &[u8] {
    &gid[..SOFT_PLACE_LEN]
}

/// Whether a GID is an IPv4 address: RoCE has these in IPv6's notation, `::ffff:192.0.2.1`.
fn is_ipv4(gid: &[u8; 16]) -> bool {
    std::net::Ipv6Addr::from(*gid).to_ipv4_mapped().is_some()
}

/// The devices of one side, for a sentence: "rxe0 (roce), soft".
pub(crate) fn list<'a>(ways: impl Iterator<Item = Way<'a>>) -> String {
    let names: Vec<_> = ways
        .map(|way| match way.kind == way.device {
            true => way.kind.to_owned(),
            false => format!("{} ({})", way.device, way.kind),
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
    /// Soft GIDs of two processes of one host.
    const HERE: [&str; 2] = ["fe80:7662:6c6e:1::17", "fe80:7662:6c6e:2::18"];

    #[test]
    fn the_first_of_its_kind_is_met_whatever_else_is_on_offer() {
        let client = [
            endpoint(INFINIBAND, "fe80::1"),
            endpoint(SOFT, HERE[1]),
            endpoint(ROCE, V4),
            endpoint(ROCE, V4),
        ];
        let meets = |kind, gid| meet(endpoint(kind, gid).way(), &client);
        assert_eq!(meets(ROCE, V4), Ok(vec![2, 3]));
        assert_eq!(meets(SOFT, HERE[0]), Ok(vec![1]));
        assert_eq!(meets(INFINIBAND, "fe80::2"), Ok(vec![0]));
        assert_eq!(meets("pigeon", V4), Err(Unfit::NotOffered));
        assert_eq!(meet(endpoint(ROCE, V4).way(), &[]), Err(Unfit::NotOffered));
    }

    #[test]
    fn one_that_cannot_be_reached_is_passed_over_for_one_that_can() {
        let local = endpoint(ROCE, V6);
        let client = [endpoint(ROCE, V4), endpoint(ROCE, V6)];
        assert_eq!(meet(local.way(), &client), Ok(vec![1]));
        let unfit = meet(local.way(), &client[..1]).unwrap_err();
        assert!(unfit.to_string().contains("IPv4"), "{unfit}");
    }

    #[test]
    fn what_is_between_two_of_a_kind_is_said() {
        for (kind, local, remote, hint) in [
            (SOFT, HERE[0], V6, "its own host only"),
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
            let said = obstacle(local.way(), remote.way()).unwrap();
            assert!(said.contains(hint), "{kind}: {said}");
            assert_eq!(obstacle(local.way(), local.way()), None);
        }
    }

    #[test]
    fn a_list_names_the_kind_where_the_name_does_not() {
        let mut first = endpoint(ROCE, V4);
        first.device = "rxe0".to_owned();
        let second = endpoint(SOFT, HERE[0]);
        let ways = [first.way(), second.way()];
        assert_eq!(list(ways.into_iter()), "rxe0 (roce), soft");
        assert_eq!(list(ways[..0].iter().copied()), "none");
    }
}
