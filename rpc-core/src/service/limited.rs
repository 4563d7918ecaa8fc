//! [`Limited`]: a method that has limits of its own for the lengths of its messages. Methods without
//! limits are not wrapped, so their calls do no checks.

use std::task::Context;

use super::handler::{EncodedResponse, Handler, HandlerKey, RawRequest, ResponseLengths, Served};
use crate::codec::Allocate;
use crate::limits::{Direction, LengthLimit, MessageLimit};
use crate::method::{MethodKind, MethodSpec};
use crate::status::Status;

/// A method whose requests and responses are checked, as far as they fit a frame. The driver checks
/// long ones, and the messages of streams are checked by their readers and writers.
pub(super) struct Limited<H> {
    handler: H,
    longest_request: usize,
    longest_response: usize,
}

impl<H> Limited<H> {
    /// Returns the handler again if the method has no limit.
    pub(super) fn of(spec: &MethodSpec, handler: H) -> Result<Self, H> {
        if spec.max_request_len.is_none() && spec.max_response_len.is_none() {
            return Err(handler);
        }
        let at_most = |len: Option<u32>| len.map_or(usize::MAX, |len| len as usize);
        Ok(Self {
            handler,
            longest_request: at_most(spec.max_request_len),
            longest_response: at_most(spec.max_response_len),
        })
    }

    fn check(&self, served: Served) -> Served {
        let limit = self.longest_response;
        match served {
            Served::Encoded(len) if len.message as usize > limit => {
                Served::Failed(too_long(len.message as usize, limit, Direction::Response))
            }
            served => served,
        }
    }
}

/// Builds the status of a message that is longer than its method permits.
#[cold]
fn too_long(len: usize, limit: usize, direction: Direction) -> Status {
    let limit = MessageLimit::new(limit, LengthLimit::Method);
    Status::message_too_long(len, limit, direction)
}

impl<H: Handler> Handler for Limited<H> {
    fn kind(&self) -> MethodKind {
        self.handler.kind()
    }

    fn serve(&self, request: RawRequest<'_>, cx: &mut Context<'_>, out: &mut [u8]) -> Served {
        let (len, limit) = (request.message.len(), self.longest_request);
        if len > limit {
            return Served::NotStarted(too_long(len, limit, Direction::Request));
        }
        self.check(self.handler.serve(request, cx, out))
    }

    fn resume(&self, key: HandlerKey, cx: &mut Context<'_>, out: &mut [u8]) -> Served {
        self.check(self.handler.resume(key, cx, out))
    }

    fn encode_response(&self, key: HandlerKey, out: &mut [u8]) -> Result<(), Status> {
        self.handler.encode_response(key, out)
    }

    fn encode_chunks(
        &self,
        key: HandlerKey,
        len: ResponseLengths,
        allocate: Allocate<'_>,
    ) -> Result<EncodedResponse, Status> {
        self.handler.encode_chunks(key, len, allocate)
    }

    fn discard(&self, key: HandlerKey) {
        self.handler.discard(key);
    }

    #[cfg(feature = "test-util")]
    fn in_use(&self) -> usize {
        self.handler.in_use()
    }
}
