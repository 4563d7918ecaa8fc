//! Encodes and parses the frames of the handshake.

use std::fmt;

use prost::Message;
use rpc_core::transport::VersionRange;

use super::messages::{Handshake, handshake::Body};
use super::{HandshakeError, MAGIC, MAX_HELLO_LEN, MAX_MESSAGE_LEN, VERSIONS};

/// Offset of the versions that the sender speaks. The magic, the version of the message and the
/// length field precede them.
const RANGE_OFFSET: usize = 10;

/// Length of all that precedes the message. It is the same in every version.
pub(crate) const PROLOGUE_LEN: usize = RANGE_OFFSET + 4;

/// Encodes a message of `version` as a frame of a side that speaks `spoken`.
///
/// Fails only if the message is too long.
pub(super) fn encode(
    version: u32,
    spoken: VersionRange,
    body: Body,
) -> Result<Vec<u8>, HandshakeError> {
    let message = Handshake { body: Some(body) };
    let len = message.encoded_len();
    let limit = match &message.body {
        Some(Body::ClientHello(_)) => MAX_HELLO_LEN,
        _ => MAX_MESSAGE_LEN,
    };
    if len > limit {
        return Err(HandshakeError::TooLong { len, limit });
    }
    let mut bytes = Vec::with_capacity(PROLOGUE_LEN + len);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&wire_version(version));
    bytes.extend_from_slice(&(len as u32).to_be_bytes());
    bytes.extend_from_slice(&wire_version(spoken.oldest));
    bytes.extend_from_slice(&wire_version(spoken.newest));
    message.encode_raw(&mut bytes);
    Ok(bytes)
}

/// Returns a version as a frame contains it.
const fn wire_version(version: u32) -> [u8; 2] {
    // Lossless: a version is one of this build's, or was received with 16 bits.
    (version as u16).to_be_bytes()
}

const _: () = assert!(VERSIONS.newest <= u16::MAX as u32);

/// Which side reads, and the versions that it speaks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reader {
    /// A client.
    Client(VersionRange),
    /// A server.
    Server(VersionRange),
}

impl Reader {
    pub(super) fn spoken(self) -> VersionRange {
        match self {
            Self::Client(spoken) | Self::Server(spoken) => spoken,
        }
    }

    /// Returns the length of the longest message that the peer may send.
    fn max_message_len(self) -> usize {
        match self {
            Self::Client(_) => MAX_MESSAGE_LEN,
            Self::Server(_) => MAX_HELLO_LEN,
        }
    }

    /// Returns the newest version that this side and the peer speak.
    fn agree(self, peer: VersionRange) -> Result<u32, HandshakeError> {
        let (client, server) = match self {
            Self::Client(spoken) => (spoken, peer),
            Self::Server(spoken) => (peer, spoken),
        };
        client
            .newest_common(server)
            .ok_or(HandshakeError::Version { client, server })
    }
}

/// A parsed frame.
#[derive(Debug, PartialEq)]
pub(super) struct Frame {
    /// The version of the message.
    pub(super) version: u32,
    /// The newest version that both sides speak.
    pub(super) newest_common: u32,
    pub(super) body: Body,
}

/// How much of a message has arrived. Prints "nothing", "1 byte", "7 bytes" or "7 of 112 bytes".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    len: usize,
    /// The length of the whole frame, if its prologue has arrived.
    of: Option<usize>,
}

impl Received {
    /// The beginning of a message whose length is not known.
    pub(crate) fn beginning(len: usize) -> Self {
        Self { len, of: None }
    }

    pub(crate) fn is_nothing(self) -> bool {
        self.len == 0
    }
}

impl fmt::Display for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.len, self.of) {
            (0, _) => f.write_str("nothing"),
            (1, None) => f.write_str("1 byte"),
            (len, None) => write!(f, "{len} bytes"),
            (len, Some(of)) => write!(f, "{len} of {of} bytes"),
        }
    }
}

/// Received bytes that have not been parsed yet.
///
/// Holds at most one frame and the bytes of a single read after it, provided that the caller calls
/// `feed` only after [`next`](Self::next) has returned `None`.
#[derive(Debug)]
pub(super) struct Inbound {
    reader: Reader,
    bytes: Vec<u8>,
}

impl Inbound {
    pub(super) fn new(reader: Reader) -> Self {
        Self {
            reader,
            bytes: Vec::new(),
        }
    }

    /// Returns the versions that this side speaks.
    pub(super) fn spoken(&self) -> VersionRange {
        self.reader.spoken()
    }

    /// Returns how much of the next frame has arrived.
    pub(super) fn received(&self) -> Received {
        Received {
            len: self.bytes.len(),
            of: self
                .message_len()
                .map(|message_len| PROLOGUE_LEN + message_len),
        }
    }

    /// Appends received bytes, and allocates no more than they need: strangers have handshakes, too.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.reserve_exact(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns true if all bytes have been parsed.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the bytes that have not been parsed.
    pub(super) fn into_rest(self) -> Vec<u8> {
        self.bytes
    }

