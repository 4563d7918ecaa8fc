//! The server's side of the handshake: which message may come next.

use rpc_core::transport::VersionRange;

use super::frame::{self, Inbound, Reader};
use super::messages::{self, handshake::Body};
use super::{Challenge, HandshakeError, Offer, Received, VERSIONS, Welcome};

/// A client's request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// The client asks to be admitted. The response is [`welcome`](ServerHandshake::welcome) or
    /// [`refuse`](ServerHandshake::refuse). A [`challenge`](ServerHandshake::challenge) may precede
    /// it.
    Hello(Offer),
    /// The client's queue pair can receive and send: the connection can go to its poller.
    Ready,
}

/// The handshake of one client, from its first byte until it is ready.
#[derive(Debug)]
pub(crate) struct ServerHandshake {
    inbound: Inbound,
    /// The version that was chosen, once the hello has arrived.
    agreed: Option<u32>,
    ready: bool,
}

impl Default for ServerHandshake {
    fn default() -> Self {
        Self::new(VERSIONS)
    }
}

impl ServerHandshake {
    /// Starts a handshake of a server that speaks these versions.
    pub(super) fn new(spoken: VersionRange) -> Self {
        Self {
            inbound: Inbound::new(Reader::Server(spoken)),
            agreed: None,
            ready: false,
        }
    }

