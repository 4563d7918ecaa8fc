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
//! | kind | selector | time_us | body after the metadata |
//! | --- | --- | --- | --- |
//! | 1 request | number of the method on this connection | deadline, 0 for none | encoded request |
//! | 2 response | status code | pushback, 0 if the handler may have started | encoded response, or [`StatusBody`] if the code is not 0 |
//! | 3 control | [`EVICTED`] or 0 | 0 | [`ControlEntry`]s, which may be none |
//! | 4 message | [`NO_MESSAGE`], [`ONE_MESSAGE`] or [`MESSAGE_BATCH`] | window grant in bytes, 0 for none | what the selector states |
//! | 5 acknowledgement | 0 | 0 | none |
//! | 6 continuation | [`FRAGMENT`], [`SEGMENTS`] or [`ABANDONED`] | 0 | what the selector states |
//!
//! In a frame whose message is *long*, because it does not fit a frame, a [`LongBody`] is in the place of
//! the message, and continuations may follow it (`frame/long.rs`).
//!
//! | flag | meaning |
//! | --- | --- |
//! | 1 ack | the sender has consumed the receiver's control frame |
//! | 2 spent | (request, message, continuation, response with 0x10) the frame took the sender's last credit; ignored in other frames |
//! | 4 going away | (any kind, from the server) the server ends this connection, for its age or in a shutdown, or, in a control frame with [`EVICTED`], for another client: the client must start no more calls |
//! | 8 returned | (control) the credits are returned rather than granted |
//! | 0x10 stream | (request) the call is a stream: its response takes a credit; (response) it took one |
//! | 0x20 long | (request, response with the code 0, message with [`ONE_MESSAGE`]) the message is long |
//! | 0x40 last | (message, or request with 0x10, from the client) the client sends no further message of this call; a request of a stream without it has no message itself |
//! | 0x80 initial | (response) the metadata section has two parts ([`split_initial`]) |
//!
//! A message frame belongs to an open stream. Its window grant is for the messages of the same call
//! in the other direction. Only the first one from the server may have metadata: the call's initial
//! metadata. The metadata of a response without flag 0x80 is initial metadata if the call has one
//! response, and the code is 0; otherwise, it is trailing metadata.
//!
//! An acknowledgement has flag 1, and is sent when no other frame carries that flag. The control
//! frame and the acknowledgement are the only frames that need no credit of their own and answer no
//! request (`credit.rs`).
//!
//! A deadline is a moment on the **receiver's** clock (`CLOCK_MONOTONIC`), in microseconds modulo
//! 2³², so that time which a request spends waiting counts, wherever it waits
//! (`clock.rs`). A pushback tells the client that the server
//! did not start the handler, and for how many microseconds it should send no further calls, plus 1.
//!
//! A frame with a kind that is not listed here is rejected: the handshake agrees on the version of this
//! layout, so an unknown value is an error rather than a future extension.

mod control;
mod flags;
mod initial;
mod long;
#[cfg(test)]
mod tests;

pub use control::{ControlEntries, ControlEntry, ControlRequest, ENTRY_LEN};
pub use flags::Flags;
pub use initial::{INITIAL_LEN, split_initial};
pub use long::{
    ABANDONED, FRAGMENT, LONG_BODY_LEN, LongBody, SEGMENTS, Segments, TransferId, room_for_metadata,
};

use prost::Message;

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 16;

/// Selector of a message frame without a message: it half-closes, grants, or carries metadata.
pub const NO_MESSAGE: u16 = 0;

/// Selector of a message frame whose body is one encoded message.
pub const ONE_MESSAGE: u16 = 1;

/// Selector of a message frame whose body is a sequence of messages, each of which follows its
/// length as a little-endian `u32`.
pub const MESSAGE_BATCH: u16 = 2;

/// Selector of a control frame with [`Flags::GOING_AWAY`] by which a server without a connection left
/// says that it ends this one for a new client.
pub const EVICTED: u16 = 1;

/// The kind of a frame, with its value in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// The first frame of a call.
    Request = 1,
    /// The last frame of a call.
    Response = 2,
    /// Credits that no other frame can carry, cancellations, window grants, and the answers of a
    /// long message's receiver.
    Control = 3,
    /// Messages of an open stream.
    Message = 4,
    /// The acknowledgement of a control frame that no other frame can carry.
    Acknowledgement = 5,
    /// A further piece of a long message.
    Continuation = 6,
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

    /// Returns the number of calls that the entry had before this one, modulo 2¹².
    #[inline]
    #[must_use]
    pub(crate) fn generation(self) -> u32 {
        self.0 >> Self::INDEX_BITS
    }

    /// Returns the index into the client's call table.
    #[must_use]
    pub fn index(self) -> usize {
        (self.0 & Self::MAX_INDEX) as usize
    }
}

