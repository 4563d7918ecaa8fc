//! [`Handler`]: a method as seen by the driver, with the types of its messages and futures erased.

use std::cell::Cell;
use std::sync::Arc;
use std::task::Context;
use std::time::Instant;

pub(crate) use super::response_lengths::{EncodedResponse, ResponseLengths, metadata_too_long};
use crate::codec::Allocate;
use crate::codec::LongMessage;
use crate::method::MethodKind;
use crate::peer::Peer;
use crate::status::Status;
use crate::stream::core::StreamCore;

/// Identifies a pending future, or a response that was not sent yet, in its method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandlerKey(pub(super) u32);

#[cfg(test)]
impl HandlerKey {
    pub(crate) fn test(index: u32) -> Self {
        Self(index)
    }
}

/// A request that has arrived, as its frame holds it.
#[derive(Clone, Copy)]
pub(crate) struct RawRequest<'a> {
    pub(crate) metadata: &'a [u8],
    pub(crate) message: &'a [u8],
    /// The message again, if it did not fit a frame.
    pub(crate) long: Option<&'a LongMessage>,
    pub(crate) deadline: Option<Instant>,
    /// The stream of a call that has one.
    pub(crate) stream: Option<&'a Arc<StreamCore>>,
    /// The process that has sent it, for the handler to take.
    pub(crate) peer: &'a Cell<Option<Arc<Peer>>>,
}

/// The state of a call after its handler was polled.
#[derive(Debug)]
pub(crate) enum Served {
    /// The response is complete, and was encoded at the start of the given memory.
    Encoded(ResponseLengths),
    /// The response is complete, but longer than the given memory.
    Long(HandlerKey, ResponseLengths),
    /// The handler awaits.
    Pending(HandlerKey),
    /// The handler awaits, and an interceptor has limited its deadline to this moment. Boxed, because all
    /// others are shorter.
    PendingUntil(HandlerKey, Box<Instant>),
    /// The handler has failed.
    Failed(Status),
    /// The handler was not started: the request could not be decoded, or an interceptor has refused it.
    NotStarted(Status),
}

impl Served {
    /// The handler's future has completed with a status.
    #[cold]
    pub(super) fn of_failure(status: Status) -> Self {
        match status.is_refusal() {
            true => Self::NotStarted(status),
            false => Self::Failed(status),
        }
    }
}

/// A method as seen by the driver, with the types of its messages and futures erased.
///
/// For each call, the driver calls `serve`, and `resume` as long as the handler is pending. A key
/// that it got must be given back to exactly one of `resume`, `encode_response` or
/// `encode_chunks` (after [`Served::Long`]), or `discard`.
pub(crate) trait Handler {
    /// Returns which sides stream. The driver rejects requests of another kind.
    fn kind(&self) -> MethodKind;

    /// Decodes the request, builds the handler's future and polls it once. Encodes the response into
    /// `out` if it is complete and fits. While a long request is decoded beside the poller, the handler is
    /// pending.
    fn serve(&self, request: RawRequest<'_>, cx: &mut Context<'_>, out: &mut [u8]) -> Served;

    /// Polls the future of a pending handler again.
    fn resume(&self, key: HandlerKey, cx: &mut Context<'_>, out: &mut [u8]) -> Served;

    /// Encodes a response into `out`, whose length `serve` or `resume` has returned.
    fn encode_response(&self, key: HandlerKey, out: &mut [u8]) -> Result<(), Status>;

    /// Encodes a response whose message does not fit a frame. `serve` or `resume` has returned its
    /// lengths.
    fn encode_chunks(
        &self,
        key: HandlerKey,
        len: ResponseLengths,
        allocate: Allocate<'_>,
    ) -> Result<EncodedResponse, Status>;

    /// Drops a pending future or a response.
    fn discard(&self, key: HandlerKey);

    /// Returns the number of pending futures and responses.
    #[cfg(feature = "test-util")]
    fn in_use(&self) -> usize;
}
