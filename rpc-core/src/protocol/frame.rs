//! The header in front of every frame: sixteen bytes, little-endian.
//!
//! ```text
//!  0      1      2      4          8        10           12         16
//! ┌──────┬──────┬──────┬──────────┬────────┬────────────┬──────────┬──────────┬─────────┐
//! │ kind │flags │credit│ call id  │selector│metadata_len│timeout_us│ metadata │ message │
//! │ u8   │ u8   │ u16  │ u32      │ u16    │ u16        │ u32      │          │         │
//! └──────┴──────┴──────┴──────────┴────────┴────────────┴──────────┴──────────┴─────────┘
//! ```
//!
//! | kind | selector | timeout_us | message |
//! | --- | --- | --- | --- |
//! | request | number of the method on this connection | time left, 0 for no limit | encoded request |
//! | response | code of the status | 0 | encoded response, or [`StatusBody`] if the code is not 0 |
//! | credit | 0 | 0 | none |
//!
//! | flag | meaning |
//! | --- | --- |
//! | 1 | the sender has consumed this side's credit frame |
//! | 2 | (request) it took the last credit that the client had |
//! | 4 | (response, credit) the server is shutting down: the client begins no more calls |
//! | 8 | (credit, from a client) the credits are not granted but given back |
//!
//! Kinds and flags that are not drawn here are refused: both sides agreed on the version of this
//! layout in the handshake, so an unknown one is a fault and not the future.

use std::time::Duration;

use prost::Message;

/// Bytes of a header.
pub const HEADER_LEN: usize = 16;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A call.
    Request,
    /// The one answer to a call.
    Response,
    /// Credits alone, when no other frame is there to carry them.
    Credit,
}

/// Names a call between the two sides of a connection: an index into the client's table, and a
/// generation that tells an answer to this call from a late one to an earlier call there.
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

    /// Calls that one connection can tell apart, and so may have under way.
    pub const MAX_INDEX: u32 = (1 << Self::INDEX_BITS) - 1;

    /// Packs an id. The generation is taken modulo its twelve bits.
    #[must_use]
    pub fn new(index: u32, generation: u32) -> Self {
        debug_assert!(index <= Self::MAX_INDEX);
        Self(generation << Self::INDEX_BITS | index)
    }

    /// The index in the client's call table.
    #[must_use]
    pub fn index(self) -> usize {
        (self.0 & Self::MAX_INDEX) as usize
    }
}

/// A header, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame is.
    pub kind: FrameKind,
    /// The sender has consumed the credit frame that this side had under way.
    pub credit_ack: bool,
    /// The sender has used its last credit for this request: a larger window would serve it.
    pub credits_spent: bool,
    /// The sender, a server, is shutting down: the client begins no more calls on this connection.
    pub going_away: bool,
    /// The credits of this credit frame are those that the sender, a client, gives back.
    pub credits_returned: bool,
    /// Receives that the sender promises in addition to those promised before.
    pub credits: u16,
    /// The call, for a request or response.
    pub call: CallId,
    /// The method's number (request) or the status code (response).
    pub selector: u16,
    /// Bytes of metadata behind the header.
    pub metadata_len: u16,
    /// Microseconds that a request may still take; 0 for no limit.
    pub timeout_us: u32,
}

/// Why bytes from a peer are not a frame. The connection that sent them ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Shorter than a header.
    #[error("a frame of {len} bytes is shorter than its header of {HEADER_LEN}")]
    Truncated {
        /// Bytes that came.
        len: usize,
    },
    /// A kind that this version does not have.
    #[error("a frame of unknown kind {kind}")]
    Kind {
        /// The byte that came.
        kind: u8,
    },
    /// A flag that this version does not have.
    #[error("a frame with unknown flags {flags:#04x}")]
    Flags {
        /// The byte that came.
        flags: u8,
    },
    /// The metadata would end behind the frame.
    #[error("a frame whose metadata of {metadata_len} bytes ends behind its {len} bytes")]
    MetadataLen {
        /// Length given in the header.
        metadata_len: usize,
        /// Bytes that came.
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
    /// If `frame` is shorter: the caller reserved it for this header.
    pub fn emit(&self, frame: &mut [u8]) {
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
        // Two stores instead of seven: the compiler does not join byte-array pieces by itself.
        let low = u64::from(kind)
            | u64::from(flags) << 8
            | u64::from(self.credits) << 16
            | u64::from(self.call.0) << 32;
        let high = u64::from(self.selector)
            | u64::from(self.metadata_len) << 16
            | u64::from(self.timeout_us) << 32;
        frame[0..8].copy_from_slice(&low.to_le_bytes());
        frame[8..16].copy_from_slice(&high.to_le_bytes());
    }

    /// Reads a header that a peer wrote, and splits what is behind it into metadata and message.
    ///
    /// # Errors
    ///
    /// [`FrameError`] if the bytes are not a frame of this version.
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
            timeout_us: (high >> 32) as u32,
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

/// A time allowed, as the header carries it: at least one microsecond, and 0 (no limit) for more
/// than the 71 minutes that 32 bits of microseconds hold; the client's own timer still ends those.
#[must_use]
pub fn timeout_us(left: Option<Duration>) -> u32 {
    left.map_or(0, |left| {
        u32::try_from(left.as_micros())
            .unwrap_or(0)
            .max(u32::from(left.as_micros() == 0))
    })
}

/// What a response carries in place of its message when its code is not 0.
#[derive(Clone, PartialEq, Message)]
pub struct StatusBody {
    /// For the person who reads the log.
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
                    timeout_us,
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
                        timeout_us,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(header in headers(), message in proptest::collection::vec(any::<u8>(), 0..64)) {
            let metadata = vec![7; usize::from(header.metadata_len)];
            let mut frame = vec![0; HEADER_LEN];
            header.emit(&mut frame);
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

    #[test]
    fn a_timeout_never_turns_into_no_limit_by_being_short() {
        assert_eq!(timeout_us(None), 0);
        assert_eq!(timeout_us(Some(Duration::ZERO)), 1);
        assert_eq!(timeout_us(Some(Duration::from_nanos(300))), 1);
        assert_eq!(timeout_us(Some(Duration::from_millis(2))), 2000);
        assert_eq!(timeout_us(Some(Duration::from_secs(3 * 3600))), 0);
    }
}