/// A validated header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameHeader {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// The flags.
    pub flags: Flags,
    /// Receives that the sender promises in addition to those promised before.
    pub credits: u16,
    /// The call that a request, response or message belongs to; or a continuation's
    /// [`TransferId`], with the same bits.
    pub call: CallId,
    /// The method's number (request), the status code (response), or the shape of the body
    /// (message, continuation).
    pub selector: u16,
    /// Bytes of metadata after the header.
    pub metadata_len: u16,
    /// A request's deadline on the receiver's clock, 0 for none; a response's pushback, 0 if the
    /// handler may have started; or a message's window grant in bytes.
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

/// The most that [`ResponseHead::pushback_us`] says: ten seconds. A server asks for one at most.
pub(crate) const MOST_PUSHBACK_US: u32 = 10_000_001;

impl ResponseHead {
    /// Returns the fields of a response's header.
    #[inline]
    pub(crate) fn of(header: &FrameHeader) -> Self {
        Self {
            code: header.selector,
            metadata_len: header.metadata_len,
            has_initial: header.flags.contains(Flags::INITIAL),
            // A peer's number: nobody waits longer, whatever it says.
            pushback_us: header.time_us.min(MOST_PUSHBACK_US),
        }
    }
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
    /// There is no such kind.
    #[error("a frame of unknown kind {kind}")]
    Kind {
        /// The byte received.
        kind: u8,
    },
    /// The metadata would extend past the end of the frame.
    #[error("a frame of {len} bytes whose {metadata_len} bytes of metadata extend past its end")]
    MetadataLen {
        /// Length according to the header.
        metadata_len: usize,
        /// Bytes received.
        len: usize,
    },
    /// The selector of a message frame or a continuation is none of the listed ones, that of a long
    /// message is not [`ONE_MESSAGE`], or that of a long response is not 0.
    #[error("a frame with selector {selector}, which frames of its kind cannot have")]
    Selector {
        /// The selector received.
        selector: u16,
    },
    /// A control frame has metadata, or its entries do not fill its body.
    #[error("a control frame with {metadata_len} bytes of metadata and a body of {len} bytes")]
    ControlLen {
        /// Bytes of metadata.
        metadata_len: usize,
        /// Bytes of the body.
        len: usize,
    },
    /// The body of a frame with a long message does not have its form; or a continuation has
    /// metadata, and `len` is the length of that.
    #[error("a {kind:?} frame with a malformed body of {len} bytes")]
    LongBody {
        /// The kind of the frame.
        kind: FrameKind,
        /// Bytes of the body.
        len: usize,
    },
    /// There are no entries of control frames with this value.
    #[error("a control frame with an entry of unknown value {value:#010x}")]
    ControlValue {
        /// The value received.
        value: u32,
    },
    /// The initial metadata of a response would extend past the end of its metadata.
    #[error("a response whose {metadata_len} bytes of metadata do not hold its initial metadata")]
    InitialLen {
        /// Bytes of metadata.
        metadata_len: usize,
    },
}

impl FrameHeader {
    /// Writes the header to the first [`HEADER_LEN`] bytes of a frame.
    ///
    /// # Panics
    ///
    /// Panics if `frame` is shorter than [`HEADER_LEN`].
    #[inline(always)]
    pub fn encode(&self, frame: &mut [u8]) {
        // Two stores instead of seven: the compiler does not merge stores into parts of a byte
        // array.
        let low = u64::from(self.kind as u8)
            | u64::from(self.flags.bits()) << 8
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
    /// Returns [`FrameError`] if the bytes are not a frame.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8], &[u8]), FrameError> {
        let Some((header, rest)) = frame.split_first_chunk::<HEADER_LEN>() else {
            return Err(FrameError::Truncated { len: frame.len() });
        };
        let bytes = u128::from_le_bytes(*header);
        let (low, high) = (bytes as u64, (bytes >> 64) as u64);
        let kind = match low as u8 {
            1 => FrameKind::Request,
            2 => FrameKind::Response,
            3 => FrameKind::Control,
            4 => FrameKind::Message,
            5 => FrameKind::Acknowledgement,
            6 => FrameKind::Continuation,
            kind => return Err(FrameError::Kind { kind }),
        };
        let header = Self {
            kind,
            flags: Flags::from_bits((low >> 8) as u8),
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
