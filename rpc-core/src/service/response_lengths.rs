//! [`ResponseLengths`]: the form of a response's metadata, and the lengths of the parts.

use crate::codec::{Allocate, Chunks, Codec, LengthChanged};
use crate::limits::{Direction, LengthLimit, MessageLimit};
use crate::message::Response;
use crate::metadata::section;
use crate::status::Status;

/// Lengths in bytes of the parts of a response that follow the frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseLengths {
    pub(crate) message: u32,
    /// All of the metadata section.
    pub(crate) metadata: u16,
    /// The metadata section is the length of the initial metadata (two bytes, little-endian), the
    /// initial and the trailing metadata. Otherwise it is the metadata of one kind: the initial
    /// metadata, or the trailing metadata of a stream of responses.
    pub(crate) has_initial: bool,
}

/// A response whose message does not fit a frame, encoded.
#[derive(Debug)]
pub(crate) struct EncodedResponse {
    pub(crate) metadata: Vec<u8>,
    pub(crate) message: Chunks,
}

impl ResponseLengths {
    /// Computes the lengths. `is_stream` is true if the messages have been sent as a stream: the
    /// response then ends it.
    #[inline(always)]
    pub(super) fn new<S: Codec<Res>, Res>(
        response: &Response<Res>,
        is_stream: bool,
    ) -> Result<Self, Status> {
        let (metadata, has_initial) = metadata_of(response, is_stream);
        let Ok(metadata) = u16::try_from(metadata) else {
            return Err(metadata_too_long(metadata, u16::MAX.into()));
        };
        let message = S::encoded_len(response.get_ref());
        let Ok(message) = u32::try_from(message) else {
            return Err(message_too_long(message));
        };
        Ok(Self {
            message,
            metadata,
            has_initial,
        })
    }

    /// Computes the lengths for a buffer that was made for them: the message's is what the metadata
    /// leaves.
    pub(super) fn within<Res>(response: &Response<Res>, is_stream: bool, total: usize) -> Self {
        let (metadata, has_initial) = metadata_of(response, is_stream);
        Self {
            message: total.saturating_sub(metadata) as u32,
            metadata: metadata as u16,
            has_initial,
        }
    }

    #[inline]
    pub(crate) fn total(self) -> usize {
        usize::from(self.metadata) + self.message as usize
    }
}

/// Returns the length of the metadata section, and whether it is of the form with both.
#[inline(always)]
fn metadata_of<Res>(response: &Response<Res>, is_stream: bool) -> (usize, bool) {
    let initial = response.metadata().encoded_len();
    if is_stream || response.may_have_trailing_metadata() {
        metadata_with_trailing(initial, response, is_stream)
    } else {
        (initial, false)
    }
}

#[cold]
fn metadata_with_trailing<Res>(
    initial: usize,
    response: &Response<Res>,
    is_stream: bool,
) -> (usize, bool) {
    let trailing = response.trailing_metadata().encoded_len();
    match (initial, trailing) {
        (_, 0) if !is_stream => (initial, false),
        (0, _) if is_stream => (trailing, false),
        _ => {
            let len = section::encoded_len(response.metadata(), response.trailing_metadata());
            (len, true)
        }
    }
}

/// Encodes metadata and message into a buffer of exactly their total length.
#[inline(always)]
pub(super) fn encode<S: Codec<Res>, Res>(
    response: &Response<Res>,
    len: ResponseLengths,
    out: &mut [u8],
) -> Result<(), Status> {
    let (metadata, message) = out.split_at_mut(len.metadata.into());
    if !metadata.is_empty() {
        encode_metadata(response, len.has_initial, metadata);
    }
    S::encode(response.get_ref(), message).map_err(|LengthChanged| length_changed())
}

/// Encodes a response whose message does not fit a frame, and drops it.
#[cold]
pub(super) fn encode_chunks<S: Codec<Res>, Res>(
    response: Response<Res>,
    len: ResponseLengths,
    allocate: Allocate<'_>,
) -> Result<EncodedResponse, Status> {
    let mut metadata = vec![0; len.metadata.into()];
    encode_metadata(&response, len.has_initial, &mut metadata);
    let message = S::encode_chunks(response.get_ref(), len.message as usize, allocate)
        .map_err(|LengthChanged| length_changed())?;
    drop(response);
    Ok(EncodedResponse { metadata, message })
}

#[cold]
fn encode_metadata<Res>(response: &Response<Res>, has_initial: bool, out: &mut [u8]) {
    let (initial, trailing) = (response.metadata(), response.trailing_metadata());
    if has_initial {
        section::encode(initial, trailing, out);
    } else {
        // One of them is empty, and encodes to nothing.
        initial.encode(out);
        trailing.encode(out);
    }
}

#[cold]
fn length_changed() -> Status {
    Status::internal(
        "the encoded length of the response changed between two calls of `encoded_len`",
    )
}

/// Builds the status of a response whose message is too long for any connection.
#[cold]
fn message_too_long(len: usize) -> Status {
    Status::message_too_long(len, MessageLimit::NONE, Direction::Response)
}

/// Builds the status of a response whose metadata is too long.
#[cold]
pub(crate) fn metadata_too_long(len: usize, limit: usize) -> Status {
    let exceeds = LengthLimit::Metadata.exceeded(limit, Direction::Response);
    Status::resource_exhausted(format!("the response's metadata of {len} bytes {exceeds}"))
}
