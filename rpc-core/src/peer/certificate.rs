//! [`PeerCertificate`]: who the peer is, as TLS has verified.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use crate::peer_sentence::PeerSentence;

/// How the id of a SPIFFE workload begins.
const SPIFFE_SCHEME: &str = "spiffe://";

/// The certificate that a peer has shown, and whose key it has proved to hold. A handler gets it from
/// [`Peer::certificate`](crate::Peer::certificate).
///
/// The crate that does TLS has verified the certificate against the roots of this process, and has
/// written its names here. A clone shares them.
///
/// Its `Display` is the name that identifies the peer best: the SPIFFE id, else the first DNS name, else
/// the first URI, else the common name, else the fingerprint.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    der: Arc<[u8]>,
    fingerprint: [u8; 32],
    expires: SystemTime,
    dns_names: Arc<[String]>,
    ip_addresses: Arc<[IpAddr]>,
    uris: Arc<[String]>,
    common_name: Option<Arc<str>>,
}

impl PeerCertificate {
    /// Describes a certificate without names.
    ///
    /// `der` is the certificate, `fingerprint` the SHA-256 of `der`, and `expires` the end of its
    /// validity. The caller has verified the certificate: nothing here does.
    #[must_use]
    pub fn new(der: impl Into<Arc<[u8]>>, fingerprint: [u8; 32], expires: SystemTime) -> Self {
        Self {
            der: der.into(),
            fingerprint,
            expires,
            dns_names: Arc::default(),
            ip_addresses: Arc::default(),
            uris: Arc::default(),
            common_name: None,
        }
    }

    /// Sets the DNS names among the alternative names of the subject.
    #[must_use]
    pub fn with_dns_names(mut self, names: Vec<String>) -> Self {
        self.dns_names = names.into();
        self
    }

    /// Sets the IP addresses among the alternative names of the subject.
    #[must_use]
    pub fn with_ip_addresses(mut self, addresses: Vec<IpAddr>) -> Self {
        self.ip_addresses = addresses.into();
        self
    }

    /// Sets the URIs among the alternative names of the subject: all of them, even those that are
    /// malformed, since [`spiffe_id`](Self::spiffe_id) counts them.
    #[must_use]
    pub fn with_uris(mut self, uris: Vec<String>) -> Self {
        self.uris = uris.into();
        self
    }

    /// Sets the common name of the subject.
    #[must_use]
    pub fn with_common_name(mut self, name: &str) -> Self {
        self.common_name = Some(name.into());
        self
    }

    /// Returns the DNS names among the alternative names of the subject. A name may begin with `*.`.
    #[must_use]
    pub fn dns_names(&self) -> &[String] {
        &self.dns_names
    }

    /// Returns the IP addresses among the alternative names of the subject.
    #[must_use]
    pub fn ip_addresses(&self) -> &[IpAddr] {
        &self.ip_addresses
    }

    /// Returns the URIs among the alternative names of the subject.
    #[must_use]
    pub fn uris(&self) -> &[String] {
        &self.uris
    }

    /// Returns the SPIFFE id: the only URI, if it begins with `spiffe://`.
    ///
    /// A certificate with two URIs has no SPIFFE id, as the specification of X.509-SVID demands.
    #[must_use]
    pub fn spiffe_id(&self) -> Option<&str> {
        match &*self.uris {
            [uri] if uri.starts_with(SPIFFE_SCHEME) => Some(uri),
            _ => None,
        }
    }

    /// Returns the common name of the subject, if it has exactly one.
    #[must_use]
    pub fn common_name(&self) -> Option<&str> {
        self.common_name.as_deref()
    }

    /// Returns the certificate as the peer has sent it, in DER. It is empty if a gateway has named the
    /// certificate, in [`Forwarded::certificate`](crate::Forwarded::certificate).
    #[must_use]
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Returns the SHA-256 of the certificate in DER.
    #[must_use]
    pub fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }

    /// Returns the time after which the certificate is no longer valid.
    ///
    /// A connection stays open when its certificate expires.
    #[must_use]
    pub fn expires(&self) -> SystemTime {
        self.expires
    }
}

