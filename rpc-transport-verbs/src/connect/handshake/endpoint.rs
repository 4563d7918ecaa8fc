//! Endpoints and hellos, validated.

use rpc_core::transport::PeerSentence;

use super::{HandshakeError, messages};
use crate::connect::link::LinkSecret;
use crate::transport::endpoint::{Endpoint, INFINIBAND, TCP, TCP_GID_PREFIX};
use crate::transport::plan::LONGEST_INLINE_FRAME;

/// The largest queue pair number and packet sequence number, which have 24 bits.
const MAX_24_BITS: u32 = 0x00ff_ffff;

/// The shortest frame limit that a peer may have.
const MIN_FRAME_LEN: u32 = LONGEST_INLINE_FRAME;

/// Maximum number of devices that a side may offer. Each of them may be tried, which takes time.
const MAX_ENDPOINTS: usize = 8;

/// Maximum length of a device's name or kind, which messages repeat.
const MAX_NAME_LEN: usize = 64;

impl From<Endpoint> for messages::Endpoint {
    fn from(endpoint: Endpoint) -> Self {
        Self {
            kind: endpoint.kind,
            device: endpoint.device,
            gid: endpoint.gid.to_vec(),
            mtu: endpoint.mtu,
            qp_number: endpoint.qp_number,
            psn: endpoint.psn,
            lid: endpoint.lid.into(),
            read_depth: endpoint.read_depth.into(),
        }
    }
}

impl TryFrom<messages::Endpoint> for Endpoint {
    type Error = HandshakeError;

    fn try_from(sent: messages::Endpoint) -> Result<Self, HandshakeError> {
        let field = |field, value: String, why| Err(HandshakeError::Field { field, value, why });
        let Ok(gid) = <[u8; 16]>::try_from(sent.gid.as_slice()) else {
            return field(
                "gid",
                format!("{} bytes", sent.gid.len()),
                "a GID has 16 bytes",
            );
        };
        if !matches!(sent.mtu, 256 | 512 | 1024 | 2048 | 4096) {
            return field(
                "mtu",
                sent.mtu.to_string(),
                "an MTU is a power of two from 256 to 4096",
            );
        }
        if sent.qp_number > MAX_24_BITS {
            return field(
                "qp_number",
                sent.qp_number.to_string(),
                "at most 24 bits are valid",
            );
        }
        if sent.psn > MAX_24_BITS {
            return field("psn", sent.psn.to_string(), "at most 24 bits are valid");
        }
        let Ok(lid) = u16::try_from(sent.lid) else {
            return field("lid", sent.lid.to_string(), "at most 16 bits are valid");
        };
        // Soft-RoCE and network cards support up to 128 of them. A peer that supports more is served
        // with fewer.
        let read_depth = u8::try_from(sent.read_depth).unwrap_or(u8::MAX);
        for (name, value) in [("kind", &sent.kind), ("device", &sent.device)] {
            if value.is_empty() || value.len() > MAX_NAME_LEN {
                let len = format!("{} bytes long", value.len());
                return field(name, len, "1 to 64 bytes are accepted");
            }
            // The value appears in logs and messages.
            if !value.bytes().all(|byte| byte.is_ascii_graphic()) {
                let value = value.escape_default().to_string();
                return field(name, value, "only printable ASCII characters are accepted");
            }
        }
        // One that names a port and an address would have this side connect to them.
        if sent.kind == TCP && (gid[..2] != TCP_GID_PREFIX || gid[2..4] != [0, 0]) {
            let digits: Vec<_> = gid.iter().map(|byte| format!("{byte:02x}")).collect();
            return field(
                "gid",
                digits.concat(),
                "a GID of the kind tcp begins with fd76 and port 0, because only the client dials",
            );
        }
        // Only ports of an InfiniBand subnet are addressed by LID.
        if sent.kind != INFINIBAND && lid != 0 {
            return field("lid", lid.to_string(), "only InfiniBand ports have a LID");
        }
        Ok(Self {
            kind: sent.kind,
            device: sent.device,
            gid,
            mtu: sent.mtu,
            qp_number: sent.qp_number,
            psn: sent.psn,
            lid,
            read_depth,
        })
    }
}

