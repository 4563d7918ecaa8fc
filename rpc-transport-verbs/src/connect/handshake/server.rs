//! The server's side of the handshake: which message may come next.

use super::frame::{self, Inbound};
use super::messages::{self, handshake::Body};
use super::{HandshakeError, Offer, Welcome};

/// A client's request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// The client asks to be admitted. The response is [`welcome`] or [`refuse`].
    Hello(Offer),
    /// The client's queue pair can receive and send: the connection can go to its poller.
    Ready,
}

/// The handshake of one client, from its first byte until it is ready.
#[derive(Debug, Default)]
pub(crate) struct ServerHandshake {
    inbound: Inbound,
    has_hello: bool,
    ready: bool,
}

impl ServerHandshake {
    /// Handles bytes read from the socket. Returns the request once it is complete.
    pub(crate) fn handle(&mut self, bytes: &[u8]) -> Result<Option<Request>, HandshakeError> {
        self.inbound.feed(bytes);
        let Some(body) = self.inbound.next()? else {
            return Ok(None);
        };
        let request = match body {
            Body::ClientHello(hello) if !self.has_hello => {
                self.has_hello = true;
                Request::Hello(Offer::check(hello)?)
            }
            Body::Ready(_) if self.has_hello && !self.ready => {
                self.ready = true;
                Request::Ready
            }
            other => {
                return Err(HandshakeError::Unexpected {
                    wanted: if self.has_hello { "ready" } else { "a hello" },
                    got: frame::name(&other),
                });
            }
        };
        // A client waits for the response to its hello, so nothing may follow the hello. Bytes
        // after `Ready` are keepalives.
        if !self.ready && !self.inbound.is_empty() {
            return Err(HandshakeError::Unexpected {
                wanted: "no bytes before the response",
                got: "more bytes",
            });
        }
        Ok(Some(request))
    }

    /// Returns the bytes that followed the last message.
    pub(crate) fn into_rest(self) -> Vec<u8> {
        self.inbound.into_rest()
    }
}

/// Encodes the response that admits a client.
pub(crate) fn welcome(welcome: Welcome) -> Result<Vec<u8>, HandshakeError> {
    frame::encode(Body::ServerHello(messages::ServerHello {
        endpoint: Some(welcome.endpoint.into()),
        max_frame_len: welcome.max_frame_len,
        session: welcome.session,
        // Fits: the index is one of a few.
        client_endpoint: welcome.client_endpoint as u32,
        keepalive: welcome.keepalive,
    }))
}

/// Encodes the response that rejects a client. `reason` is one sentence for the client's user.
pub(crate) fn refuse(reason: &str) -> Vec<u8> {
    // Truncate the sentence so that the frame always fits.
    let mut end = reason.len().min(4096);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    frame::encode(Body::Refusal(messages::Refusal {
        reason: reason[..end].to_owned(),
    }))
    .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::client::{self, ClientHandshake, ServerResponse};
    use super::super::endpoint::tests::sample;
    use super::*;

    fn offer() -> Offer {
        Offer {
            endpoints: vec![sample()],
            max_frame_len: 4352,
            session: b"methods".to_vec(),
            keepalive: true,
        }
    }

    fn chosen() -> Welcome {
        Welcome {
            endpoint: sample(),
            client_endpoint: 3,
            max_frame_len: 4352,
            session: b"methods".to_vec(),
            keepalive: true,
        }
    }

    #[test]
    fn hello_welcome_ready() {
        let mut server = ServerHandshake::default();
        let mut client = ClientHandshake::default();
        let hello = client::hello(offer()).unwrap();
        assert_eq!(
            server.handle(&hello).unwrap(),
            Some(Request::Hello(offer()))
        );
        let welcome = welcome(chosen()).unwrap();
        assert_eq!(
            client.handle(&welcome).unwrap(),
            Some(ServerResponse::Welcome(chosen()))
        );
        let ready = client::ready().unwrap();
        assert_eq!(server.handle(&ready).unwrap(), Some(Request::Ready));
    }

    #[test]
    fn a_refusal_reaches_the_client_as_its_sentence() {
        let mut client = ClientHandshake::default();
        assert_eq!(
            client.handle(&refuse("no room")).unwrap(),
            Some(ServerResponse::Refused("no room".to_owned()))
        );
    }

    #[test]
    fn a_sentence_without_end_is_cut_at_a_character() {
        let mut client = ClientHandshake::default();
        let Some(ServerResponse::Refused(reason)) =
            client.handle(&refuse(&"ü".repeat(90_000))).unwrap()
        else {
            panic!("not a refusal");
        };
        assert_eq!(reason, "ü".repeat(2048));
    }

    #[test]
    fn messages_out_of_turn_end_the_handshake() {
        let hello = client::hello(offer()).unwrap();
        let ready = client::ready().unwrap();
        let welcome = welcome(chosen()).unwrap();
        for sequence in [
            vec![&ready],
            vec![&welcome],
            vec![&hello, &hello],
            vec![&hello, &ready, &ready],
        ] {
            let mut server = ServerHandshake::default();
            let (last, before) = sequence.split_last().unwrap();
            for message in before {
                assert!(server.handle(message).unwrap().is_some());
            }
            assert!(matches!(
                server.handle(last),
                Err(HandshakeError::Unexpected { .. })
            ));
        }
    }

    #[test]
    fn a_client_that_does_not_wait_for_the_answer_is_refused() {
        let mut both = client::hello(offer()).unwrap();
        both.extend(client::ready().unwrap());
        assert!(matches!(
            ServerHandshake::default().handle(&both),
            Err(HandshakeError::Unexpected { .. })
        ));
    }

    #[test]
    fn what_follows_ready_is_the_lines() {
        let mut server = ServerHandshake::default();
        server.handle(&client::hello(offer()).unwrap()).unwrap();
        let mut bytes = client::ready().unwrap();
        bytes.push(b'x');
        assert_eq!(server.handle(&bytes).unwrap(), Some(Request::Ready));
        assert_eq!(server.into_rest(), b"x");
    }

    proptest! {
        /// For any bytes in any pieces, the result is a request, a wait for more bytes or an error
        /// with a message.
        #[test]
        fn a_server_survives_any_bytes(
            prefix in any::<bool>(),
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..16),
        ) {
            let mut server = ServerHandshake::default();
            if prefix {
                // Start after the magic and the version, in the interesting part of the parser.
                prop_assert!(server.handle(b"VBLN\x00\x01\x00\x00").unwrap().is_none());
            }
            for piece in &pieces {
                if let Err(error) = server.handle(piece) {
                    prop_assert!(!error.to_string().is_empty());
                    break;
                }
            }
        }
    }
}
