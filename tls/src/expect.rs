//! [`Expect`]: which server a client expects.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use rpc_core::PeerCertificate;
use rpc_core::transport::PeerSentence;
use rustls::pki_types::ServerName;

use crate::error::TlsError;

/// The longest SPIFFE id, as its specification says.
const MAX_SPIFFE_ID_LEN: usize = 2048;

/// The longest name of a trust domain, as the specification says.
const MAX_TRUST_DOMAIN_LEN: usize = 255;

/// Returns the name for a handshake with a server that has none. An address is not sent to the server.
pub(crate) fn unnamed() -> ServerName<'static> {
    IpAddr::V4(Ipv4Addr::UNSPECIFIED).into()
}

/// Which server a client expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The server with this DNS name or IP address in its certificate.
    Name(String),
    /// The server with this SPIFFE id, such as `spiffe://example.org/orders`. Other names in its
    /// certificate do not matter.
    Spiffe(String),
}

/// An [`Expect`] that is well-formed.
#[derive(Clone, Debug)]
pub(crate) enum Expected {
    Name(ServerName<'static>),
    Spiffe(Arc<str>),
}

impl TryFrom<Expect> for Expected {
    type Error = TlsError;

    fn try_from(expect: Expect) -> Result<Self, TlsError> {
        match expect {
            Expect::Name(name) => parse_host(&name).map(Self::Name),
            Expect::Spiffe(id) if is_spiffe_id(&id) => Ok(Self::Spiffe(id.into())),
            Expect::Spiffe(id) => Err(TlsError::SpiffeId { id }),
        }
    }
}

/// Reads a DNS name or an IP address, which may be in brackets.
pub(crate) fn parse_host(host: &str) -> Result<ServerName<'static>, TlsError> {
    let bracketed = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let address = bracketed.unwrap_or(host);
    // A zone says over which interface the address is reached. No certificate has one.
    let address = address
        .split_once('%')
        .map_or(address, |(address, _zone)| address);
    if let Ok(address) = address.parse::<Ipv6Addr>() {
        return Ok(IpAddr::V6(address).into());
    }
    let invalid = || TlsError::Name {
        name: host.to_owned(),
    };
    if bracketed.is_some() {
        return Err(invalid());
    }
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return Ok(IpAddr::V4(address).into());
    }
    ServerName::try_from(host.to_owned()).map_err(|_| invalid())
}

/// Returns true for the id of a workload: `spiffe://trust-domain/path`.
fn is_spiffe_id(id: &str) -> bool {
    let Some((domain, path)) = id
        .strip_prefix("spiffe://")
        .and_then(|rest| rest.split_once('/'))
    else {
        return false;
    };
    let is_symbol = |byte: u8| matches!(byte, b'.' | b'-' | b'_');
    let in_domain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || is_symbol(byte);
    let in_path = |byte: u8| byte.is_ascii_alphanumeric() || is_symbol(byte);
    id.len() <= MAX_SPIFFE_ID_LEN
        && (1..=MAX_TRUST_DOMAIN_LEN).contains(&domain.len())
        && domain.bytes().all(in_domain)
        && path
            .split('/')
            .all(|segment| !matches!(segment, "" | "." | "..") && segment.bytes().all(in_path))
}

/// The server has a valid certificate, and is not the expected one.
#[derive(Debug, thiserror::Error)]
pub struct UnexpectedServer {
    expected: Arc<str>,
    presented: PeerCertificate,
}

impl UnexpectedServer {
    pub(crate) fn new(expected: Arc<str>, presented: PeerCertificate) -> Self {
        Self {
            expected,
            presented,
        }
    }

    /// Returns the SPIFFE id that the client expects.
    #[must_use]
    pub fn expected(&self) -> &str {
        &self.expected
    }

    /// Returns the certificate of the server.
    #[must_use]
    pub fn presented(&self) -> &PeerCertificate {
        &self.presented
    }
}

impl fmt::Display for UnexpectedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            expected,
            presented,
        } = self;
        write!(
            f,
            "the server is not {expected}, which is expected: its certificate "
        )?;
        match (presented.spiffe_id(), presented.uris().len()) {
            (Some(id), _) => write!(f, "is that of {}", PeerSentence::new(id))?,
            (None, uris @ 2..) => {
                write!(f, "({presented}) has {uris} URIs, and so no SPIFFE id")?;
            }
            (None, _) => write!(f, "({presented}) has no SPIFFE id")?,
        }
        f.write_str("; check the address, and the id that the client expects")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address() {
        let address = |text: &str| ServerName::from(text.parse::<IpAddr>().unwrap());
        let name = |text: &str| ServerName::try_from(text.to_owned()).unwrap();
        for (host, expected) in [
            ("example.org", name("example.org")),
            ("localhost", name("localhost")),
            ("192.0.2.1", address("192.0.2.1")),
            ("2001:db8::1", address("2001:db8::1")),
            ("[2001:db8::1]", address("2001:db8::1")),
            ("fe80::1%eth0", address("fe80::1")),
            ("[fe80::1%3]", address("fe80::1")),
        ] {
            assert_eq!(parse_host(host).unwrap(), expected, "{host}");
        }
        for host in [
            "",
            "[]",
            "[",
            "a b",
            "[example.org]",
            "[192.0.2.1]",
            "192.0.2.1%eth0",
            "a:1",
            "1.2.3.4:5",
            "%",
            "a%b",
            "[::1",
            "::1]",
            "\u{1b}",
            "größe.example",
            "*.example.org",
        ] {
            let error = parse_host(host).unwrap_err();
            assert!(matches!(error, TlsError::Name { .. }), "{host}: {error}");
        }
    }

    #[test]
    fn a_spiffe_id_has_a_trust_domain_and_a_path() {
        for id in [
            "spiffe://a/b",
            "spiffe://example.org/ns/Prod/sa/the-orders_1.x",
        ] {
            assert!(is_spiffe_id(id), "{id}");
        }
        let long = format!("spiffe://a/{}", "b".repeat(MAX_SPIFFE_ID_LEN));
        assert!(is_spiffe_id(&long[..MAX_SPIFFE_ID_LEN]));
        assert!(!is_spiffe_id(&long[..=MAX_SPIFFE_ID_LEN]));
        let long = format!("spiffe://{}/b", "a".repeat(256));
        for id in [
            "",
            "spiffe://",
            "spiffe://a",
            "spiffe://a/",
            "spiffe:///b",
            "SPIFFE://a/b",
            "spiffe://A/b",
            "spiffe://a/b/",
            "spiffe://a//b",
            "spiffe://a/./b",
            "spiffe://a/../b",
            "spiffe://a:1/b",
            "spiffe://u@a/b",
            "spiffe://a/b?c",
            "spiffe://a/b#c",
            "spiffe://a/%62",
            "spiffe://a/b c",
            "https://a/b",
            "spiffe:a/b",
            " spiffe://a/b",
            "spiffe://a/ü",
            &long,
        ] {
            assert!(!is_spiffe_id(id), "{id}");
        }
    }
}
