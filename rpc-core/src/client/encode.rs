//! Encodes requests into frames, and decodes responses from frames.

use std::time::Duration;

use prost::{DecodeError, Message};

use crate::call_error::{CallError, Cause, Execution};
use crate::codec::Codec;
use crate::message::{Request, Response};
use crate::metadata::{Metadata, MetadataError, section};
use crate::method::MethodSpec;
use crate::protocol::frame::{ResponseHead, StatusBody};
use crate::status::{Code, Status};

/// Lengths in bytes of the parts of a request that follow the frame's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLengths {
    pub(crate) metadata: usize,
    pub(crate) message: usize,
}

impl RequestLengths {
    #[inline]
    pub(crate) fn new<Q: Codec<Req>, Req>(request: &Request<Req>) -> Self {
        Self {
            metadata: request.metadata().encoded_len(),
            message: Q::encoded_len(request.get_ref()),
        }
    }
}

/// Encodes metadata and message into a buffer of exactly their total length.
#[inline]
pub(crate) fn write_request<Q: Codec<Req>, Req>(
    request: &Request<Req>,
    lengths: RequestLengths,
    method: &MethodSpec,
    out: &mut [u8],
) {
    let (metadata, message) = out.split_at_mut(lengths.metadata);
    request.metadata().encode(metadata);
    // The buffer was made to fit. A message whose encoded length has changed is zero-filled, which
    // the server's decoder rejects unless the length is zero.
    if Q::encode(request.get_ref(), message).is_err() {
        length_changed(method);
        message.fill(0);
    }
}

#[cold]
fn length_changed(method: &MethodSpec) {
    tracing::error!(
        method = method.path,
        "the encoded length of the request changed between two calls of `encoded_len`; the server will reject it"
    );
}

/// Decodes the body of a response: its metadata and its message.
#[inline]
pub(crate) fn decode<S: Codec<Res>, Res>(
    head: ResponseHead,
    body: &[u8],
) -> Result<Response<Res>, CallError> {
    if head.code != Code::Ok.number() || head.metadata_len != 0 {
        return decode_rare::<S, Res>(head, body);
    }
    let message = S::decode(body).map_err(undecodable)?;
    Ok(Response::received(message, Metadata::new()))
}

/// Decodes a response with metadata or with a code other than `OK`.
#[cold]
fn decode_rare<S: Codec<Res>, Res>(
    head: ResponseHead,
    body: &[u8],
) -> Result<Response<Res>, CallError> {
    // The length was validated when the header was parsed.
    let (metadata, message) = body.split_at(head.metadata_len.into());
    let (mut metadata, trailing) = decode_metadata(head, metadata)
        .map_err(|error| CallError::remote(Status::internal(error.to_string())))?;
    if head.code == Code::Ok.number() {
        let message = S::decode(message).map_err(undecodable)?;
        let mut response = Response::received(message, metadata);
        if !trailing.is_empty() {
            *response.trailing_metadata_mut() = trailing;
        }
        return Ok(response);
    }
    metadata.append(trailing);
    let body = StatusBody::decode(message).map_err(undecodable)?;
    let status = Status::new(Code::from_number(head.code), body.message)
        .with_details(body.details)
        .with_metadata(metadata);
    Err(match head.pushback_us {
        0 => CallError::remote(status),
        // 1 stands for a call that did not start, and for no pushback.
        us => CallError::not_started(status, Duration::from_micros(u64::from(us) - 1)),
    })
}

/// Decodes the metadata of a response: the initial and the trailing metadata.
fn decode_metadata(
    head: ResponseHead,
    bytes: &[u8],
) -> Result<(Metadata, Metadata), MetadataError> {
    if head.has_initial {
        section::decode(bytes)
    } else {
        Ok((Metadata::decode(bytes)?, Metadata::new()))
    }
}

#[cold]
fn undecodable(error: DecodeError) -> CallError {
    CallError::new(Cause::Undecodable(error), Execution::Answered)
}
