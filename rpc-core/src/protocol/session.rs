//! The session parameters that both sides exchange in the handshake, carried inside the transport's
//! own handshake messages.
//!
//! These types are the messages of `proto/session.proto`. Fields are only ever added, so that old
//! and new peers can interoperate; the newest version of [`VERSIONS`] changes when an old peer could
//! misread a frame. The client states the versions that it speaks, and the server chooses the newest
//! that both sides speak.
//!
//! The server's parameters contain its method table: the name and the number of each method. The
//! client looks up a method by name when the method is first called. If the server lacks a method,
//! only the calls of that method fail. The same holds if the two sides disagree about which sides of
//! the method stream.
//!
//! | version | change |
//! | --- | --- |
//! | 2 | unary calls |
//! | 3 | streams, cancellations, acknowledgement frames |
//! | 4 | messages that are longer than a slot |

use std::collections::HashMap;

use prost::Message;

use super::frame::CallId;
use crate::limits::{LONGEST_MESSAGE, LengthLimit, Limits, MessageLimit};
use crate::method::{MethodKind, MethodSpec};
use crate::transport::{Refusal, VersionRange};

/// The versions of the frame layout ([`crate::frame`]) and of the credit rules that this build
/// speaks.
pub const VERSIONS: VersionRange = VersionRange {
    oldest: 2,
    newest: 4,
};

/// The first version with streams.
const STREAMS_SINCE: u32 = 3;

/// The first version with messages that are longer than a slot.
const LONG_MESSAGES_SINCE: u32 = 4;

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
    let of_receiver = match max_message_len {
        // A peer of an older version, whose slots bound its messages.
        0 => LONGEST_MESSAGE,
        stated => stated as usize,
    };
    let of_sender = MessageLimit::new(limits.max_send_message_len, LengthLimit::Sender);
    MessageLimit::new(of_receiver, LengthLimit::Receiver).and(of_sender)
}

/// The parameters of a connection that both sides know after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Version of the frame layout.
    pub version: u32,
    /// Unary calls that may be in flight at a time.
    pub max_in_flight: u32,
    /// Streams that may be open at a time. 0 if the version has no streams.
    pub max_streams: u32,
    /// Frames that the client may send before it receives further credits.
    pub initial_credits: u32,
}

impl Agreed {
    /// Returns true if the version has streams, cancellations and acknowledgement frames.
    #[must_use]
    pub const fn speaks_streams(&self) -> bool {
        self.version >= STREAMS_SINCE
    }

    /// Returns true if the version has messages that are longer than a slot.
    #[must_use]
    pub const fn speaks_long_messages(&self) -> bool {
        self.version >= LONG_MESSAGES_SINCE
    }
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
    /// The oldest version of the frame layout that the client speaks. 0 if it speaks only `version`.
    #[prost(uint32, tag = "3")]
    pub oldest_version: u32,
    /// Bytes that the server may send on each stream before it receives a window grant.
    #[prost(uint32, tag = "4")]
    pub stream_window: u32,
    /// Length in bytes of the longest message that the client receives. 0 if it does not say: a
    /// message fits a slot.
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
    /// Length in bytes of the longest message that the server receives. 0 if it does not say: a
    /// message fits a slot.
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
    /// decode or the two sides speak no version in common.
    pub fn accept(bytes: &[u8]) -> Result<(Self, u32), Refusal> {
        Self::accept_in(VERSIONS, bytes)
    }

    fn accept_in(versions: VersionRange, bytes: &[u8]) -> Result<(Self, u32), Refusal> {
        let session = Self::decode(bytes).map_err(|error| Refusal {
            reason: format!("cannot decode the client's session parameters: {error}"),
        })?;
        let client = session.versions();
        match versions.newest_common(client) {
            Some(version) => Ok((session, version)),
            None => Err(Refusal {
                reason: format!(
                    "the client speaks {client} of the frame layout, this server speaks {versions}: upgrade the older side"
                ),
            }),
        }
    }

    fn versions(&self) -> VersionRange {
        let newest = self.version;
        let oldest = match self.oldest_version {
            0 => newest,
            stated => stated,
        };
        VersionRange { oldest, newest }
    }
}

impl ServerSession {
    /// Creates the parameters of a server that implements `methods`, each with its number.
    /// `agreed.version` is the one that [`ClientSession::accept`] returned. Each side of a stream may
    /// at first send `stream_window` bytes.
    #[must_use]
    pub fn new(
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
        let streams = agreed.speaks_streams();
        Self {
            version: agreed.version,
            max_in_flight: agreed.max_in_flight,
            initial_credits: agreed.initial_credits,
            methods: methods.collect(),
            max_streams: if streams { agreed.max_streams } else { 0 },
            stream_window: if streams { stream_window } else { 0 },
            max_message_len: if agreed.speaks_long_messages() {
                max_message_len
            } else {
                0
            },
        }
    }

