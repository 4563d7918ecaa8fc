//! [`StreamEnd`]: how what arrives on a stream ends.

use crate::call_error::{CallError, Cause, Execution};
use crate::codec::LongMessage;
use crate::protocol::frame::ResponseHead;
use crate::status::Status;

/// How a stream's inbound direction has ended.
#[derive(Debug)]
pub(crate) enum StreamEnd {
    /// The client sends no further messages.
    HalfClosed,
    /// The server has responded.
    Response {
        head: ResponseHead,
        body: ResponseBody,
    },
    /// The call has failed on this side.
    Failed(CallError),
}

impl StreamEnd {
    /// Returns the end of a stream that lacks messages. A half-close would say that all have arrived.
    pub(super) fn behind_cut(self) -> Self {
        match self {
            Self::HalfClosed => Self::Failed(CallError::new(Cause::Cancelled, Execution::Answered)),
            end => end,
        }
    }
}

/// Metadata and message of a response.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    /// The body of the response's frame.
    Short(Vec<u8>),
    /// The message is long.
    Long(Box<LongMessage>),
}

impl ResponseBody {
    /// Returns the length of the message.
    pub(super) fn message_len(&self, head: ResponseHead) -> usize {
        match self {
            Self::Short(body) => body.len() - usize::from(head.metadata_len),
            Self::Long(long) => long.message.len(),
        }
    }

    /// Returns the body without a long message: its metadata, then a short message.
    pub(super) fn without_long(&self) -> &[u8] {
        match self {
            Self::Short(body) => body,
            Self::Long(long) => &long.metadata,
        }
    }
}

/// Returns the status of a stream that fails because a message got no memory.
#[cold]
pub(crate) fn no_memory() -> Status {
    Status::resource_exhausted(
        "the receiver has no memory for the stream: what waits for readers and peers uses all that its process \
         sets aside for this host. Read faster, send less at a time, or open fewer streams",
    )
}
