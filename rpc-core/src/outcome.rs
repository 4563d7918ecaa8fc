//! Decodes the body of a response: the outcome of a call.

use std::time::Duration;

use prost::Message;

use crate::call_error::{CallError, Cause, Execution};
use crate::codec::DecodeError;
use crate::limits::{Direction, LengthLimit, MessageLimit};
use crate::message::Response;
use crate::metadata::Metadata;
use crate::protocol::frame::{ResponseHead, StatusBody, split_initial};
use crate::status::{Code, Status};

/// The parts of a successful response.
#[derive(Debug, Default)]
pub(crate) struct Outcome<'a> {
    pub(crate) initial_metadata: Metadata,
    pub(crate) trailing_metadata: Metadata,
    /// The encoded message, which is empty at the end of a stream of responses.
    pub(crate) message: &'a [u8],
}

impl Outcome<'_> {
    /// Returns the metadata alone, for a message that is decoded later.
    pub(crate) fn without_message(self) -> Outcome<'static> {
        Outcome {
            initial_metadata: self.initial_metadata,
            trailing_metadata: self.trailing_metadata,
            message: &[],
        }
    }

    /// Returns the response with this message, which was decoded.
    pub(crate) fn respond<T>(self, message: T) -> Response<T> {
        let mut response = Response::received(message, self.initial_metadata);
        if !self.trailing_metadata.is_empty() {
            *response.trailing_metadata_mut() = self.trailing_metadata;
        }
        response
    }
}

/// The metadata that the metadata section of a successful response holds if its header does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    /// The call has one response message.
    Initial,
    /// The call has a stream of response messages.
    Trailing,
}

/// Decodes the body of a response: a metadata section, then a message or the status of a failure.
///
/// # Errors
///
/// Returns the call's error if the code is not `OK` or the body cannot be decoded.
pub(crate) fn decode(
    head: ResponseHead,
    body: &[u8],
    section: Section,
) -> Result<Outcome<'_>, CallError> {
    // The length was validated when the header was parsed.
    let (metadata, message) = body.split_at(head.metadata_len.into());
    let (initial, trailing) = match (head.has_initial, section) {
        (true, _) => split(metadata)?,
        (false, Section::Initial) if head.code == Code::Ok.number() => (metadata, &[][..]),
        (false, _) => (&[][..], metadata),
    };
    let trailing_metadata = decode_metadata(trailing)?;
    if head.code == Code::Ok.number() {
        return Ok(Outcome {
            initial_metadata: decode_metadata(initial)?,
            trailing_metadata,
            message,
        });
    }
    let body = StatusBody::decode(message).map_err(|error| undecodable(error.into()))?;
    let status = Status::new(Code::from_number(head.code), body.message)
        .with_details(body.details)
        .with_metadata(trailing_metadata);
    Err(match head.pushback_us {
        0 => CallError::remote(status),
        // 1 stands for a call that did not start, and for no pushback.
        us => CallError::not_started(status, Duration::from_micros(u64::from(us) - 1)),
    })
}

/// Splits a metadata section into initial and trailing metadata.
fn split(metadata: &[u8]) -> Result<(&[u8], &[u8]), CallError> {
    split_initial(metadata)
        .map_err(|error| CallError::remote(Status::internal(format!("the server sent {error}"))))
}

/// Decodes metadata that the server sent.
pub(crate) fn decode_metadata(bytes: &[u8]) -> Result<Metadata, CallError> {
    Metadata::decode(bytes).map_err(|error| CallError::remote(Status::internal(error.to_string())))
}

/// Returns the error of a call whose response or message is longer than the method permits.
#[cold]
pub(crate) fn message_too_long(len: usize, limit: usize, direction: Direction) -> CallError {
    let limit = MessageLimit::new(limit, LengthLimit::Method);
    let status = Status::message_too_long(len, limit, direction);
    CallError::new(Cause::NotReceived(status), Execution::Answered)
}

/// Returns the error of a call whose response or message cannot be decoded.
#[cold]
pub(crate) fn undecodable(error: DecodeError) -> CallError {
    CallError::new(Cause::Undecodable(error), Execution::Answered)
}

/// Returns the error of a call whose server has sent something else than its response.
#[cold]
pub(crate) fn unexpected(what: &str) -> CallError {
    CallError::remote(Status::internal(format!(
        "the server sent {what} where a response was expected"
    )))
}
