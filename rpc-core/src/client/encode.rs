//! Encodes requests into frames, and decodes responses from frames.

use bytes::Bytes;

use crate::call_error::CallError;
use crate::codec::LongMessage;
use crate::codec::{Allocate, Chunks, Codec};
use crate::limits::Direction;
use crate::message::{Request, Response};
use crate::metadata::Metadata;
use crate::method::MethodSpec;
use crate::outcome::{self, Outcome, Section, message_too_long, undecodable};
use crate::protocol::frame::ResponseHead;
use crate::status::Code;
use crate::stream::long::LongRead;

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
    log_limited!(
        error,
        for method.path,
        method = method.path,
        "the encoded length of the request changed between two calls of `encoded_len`; the server will reject it"
    );
}

/// A request whose message does not fit a frame, encoded.
#[derive(Debug)]
pub(crate) struct EncodedRequest {
    pub(crate) metadata: Vec<u8>,
    pub(crate) message: Chunks,
}

impl EncodedRequest {
    /// Encodes a request. A message whose encoded length has changed becomes zeros, which the server's
    /// decoder rejects.
    #[cold]
    pub(crate) fn new<Q: Codec<Req>, Req>(
        request: &Request<Req>,
        lengths: RequestLengths,
        method: &MethodSpec,
        allocate: Allocate<'_>,
    ) -> Self {
        let mut metadata = vec![0; lengths.metadata];
        request.metadata().encode(&mut metadata);
        let encoded = Q::encode_chunks(request.get_ref(), lengths.message, allocate);
        let message = encoded.unwrap_or_else(|_| {
            length_changed(method);
            Bytes::from(vec![0; lengths.message]).into()
        });
        Self { metadata, message }
    }
}

/// Decodes a response whose message did not fit a frame.
#[cold]
pub(crate) fn decode_long<S: Codec<Res>, Res>(
    head: ResponseHead,
    long: &LongMessage,
    method: &MethodSpec,
) -> Result<Response<Res>, CallError> {
    let outcome = metadata_of_long(head, long, method)?;
    let decoded = S::decode_shared(&long.message, long.share_from).map_err(undecodable)?;
    long.count_copied(decoded.copied_len);
    Ok(outcome.respond(decoded.message))
}

/// Returns a response like [`decode_long`], of which the message is still to be decoded, perhaps beside the
/// poller.
#[cold]
pub(crate) fn read_long<Res>(
    head: ResponseHead,
    long: &LongMessage,
    method: &MethodSpec,
) -> Result<LongRead<Res>, CallError> {
    let outcome = metadata_of_long(head, long, method)?;
    Ok(LongRead::new(long.clone(), outcome))
}

fn metadata_of_long(
    head: ResponseHead,
    long: &LongMessage,
    method: &MethodSpec,
) -> Result<Outcome<'static>, CallError> {
    check_len(long.message.len(), method)?;
    let outcome = outcome::decode(head, &long.metadata, Section::Initial)?;
    Ok(outcome.without_message())
}

/// Decodes the body of a response: its metadata and its message.
#[inline]
pub(crate) fn decode<S: Codec<Res>, Res>(
    head: ResponseHead,
    body: &[u8],
    method: &MethodSpec,
) -> Result<Response<Res>, CallError> {
    let is_rare = head.code != Code::Ok.number() || head.metadata_len != 0;
    if is_rare || method.max_response_len.is_some() {
        return decode_rare::<S, Res>(head, body, method);
    }
    let message = S::decode(body).map_err(undecodable)?;
    Ok(Response::received(message, Metadata::new()))
}

/// Decodes a response with metadata, with a code other than `OK`, or of a method with a limit.
#[cold]
fn decode_rare<S: Codec<Res>, Res>(
    head: ResponseHead,
    body: &[u8],
    method: &MethodSpec,
) -> Result<Response<Res>, CallError> {
    let outcome = outcome::decode(head, body, Section::Initial)?;
    check_len(outcome.message.len(), method)?;
    let message = S::decode(outcome.message).map_err(undecodable)?;
    Ok(outcome.respond(message))
}

/// Checks the length of a response's message against the method's limit.
fn check_len(len: usize, method: &MethodSpec) -> Result<(), CallError> {
    match method.max_response_len {
        Some(limit) if len > limit as usize => {
            Err(message_too_long(len, limit as usize, Direction::Response))
        }
        _ => Ok(()),
    }
}
