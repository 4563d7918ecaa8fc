//! [`Peer`]: the process at the other end of a connection.

mod certificate;
mod certificate_text;
mod forwarded;
mod lending;

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

pub use self::certificate::PeerCertificate;
pub use self::forwarded::{CertificateTooLong, Forwarded};
pub(crate) use self::forwarded::{TrustForwarded, take_reserved};
pub(crate) use self::lending::{LendablePeer, LentPeer};

/// What a server knows of the process at the other end of a connection. A handler gets it from
/// [`Request::peer`](crate::Request::peer).
///
/// Two things of it prove who the peer is: the user id, which the kernel tells, and the certificate,
/// which TLS has verified. If the peer is a gateway, [`forwarded`](Self::forwarded) says whom it makes
/// the call for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    address: SocketAddr,
    device: Option<Arc<str>>,
    user_id: Option<u32>,
    certificate: Option<Arc<PeerCertificate>>,
    /// The server believes what this peer says of its own clients.
    may_forward: bool,
    forwarded: Option<Forwarded>,
}

impl Peer {
    /// Creates the description of a peer that has connected from `address`.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            device: None,
            user_id: None,
            certificate: None,
            may_forward: false,
            forwarded: None,
        }
    }

    /// Sets the device of this side that the peer's calls travel over.
    #[must_use]
    pub fn with_device(mut self, device: impl Into<Arc<str>>) -> Self {
        self.device = Some(device.into());
        self
    }

    /// Sets the user of the peer's process, as the kernel tells.
    #[must_use]
    pub fn with_user_id(mut self, user_id: u32) -> Self {
        self.user_id = Some(user_id);
        self
    }

    /// Sets the certificate that the peer has shown, and whose key it has proved to hold.
    #[must_use]
    pub fn with_certificate(mut self, certificate: Arc<PeerCertificate>) -> Self {
        self.certificate = Some(certificate);
        self
    }

    /// Returns the address from which the peer has connected: behind a network address translation,
    /// that of the translator.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the name of this side's device, over which the peer's calls travel: `soft`, `tcp` or
    /// that of an RDMA device. `None` before one is chosen: in
    /// [`ServerBuilder::admit`](crate::ServerBuilder::admit).
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// Returns the effective user id of the peer's process, if the kernel tells: over `soft`, whose
    /// peers are processes of this host.
    ///
    /// `soft` accepts processes of this process's own user only, so the value is the effective user
    /// id of this process. Root is refused as well, unless this process is root's.
    #[must_use]
    pub fn user_id(&self) -> Option<u32> {
        self.user_id
    }

    /// Returns the peer's certificate, which TLS has verified; `None` if the peer has shown none, or the
    /// connection is not encrypted.
    #[must_use]
    pub fn certificate(&self) -> Option<&PeerCertificate> {
        self.certificate.as_deref()
    }

    /// Returns the client that this peer, a gateway or a proxy, makes the call for; `None` if the peer
    /// makes the call for itself, or is not among those that the server believes
    /// ([`ServerBuilder::trust_forwarded`](crate::ServerBuilder::trust_forwarded)).
    #[must_use]
    pub fn forwarded(&self) -> Option<&Forwarded> {
        self.forwarded.as_ref()
    }
}

/// The host that a peer connects from: an IPv4 address, or the first 64 bits of an IPv6 address, whose
/// other bits the host may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Host(IpAddr);

impl From<SocketAddr> for Host {
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

/// As in a log line: `192.0.2.7:40000 over tcp`, `, certificate spiffe://example.org/orders` if it has
/// shown one, and `, for 198.51.100.9:5000` if it is a gateway, with the certificate of that client.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        if let Some(device) = &self.device {
            write!(f, " over {device}")?;
        }
        if let Some(user_id) = self.user_id {
            write!(f, ", user {user_id}")?;
        }
        if let Some(certificate) = &self.certificate {
            write!(f, ", certificate {certificate}")?;
        }
        match &self.forwarded {
            Some(forwarded) => write!(f, ", for {forwarded}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn an_ipv6_host_is_its_prefix_and_a_mapped_address_is_ipv4() {
        let host = |address: &str| Host::from(SocketAddr::new(address.parse().unwrap(), 1));
        assert_eq!(host("2001:db8:1:2::1"), host("2001:db8:1:2:ffff::9"));
        assert_ne!(host("2001:db8:1:2::1"), host("2001:db8:1:3::1"));
        assert_eq!(host("::ffff:192.0.2.1"), host("192.0.2.1"));
        assert_ne!(host("::ffff:192.0.2.1"), host("::ffff:192.0.2.2"));
    }

    #[test]
    fn it_prints_what_is_known() {
        let address = SocketAddr::from(([192, 0, 2, 7], 40_000));
        let peer = Peer::new(address).with_device("tcp");
        assert_eq!(peer.to_string(), "192.0.2.7:40000 over tcp");
        assert_eq!(Peer::new(address).to_string(), "192.0.2.7:40000");
        let peer = Peer::new(address).with_device("soft").with_user_id(1000);
        assert_eq!(peer.to_string(), "192.0.2.7:40000 over soft, user 1000");
        let certificate = PeerCertificate::new(vec![1], [0; 32], UNIX_EPOCH)
            .with_dns_names(vec!["orders".into()]);
        let shown = peer.clone().with_certificate(Arc::new(certificate));
        let text = "192.0.2.7:40000 over soft, user 1000, certificate orders";
        assert_eq!(shown.to_string(), text);
        assert_eq!(shown.certificate().unwrap().dns_names(), ["orders"]);
        assert_eq!(peer.certificate(), None);
        assert_ne!(shown, peer);
        let client = SocketAddr::from(([198, 51, 100, 9], 5000));
        let peer = Peer {
            forwarded: Some(Forwarded::new(client)),
            ..peer
        };
        let text = "192.0.2.7:40000 over soft, user 1000, for 198.51.100.9:5000";
        assert_eq!(peer.to_string(), text);
    }
}
