//! [`Forwarded`]: for whom a gateway makes a call, and from which peers a server believes it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use super::certificate_text::{self, MAX_TEXT_LEN, MalformedText};
use super::{Peer, PeerCertificate};
use crate::metadata::{Metadata, MetadataKey};

/// The address of the client, as text. Like every key with this prefix, it is not one of applications.
const FORWARDED_FOR: MetadataKey = MetadataKey::from_static("verbline-forwarded-for");

/// What the client's certificate says, as `certificate_text.rs` writes it.
const FORWARDED_CERTIFICATE: MetadataKey =
    MetadataKey::from_static("verbline-forwarded-certificate");

/// Keys of metadata that begin so are Verbline's own. A server removes them from each request.
const RESERVED_PREFIX: &str = "verbline-";

/// The client that a gateway or a proxy makes a call for. A handler gets it from
/// [`Peer::forwarded`]; a gateway sends it with
/// [`Request::with_forwarded`](crate::Request::with_forwarded).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarded {
    address: SocketAddr,
    certificate: Option<Arc<PeerCertificate>>,
}

impl Forwarded {
    /// Describes the client that has connected to the gateway from `address`.
    #[must_use]
    pub const fn new(address: SocketAddr) -> Self {
        Self {
            address,
            certificate: None,
        }
    }

    /// Adds the certificate that the client has shown to the gateway, and that the gateway has verified.
    /// Its names, its fingerprint and its end travel with each call; its bytes do not.
    ///
    /// # Errors
    ///
    /// Returns an error if the names are too long to travel with each call.
    pub fn with_certificate(
        mut self,
        certificate: &PeerCertificate,
    ) -> Result<Self, CertificateTooLong> {
        let len = certificate_text::write(certificate).len();
        if len > MAX_TEXT_LEN {
            return Err(CertificateTooLong { len });
        }
        self.certificate = Some(Arc::new(certificate.clone().without_der()));
        Ok(self)
    }

    /// Returns the address from which the client has connected to the gateway.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the certificate that the client has shown to the gateway, which has verified it; `None`
    /// if the client has shown none. Its [`der`](PeerCertificate::der) is empty.
    ///
    /// It is as good as the gateway's word: that of a peer which the server trusts to forward.
    #[must_use]
    pub fn certificate(&self) -> Option<&PeerCertificate> {
        self.certificate.as_deref()
    }

    /// Writes it into the metadata of a request.
    pub(crate) fn write(&self, metadata: &mut Metadata) {
        let written = metadata.insert(FORWARDED_FOR, self.address.to_string());
        debug_assert!(written.is_ok(), "an address is printable ASCII");
        // What the caller has put there is not the client's.
        metadata.remove(FORWARDED_CERTIFICATE);
        if let Some(certificate) = &self.certificate {
            let text = certificate_text::write(certificate);
            let written = metadata.insert(FORWARDED_CERTIFICATE, text);
            debug_assert!(written.is_ok(), "the text is printable ASCII");
        }
    }
}

/// As in a log line: `198.51.100.9:5000`, and `, certificate spiffe://example.org/orders` if it has
/// shown one.
impl fmt::Display for Forwarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)?;
        match &self.certificate {
            Some(certificate) => write!(f, ", certificate {certificate}"),
            None => Ok(()),
        }
    }
}

/// The names in a client's certificate are too long to travel with each call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the names in the client's certificate take {len} bytes, and {MAX_TEXT_LEN} at most travel with a \
     call: use a certificate with fewer names"
)]
pub struct CertificateTooLong {
    /// The length of the names as they would travel, in bytes.
    pub len: usize,
}

/// The reason that a trusted peer's words about its client are not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ForwardedError {
    #[error("the peer is trusted to forward, and its `{FORWARDED_FOR}` is no address")]
    Malformed,
    #[error("the peer is trusted to forward, and has sent `{0}` several times")]
    Repeated(MetadataKey),
    #[error(
        "the peer is trusted to forward, and has sent `{FORWARDED_CERTIFICATE}` without \
         `{FORWARDED_FOR}`"
    )]
    NoAddress,
    #[error("the peer is trusted to forward, and its `{FORWARDED_CERTIFICATE}` is malformed: {0}")]
    Certificate(#[from] MalformedText),
}