    /// Parses the next message. Returns `None` if more bytes are needed.
    ///
    /// Fails at the first byte that cannot be part of a frame, so a peer that speaks another
    /// protocol, or no version in common, is rejected at once instead of timing out.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, HandshakeError> {
        let seen = self.bytes.len().min(MAGIC.len());
        if self.bytes[..seen] != MAGIC[..seen] {
            return Err(HandshakeError::Magic {
                got: self.bytes[..seen].to_vec(),
            });
        }
        let newest_common = match self.peer_versions() {
            Some(peer) => Some(self.reader.agree(peer)?),
            None => None,
        };
        let Some(len) = self.message_len() else {
            return Ok(None);
        };
        let limit = self.reader.max_message_len();
        if len > limit {
            return Err(HandshakeError::TooLong { len, limit });
        }
        let (Some(version), Some(newest_common)) = (self.u16_at(4), newest_common) else {
            return Ok(None);
        };
        let Some(encoded) = self.bytes.get(PROLOGUE_LEN..PROLOGUE_LEN + len) else {
            return Ok(None);
        };
        let message = Handshake::decode(encoded)?;
        self.bytes.drain(..PROLOGUE_LEN + len);
        match message.body {
            Some(body) => Ok(Some(Frame {
                version,
                newest_common,
                body,
            })),
            None => Err(HandshakeError::Unexpected {
                wanted: "a message",
                got: "an empty one",
            }),
        }
    }

    /// Returns the versions that the sender of a frame speaks, once they have arrived.
    fn peer_versions(&self) -> Option<VersionRange> {
        Some(VersionRange {
            oldest: self.u16_at(RANGE_OFFSET)?,
            newest: self.u16_at(RANGE_OFFSET + 2)?,
        })
    }

    /// Returns the length field of the next frame, once it has arrived.
    fn message_len(&self) -> Option<usize> {
        let len = self.bytes.get(6..RANGE_OFFSET)?;
        Some(u32::from_be_bytes([len[0], len[1], len[2], len[3]]) as usize)
    }

    fn u16_at(&self, offset: usize) -> Option<u32> {
        let bytes = self.bytes.get(offset..offset + 2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]).into())
    }
}

