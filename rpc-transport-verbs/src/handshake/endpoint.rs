//! Where a side can be reached, checked.

use super::{HandshakeError, messages};

/// The most an [`Endpoint`] number may be: queue-pair numbers and packet sequence numbers have 24
/// bits.
const MAX_24_BITS: u32 = 0x00ff_ffff;

/// The shortest frame that is worth a connection: the core's header and a little beside it. A peer
/// that takes less is refused rather than served with calls that all fail.
const MIN_FRAME_LEN: u32 = 64;

/// The longest name of a device that is repeated in messages.
const MAX_NAME_LEN: usize = 64;

/// One way to reach a side: a device, and the queue pair that waits on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// "soft" or "rdma".
    pub(crate) kind: String,
    /// The device's name on its host.
    pub(crate) device: String,
    /// The port's address.
    pub(crate) gid: [u8; 16],
    /// In bytes, a power of two from 256 to 4096.
    pub(crate) mtu: u32,
    /// 24 bits.
    pub(crate) qp_number: u32,
    /// 24 bits.
    pub(crate) psn: u32,
}

impl From<Endpoint> for messages::Endpoint {
    fn from(endpoint: Endpoint) -> Self {
        Self {
            kind: endpoint.kind,
            device: endpoint.device,
            gid: endpoint.gid.to_vec(),
            mtu: endpoint.mtu,
            qp_number: endpoint.qp_number,
            psn: endpoint.psn,
        }
    }
}

impl TryFrom<messages::Endpoint> for Endpoint {
    type Error = HandshakeError;

    fn try_from(sent: messages::Endpoint) -> Result<Self, HandshakeError> {
        let field = |field, value: String, why| Err(HandshakeError::Field { field, value, why });
        let Ok(gid) = <[u8; 16]>::try_from(sent.gid.as_slice()) else {
            return field("gid", format!("{} bytes", sent.gid.len()), "it has 16");
        };
        if !matches!(sent.mtu, 256 | 512 | 1024 | 2048 | 4096) {
            return field("mtu", sent.mtu.to_string(), "256 to 4096, a power of two");
        }
        if sent.qp_number > MAX_24_BITS {
            return field("qp_number", sent.qp_number.to_string(), "it has 24 bits");
        }
        if sent.psn > MAX_24_BITS {
            return field("psn", sent.psn.to_string(), "it has 24 bits");
        }
        for (name, value) in [("kind", &sent.kind), ("device", &sent.device)] {
            if value.is_empty() || value.len() > MAX_NAME_LEN {
                let len = format!("{} bytes long", value.len());
                return field(name, len, "1 to 64 bytes are taken");
            }
        }
        Ok(Self {
            kind: sent.kind,
            device: sent.device,
            gid,
            mtu: sent.mtu,
            qp_number: sent.qp_number,
            psn: sent.psn,
        })
    }
}

/// What one side says of itself: how it is reached, what it can take, and its core's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// A client offers one for each of its devices; a server answers with the one it chose.
    pub(crate) endpoints: Vec<Endpoint>,
    /// The longest frame it can receive, in bytes.
    pub(crate) max_frame_len: u32,
    /// Opaque to the transport.
    pub(crate) session: Vec<u8>,
}

impl Offer {
    /// Checks what a peer sent.
    pub(crate) fn check(
        endpoints: Vec<messages::Endpoint>,
        max_frame_len: u32,
        session: Vec<u8>,
    ) -> Result<Self, HandshakeError> {
        if max_frame_len < MIN_FRAME_LEN {
            return Err(HandshakeError::Field {
                field: "max_frame_len",
                value: max_frame_len.to_string(),
                why: "a frame has at least 64 bytes",
            });
        }
        Ok(Self {
            endpoints: endpoints
                .into_iter()
                .map(Endpoint::try_from)
                .collect::<Result<_, _>>()?,
            max_frame_len,
            session,
        })
    }

    /// The first endpoint of this kind of device.
    pub(crate) fn endpoint(&self, kind: &str) -> Option<&Endpoint> {
        self.endpoints.iter().find(|endpoint| endpoint.kind == kind)
    }

    /// The kinds of devices on offer, for a sentence: "soft, rdma".
    pub(crate) fn kinds(&self) -> String {
        if self.endpoints.is_empty() {
            return "none".to_owned();
        }
        let kinds: Vec<_> = self.endpoints.iter().map(|e| e.kind.as_str()).collect();
        kinds.join(", ")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A good endpoint, for tests that spoil one field.
    pub(crate) fn sample() -> Endpoint {
        Endpoint {
            kind: "soft".to_owned(),
            device: "soft".to_owned(),
            gid: *b"0123456789abcdef",
            mtu: 4096,
            qp_number: 17,
            psn: 0x00ab_cdef,
        }
    }

    #[test]
    fn a_good_endpoint_survives_the_way_there_and_back() {
        let sent = messages::Endpoint::from(sample());
        assert_eq!(Endpoint::try_from(sent).unwrap(), sample());
    }

    #[test]
    fn every_field_that_cannot_be_is_named() {
        type Spoil = fn(&mut messages::Endpoint);
        let cases: [(&str, Spoil); 6] = [
            ("gid", |e| e.gid.truncate(15)),
            ("mtu", |e| e.mtu = 1500),
            ("qp_number", |e| e.qp_number = 1 << 24),
            ("psn", |e| e.psn = u32::MAX),
            ("kind", |e| e.kind.clear()),
            ("device", |e| e.device = "x".repeat(65)),
        ];
        for (name, spoil) in cases {
            let mut sent = messages::Endpoint::from(sample());
            spoil(&mut sent);
            match Endpoint::try_from(sent) {
                Err(HandshakeError::Field { field, .. }) => assert_eq!(field, name),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_peer_that_takes_only_tiny_frames_is_refused() {
        assert!(Offer::check(Vec::new(), 63, Vec::new()).is_err());
        assert!(Offer::check(Vec::new(), 64, Vec::new()).is_ok());
    }
}