/// A client's hello: its endpoints, its limits and the core's session data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// One endpoint for each of the client's devices, in the client's order.
    pub(crate) endpoints: Vec<Endpoint>,
    /// The longest frame that the server can receive, in bytes.
    pub(crate) max_frame_len: u32,
    /// Opaque to the transport.
    pub(crate) session: Vec<u8>,
}

impl Offer {
    /// Validates a client's message.
    pub(crate) fn check(sent: messages::ClientHello) -> Result<Self, HandshakeError> {
        let messages::ClientHello {
            endpoints,
            max_frame_len,
            session,
        } = sent;
        check_frame_len(max_frame_len)?;
        if endpoints.len() > MAX_ENDPOINTS {
            return Err(HandshakeError::Field {
                field: "endpoints",
                value: format!("{} of them", endpoints.len()),
                why: "at most 8 are accepted",
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
}

/// A server's demand that the client's process proves that an offered GID is its own.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Challenge {
    /// The GID of the server's process, on whose link the nonce has to come.
    pub(crate) gid: [u8; 16],
    /// Random bytes, which only the two sides know.
    pub(crate) nonce: [u8; 16],
    /// The index, from 0, of the client's endpoint with the GID to prove.
    pub(crate) client_endpoint: usize,
}

impl std::fmt::Debug for Challenge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The nonce is secret.
        f.debug_struct("Challenge")
            .field("client_endpoint", &self.client_endpoint)
            .finish_non_exhaustive()
    }
}

impl Challenge {
    /// Validates a server's message.
    pub(crate) fn check(sent: &messages::Challenge) -> Result<Self, HandshakeError> {
        let bytes = |field, bytes: &[u8]| {
            <[u8; 16]>::try_from(bytes).map_err(|_| HandshakeError::Field {
                field,
                value: format!("{} bytes", bytes.len()),
                why: "it has 16 bytes",
            })
        };
        Ok(Self {
            gid: bytes("gid", &sent.gid)?,
            nonce: bytes("nonce", &sent.nonce)?,
            client_endpoint: sent.client_endpoint as usize,
        })
    }
}

/// A server's response: the endpoint that it chose, its limits and the core's session data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    /// The endpoint of the server's queue pair.
    pub(crate) endpoint: Endpoint,
    /// The index, from 0, of the client's endpoint that the queue pair is connected to.
    pub(crate) client_endpoint: usize,
    /// The longest frame that the server can receive, in bytes.
    pub(crate) max_frame_len: u32,
    /// Opaque to the transport.
    pub(crate) session: Vec<u8>,
    /// What the clock of the server's host showed, in microseconds, after the hello arrived.
    pub(crate) clock_us: i64,
    /// What the client says first on the connection that carries the calls, if the server's queue
    /// pair waits for one.
    pub(crate) link_secret: Option<LinkSecret>,
    /// Why the server did not choose the devices before the chosen one, for the client's log.
    pub(crate) rejected: PeerSentence,
}

impl Welcome {
    /// Validates a server's message.
    pub(crate) fn check(sent: messages::ServerHello) -> Result<Self, HandshakeError> {
        let Some(endpoint) = sent.endpoint else {
            return Err(HandshakeError::Field {
                field: "endpoint",
                value: "missing".to_owned(),
                why: "a welcome has to contain the server's queue pair",
            });
        };
        check_frame_len(sent.max_frame_len)?;
        if sent.clock_us <= 0 {
            return Err(HandshakeError::Field {
                field: "clock_us",
                value: sent.clock_us.to_string(),
                why: "the clock of a host that runs shows more than 0",
            });
        }
        let endpoint = Endpoint::try_from(endpoint)?;
        let link_secret = match (&sent.link_secret[..], endpoint.kind == TCP) {
            ([], false) => None,
            (secret, true) if secret.len() == 16 => {
                let mut bytes = [0; 16];
                bytes.copy_from_slice(secret);
                Some(LinkSecret(bytes))
            }
            (secret, _) => {
                return Err(HandshakeError::Field {
                    field: "link_secret",
                    value: format!("{} bytes", secret.len()),
                    why: "it has 16 bytes for an endpoint of the kind tcp, and none for others",
                });
            }
        };
        Ok(Self {
            endpoint,
            link_secret,
            rejected: PeerSentence::new(&sent.rejected),
            client_endpoint: sent.client_endpoint as usize,
            max_frame_len: sent.max_frame_len,
            session: sent.session,
            clock_us: sent.clock_us,
        })
    }
}

