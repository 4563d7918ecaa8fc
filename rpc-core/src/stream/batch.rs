//! The form of messages in a frame of a stream: one message by itself, or a batch, in which a length
//! of four bytes, little-endian, precedes each message.

use bytes::Bytes;

use crate::codec::{BegunDecode, Codec, DecodeError};

/// Length of the prefix of a message in a batch.
pub const PREFIX_LEN: usize = 4;

/// What a message frame holds, as its header's selector says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageForm {
    /// No message.
    None,
    /// One message, without a prefix.
    One,
    /// Messages with a prefix each.
    Batch,
}

impl MessageForm {
    /// Returns the selector that says so.
    pub(crate) fn selector(self) -> u16 {
        match self {
            Self::None => 0,
            Self::One => 1,
            Self::Batch => 2,
        }
    }

    /// Returns the form that a peer's selector says, if there is one.
    pub(crate) fn from_selector(selector: u16) -> Option<Self> {
        match selector {
            0 => Some(Self::None),
            1 => Some(Self::One),
            2 => Some(Self::Batch),
            _ => None,
        }
    }
}

/// Appends the prefix of a message of `len` bytes.
#[inline]
pub(crate) fn push_prefix(batch: &mut Vec<u8>, len: usize) {
    // A message fits in a slot.
    batch.extend_from_slice(&(len as u32).to_le_bytes());
}

/// Takes the next message of a batch, which starts at `*at`, and moves `*at` behind it. The bytes
/// come from the peer.
///
/// # Errors
///
/// Returns an error if a length extends past the end.
#[inline]
pub fn next_message<'a>(batch: &'a [u8], at: &mut usize) -> Result<Option<&'a [u8]>, BatchError> {
    let rest = &batch[*at..];
    if rest.is_empty() {
        return Ok(None);
    }
    let Some((prefix, rest)) = rest.split_first_chunk::<PREFIX_LEN>() else {
        return Err(BatchError);
    };
    let len = u32::from_le_bytes(*prefix) as usize;
    let Some(message) = rest.get(..len) else {
        return Err(BatchError);
    };
    *at += PREFIX_LEN + len;
    Ok(Some(message))
}

/// A length in a batch extends past its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the length of a message in a batch extends past the end of the batch")]
pub struct BatchError;

/// The codec of a stream's messages, with its type erased.
#[derive(Debug)]
pub(crate) struct Decode<T> {
    /// Decodes a message from a batch.
    pub(super) copied: fn(&[u8]) -> Result<T, DecodeError>,
    /// Begins to decode a long message, whose memory its fields may share from this length on.
    pub(super) long: fn(&Bytes, usize) -> BegunDecode<T>,
}

impl<T> Decode<T> {
    /// Returns the codec `S`.
    pub(crate) const fn with<S: Codec<T>>() -> Self {
        Self {
            copied: S::decode,
            long: S::begin_decode,
        }
    }

    /// Returns the codec of a stream without a connection, which never decodes anything.
    pub(super) const fn nothing() -> Self {
        Self {
            copied: |_| unreachable!("no connection brings messages"),
            long: |_, _| unreachable!("no connection brings messages"),
        }
    }
}

impl<T> Clone for Decode<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Decode<T> {}