/// Returns the message's name, for errors.
pub(super) fn name(body: &Body) -> &'static str {
    match body {
        Body::ClientHello(_) => "a client's hello",
        Body::ServerHello(_) => "a server's hello",
        Body::Ready(_) => "ready",
        Body::Refusal(_) => "a refusal",
        Body::Challenge(_) => "a challenge",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::messages::{ClientHello, Ready, Refusal};
    use super::*;

    fn inbound() -> Inbound {
        Inbound::new(Reader::Server(VERSIONS))
    }

    fn encode(body: Body) -> Result<Vec<u8>, HandshakeError> {
        super::encode(VERSIONS.newest, VERSIONS, body)
    }

    fn next(inbound: &mut Inbound) -> Option<Body> {
        inbound.next().unwrap().map(|frame| frame.body)
    }

    fn hello(session: Vec<u8>) -> Body {
        Body::ClientHello(ClientHello {
            endpoints: Vec::new(),
            max_frame_len: 4352,
            session,
        })
    }

    #[test]
    fn a_frame_cut_at_every_byte_is_waited_for_and_then_read() {
        let frame = encode(hello(b"methods".to_vec())).unwrap();
        for cut in 0..frame.len() {
            let mut inbound = inbound();
            inbound.feed(&frame[..cut]);
            assert!(inbound.next().unwrap().is_none(), "cut at {cut}");
            inbound.feed(&frame[cut..]);
            assert_eq!(next(&mut inbound), Some(hello(b"methods".to_vec())));
            assert!(inbound.is_empty());
        }
    }

    #[test]
    fn a_frame_that_arrives_byte_by_byte_takes_its_own_memory_only() {
        let frame = encode(hello(vec![1; MAX_HELLO_LEN - 20])).unwrap();
        let mut inbound = inbound();
        for byte in &frame[..frame.len() - 1] {
            inbound.feed(&[*byte]);
            assert!(inbound.next().unwrap().is_none());
        }
        let read = [&frame[frame.len() - 1..], &[0; 4095]].concat();
        inbound.feed(&read);
        let capacity = inbound.bytes.capacity();
        assert!(capacity <= frame.len() - 1 + read.len(), "{capacity}");
    }

    #[test]
    fn frames_that_arrive_together_are_read_one_by_one() {
        let mut inbound = inbound();
        inbound.feed(&encode(hello(vec![1])).unwrap());
        inbound.feed(&encode(Body::Ready(Ready {})).unwrap());
        assert_eq!(next(&mut inbound), Some(hello(vec![1])));
        assert_eq!(next(&mut inbound), Some(Body::Ready(Ready {})));
        assert!(inbound.is_empty());
    }

    #[test]
    fn a_wrong_first_byte_is_refused_before_the_second_comes() {
        let mut inbound = inbound();
        inbound.feed(b"G");
        let error = inbound.next().unwrap_err();
        assert!(matches!(error, HandshakeError::Magic { .. }), "{error}");
    }

    #[test]
    fn versions_that_do_not_meet_are_named_whatever_follows() {
        let range = |oldest, newest| VersionRange { oldest, newest };
        for (prologue, client) in [
            (&b"VBLN\0\x01\0\0\0\x01\0\x01\0\x01"[..], range(1, 1)),
            (b"VBLN\0\x09\0\0\0\x01\0\x07\0\x09", range(7, 9)),
        ] {
            let mut inbound = inbound();
            inbound.feed(&prologue[..prologue.len() - 1]);
            assert!(inbound.next().unwrap().is_none(), "{client}");
            inbound.feed(&prologue[prologue.len() - 1..]);
            match inbound.next() {
                Err(HandshakeError::Version {
                    client: got,
                    server,
                }) => {
                    assert_eq!((got, server), (client, VERSIONS));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Builds of other versions read these bytes.
    #[test]
    fn the_bytes_of_the_frames_do_not_change() {
        let spoken = VersionRange {
            oldest: 2,
            newest: 5,
        };
        let ready = super::encode(4, spoken, Body::Ready(Ready {})).unwrap();
        assert_eq!(ready, b"VBLN\0\x04\0\0\0\x02\0\x02\0\x05\x1a\0");
        let refusal = Body::Refusal(Refusal {
            reason: "no".to_owned(),
        });
        let refusal = super::encode(2, spoken, refusal).unwrap();
        assert_eq!(
            refusal,
            b"VBLN\0\x02\0\0\0\x06\0\x02\0\x05\x22\x04\x0a\x02no"
        );
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_its_bytes_come() {
        let mut frame = encode(hello(Vec::new())).unwrap();
        // A server's hello may be longer than a client's.
        for (reader, limit) in [
            (Reader::Server(VERSIONS), MAX_HELLO_LEN),
            (Reader::Client(VERSIONS), MAX_MESSAGE_LEN),
        ] {
            for len in [limit as u32 + 1, u32::MAX] {
                frame[6..10].copy_from_slice(&len.to_be_bytes());
                let mut inbound = Inbound::new(reader);
                inbound.feed(&frame[..10]);
                assert!(matches!(
                    inbound.next(),
                    Err(HandshakeError::TooLong { .. })
                ));
            }
        }
    }

    #[test]
    fn a_message_of_our_own_that_is_too_long_is_not_sent() {
        assert!(matches!(
            encode(hello(vec![0; MAX_HELLO_LEN])),
            Err(HandshakeError::TooLong { .. })
        ));
    }

    #[test]
    fn an_empty_message_is_refused() {
        let mut frame = encode(Body::Ready(Ready {})).unwrap();
        frame.truncate(PROLOGUE_LEN);
        frame[6..10].copy_from_slice(&0u32.to_be_bytes());
        let mut inbound = inbound();
        inbound.feed(&frame);
        assert!(matches!(
            inbound.next(),
            Err(HandshakeError::Unexpected { .. })
        ));
    }

    proptest! {
        #[test]
        fn garbage_in_pieces_never_panics_and_never_grows_past_a_frame(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..32),
        ) {
            let mut inbound = inbound();
            for piece in pieces {
                inbound.feed(&piece);
                match inbound.next() {
                    Ok(_) => prop_assert!(inbound.bytes.len() <= PROLOGUE_LEN + MAX_HELLO_LEN),
                    Err(_) => break,
                }
            }
        }

        /// Changes one byte of a valid frame, for example in its length field: the result is a
        /// message, a wait for more bytes, or an error with a message, but never a panic.
        #[test]
        fn a_frame_with_one_byte_changed_never_panics(
            session in prop::collection::vec(any::<u8>(), 0..256),
            at in any::<prop::sample::Index>(),
            value in any::<u8>(),
        ) {
            let mut frame = encode(hello(session)).unwrap();
            let at = at.index(frame.len());
            frame[at] = value;
            let mut inbound = inbound();
            inbound.feed(&frame);
            if let Err(error) = inbound.next() {
                prop_assert!(!error.to_string().is_empty());
            }
        }

        #[test]
        fn what_is_emitted_is_parsed_back_wherever_it_is_cut(
            reason in ".{0,200}",
            cut in any::<prop::sample::Index>(),
        ) {
            let body = Body::Refusal(Refusal { reason });
            let frame = encode(body.clone()).unwrap();
            let cut = cut.index(frame.len());
            let mut inbound = inbound();
            inbound.feed(&frame[..cut]);
            prop_assert!(inbound.next().unwrap().is_none());
            inbound.feed(&frame[cut..]);
            prop_assert_eq!(next(&mut inbound), Some(body));
        }
    }
}