fn check_frame_len(max_frame_len: u32) -> Result<(), HandshakeError> {
    if max_frame_len < MIN_FRAME_LEN {
        return Err(HandshakeError::Field {
            field: "max_frame_len",
            value: max_frame_len.to_string(),
            why: "at least 1024 bytes are needed",
        });
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a valid endpoint, for tests that invalidate one field.
    pub(crate) fn sample() -> Endpoint {
        Endpoint {
            kind: "soft".to_owned(),
            device: "soft".to_owned(),
            gid: *b"0123456789abcdef",
            mtu: 4096,
            qp_number: 17,
            psn: 0x00ab_cdef,
            lid: 0,
            read_depth: 0,
        }
    }

    #[test]
    fn a_good_endpoint_survives_the_way_there_and_back() {
        let sent = messages::Endpoint::from(sample());
        assert_eq!(Endpoint::try_from(sent).unwrap(), sample());
        let infiniband = Endpoint {
            kind: INFINIBAND.to_owned(),
            lid: 0xc0de,
            read_depth: 16,
            ..sample()
        };
        let sent = messages::Endpoint::from(infiniband.clone());
        assert_eq!(Endpoint::try_from(sent).unwrap(), infiniband);
    }

    #[test]
    fn every_field_that_cannot_be_is_named() {
        type Spoil = fn(&mut messages::Endpoint);
        let cases: [(&str, Spoil); 10] = [
            ("gid", |e| e.gid.truncate(15)),
            ("gid", |e| {
                // An address that this side is to dial: 127.0.0.1:80.
                e.kind = TCP.to_owned();
                e.gid = b"\xfd\x76\0\x50\x7f\0\0\x01attacker".to_vec();
            }),
            ("mtu", |e| e.mtu = 1500),
            ("qp_number", |e| e.qp_number = 1 << 24),
            ("psn", |e| e.psn = u32::MAX),
            ("lid", |e| e.lid = 1 << 16),
            ("lid", |e| e.lid = 17),
            ("device", |e| e.device = "rxe0\n".to_owned()),
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
    fn every_field_of_a_welcome_that_cannot_be_is_named() {
        type Spoil = fn(&mut messages::ServerHello);
        let cases: [(&str, Spoil); 8] = [
            ("endpoint", |w| w.endpoint = None),
            ("max_frame_len", |w| w.max_frame_len = 255),
            ("clock_us", |w| w.clock_us = 0),
            ("clock_us", |w| w.clock_us = i64::MIN),
            ("link_secret", |w| w.link_secret = vec![1; 16]),
            ("link_secret", |w| w.endpoint = Some(over_tcp())),
            ("link_secret", |w| {
                w.endpoint = Some(over_tcp());
                w.link_secret = vec![1; 17];
            }),
            ("mtu", |w| w.endpoint.as_mut().unwrap().mtu = 1500),
        ];
        fn over_tcp() -> messages::Endpoint {
            messages::Endpoint {
                kind: TCP.to_owned(),
                gid: [&TCP_GID_PREFIX[..], &[0; 14]].concat(),
                ..sample().into()
            }
        }
        let good = messages::ServerHello {
            endpoint: Some(sample().into()),
            max_frame_len: MIN_FRAME_LEN,
            clock_us: 1,
            ..Default::default()
        };
        assert!(Welcome::check(good.clone()).is_ok());
        for (name, spoil) in cases {
            let mut sent = good.clone();
            spoil(&mut sent);
            match Welcome::check(sent) {
                Err(HandshakeError::Field { field, .. }) => assert_eq!(field, name),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_peer_that_takes_only_tiny_frames_is_refused() {
        let hello = |endpoints, max_frame_len| messages::ClientHello {
            endpoints,
            max_frame_len,
            ..Default::default()
        };
        assert!(Offer::check(hello(Vec::new(), MIN_FRAME_LEN - 1)).is_err());
        assert!(Offer::check(hello(Vec::new(), MIN_FRAME_LEN)).is_ok());
        let many = |count| vec![messages::Endpoint::from(sample()); count];
        assert!(Offer::check(hello(many(MAX_ENDPOINTS), MIN_FRAME_LEN)).is_ok());
        assert!(Offer::check(hello(many(MAX_ENDPOINTS + 1), MIN_FRAME_LEN)).is_err());
    }
}
