//! The session parameters that both sides exchange in the handshake, carried inside the transport's
//! own handshake messages.
//!
//! These types are the messages of `proto/session.proto`. The client states the versions of the frame
//! layout that it speaks, and the server chooses the newest that both sides speak. A peer that leaves out
//! a parameter that cannot be 0 is refused.
//!
//! The server's parameters contain its method table: the name and the number of each method. The
//! client looks up a method by name when the method is first called. If the server lacks a method,
//! only the calls of that method fail. The same holds if the two sides disagree about which sides of
//! the method stream.

use std::collections::HashMap;

use prost::Message;

use super::frame::CallId;
use crate::limits::{LONGEST_MESSAGE, LengthLimit, Limits, MessageLimit};
use crate::method::{MethodKind, MethodSpec};
use crate::transport::{Refusal, VersionRange};

/// The versions of the frame layout ([`crate::frame`]) and of the credit rules that this build
/// speaks.
pub const VERSIONS: VersionRange = VersionRange::only(4);

/// Clamps the wanted number of calls in flight on a connection: at least one, and no more than call
/// ids can distinguish.
pub(crate) fn clamp_in_flight(wanted: u32) -> u32 {
    wanted.clamp(1, CallId::MAX_INDEX)
}

/// Returns the length of the longest message that this side receives, as it states it in the
/// handshake.
pub(crate) fn stated_message_len(limits: &Limits) -> u32 {
    u32::try_from(limits.max_message_len.min(LONGEST_MESSAGE)).unwrap_or(u32::MAX)
}

/// Returns the length of the longest message that may be sent to a peer which has stated
/// `max_message_len` in the handshake.
pub(crate) fn longest_message(limits: &Limits, max_message_len: u32) -> MessageLimit {
    let of_sender = MessageLimit::new(limits.max_send_message_len, LengthLimit::Sender);
    MessageLimit::new(max_message_len as usize, LengthLimit::Receiver).and(of_sender)
}

/// The parameters of a connection that both sides know after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Unary calls that may be in flight at a time.
    pub max_in_flight: u32,
    /// Streams that may be open at a time.
    pub max_streams: u32,
    /// Frames that the client may send before it receives further credits.
    pub initial_credits: u32,
}

/// The client's session parameters.
#[derive(Clone, PartialEq, Message)]
pub struct ClientSession {
    /// The newest version of the frame layout that the client speaks.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Calls that the client wants to have in flight at a time.
    #[prost(uint32, tag = "2")]
    pub max_in_flight: u32,
    /// The oldest version of the frame layout that the client speaks.
    #[prost(uint32, tag = "3")]
    pub oldest_version: u32,
    /// Bytes that the server may send on each stream before it receives a window grant.
    #[prost(uint32, tag = "4")]
    pub stream_window: u32,
    /// Length in bytes of the longest message that the client receives.
    #[prost(uint32, tag = "5")]
    pub max_message_len: u32,
}

/// The server's session parameters.
#[derive(Clone, PartialEq, Message)]
pub struct ServerSession {
    /// Version of the frame layout that the server has chosen for the connection.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Calls that may be in flight at a time: the smaller of both sides' values.
    #[prost(uint32, tag = "2")]
    pub max_in_flight: u32,
    /// Requests that the client may send before it receives further credits.
    #[prost(uint32, tag = "3")]
    pub initial_credits: u32,
    /// The methods that the server implements, each with its number on this connection.
    #[prost(message, repeated, tag = "4")]
    pub methods: Vec<NumberedMethod>,
    /// Streams that may be open at a time.
    #[prost(uint32, tag = "5")]
    pub max_streams: u32,
    /// Bytes that the client may send on each stream before it receives a window grant.
    #[prost(uint32, tag = "6")]
    pub stream_window: u32,
    /// Length in bytes of the longest message that the server receives.
    #[prost(uint32, tag = "7")]
    pub max_message_len: u32,
}

/// A method with its number.
#[derive(Clone, PartialEq, Message)]
pub struct NumberedMethod {
    /// `package.Service/Method`: the method's name between peers.
    #[prost(string, tag = "1")]
    pub path: String,
    /// The method's number on this connection.
    #[prost(uint32, tag = "2")]
    pub number: u32,
    /// Which sides of the method stream: 0 neither, 1 the client, 2 the server, 3 both.
    #[prost(uint32, tag = "3")]
    pub kind: u32,
}

impl ClientSession {
    /// Creates the parameters of a client that speaks [`VERSIONS`].
    #[must_use]
    pub fn new(max_in_flight: u32, stream_window: u32, max_message_len: u32) -> Self {
        Self {
            version: VERSIONS.newest,
            max_in_flight,
            oldest_version: VERSIONS.oldest,
            stream_window,
            max_message_len,
        }
    }

