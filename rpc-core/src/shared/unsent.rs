//! [`Unsent`]: a request that has been submitted to a poller, and has not been sent.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::permits::{CallPermit, CallPermits, Settled};
use crate::call_error::{CallError, Cause, Execution};
use crate::client::encode::{EncodedRequest, RequestLengths};
use crate::driver::handle::StreamRequest;
use crate::method::MethodSpec;
use crate::protocol::frame::HEADER_LEN;
use crate::stream::core::StreamCore;
use crate::stream::end::StreamEnd;
use crate::stream::wakers::wake_all;

/// The request of a unary call.
#[derive(Debug)]
pub(super) struct UnaryRequest {
    pub(super) permit: CallPermit,
    /// The request, if its message does not fit a frame. The permit's buffer is not used then.
    pub(super) long: Option<Box<EncodedRequest>>,
    pub(super) method: &'static MethodSpec,
    pub(super) deadline: Option<Instant>,
    /// The permit's buffer holds the request's frame, complete but for its header.
    pub(super) lengths: RequestLengths,
    pub(super) waits_for_ready: bool,
    /// Start time, if this call is timed.
    pub(super) began: Option<Instant>,
}

impl UnaryRequest {
    /// Takes the request out of the permit's buffer, because it does not fit a frame to this server.
    #[cold]
    pub(super) fn divide(&mut self) {
        if self.long.is_none() {
            let body = &self.permit.buf[HEADER_LEN..];
            let (metadata, message) = body.split_at(self.lengths.metadata);
            self.long = Some(Box::new(EncodedRequest {
                metadata: metadata.to_vec(),
                message: Bytes::copy_from_slice(message).into(),
            }));
        }
    }
}

/// A request that has been submitted to a poller, and has not been sent.
pub(super) enum Unsent {
    Unary(UnaryRequest),
    /// It opens the stream.
    Stream(Arc<StreamCore>, StreamRequest),
}

/// Which requests come before which: first come, first served, among those of one lane. Streams
/// have a lane of their own, because a server may take calls and no further streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Unary,
    Streams,
}

/// Both lanes, in the order in which they are served.
pub(super) const LANES: [Lane; 2] = [Lane::Streams, Lane::Unary];

impl Unsent {
    pub(super) fn lane(&self) -> Lane {
        match self {
            Self::Unary(_) => Lane::Unary,
            Self::Stream(..) => Lane::Streams,
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Unary(request) => request.deadline,
            Self::Stream(_, request) => request.deadline,
        }
    }

    pub(super) fn waits_for_ready(&self) -> bool {
        match self {
            Self::Unary(request) => request.waits_for_ready,
            Self::Stream(_, request) => request.waits_for_ready == Some(true),
        }
    }

    /// Fails it without a poller, which would count it.
    pub(super) fn refuse(self, permits: &CallPermits, cause: Cause) {
        let error = CallError::new(cause, Execution::NeverSent);
        match self {
            Self::Unary(UnaryRequest { permit, .. }) => {
                let CallPermit { number, buf } = permit;
                let (long, outcome) = (None, Err(error));
                let settled = Settled { buf, long, outcome };
                wake_all(permits.settle(number, settled));
            }
            Self::Stream(core, _) => core.end(StreamEnd::Failed(error)),
        }
    }
}
