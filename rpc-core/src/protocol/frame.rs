//! The frame header: the first sixteen bytes of every frame, little-endian.
//!
//! ```text
//!  0      1      2      4          8        10           12         16
//! ┌──────┬──────┬──────┬──────────┬────────┬────────────┬──────────┬──────────┬─────────┐
//! │ kind │flags │credit│ call id  │selector│metadata_len│time_us   │ metadata │ message │
//! │ u8   │ u8   │ u16  │ u32      │ u16    │ u16        │ u32      │          │         │
//! └──────┴──────┴──────┴──────────┴────────┴────────────┴──────────┴──────────┴─────────┘
//! ```
//!
//! | kind | selector | time_us | message |
//! | --- | --- | --- | --- |
//! | request | number of the method on this connection | deadline, 0 for none | encoded request |
//! | response | status code | pushback, 0 if the handler may have started | encoded response, or [`StatusBody`] if the code is not 0 |
//! | credit | 0 | 0 | none |
//!
//! | flag | meaning |
//! | --- | --- |
//! | 1 | the sender has consumed the receiver's credit frame |
//! | 2 | (request) the request took the client's last credit |
//! | 4 | (response, credit) the server is shutting down: the client must start no more calls |
//! | 8 | (credit, from a client) the credits are returned rather than granted |
//!
//! A deadline is a moment on the **receiver's** clock (`CLOCK_MONOTONIC`), in microseconds modulo
//! 2³², so that time which a request spends waiting counts, wherever it waits
//! (`clock.rs`). A pushback tells the client that the server
//! did not start the handler, and for how many microseconds it should send no further calls, plus 1.
//!
//! A frame with a kind or flag that is not listed here is rejected: the handshake agrees on the
//! version of this layout, so an unknown value is an error rather than a future extension.

use prost::Message;

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 16;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A call.
    Request,
    /// The only response to a call.
    Response,
    /// Credits alone, sent when no other frame can carry them.
    Credit,
}

/// Identifies a call between the two sides of a connection: an index into the client's call table
/// and a generation. The generation tells a response to this call from a late response to an
/// earlier call with the same index.
///
/// ```text
///  31          20 19                     0
/// ┌──────────────┬────────────────────────┐
/// │ generation   │ index                  │
/// └──────────────┴────────────────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub u32);

impl CallId {
    const INDEX_BITS: u32 = 20;

    /// The highest index, which bounds the calls that one connection can have in flight.
    pub const MAX_INDEX: u32 = (1 << Self::INDEX_BITS) - 1;

    /// Packs an id. Only the low twelve bits of the generation are used.
    #[must_use]
    pub fn new(index: u32, generation: u32) -> Self {
        debug_assert!(index <= Self::MAX_INDEX);
        Self(generation << Self::INDEX_BITS | index)
    }

    /// Returns the index into the client's call table.
    #[must_use]
    pub fn index(self) -> usize {
        (self.0 & Self::MAX_INDEX) as usize
    }
}

/// A validated header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// The sender has consumed the credit frame that the receiver had in flight.
    pub credit_ack: bool,
    /// The sender used its last credit for this request: it would benefit from a larger window.
    pub credits_spent: bool,
    /// The sender, a server, is shutting down: the client must start no more calls on this
    /// connection.
    pub going_away: bool,
    /// The credits of this credit frame are returned by the sender, a client.
    pub credits_returned: bool,
    /// Receives that the sender promises in addition to those promised before.
    pub credits: u16,
    /// The call that a request or response belongs to.
    pub call: CallId,
    /// The method's number (request) or the status code (response).
    pub selector: u16,
    /// Bytes of metadata after the header.
    pub metadata_len: u16,
    /// A request's deadline on the receiver's clock, 0 for none; or a response's pushback, 0 if the
    /// handler may have started.
    pub time_us: u32,
}

