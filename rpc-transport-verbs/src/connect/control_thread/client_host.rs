//! [`ClientHost`]: the host that a client connects from, by which handshakes are counted.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The host that a client connects from: an IPv4 address, or the first 64 bits of an IPv6 address,
/// whose other bits the host may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClientHost(IpAddr);

impl From<SocketAddr> for ClientHost {
    fn from(peer: SocketAddr) -> Self {
        Self(match peer.ip().to_canonical() {
            IpAddr::V6(address) => {
                let prefix = u128::from(address) >> 64 << 64;
                IpAddr::V6(Ipv6Addr::from(prefix))
            }
            address => address,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_host_is_its_prefix_and_a_mapped_address_is_ipv4() {
        let host = |address: &str| ClientHost::from(SocketAddr::new(address.parse().unwrap(), 1));
        assert_eq!(host("2001:db8:1:2::1"), host("2001:db8:1:2:ffff::9"));
        assert_ne!(host("2001:db8:1:2::1"), host("2001:db8:1:3::1"));
        assert_eq!(host("::ffff:192.0.2.1"), host("192.0.2.1"));
        assert_ne!(host("::ffff:192.0.2.1"), host("::ffff:192.0.2.2"));
    }
}
