//! The client's side of the handshake: its messages, and the server's possible responses.

use rpc_core::transport::{PeerSentence, VersionRange};

use super::frame::{self, Frame, Inbound, Reader};
use super::messages::{self, handshake::Body};
use super::{Challenge, HandshakeError, Offer, Received, VERSIONS, Welcome};

/// The server's response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ServerResponse {
    /// The client has to prove that a GID is its own; the other response follows.
    Challenge(Challenge),
    /// The client is admitted.
    Welcome(Welcome),
    /// The client is rejected, with the server's reason.
    Refused(PeerSentence),
}

/// The handshake of one client: encodes its messages, and parses the server's response.
#[derive(Debug)]
pub(crate) struct ClientHandshake {
    inbound: Inbound,
    /// The version of the messages to send: the newest that this side speaks, until the server has
    /// chosen one.
    version: u32,
    is_challenged: bool,
}

impl Default for ClientHandshake {
    fn default() -> Self {
        Self::new(VERSIONS)
    }
}

impl ClientHandshake {
    /// Starts a handshake of a client that speaks these versions.
    pub(super) fn new(spoken: VersionRange) -> Self {
        Self {
            inbound: Inbound::new(Reader::Client(spoken)),
            version: spoken.newest,
            is_challenged: false,
        }
    }

    /// Encodes the client's first message.
    pub(crate) fn hello(&self, offer: Offer) -> Result<Vec<u8>, HandshakeError> {
        self.encode(Body::ClientHello(messages::ClientHello {
            endpoints: offer.endpoints.into_iter().map(Into::into).collect(),
            max_frame_len: offer.max_frame_len,
            session: offer.session,
        }))
    }

    /// Encodes the client's last message, in the version that the server chose.
    pub(crate) fn ready(&self) -> Result<Vec<u8>, HandshakeError> {
        self.encode(Body::Ready(messages::Ready {}))
    }

    fn encode(&self, body: Body) -> Result<Vec<u8>, HandshakeError> {
        frame::encode(self.version, self.inbound.spoken(), body)
    }

    /// Returns the version that the server chose, or the newest that this side speaks.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// Returns how much of the server's response has arrived.
    pub(crate) fn received(&self) -> Received {
        self.inbound.received()
    }

    /// Adopts the version that the server has chosen.
    fn adopt(&mut self, version: u32) -> Result<(), HandshakeError> {
        let spoken = match self.is_challenged {
            true => VersionRange::only(self.version),
            false => self.inbound.spoken(),
        };
        if !spoken.contains(version) {
            return Err(HandshakeError::MessageVersion {
                got: version,
                wanted: spoken,
            });
        }
        self.version = version;
        Ok(())
    }

    /// Handles bytes read from the socket. Returns the server's response once it is complete.
    pub(crate) fn handle(
        &mut self,
        bytes: &[u8],
    ) -> Result<Option<ServerResponse>, HandshakeError> {
        self.inbound.feed(bytes);
        let Some(Frame { version, body, .. }) = self.inbound.next()? else {
            return Ok(None);
        };
        let response = match body {
            Body::Challenge(challenge) if !self.is_challenged => {
                self.adopt(version)?;
                self.is_challenged = true;
                ServerResponse::Challenge(Challenge::check(&challenge)?)
            }
            Body::ServerHello(hello) => {
                self.adopt(version)?;
                ServerResponse::Welcome(Welcome::check(hello)?)
            }
            // A refusal is the same in every version. A server that has not read the hello does not
            // know the client's versions.
            Body::Refusal(refusal) => ServerResponse::Refused(PeerSentence::new(&refusal.reason)),
            other => {
                return Err(HandshakeError::Unexpected {
                    wanted: "the server's hello",
                    got: frame::name(&other),
                });
            }
        };
        if !self.inbound.is_empty() {
            return Err(HandshakeError::Unexpected {
                wanted: "no more bytes",
                got: "more bytes",
            });
        }
        Ok(Some(response))
    }
}

#[cfg(test)]
mod tests {
    use super::super::MAX_HELLO_LEN;
    use super::super::endpoint::tests::sample;
    use super::super::server::ServerHandshake;
    use super::*;

    /// What a client sends is shorter than what strangers may send.
    #[test]
    fn a_hello_of_as_many_devices_as_may_be_takes_half_of_what_a_hello_may_take() {
        let mut longest = sample();
        (longest.kind, longest.device) = ("k".repeat(64), "d".repeat(64));
        let offer = Offer {
            endpoints: vec![longest; 8],
            max_frame_len: u32::MAX,
            // The core's takes some ten bytes.
            session: vec![0xff; 64],
        };
        let hello = ClientHandshake::default().hello(offer).unwrap();
        assert!(hello.len() < MAX_HELLO_LEN / 2, "{}", hello.len());
    }

    /// Whoever listens at a server's address could have a terminal forget what it shows, or forge lines
    /// of a log.
    #[test]
    fn a_refusal_with_control_characters_reaches_the_client_without_them() {
        let reason = "\x1b[2J\x1b[31mno\nINFO all is well\x07";
        let Some(ServerResponse::Refused(reason)) = ClientHandshake::default()
            .handle(&ServerHandshake::default().refuse(reason))
            .unwrap()
        else {
            panic!("not a refusal");
        };
        let printed = reason.to_string();
        assert!(!printed.contains(char::is_control), "{printed}");
        assert!(printed.ends_with("INFO all is well\\u{7}"), "{printed}");
    }
}