/// Takes the reserved keys out of a request's metadata. The peer gets the client that it makes the call
/// for, if it is trusted and names one.
///
/// # Errors
///
/// Returns an error if a trusted peer names its client, but not by one address and one certificate at
/// most. Without one, the handler would take the peer itself for the caller.
#[cold]
pub(crate) fn take_reserved(
    metadata: &mut Metadata,
    peer: &mut Option<Arc<Peer>>,
) -> Result<(), ForwardedError> {
    if let Some(peer) = peer
        && peer.may_forward
        && let Some(forwarded) = read(metadata)?
    {
        Arc::make_mut(peer).forwarded = Some(forwarded);
    }
    metadata.remove_prefix(RESERVED_PREFIX);
    Ok(())
}

fn read(metadata: &Metadata) -> Result<Option<Forwarded>, ForwardedError> {
    let certificate = only(metadata, FORWARDED_CERTIFICATE)?;
    let Some(address) = only(metadata, FORWARDED_FOR)? else {
        return match certificate {
            Some(_) => Err(ForwardedError::NoAddress),
            None => Ok(None),
        };
    };
    let address = address.parse().map_err(|_| ForwardedError::Malformed)?;
    let certificate = certificate.map(certificate_text::read).transpose()?;
    Ok(Some(Forwarded {
        address,
        certificate: certificate.map(Arc::new),
    }))
}

/// Returns the value of a key, which may have one at most.
fn only(metadata: &Metadata, key: MetadataKey) -> Result<Option<&str>, ForwardedError> {
    let mut values = metadata.get_all(key.clone());
    let first = values.next();
    match values.next() {
        Some(_) => Err(ForwardedError::Repeated(key)),
        None => Ok(first),
    }
}

/// Decides which peers are believed when they name the client of a call. None are by default.
#[derive(Clone, Default)]
pub(crate) struct TrustForwarded(Option<Arc<Predicate>>);

type Predicate = dyn Fn(&Peer) -> bool + Send + Sync;

impl TrustForwarded {
    /// Creates a decision by a predicate, which must not panic.
    pub(crate) fn new(trusts: impl Fn(&Peer) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(trusts)))
    }

    /// Decides about a peer that has connected.
    pub(crate) fn decide(&self, mut peer: Peer) -> Peer {
        peer.may_forward = self.0.as_ref().is_some_and(|trusts| trusts(&peer));
        peer
    }
}

