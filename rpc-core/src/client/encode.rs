//! Encodes requests into frames, and decodes responses from frames.

use crate::call_error::CallError;
use crate::codec::Codec;
use crate::message::{Request, Response};
use crate::metadata::Metadata;
use crate::method::MethodSpec;
use crate::outcome::{self, Section, undecodable};
use crate::protocol::frame::ResponseHead;
use crate::status::Code;

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
    let outcome = outcome::decode(head, body, Section::Initial)?;
    let message = S::decode(outcome.message).map_err(undecodable)?;
    let mut response = Response::received(message, outcome.initial_metadata);
    if !outcome.trailing_metadata.is_empty() {
        *response.trailing_metadata_mut() = outcome.trailing_metadata;
    }
    Ok(response)
}
