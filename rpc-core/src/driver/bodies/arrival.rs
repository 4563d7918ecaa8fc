//! [`Purpose`] and [`Ended`]: the purpose of a long message that arrives, and its outcome.

use super::super::link::LinkKey;
use super::super::link_bodies::IncomingKey;
use super::super::link_streams::StreamKey;
use crate::codec::LongMessage;
use crate::protocol::frame::FrameHeader;
use crate::stats::ServedCall;
use crate::status::Status;

/// The purpose of a long message.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Purpose {
    /// The request of a call, to this server.
    Request(ServedCall),
    /// The response to a unary call of this side.
    Response,
    /// A message of a stream, or the response that ends it.
    Stream(StreamKey),
    /// No call or stream of this side wants the message any more.
    Nobody,
}

/// A long message that has ended.
#[derive(Debug)]
pub(in super::super) struct Ended {
    pub(in super::super) link: LinkKey,
    pub(in super::super) key: IncomingKey,
    /// The header of its first frame.
    pub(in super::super) header: FrameHeader,
    pub(in super::super) purpose: Purpose,
    pub(in super::super) outcome: Outcome,
}

/// How a long message has ended.
#[derive(Debug)]
pub(in super::super) enum Outcome {
    /// All of it has arrived.
    Complete(Box<LongMessage>),
    /// This side does not receive it, because of the status. A message of a stream has not been stopped:
    /// the stream stops all of its messages.
    Refused(Status),
    /// Its sender has given it up.
    Abandoned,
}
