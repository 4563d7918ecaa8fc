//! The client's side of the handshake: its messages, and the server's possible responses.

use super::frame::{self, Inbound};
use super::messages::{self, handshake::Body};
use super::{HandshakeError, Offer, Welcome};

/// Encodes the client's first message.
pub(crate) fn hello(offer: Offer) -> Result<Vec<u8>, HandshakeError> {
    frame::encode(Body::ClientHello(messages::ClientHello {
        endpoints: offer.endpoints.into_iter().map(Into::into).collect(),
        max_frame_len: offer.max_frame_len,
        session: offer.session,
        keepalive: offer.keepalive,
    }))
}

/// Encodes the client's last message.
pub(crate) fn ready() -> Result<Vec<u8>, HandshakeError> {
    frame::encode(Body::Ready(messages::Ready {}))
}

/// The server's response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ServerResponse {
    /// The client is admitted.
    Welcome(Welcome),
    /// The client is rejected, with the server's reason.
    Refused(String),
}

/// Parses the server's response.
#[derive(Debug, Default)]
pub(crate) struct ClientHandshake {
    inbound: Inbound,
}

impl ClientHandshake {
    /// Handles bytes read from the socket. Returns the server's response once it is complete.
    pub(crate) fn handle(
        &mut self,
        bytes: &[u8],
    ) -> Result<Option<ServerResponse>, HandshakeError> {
        self.inbound.feed(bytes);
        let response = match self.inbound.next()? {
            None => return Ok(None),
            Some(Body::ServerHello(hello)) => ServerResponse::Welcome(Welcome::check(hello)?),
            Some(Body::Refusal(refusal)) => ServerResponse::Refused(refusal.reason),
            Some(other) => {
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
