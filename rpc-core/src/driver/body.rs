//! [`Body`]: the metadata and the message of a request or a response that has arrived.

use crate::codec::LongMessage;
use crate::protocol::frame::{HEADER_LEN, ResponseHead};

/// The metadata and the message of a request or a response.
#[derive(Debug)]
pub(crate) enum Body<B> {
    /// Their frame is still in its receive slot.
    Slot(B),
    /// Their frame was copied out, because the slot was needed and nobody had taken the response yet.
    Copied(Vec<u8>),
    /// The message did not fit a frame.
    Long(Box<LongMessage>),
}

/// What is in a [`Body`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum BodyRef<'a> {
    /// What follows the header of a frame.
    Frame(&'a [u8]),
    Long(&'a LongMessage),
}

/// The response to a call, until its caller takes it.
#[derive(Debug)]
pub(crate) struct Response<B> {
    pub(crate) head: ResponseHead,
    pub(crate) body: Body<B>,
}

impl<B> Body<B> {
    /// Returns the receive slot, if the frame is still in it. Drops what is elsewhere.
    #[inline(always)]
    pub(super) fn into_slot(self) -> Option<B> {
        match self {
            Self::Slot(slot) => Some(slot),
            Self::Copied(_) | Self::Long(_) => None,
        }
    }
}

impl<B: AsRef<[u8]>> Body<B> {
    #[inline(always)]
    pub(crate) fn as_ref(&self) -> BodyRef<'_> {
        let frame = match self {
            Self::Long(long) => return BodyRef::Long(long),
            Self::Slot(frame) => frame.as_ref(),
            Self::Copied(frame) => frame,
        };
        // The frame's header has been parsed.
        BodyRef::Frame(&frame[HEADER_LEN..])
    }

    /// Returns the metadata and the message. The header, which says the length of the metadata in bytes,
    /// has been parsed: they are within the frame.
    #[inline(always)]
    pub(super) fn split(&self, metadata_len: u16) -> (&[u8], &[u8]) {
        match self.as_ref() {
            BodyRef::Frame(body) => body.split_at(metadata_len.into()),
            BodyRef::Long(long) => (&long.metadata, &long.message),
        }
    }

    /// Returns the message if it did not fit a frame.
    #[inline(always)]
    pub(super) fn long(&self) -> Option<&LongMessage> {
        match self {
            Self::Long(long) => Some(long),
            Self::Slot(_) | Self::Copied(_) => None,
        }
    }
}

impl<B: AsRef<[u8]>> Response<B> {
    /// Returns metadata and message if they are in a frame and have at most `longest` bytes.
    #[inline]
    pub(crate) fn short_body(&self, longest: usize) -> Option<&[u8]> {
        match self.body.as_ref() {
            BodyRef::Frame(body) if body.len() <= longest => Some(body),
            _ => None,
        }
    }
}