    /// Decodes and validates a client's parameters. Returns them with the version to use: the newest
    /// that both sides speak.
    ///
    /// # Errors
    ///
    /// Returns a [`Refusal`] with the sentence to send to the client, if the parameters do not
    /// decode, one of them is missing, or the two sides speak no version in common.
    pub fn accept(bytes: &[u8]) -> Result<(Self, u32), Refusal> {
        Self::accept_in(VERSIONS, bytes)
    }

    fn accept_in(versions: VersionRange, bytes: &[u8]) -> Result<(Self, u32), Refusal> {
        let refusal = |reason| Refusal { reason };
        let session = Self::decode(bytes).map_err(|error| {
            refusal(format!(
                "cannot decode the client's session parameters: {error}"
            ))
        })?;
        let of_client = |missing| refusal(format!("the client's session parameters {missing}"));
        // The versions first: those that follow them may have other fields.
        let (oldest, newest) = (session.oldest_version, session.version);
        check_set(&[("version", newest), ("oldest_version", oldest)]).map_err(of_client)?;
        let client = VersionRange { oldest, newest };
        let Some(version) = versions.newest_common(client) else {
            return Err(refusal(format!(
                "the client speaks {client} of the frame layout, this server speaks {versions}: upgrade the older side"
            )));
        };
        check_set(&[
            ("max_in_flight", session.max_in_flight),
            ("stream_window", session.stream_window),
            ("max_message_len", session.max_message_len),
        ])
        .map_err(of_client)?;
        Ok((session, version))
    }
}

