//! [`Forwarded`]: for whom a gateway makes a call, and from which peers a server believes it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use super::Peer;
use crate::metadata::{Metadata, MetadataKey};

/// The address of the client, as text. Like every key with this prefix, it is not one of applications.
const FORWARDED_FOR: MetadataKey = MetadataKey::from_static("verbline-forwarded-for");

/// Keys of metadata that begin so are Verbline's own. A server removes them from each request.
const RESERVED_PREFIX: &str = "verbline-";

/// The client that a gateway or a proxy makes a call for. A handler gets it from
/// [`Peer::forwarded`]; a gateway sends it with
/// [`Request::with_forwarded`](crate::Request::with_forwarded).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    address: SocketAddr,
}

impl Forwarded {
    /// Describes the client that has connected to the gateway from `address`.
    #[must_use]
    pub const fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// Returns the address from which the client has connected to the gateway.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Writes it into the metadata of a request.
    pub(crate) fn write(&self, metadata: &mut Metadata) {
        let written = metadata.insert(FORWARDED_FOR, self.address.to_string());
        debug_assert!(written.is_ok(), "an address is printable ASCII");
    }
}

/// The reason that a trusted peer's words about its client are not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ForwardedError {
    #[error("the peer is trusted to forward, and its `{FORWARDED_FOR}` is no address")]
    Malformed,
    #[error("the peer is trusted to forward, and has sent `{FORWARDED_FOR}` several times")]
    Repeated,
}

/// Takes the reserved keys out of a request's metadata. The peer gets the client that it makes the call
/// for, if it is trusted and names one.
///
/// # Errors
///
/// Returns an error if a trusted peer names its client, but not by one address. Without one, the handler
/// would take the peer itself for the caller.
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
    let mut values = metadata.get_all(FORWARDED_FOR);
    let Some(address) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(ForwardedError::Repeated);
    }
    let address = address.parse().map_err(|_| ForwardedError::Malformed)?;
    Ok(Some(Forwarded { address }))
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
        Ok(peer.forwarded().copied())
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
        assert_eq!(forwarded(&two, true), Err(ForwardedError::Repeated));
    }
}
