//! Encodes and parses the frames of the handshake.

use prost::Message;

use super::messages::{Handshake, handshake::Body};
use super::{HandshakeError, MAGIC, MAX_MESSAGE_LEN, VERSION};

/// Length of the magic, the version and the length field. It is the same in every version.
const PROLOGUE_LEN: usize = 10;

/// Encodes a message as a frame.
///
/// Fails only if the message is too long.
pub(crate) fn encode(body: Body) -> Result<Vec<u8>, HandshakeError> {
    let message = Handshake { body: Some(body) };
    let len = message.encoded_len();
    if len > MAX_MESSAGE_LEN {
        return Err(HandshakeError::TooLong { len });
    }
    let mut bytes = Vec::with_capacity(PROLOGUE_LEN + len);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_be_bytes());
    bytes.extend_from_slice(&(len as u32).to_be_bytes());
    message.encode_raw(&mut bytes);
    Ok(bytes)
}

/// Received bytes that have not been parsed yet.
///
/// Holds at most one frame and the bytes of a single read after it, provided that the caller calls
/// `feed` only after [`next`](Self::next) has returned `None`.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    bytes: Vec<u8>,
}

impl Inbound {
    /// Appends received bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns true if all bytes have been parsed.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the bytes that have not been parsed.
    pub(crate) fn into_rest(self) -> Vec<u8> {
        self.bytes
    }

    /// Parses the next message. Returns `None` if more bytes are needed.
    ///
    /// Fails at the first byte that cannot be part of a frame, so a peer that speaks another
    /// protocol is rejected at once instead of timing out.
    pub(crate) fn next(&mut self) -> Result<Option<Body>, HandshakeError> {
        let seen = self.bytes.len().min(MAGIC.len());
        if self.bytes[..seen] != MAGIC[..seen] {
            return Err(HandshakeError::Magic {
                got: self.bytes[..seen].to_vec(),
            });
        }
        let Some(version) = self.bytes.get(4..6) else {
            return Ok(None);
        };
        let remote = u16::from_be_bytes([version[0], version[1]]);
        if remote != VERSION {
            return Err(HandshakeError::Version { remote });
        }
        let Some(len) = self.bytes.get(6..PROLOGUE_LEN) else {
            return Ok(None);
        };
        let len = u32::from_be_bytes([len[0], len[1], len[2], len[3]]) as usize;
        if len > MAX_MESSAGE_LEN {
            return Err(HandshakeError::TooLong { len });
        }
        let Some(encoded) = self.bytes.get(PROLOGUE_LEN..PROLOGUE_LEN + len) else {
            return Ok(None);
        };
        let message = Handshake::decode(encoded)?;
        self.bytes.drain(..PROLOGUE_LEN + len);
        match message.body {
            Some(body) => Ok(Some(body)),
            None => Err(HandshakeError::Unexpected {
                wanted: "a message",
                got: "an empty one",
            }),
        }
    }
}

/// Returns the message's name, for errors.
pub(crate) fn name(body: &Body) -> &'static str {
    match body {
        Body::ClientHello(_) => "a client's hello",
        Body::ServerHello(_) => "a server's hello",
        Body::Ready(_) => "ready",
        Body::Refusal(_) => "a refusal",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::messages::{ClientHello, Ready, Refusal};
    use super::*;

    fn hello(session: Vec<u8>) -> Body {
        Body::ClientHello(ClientHello {
            endpoints: Vec::new(),
            max_frame_len: 4352,
            session,
            keepalive: true,
        })
    }

    #[test]
    fn a_frame_cut_at_every_byte_is_waited_for_and_then_read() {
        let frame = encode(hello(b"methods".to_vec())).unwrap();
        for cut in 0..frame.len() {
            let mut inbound = Inbound::default();
            inbound.feed(&frame[..cut]);
            assert!(inbound.next().unwrap().is_none(), "cut at {cut}");
            inbound.feed(&frame[cut..]);
            assert_eq!(inbound.next().unwrap(), Some(hello(b"methods".to_vec())));
            assert!(inbound.is_empty());
        }
    }

    #[test]
    fn frames_that_arrive_together_are_read_one_by_one() {
        let mut inbound = Inbound::default();
        inbound.feed(&encode(hello(vec![1])).unwrap());
        inbound.feed(&encode(Body::Ready(Ready {})).unwrap());
        assert_eq!(inbound.next().unwrap(), Some(hello(vec![1])));
        assert_eq!(inbound.next().unwrap(), Some(Body::Ready(Ready {})));
        assert!(inbound.is_empty());
    }

    #[test]
    fn a_wrong_first_byte_is_refused_before_the_second_comes() {
        let mut inbound = Inbound::default();
        inbound.feed(b"G");
        let error = inbound.next().unwrap_err();
        assert!(matches!(error, HandshakeError::Magic { .. }), "{error}");
    }

    #[test]
    fn another_version_is_named_whatever_follows() {
        let mut frame = encode(hello(Vec::new())).unwrap();
        frame[4..6].copy_from_slice(&9u16.to_be_bytes());
        frame.truncate(6);
        let mut inbound = Inbound::default();
        inbound.feed(&frame);
        assert!(matches!(
            inbound.next(),
            Err(HandshakeError::Version { remote: 9 })
        ));
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_its_bytes_come() {
        let mut frame = encode(hello(Vec::new())).unwrap();
        frame[6..10].copy_from_slice(&u32::MAX.to_be_bytes());
        let mut inbound = Inbound::default();
        inbound.feed(&frame[..10]);
        assert!(matches!(
            inbound.next(),
            Err(HandshakeError::TooLong { .. })
        ));
    }

    #[test]
    fn a_message_of_our_own_that_is_too_long_is_not_sent() {
        assert!(matches!(
            encode(hello(vec![0; MAX_MESSAGE_LEN])),
            Err(HandshakeError::TooLong { .. })
        ));
    }

    #[test]
    fn an_empty_message_is_refused() {
        let mut frame = encode(Body::Ready(Ready {})).unwrap();
        frame.truncate(PROLOGUE_LEN);
        frame[6..10].copy_from_slice(&0u32.to_be_bytes());
        let mut inbound = Inbound::default();
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
            let mut inbound = Inbound::default();
            for piece in pieces {
                inbound.feed(&piece);
                match inbound.next() {
                    Ok(_) => prop_assert!(inbound.bytes.len() <= PROLOGUE_LEN + MAX_MESSAGE_LEN),
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
            let mut inbound = Inbound::default();
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
            let mut inbound = Inbound::default();
            inbound.feed(&frame[..cut]);
            prop_assert!(inbound.next().unwrap().is_none());
            inbound.feed(&frame[cut..]);
            prop_assert_eq!(inbound.next().unwrap(), Some(body));
        }
    }
}