impl PeerCertificate {
    /// Leaves the bytes of the certificate out.
    pub(super) fn without_der(mut self) -> Self {
        self.der = Arc::default();
        self
    }
}

/// As in a log line: characters that control a terminal or hide text are escaped.
impl fmt::Display for PeerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self
            .spiffe_id()
            .or_else(|| self.dns_names.first().map(String::as_str))
            .or_else(|| self.uris.first().map(String::as_str))
            .or_else(|| self.common_name());
        match name {
            Some(name) => PeerSentence::new(name).fmt(f),
            None => write!(f, "sha256:{}", Hex(&self.fingerprint)),
        }
    }
}

/// The names and the fingerprint, without the certificate's bytes.
impl fmt::Debug for PeerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerCertificate")
            .field("dns_names", &self.dns_names)
            .field("ip_addresses", &self.ip_addresses)
            .field("uris", &self.uris)
            .field("common_name", &self.common_name)
            .field("fingerprint", &format_args!("{}", Hex(&self.fingerprint)))
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// Bytes as two digits each.
pub(super) struct Hex<'a>(pub(super) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn nameless() -> PeerCertificate {
        let expires = UNIX_EPOCH + Duration::from_secs(1);
        PeerCertificate::new(vec![0xde, 0xad, 0xbe, 0xef], [0xab; 32], expires)
    }

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn the_only_uri_is_the_spiffe_id() {
        let with_uris = |uris: &[&str]| nameless().with_uris(strings(uris));
        let id = "spiffe://example.org/orders";
        assert_eq!(with_uris(&[id]).spiffe_id(), Some(id));
        assert_eq!(with_uris(&[]).spiffe_id(), None);
        assert_eq!(with_uris(&["https://example.org"]).spiffe_id(), None);
        assert_eq!(with_uris(&[id, id]).spiffe_id(), None);
        assert_eq!(with_uris(&["https://example.org", id]).spiffe_id(), None);
    }

    #[test]
    fn it_prints_the_best_name() {
        let certificate = nameless();
        assert_eq!(
            certificate.to_string(),
            format!("sha256:{}", "ab".repeat(32))
        );
        let certificate = certificate.with_common_name("Orders");
        assert_eq!(certificate.to_string(), "Orders");
        let certificate = certificate.with_uris(strings(&["https://a", "https://b"]));
        assert_eq!(certificate.to_string(), "https://a");
        let certificate = certificate.with_dns_names(strings(&["a.example", "b.example"]));
        assert_eq!(certificate.to_string(), "a.example");
        let certificate = certificate.with_uris(strings(&["spiffe://a/b"]));
        assert_eq!(certificate.to_string(), "spiffe://a/b");
    }

    #[test]
    fn names_do_not_control_a_terminal() {
        let certificate = nameless().with_common_name("a\n\x1b[2J\u{202e}b");
        assert_eq!(certificate.to_string(), "a\\n\\u{1b}[2J\\u{202e}b");
        let debug = format!("{certificate:?}");
        assert!(!debug.chars().any(char::is_control), "{debug}");
    }

    #[test]
    fn it_debugs_the_names_and_the_fingerprint_without_the_bytes() {
        let address = IpAddr::from([192, 0, 2, 1]);
        let certificate = nameless()
            .with_dns_names(strings(&["a.example"]))
            .with_ip_addresses(vec![address]);
        let debug = format!("{certificate:?}");
        for part in ["a.example", "192.0.2.1", &"ab".repeat(32)] {
            assert!(debug.contains(part), "{debug}");
        }
        assert!(!debug.contains("dead") && !debug.contains("222"), "{debug}");
        assert_eq!(certificate.der(), [0xde, 0xad, 0xbe, 0xef]);
        assert_eq!(certificate.ip_addresses(), [address]);
        assert_eq!(certificate, certificate.clone());
        assert_ne!(certificate, nameless());
    }
}