impl ServerSession {
    /// Creates the parameters of a server that implements `methods`, each with its number.
    /// `version` is the one that [`ClientSession::accept`] returned. The client may at first send
    /// `stream_window` bytes on each stream.
    #[must_use]
    pub fn new(
        version: u32,
        agreed: &Agreed,
        stream_window: u32,
        max_message_len: u32,
        methods: &[(u16, &'static MethodSpec)],
    ) -> Self {
        let methods = methods.iter().map(|&(number, spec)| NumberedMethod {
            path: spec.path.to_owned(),
            number: number.into(),
            kind: spec.kind.number(),
        });
        Self {
            version,
            max_in_flight: agreed.max_in_flight,
            initial_credits: agreed.initial_credits,
            methods: methods.collect(),
            max_streams: agreed.max_streams,
            stream_window,
            max_message_len,
        }
    }

    /// Decodes and validates a server's parameters.
    ///
    /// # Errors
    ///
    /// Returns a sentence that describes the problem, if the parameters do not decode, one of them is
    /// missing, or the server has chosen a version that this side does not speak.
    pub fn accept(bytes: &[u8]) -> Result<Self, String> {
        let session = Self::decode(bytes)
            .map_err(|error| format!("cannot decode its session parameters: {error}"))?;
        if !VERSIONS.contains(session.version) {
            return Err(format!(
                "the server chose version {} of the frame layout, this client speaks {VERSIONS}: upgrade the older side",
                session.version
            ));
        }
        check_set(&[
            ("max_in_flight", session.max_in_flight),
            ("max_streams", session.max_streams),
            ("initial_credits", session.initial_credits),
            ("stream_window", session.stream_window),
            ("max_message_len", session.max_message_len),
        ])
        .map_err(|missing| format!("its session parameters {missing}"))?;
        Ok(session)
    }

    /// Returns the parameters of the connection.
    #[must_use]
    pub fn agreed(&self) -> Agreed {
        Agreed {
            max_in_flight: self.max_in_flight,
            max_streams: self.max_streams,
            initial_credits: self.initial_credits,
        }
    }

    /// Returns the method numbers and kinds by path. A method whose number does not fit in a frame
    /// header, or whose kind this side does not know, is left out, so this side cannot call it.
    #[must_use]
    pub fn numbers(&self) -> HashMap<String, (u16, MethodKind)> {
        let methods = self.methods.iter().filter_map(|method| {
            let number = u16::try_from(method.number).ok()?;
            let kind = MethodKind::from_number(method.kind)?;
            Some((method.path.clone(), (number, kind)))
        });
        methods.collect()
    }
}

/// Checks that a peer has set these fields, none of which is ever 0. Otherwise, returns the end of a
/// sentence that names the first one.
fn check_set(fields: &[(&str, u32)]) -> Result<(), String> {
    match fields.iter().find(|(_, value)| *value == 0) {
        Some((name, _)) => Err(format!("do not say `{name}`, or it is 0")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::Idempotency;

    fn client(version: u32, oldest_version: u32) -> ClientSession {
        ClientSession {
            version,
            oldest_version,
            ..ClientSession::new(300, 70_000, 1000)
        }
    }

    fn server(version: u32) -> ServerSession {
        let agreed = Agreed {
            max_in_flight: 300,
            max_streams: 5,
            initial_credits: 1,
        };
        ServerSession::new(version, &agreed, 70_000, 1000, &[])
    }

    #[test]
    fn the_newest_common_version_is_chosen() {
        let versions = VersionRange {
            oldest: 2,
            newest: 4,
        };
        for (newest, oldest, chosen) in [(3, 1, 3), (9, 3, 4), (2, 2, 2), (4, 4, 4)] {
            let client = client(newest, oldest);
            let accepted = ClientSession::accept_in(versions, &client.encode_to_vec());
            assert_eq!(accepted.unwrap(), (client, chosen));
        }
    }

    #[test]
    fn versions_that_do_not_meet_are_refused_in_a_sentence_with_both() {
        for (newest, oldest, client_speaks) in [(3, 3, "version 3"), (9, 7, "versions 7 to 9")] {
            let client = client(newest, oldest);
            let refusal = ClientSession::accept(&client.encode_to_vec()).unwrap_err();
            assert_eq!(
                refusal.reason,
                format!(
                    "the client speaks {client_speaks} of the frame layout, this server speaks version 4: upgrade the older side"
                )
            );
        }
        for version in [3, 5] {
            assert_eq!(
                ServerSession::accept(&server(version).encode_to_vec()).unwrap_err(),
                format!(
                    "the server chose version {version} of the frame layout, this client speaks version 4: upgrade the older side"
                )
            );
        }
    }

    /// Selects a parameter.
    type Field<S> = fn(&mut S) -> &mut u32;

    #[test]
    fn parameters_that_are_missing_or_do_not_decode_are_refused() {
        assert!(ClientSession::accept(&[0xff]).is_err());
        assert!(ServerSession::accept(&[0xff]).is_err());
        let of_client: [(&str, Field<ClientSession>); 5] = [
            ("version", |session| &mut session.version),
            ("oldest_version", |session| &mut session.oldest_version),
            ("max_in_flight", |session| &mut session.max_in_flight),
            ("stream_window", |session| &mut session.stream_window),
            ("max_message_len", |session| &mut session.max_message_len),
        ];
        for (name, field) in of_client {
            let mut session = client(4, 4);
            *field(&mut session) = 0;
            let refusal = ClientSession::accept(&session.encode_to_vec()).unwrap_err();
            assert_eq!(
                refusal.reason,
                format!("the client's session parameters do not say `{name}`, or it is 0")
            );
        }
        let of_server: [(&str, Field<ServerSession>); 4] = [
            ("max_in_flight", |session| &mut session.max_in_flight),
            ("initial_credits", |session| &mut session.initial_credits),
            ("stream_window", |session| &mut session.stream_window),
            ("max_message_len", |session| &mut session.max_message_len),
        ];
        for (name, field) in of_server {
            let mut session = server(4);
            *field(&mut session) = 0;
            assert_eq!(
                ServerSession::accept(&session.encode_to_vec()).unwrap_err(),
                format!("its session parameters do not say `{name}`, or it is 0")
            );
        }
    }

    /// A change here means that other builds read something else. Unknown fields are ignored.
    #[test]
    fn the_bytes_of_the_parameters_do_not_change() {
        let session = ClientSession::new(300, 70_000, 1000);
        let mut client = session.encode_to_vec();
        assert_eq!(
            client,
            [8, 4, 16, 172, 2, 24, 4, 32, 240, 162, 4, 40, 232, 7]
        );
        let session = server(4);
        let mut server = session.encode_to_vec();
        assert_eq!(
            server,
            [8, 4, 16, 172, 2, 24, 1, 40, 5, 48, 240, 162, 4, 56, 232, 7]
        );
        // Field 100, a number.
        let unknown = [0xa0, 0x06, 1];
        client.extend(unknown);
        server.extend(unknown);
        assert_eq!(ClientSession::accept(&client).unwrap().1, 4);
        assert_eq!(ServerSession::accept(&server).unwrap(), session);
    }

    #[test]
    fn methods_are_numbered_with_their_kinds() {
        static WATCH: MethodSpec = MethodSpec::new(
            "a.B/Watch",
            MethodKind::ServerStreaming,
            Idempotency::Unknown,
            "q",
            "s",
        );
        let mut session = ServerSession::new(4, &server(4).agreed(), 1, 1, &[(7, &WATCH)]);
        let watch = (WATCH.path.to_owned(), (7, MethodKind::ServerStreaming));
        let unknown = |path: &str, number, kind| NumberedMethod {
            path: path.to_owned(),
            number,
            kind,
        };
        // Methods that this side cannot call.
        let methods = [unknown("a.B/Kind", 8, 4), unknown("a.B/Number", 1 << 16, 0)];
        session.methods.extend(methods);
        assert_eq!(session.numbers(), HashMap::from([watch]));
    }
}