/// The fields of a validated response's header that its caller needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseHead {
    /// The number of the status code.
    pub(crate) code: u16,
    /// Bytes of metadata at the start of the body.
    pub(crate) metadata_len: u16,
    /// The metadata is the length of the initial metadata, the initial and the trailing metadata.
    pub(crate) has_initial: bool,
    /// One more than the microseconds for which the server wants no further calls; 0 if the handler
    /// may have started.
    pub(crate) pushback_us: u32,
}

/// The reason that bytes from a peer are not a valid frame. The connection that sent them is
/// closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame is shorter than a header.
    #[error("a frame of {len} bytes, shorter than the {HEADER_LEN}-byte header")]
    Truncated {
        /// Bytes received.
        len: usize,
    },
    /// This version has no such kind.
    #[error("a frame of unknown kind {kind}")]
    Kind {
        /// The byte received.
        kind: u8,
    },
    /// This version has no such flag.
    #[error("a frame with unknown flags {flags:#04x}")]
    Flags {
        /// The byte received.
        flags: u8,
    },
    /// The metadata would extend past the end of the frame.
    #[error("a frame of {len} bytes whose {metadata_len} bytes of metadata extend past its end")]
    MetadataLen {
        /// Length according to the header.
        metadata_len: usize,
        /// Bytes received.
        len: usize,
    },
}

impl FrameHeader {
    const KIND_REQUEST: u8 = 1;
    const KIND_RESPONSE: u8 = 2;
    const KIND_CREDIT: u8 = 3;
    const FLAG_CREDIT_ACK: u8 = 1;
    const FLAG_CREDITS_SPENT: u8 = 2;
    const FLAG_GOING_AWAY: u8 = 4;
    const FLAG_CREDITS_RETURNED: u8 = 8;
    const FLAGS: u8 = Self::FLAG_CREDIT_ACK
        | Self::FLAG_CREDITS_SPENT
        | Self::FLAG_GOING_AWAY
        | Self::FLAG_CREDITS_RETURNED;

    /// Writes the header to the first [`HEADER_LEN`] bytes of a frame.
    ///
    /// # Panics
    ///
    /// Panics if `frame` is shorter than [`HEADER_LEN`].
    #[inline(always)]
    pub fn encode(&self, frame: &mut [u8]) {
        let kind = match self.kind {
            FrameKind::Request => Self::KIND_REQUEST,
            FrameKind::Response => Self::KIND_RESPONSE,
            FrameKind::Credit => Self::KIND_CREDIT,
        };
        let mut flags = 0;
        if self.credit_ack {
            flags |= Self::FLAG_CREDIT_ACK;
        }
        if self.credits_spent {
            flags |= Self::FLAG_CREDITS_SPENT;
        }
        if self.going_away {
            flags |= Self::FLAG_GOING_AWAY;
        }
        if self.credits_returned {
            flags |= Self::FLAG_CREDITS_RETURNED;
        }
        // Two stores instead of seven: the compiler does not merge stores into parts of a byte
        // array.
        let low = u64::from(kind)
            | u64::from(flags) << 8
            | u64::from(self.credits) << 16
            | u64::from(self.call.0) << 32;
        let high = u64::from(self.selector)
            | u64::from(self.metadata_len) << 16
            | u64::from(self.time_us) << 32;
        frame[0..8].copy_from_slice(&low.to_le_bytes());
        frame[8..16].copy_from_slice(&high.to_le_bytes());
    }