impl fmt::Debug for TrustForwarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Some(_) => "TrustForwarded(by a predicate)",
            None => "TrustForwarded(nobody)",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    const GATEWAY: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    fn peer(is_trusted: bool) -> Arc<Peer> {
        let trust = TrustForwarded::new(move |_| is_trusted);
        Arc::new(trust.decide(Peer::new(GATEWAY).with_device("tcp")))
    }

    fn metadata(pairs: &[(&str, &str)]) -> Metadata {
        let mut metadata = Metadata::new();
        for (key, value) in pairs {
            metadata.append(*key, *value).unwrap();
        }
        metadata
    }

    fn forwarded(
        pairs: &[(&str, &str)],
        is_trusted: bool,
    ) -> Result<Option<Forwarded>, ForwardedError> {
        let (mut metadata, mut peer) = (metadata(pairs), Some(peer(is_trusted)));
        take_reserved(&mut metadata, &mut peer)?;
        let peer = peer.unwrap();
        assert_eq!(peer.address(), GATEWAY);
        assert!(
            metadata
                .iter()
                .all(|(key, _)| !key.starts_with("verbline-"))
        );
        Ok(peer.forwarded().cloned())
    }

    #[test]
    fn what_is_written_is_read_by_whoever_trusts_the_peer() {
        for address in ["192.0.2.7:4000", "[2001:db8::1]:1"] {
            let sent = Forwarded::new(address.parse().unwrap());
            let (mut metadata, mut peer) = (metadata(&[("mine", "1")]), Some(peer(true)));
            sent.write(&mut metadata);
            take_reserved(&mut metadata, &mut peer).unwrap();
            assert_eq!(peer.unwrap().forwarded(), Some(&sent));
            assert_eq!(metadata.len(), 1);
        }
    }

    #[test]
    fn a_peer_that_is_not_trusted_is_not_believed_and_its_reserved_keys_are_removed() {
        let pairs = [
            ("verbline-forwarded-for", "192.0.2.7:4000"),
            ("mine", "1"),
            ("verbline-other-bin", "2"),
        ];
        assert_eq!(forwarded(&pairs, false), Ok(None));
        let mut metadata = metadata(&pairs);
        assert_eq!(take_reserved(&mut metadata, &mut None), Ok(()));
        assert_eq!(metadata.iter().collect::<Vec<_>>(), [("mine", &b"1"[..])]);
    }

    #[test]
    fn a_trusted_peer_that_names_nobody_calls_for_itself() {
        assert_eq!(forwarded(&[("verbline-other", "1")], true), Ok(None));
    }

    #[test]
    fn a_trusted_peer_that_names_no_address_or_two_is_refused() {
        let key = "verbline-forwarded-for";
        for value in ["", "192.0.2.7", "192.0.2.7:4000 ", "name:1", "1:2:3"] {
            assert_eq!(
                forwarded(&[(key, value)], true),
                Err(ForwardedError::Malformed),
                "{value:?}"
            );
        }
        let two = [(key, "192.0.2.7:1"), (key, "192.0.2.8:1")];
        assert_eq!(
            forwarded(&two, true),
            Err(ForwardedError::Repeated(FORWARDED_FOR))
        );
    }

    fn certificate() -> PeerCertificate {
        let expires = UNIX_EPOCH + Duration::from_secs(4_102_444_800);
        PeerCertificate::new(vec![1, 2], [0xab; 32], expires)
            .with_uris(vec!["spiffe://example.org/orders".to_owned()])
            .with_dns_names(vec!["*.a.example".to_owned(), "b;=%,\u{e9}\n".to_owned()])
    }

    #[test]
    fn a_certificate_travels_without_its_bytes() {
        let sent = Forwarded::new(GATEWAY)
            .with_certificate(&certificate())
            .unwrap();
        let (mut metadata, mut peer) = (Metadata::new(), Some(peer(true)));
        let key = "verbline-forwarded-certificate";
        metadata.insert(key, "of the caller").unwrap();
        sent.write(&mut metadata);
        take_reserved(&mut metadata, &mut peer).unwrap();
        let peer = peer.unwrap();
        assert_eq!(peer.forwarded(), Some(&sent));
        let arrived = sent.certificate().unwrap();
        assert!(arrived.der().is_empty());
        assert_eq!(arrived, &certificate().without_der());
        let text = "127.0.0.1:1 over tcp, for 127.0.0.1:1, certificate spiffe://example.org/orders";
        assert_eq!(peer.to_string(), text);
    }

    #[test]
    fn names_that_are_too_long_are_an_error_where_they_would_be_sent() {
        let long = certificate().with_common_name(&"x".repeat(MAX_TEXT_LEN));
        let error = Forwarded::new(GATEWAY).with_certificate(&long).unwrap_err();
        assert!(error.len > MAX_TEXT_LEN);
        assert!(error.to_string().contains("2048 at most"), "{error}");
    }

    #[test]
    fn a_certificate_that_is_malformed_repeated_or_nobodys_is_refused() {
        let key = "verbline-forwarded-certificate";
        let address = ("verbline-forwarded-for", "1.1.1.1:1");
        let text = certificate_text::write(&certificate());
        let of = |pairs: &[(&str, &str)]| forwarded(pairs, true).unwrap_err();
        assert_eq!(of(&[(key, &text)]), ForwardedError::NoAddress);
        let twice = [address, (key, &text), (key, &text)];
        assert_eq!(of(&twice), ForwardedError::Repeated(FORWARDED_CERTIFICATE));
        let malformed = of(&[address, (key, "")]);
        assert!(
            matches!(malformed, ForwardedError::Certificate(_)),
            "{malformed}"
        );
    }
}
