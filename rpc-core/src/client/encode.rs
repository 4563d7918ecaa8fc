//! Encodes requests into frames, and decodes responses from frames.

use prost::Message;

use crate::call_error::{CallError, Cause, Execution};
use crate::codec::Codec;
use crate::message::{Request, Response};
use crate::metadata::Metadata;
use crate::method::MethodSpec;
use crate::protocol::frame::{FrameHeader, StatusBody};
use crate::status::{Code, Status};

/// Lengths in bytes of the parts of a request that follow the frame's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLengths {
    pub(crate) metadata: usize,
    pub(crate) message: usize,
}

impl RequestLengths {
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
    method: &MethodSpec,
    out: &mut [u8],
) {
    let (metadata, message) = out.split_at_mut(request.metadata().encoded_len());
    request.metadata().encode(metadata);
    // The buffer was reserved to fit. A message whose encoded length has changed is zero-filled,
    // and the server's decoder rejects it.
    if Q::encode(request.get_ref(), message).is_err() {
        tracing::error!(
            method = method.path,
            "the encoded length of the request changed between two calls of `encoded_len`; the server will reject it"
        );
        message.fill(0);
    }
}

/// Decodes a frame that is known to be a response.
pub(crate) fn decode<S: Codec<Res>, Res>(frame: &[u8]) -> Result<Response<Res>, CallError> {
    let undecodable = |error| CallError::new(Cause::Undecodable(error), Execution::Answered);
    let not_a_frame = |_| CallError::remote(Status::internal("the response is not a valid frame"));
    let (header, metadata, message) = FrameHeader::parse(frame).map_err(not_a_frame)?;
    let metadata = Metadata::decode(metadata)
        .map_err(|error| CallError::remote(Status::internal(error.to_string())))?;
    if header.selector == Code::Ok.number() {
        let message = S::decode(message).map_err(undecodable)?;
        return Ok(Response::received(message, metadata));
    }
    let body = StatusBody::decode(message).map_err(undecodable)?;
    let status = Status::new(Code::from_number(header.selector), body.message)
        .with_details(body.details)
        .with_metadata(metadata);
    Err(CallError::remote(status))
}