    /// Parses a header that a peer sent and splits the rest of the frame into metadata and message.
    ///
    /// # Errors
    ///
    /// Returns [`FrameError`] if the bytes are not a frame of this version.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8], &[u8]), FrameError> {
        let Some((header, rest)) = frame.split_first_chunk::<HEADER_LEN>() else {
            return Err(FrameError::Truncated { len: frame.len() });
        };
        let bytes = u128::from_le_bytes(*header);
        let (low, high) = (bytes as u64, (bytes >> 64) as u64);
        let kind = match low as u8 {
            Self::KIND_REQUEST => FrameKind::Request,
            Self::KIND_RESPONSE => FrameKind::Response,
            Self::KIND_CREDIT => FrameKind::Credit,
            kind => return Err(FrameError::Kind { kind }),
        };
        let flags = (low >> 8) as u8;
        if flags & !Self::FLAGS != 0 {
            return Err(FrameError::Flags { flags });
        }
        let header = Self {
            kind,
            credit_ack: flags & Self::FLAG_CREDIT_ACK != 0,
            credits_spent: flags & Self::FLAG_CREDITS_SPENT != 0,
            going_away: flags & Self::FLAG_GOING_AWAY != 0,
            credits_returned: flags & Self::FLAG_CREDITS_RETURNED != 0,
            credits: (low >> 16) as u16,
            call: CallId((low >> 32) as u32),
            selector: high as u16,
            metadata_len: (high >> 16) as u16,
            time_us: (high >> 32) as u32,
        };
        let Some((metadata, message)) = rest.split_at_checked(usize::from(header.metadata_len))
        else {
            return Err(FrameError::MetadataLen {
                metadata_len: usize::from(header.metadata_len),
                len: frame.len(),
            });
        };
        Ok((header, metadata, message))
    }
}

/// The body of a response whose code is not 0, in place of a message.
#[derive(Clone, PartialEq, Message)]
pub struct StatusBody {
    /// A message for the person who reads the log.
    #[prost(string, tag = "1")]
    pub message: String,
    /// [`Status::details`](crate::Status::details).
    #[prost(bytes = "bytes", tag = "2")]
    pub details: bytes::Bytes,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers() -> impl Strategy<Value = FrameHeader> {
        let kind = prop_oneof![
            Just(FrameKind::Request),
            Just(FrameKind::Response),
            Just(FrameKind::Credit)
        ];
        (
            kind,
            any::<(bool, bool, bool, bool)>(),
            any::<u16>(),
            any::<u32>(),
            any::<u16>(),
            0u16..100,
            any::<u32>(),
        )
            .prop_map(
                |(
                    kind,
                    (credit_ack, credits_spent, going_away, credits_returned),
                    credits,
                    call,
                    selector,
                    metadata_len,
                    time_us,
                )| {
                    FrameHeader {
                        kind,
                        credit_ack,
                        credits_spent,
                        going_away,
                        credits_returned,
                        credits,
                        call: CallId(call),
                        selector,
                        metadata_len,
                        time_us,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_parsed(header in headers(), message in proptest::collection::vec(any::<u8>(), 0..64)) {
            let metadata = vec![7; usize::from(header.metadata_len)];
            let mut frame = vec![0; HEADER_LEN];
            header.encode(&mut frame);
            frame.extend(&metadata);
            frame.extend(&message);
            prop_assert_eq!(FrameHeader::parse(&frame), Ok((header, &metadata[..], &message[..])));
        }

        #[test]
        fn garbage_is_refused_or_parsed_within_its_bounds(frame in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok((_, metadata, message)) = FrameHeader::parse(&frame) {
                prop_assert_eq!(HEADER_LEN + metadata.len() + message.len(), frame.len());
            }
        }
    }

    #[test]
    fn each_fault_is_named() {
        assert_eq!(
            FrameHeader::parse(&[1; 15]),
            Err(FrameError::Truncated { len: 15 })
        );
        let mut frame = [0; 20];
        assert_eq!(
            FrameHeader::parse(&frame),
            Err(FrameError::Kind { kind: 0 })
        );
        frame[0] = 1;
        frame[1] = 0x80;
        assert_eq!(
            FrameHeader::parse(&frame),
            Err(FrameError::Flags { flags: 0x80 })
        );
        frame[1] = 0;
        frame[10] = 5;
        assert_eq!(
            FrameHeader::parse(&frame),
            Err(FrameError::MetadataLen {
                metadata_len: 5,
                len: 20
            })
        );
    }
}