    /// Decodes and validates a server's parameters.
    ///
    /// # Errors
    ///
    /// Returns a sentence that describes the problem, if the parameters do not decode, the server
    /// has chosen a version that this side does not speak, or it permits no calls.
    pub fn accept(bytes: &[u8]) -> Result<Self, String> {
        let session = Self::decode(bytes)
            .map_err(|error| format!("cannot decode its session parameters: {error}"))?;
        if !VERSIONS.contains(session.version) {
            return Err(format!(
                "the server chose version {} of the frame layout, this client speaks {VERSIONS}: upgrade the older side",
                session.version
            ));
        }
        if session.max_in_flight == 0 || session.initial_credits == 0 {
            return Err("it permits no calls".to_owned());
        }
        Ok(session)
    }

    /// Returns the parameters of the connection.
    #[must_use]
    pub fn agreed(&self) -> Agreed {
        let mut agreed = Agreed {
            version: self.version,
            max_in_flight: self.max_in_flight,
            max_streams: self.max_streams,
            initial_credits: self.initial_credits,
        };
        if !agreed.speaks_streams() {
            agreed.max_streams = 0;
        }
        agreed
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::Idempotency;

    fn client(version: u32, oldest_version: u32) -> Vec<u8> {
        let session = ClientSession {
            version,
            max_in_flight: 1,
            oldest_version,
            stream_window: 0,
            max_message_len: 0,
        };
        session.encode_to_vec()
    }

    fn server(version: u32, max_in_flight: u32) -> Vec<u8> {
        let agreed = Agreed {
            version,
            max_in_flight,
            max_streams: 5,
            initial_credits: 1,
        };
        ServerSession::new(&agreed, 70_000, 1000, &[]).encode_to_vec()
    }

    #[test]
    fn the_newest_common_version_is_chosen() {
        let versions = VersionRange {
            oldest: 2,
            newest: 4,
        };
        for (newest, oldest, chosen) in [(3, 1, 3), (9, 3, 4), (2, 0, 2), (4, 4, 4)] {
            let (session, version) =
                ClientSession::accept_in(versions, &client(newest, oldest)).unwrap();
            assert_eq!(version, chosen);
            assert_eq!(session.max_in_flight, 1);
        }
    }

    #[test]
    fn versions_that_do_not_meet_are_refused_in_a_sentence_with_both() {
        let refusal = ClientSession::accept(&client(1, 0)).unwrap_err();
        assert_eq!(
            refusal.reason,
            "the client speaks version 1 of the frame layout, this server speaks versions 2 to 4: upgrade the older side"
        );
        let refusal = ClientSession::accept(&client(9, 7)).unwrap_err();
        assert_eq!(
            refusal.reason,
            "the client speaks versions 7 to 9 of the frame layout, this server speaks versions 2 to 4: upgrade the older side"
        );
        assert_eq!(
            ServerSession::accept(&server(1, 1)).unwrap_err(),
            "the server chose version 1 of the frame layout, this client speaks versions 2 to 4: upgrade the older side"
        );
    }

    #[test]
    fn parameters_that_permit_nothing_or_do_not_decode_are_refused() {
        assert!(ClientSession::accept(&[0xff]).is_err());
        assert!(ServerSession::accept(&[0xff]).is_err());
        assert!(ServerSession::accept(&server(VERSIONS.newest, 0)).is_err());
        assert!(ServerSession::accept(&server(VERSIONS.newest, 1)).is_ok());
    }

    /// The parameters as the versions encode them: of version 1, as its last build sent them, and of
    /// this one. A change here means that other builds read something else.
    #[test]
    fn the_bytes_of_the_parameters_do_not_change() {
        assert_eq!(
            ClientSession::new(300, 70_000, 1000).encode_to_vec(),
            [8, 4, 16, 172, 2, 24, 2, 32, 240, 162, 4, 40, 232, 7]
        );
        let version_1 = ClientSession::decode(&[8, 1, 16, 172, 2][..]).unwrap();
        assert_eq!(version_1.versions(), VersionRange::only(1));
        assert_eq!(version_1.max_in_flight, 300);
        let (version_2, version) = ClientSession::accept(&[8, 2, 16, 172, 2, 24, 2]).unwrap();
        assert_eq!((version, version_2.stream_window), (2, 0));
        // A client of version 2 is sent nothing about streams.
        assert_eq!(server(2, 300), [8, 2, 16, 172, 2, 24, 1]);
        assert_eq!(
            server(3, 300),
            [8, 3, 16, 172, 2, 24, 1, 40, 5, 48, 240, 162, 4]
        );
        let version_2 = ServerSession::accept(&server(2, 300)).unwrap();
        assert_eq!(version_2.agreed().max_streams, 0);
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
        let agreed = ServerSession::accept(&server(3, 1)).unwrap().agreed();
        let mut session = ServerSession::new(&agreed, 1, 0, &[(7, &WATCH)]);
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