    /// Handles bytes read from the socket. Returns the request once it is complete.
    pub(crate) fn handle(&mut self, bytes: &[u8]) -> Result<Option<Request>, HandshakeError> {
        self.inbound.feed(bytes);
        let Some(frame) = self.inbound.next()? else {
            return Ok(None);
        };
        let request = match (frame.body, self.agreed) {
            // The hello's own version is the newest that the client speaks. A hello can be read
            // whatever its version is.
            (Body::ClientHello(hello), None) => {
                self.agreed = Some(frame.newest_common);
                Request::Hello(Offer::check(hello)?)
            }
            (Body::Ready(_), Some(agreed)) if !self.ready => {
                if frame.version != agreed {
                    return Err(HandshakeError::MessageVersion {
                        got: frame.version,
                        wanted: VersionRange::only(agreed),
                    });
                }
                self.ready = true;
                Request::Ready
            }
            (other, agreed) => {
                return Err(HandshakeError::Unexpected {
                    wanted: if agreed.is_some() { "ready" } else { "a hello" },
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

    /// Returns how much of the message that is expected next has arrived.
    pub(crate) fn received(&self) -> Received {
        self.inbound.received()
    }

    /// Returns the bytes that followed the last message.
    pub(crate) fn into_rest(self) -> Vec<u8> {
        self.inbound.into_rest()
    }

    /// Returns the version of the messages to send: the chosen one, or before it is chosen, the newest
    /// that this side speaks.
    pub(crate) fn version(&self) -> u32 {
        self.agreed.unwrap_or(self.inbound.spoken().newest)
    }

    /// Encodes the demand that a client proves that a GID is its own. Its version is the one that
    /// this side has chosen.
    pub(crate) fn challenge(&self, challenge: &Challenge) -> Result<Vec<u8>, HandshakeError> {
        self.encode(Body::Challenge(messages::Challenge {
            gid: challenge.gid.to_vec(),
            nonce: challenge.nonce.to_vec(),
            // Fits: the index is one of a few.
            client_endpoint: challenge.client_endpoint as u32,
        }))
    }

    /// Encodes the response that admits a client. Its version is the one that this side has chosen.
    pub(crate) fn welcome(&self, welcome: Welcome) -> Result<Vec<u8>, HandshakeError> {
        self.encode(Body::ServerHello(messages::ServerHello {
            endpoint: Some(welcome.endpoint.into()),
            max_frame_len: welcome.max_frame_len,
            session: welcome.session,
            // Fits: the index is one of a few.
            client_endpoint: welcome.client_endpoint as u32,
            clock_us: welcome.clock_us,
            link_secret: welcome
                .link_secret
                .map_or(Vec::new(), |secret| secret.0.to_vec()),
            rejected: welcome.rejected.to_string(),
        }))
    }

    /// Encodes the response that rejects a client, which is the same in every version. `reason` is one
    /// sentence for the client's user.
    pub(crate) fn refuse(&self, reason: &str) -> Vec<u8> {
        // Truncate the sentence so that the frame always fits.
        let mut end = reason.len().min(4096);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        self.encode(Body::Refusal(messages::Refusal {
            reason: reason[..end].to_owned(),
        }))
        .unwrap_or_default()
    }

    fn encode(&self, body: Body) -> Result<Vec<u8>, HandshakeError> {
        frame::encode(self.version(), self.inbound.spoken(), body)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rpc_core::transport::PeerSentence;

    use super::super::client::{ClientHandshake, ServerResponse};
    use super::super::endpoint::tests::sample;
    use super::*;

    fn offer() -> Offer {
        Offer {
            endpoints: vec![sample()],
            max_frame_len: 4352,
            session: b"methods".to_vec(),
        }
    }

    fn chosen() -> Welcome {
        Welcome {
            endpoint: sample(),
            client_endpoint: 3,
            max_frame_len: 4352,
            session: b"methods".to_vec(),
            clock_us: 4_000_000_000,
            link_secret: None,
            rejected: PeerSentence::default(),
        }
    }

    fn hello() -> Vec<u8> {
        ClientHandshake::default().hello(offer()).unwrap()
    }

    fn ready() -> Vec<u8> {
        ClientHandshake::default().ready().unwrap()
    }

    fn welcome() -> Vec<u8> {
        ServerHandshake::default().welcome(chosen()).unwrap()
    }

    fn refuse(reason: &str) -> Vec<u8> {
        ServerHandshake::default().refuse(reason)
    }

    #[test]
    fn hello_welcome_ready() {
        let mut server = ServerHandshake::default();
        let mut client = ClientHandshake::default();
        let hello = client.hello(offer()).unwrap();
        assert_eq!(
            server.handle(&hello).unwrap(),
            Some(Request::Hello(offer()))
        );
        let welcome = server.welcome(chosen()).unwrap();
        assert_eq!(
            client.handle(&welcome).unwrap(),
            Some(ServerResponse::Welcome(chosen()))
        );
        let ready = client.ready().unwrap();
        assert_eq!(server.handle(&ready).unwrap(), Some(Request::Ready));
    }

    fn demanded() -> Challenge {
        Challenge {
            gid: [7; 16],
            nonce: [9; 16],
            client_endpoint: 2,
        }
    }

    #[test]
    fn a_challenge_comes_before_the_response_and_once() {
        let mut server = ServerHandshake::default();
        let mut client = ClientHandshake::default();
        server.handle(&client.hello(offer()).unwrap()).unwrap();
        let challenge = server.challenge(&demanded()).unwrap();
        assert_eq!(
            client.handle(&challenge).unwrap(),
            Some(ServerResponse::Challenge(demanded()))
        );
        let welcome = server.welcome(chosen()).unwrap();
        let mut other = ClientHandshake::default();
        assert!(other.handle(&challenge).is_ok());
        assert_eq!(
            client.handle(&welcome).unwrap(),
            Some(ServerResponse::Welcome(chosen()))
        );
        assert_eq!(
            server.handle(&client.ready().unwrap()).unwrap(),
            Some(Request::Ready)
        );
        assert!(matches!(
            other.handle(&challenge),
            Err(HandshakeError::Unexpected { .. })
        ));
        // Nor does a client demand it of a server.
        let mut server = ServerHandshake::default();
        assert!(matches!(
            server.handle(&challenge),
            Err(HandshakeError::Unexpected { .. })
        ));
    }

    #[test]
    fn a_challenge_whose_fields_are_not_16_bytes_is_refused() {
        for lens in [(15, 16), (16, 17), (0, 0)] {
            let body = Body::Challenge(messages::Challenge {
                gid: vec![1; lens.0],
                nonce: vec![1; lens.1],
                client_endpoint: 0,
            });
            let frame = frame::encode(VERSIONS.newest, VERSIONS, body).unwrap();
            assert!(matches!(
                ClientHandshake::default().handle(&frame),
                Err(HandshakeError::Field { .. })
            ));
        }
    }

    #[test]
    fn a_refusal_reaches_the_client_as_its_sentence() {
        let mut client = ClientHandshake::default();
        assert_eq!(
            client.handle(&refuse("no room")).unwrap(),
            Some(ServerResponse::Refused(PeerSentence::new("no room")))
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
        assert_eq!(reason, PeerSentence::new(&"ü".repeat(2048)));
    }

    #[test]
    fn messages_out_of_turn_end_the_handshake() {
        let (hello, ready, welcome) = (hello(), ready(), welcome());
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
        let mut both = hello();
        both.extend(ready());
        assert!(matches!(
            ServerHandshake::default().handle(&both),
            Err(HandshakeError::Unexpected { .. })
        ));
    }

    #[test]
    fn what_follows_ready_is_the_lines() {
        let mut server = ServerHandshake::default();
        server.handle(&hello()).unwrap();
        let mut bytes = ready();
        bytes.push(b'x');
        assert_eq!(server.handle(&bytes).unwrap(), Some(Request::Ready));
        assert_eq!(server.into_rest(), b"x");
    }

    /// A hello of a version, with one endpoint.
    fn hello_of(version: u8) -> Vec<u8> {
        let prologue = [
            b"VBLN\0",
            &[version][..],
            b"\0\0\0\x38\0",
            &[version],
            b"\0",
            &[version],
        ];
        let message = b"\x0a\x36\
            \x0a\x28\x0a\x04soft\x12\x04soft\x1a\x100123456789abcdef\x20\x80\x20\x28\x11\x30\xef\x9b\xaf\x05\
            \x10\x80\x22\x1a\x07methods";
        [&prologue.concat()[..], message].concat()
    }

    #[test]
    fn the_bytes_of_the_hello_do_not_change() {
        assert_eq!(hello(), hello_of(2));
    }

    /// A client of another version: the refusal has a sentence that names both sides' versions, and
    /// says in its prologue what this side speaks.
    #[test]
    fn a_client_of_another_version_is_refused_with_both_versions() {
        for version in [1, 3] {
            let mut server = ServerHandshake::default();
            let error = server.handle(&hello_of(version)).unwrap_err();
            let sentence = error.to_string();
            assert_eq!(
                sentence,
                format!(
                    "the client speaks version {version} of the protocol, the server speaks version 2: upgrade the older side"
                )
            );
            let mut expected = b"VBLN\0\x02\0\0\0\x64\0\x02\0\x02\x22\x62\x0a\x60".to_vec();
            expected.extend(sentence.bytes());
            assert_eq!(server.refuse(&sentence), expected);
        }
    }

    /// Such a client reads the prologue alone.
    #[test]
    fn a_server_of_another_version_is_reported_with_both_versions() {
        for version in [1, 3] {
            let refusal = [
                b"VBLN\0",
                &[version][..],
                b"\0\0\0\x01\0",
                &[version],
                b"\0",
                &[version],
            ];
            match ClientHandshake::default().handle(&refusal.concat()) {
                Err(HandshakeError::Version { client, server }) => {
                    let other = VersionRange::only(version.into());
                    assert_eq!((client, server), (VERSIONS, other));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn version_range() -> impl Strategy<Value = VersionRange> {
        (1..9_u32, 0..4_u32).prop_map(|(oldest, more)| VersionRange {
            oldest,
            newest: oldest + more,
        })
    }

    proptest! {
        /// Two builds, each of which speaks any range of versions: both use the newest
        /// common version, or both report both ranges.
        #[test]
        fn both_sides_agree_on_a_version_or_on_there_being_none(
            client_speaks in version_range(),
            server_speaks in version_range(),
        ) {
            let mut client = ClientHandshake::new(client_speaks);
            let mut server = ServerHandshake::new(server_speaks);
            let hello = client.hello(offer()).unwrap();
            let wanted = client_speaks.newest_common(server_speaks);
            let refused = |result: Option<HandshakeError>| match result {
                Some(HandshakeError::Version { client, server }) => {
                    client == client_speaks && server == server_speaks
                }
                _ => false,
            };
            match (server.handle(&hello), wanted) {
                (Ok(Some(Request::Hello(_))), Some(version)) => {
                    prop_assert_eq!(server.version(), version);
                    let welcome = server.welcome(chosen()).unwrap();
                    let response = client.handle(&welcome).unwrap();
                    prop_assert_eq!(response, Some(ServerResponse::Welcome(chosen())));
                    prop_assert_eq!(client.version(), version);
                    let ready = client.ready().unwrap();
                    prop_assert_eq!(server.handle(&ready).unwrap(), Some(Request::Ready));
                    // The client reads a refusal of a server that has not read its hello, too.
                    let early = ServerHandshake::new(server_speaks).refuse("no");
                    let response = ClientHandshake::new(client_speaks).handle(&early).unwrap();
                    prop_assert_eq!(response, Some(ServerResponse::Refused(PeerSentence::new("no"))));
                }
                (result, None) => {
                    let error = result.err();
                    let sentence = error.as_ref().map(ToString::to_string).unwrap_or_default();
                    prop_assert!(sentence.contains(&client_speaks.to_string()), "{}", sentence);
                    prop_assert!(sentence.contains(&server_speaks.to_string()), "{}", sentence);
                    prop_assert!(refused(error));
                    let refusal = server.refuse(&sentence);
                    prop_assert!(refused(client.handle(&refusal).err()));
                }
                (result, Some(_)) => prop_assert!(false, "{:?}", result),
            }
        }

        /// A side that sends a message of a version that was not agreed on is reported.
        #[test]
        fn a_message_of_another_version_than_the_agreed_one_is_refused(other in 3..9_u32) {
            let spoken = VersionRange { oldest: 2, newest: 9 };
            let mut server = ServerHandshake::new(spoken);
            server.handle(&hello()).unwrap();
            prop_assert_eq!(server.version(), 2);
            let ready = frame::encode(other, spoken, Body::Ready(messages::Ready {})).unwrap();
            let is_reported = matches!(
                server.handle(&ready),
                Err(HandshakeError::MessageVersion { got, .. }) if got == other
            );
            prop_assert!(is_reported);
            let mut server = ServerHandshake::new(spoken);
            let newer = ClientHandshake::new(VersionRange { oldest: 2, newest: other });
            server.handle(&newer.hello(offer()).unwrap()).unwrap();
            let welcome = server.welcome(chosen()).unwrap();
            let is_reported = matches!(
                ClientHandshake::default().handle(&welcome),
                Err(HandshakeError::MessageVersion { got, .. }) if got == other
            );
            prop_assert!(is_reported);
        }

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
                prop_assert!(server.handle(b"VBLN\x00\x02\x00\x00").unwrap().is_none());
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
