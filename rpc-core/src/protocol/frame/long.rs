//! Long messages: the body of the frame that begins one, and the continuations.
//!
//! ```text
//!  0             4             8      10     12
//! ┌─────────────┬─────────────┬──────┬──────┬──────────────────────────┐
//! │ transfer id │ length of   │ form │ 0    │ first piece, which may   │
//! │ u32         │ message u32 │ u16  │ u16  │ be empty                 │
//! └─────────────┴─────────────┴──────┴──────┴──────────────────────────┘
//! ```
//!
//! The sender of a long message numbers it: the transfer id names it in its continuations, in place of
//! a call id, and in the receiver's control frames. The form is that of the pieces: [`FRAGMENT`] or
//! [`SEGMENTS`].
//!
//! | selector of a continuation | body |
//! | --- | --- |
//! | [`FRAGMENT`] | the next bytes of the message |
//! | [`SEGMENTS`] | [`RemoteSegment`]s, which the receiver reads: the next bytes of the message |
//! | [`ABANDONED`] | none: the sender sends no more of the message, because its call has ended or the receiver has stopped it |
//!
//! The pieces of one message arrive in their order, and together have its length unless the sender
//! abandons it. A continuation takes a credit.
//!
//! Entries of control frames answer: see [`ControlRequest`](super::ControlRequest). A sender of
//! fragments sends at most [`FREE_FRAGMENTS`](crate::protocol::connection::FREE_FRAGMENTS) bytes of a
//! message before the receiver has accepted it.

use super::{FrameError, FrameKind, HEADER_LEN};
use crate::transport::RemoteSegment;

/// Selector of a continuation, and form of a message: bytes of the message.
pub const FRAGMENT: u16 = 0;

/// Selector of a continuation, and form of a message: segments to read.
pub const SEGMENTS: u16 = 1;

/// Selector of the continuation that ends a message which the sender does not complete.
pub const ABANDONED: u16 = 2;

/// Length in bytes of a [`LongBody`] without its first piece.
pub const LONG_BODY_LEN: usize = 12;

/// Returns the most bytes of metadata in the first frame of a long message, whose frames have
/// `frame_len` bytes at most: it describes a segment too.
#[must_use]
pub fn room_for_metadata(frame_len: usize) -> usize {
    frame_len.saturating_sub(HEADER_LEN + LONG_BODY_LEN + RemoteSegment::ENCODED_LEN)
}

/// Identifies a long message between the two sides of a connection: an index into the sender's table
/// and a generation, packed like a [`CallId`](super::CallId).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u32);

/// The body of a frame that begins a long message, after the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongBody<'a> {
    /// The message's number.
    pub transfer: TransferId,
    /// Length of the message in bytes.
    pub len: u32,
    /// [`FRAGMENT`] or [`SEGMENTS`].
    pub form: u16,
    /// The first piece, in that form.
    pub piece: &'a [u8],
}

impl<'a> LongBody<'a> {
    /// Writes the body, apart from its first piece, to the first [`LONG_BODY_LEN`] bytes of `out`.
    ///
    /// # Panics
    ///
    /// Panics if `out` is shorter.
    pub fn encode(transfer: TransferId, len: u32, form: u16, out: &mut [u8]) {
        out[0..4].copy_from_slice(&transfer.0.to_le_bytes());
        out[4..8].copy_from_slice(&len.to_le_bytes());
        out[8..12].copy_from_slice(&u32::from(form).to_le_bytes());
    }

    /// Parses a body that a peer sent in a frame of this kind.
    ///
    /// # Errors
    ///
    /// Returns [`FrameError::LongBody`] if it is not one.
    pub fn parse(kind: FrameKind, body: &'a [u8]) -> Result<Self, FrameError> {
        let malformed = FrameError::LongBody {
            kind,
            len: body.len(),
        };
        let Some((head, piece)) = body.split_first_chunk::<LONG_BODY_LEN>() else {
            return Err(malformed);
        };
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let form = match word(8) {
            0 => FRAGMENT,
            1 => SEGMENTS,
            _ => return Err(malformed),
        };
        let is_whole = form == FRAGMENT || piece.len().is_multiple_of(RemoteSegment::ENCODED_LEN);
        if !is_whole || word(4) == 0 {
            return Err(malformed);
        }
        Ok(Self {
            transfer: TransferId(word(0)),
            len: word(4),
            form,
            piece,
        })
    }
}

/// The segments in a piece.
#[derive(Clone, Debug)]
pub struct Segments<'a>(std::slice::Iter<'a, [u8; RemoteSegment::ENCODED_LEN]>);

impl<'a> Segments<'a> {
    /// Reads the segments of a piece. The bytes behind the last whole segment are ignored.
    #[must_use]
    pub fn of(piece: &'a [u8]) -> Self {
        Self(piece.as_chunks().0.iter())
    }
}

impl Iterator for Segments<'_> {
    type Item = RemoteSegment;

    fn next(&mut self) -> Option<RemoteSegment> {
        self.0.next().copied().map(RemoteSegment::decode)
    }
}
