//! [`Purpose`] and [`Completed`]: the purpose of a long message that arrives, and its outcome.

use bytes::Bytes;

use super::super::link::LinkKey;
use super::super::link_streams::StreamKey;
use super::super::link_transfers::IncomingKey;
use super::super::tasks::IncomingCall;
use crate::protocol::frame::{CallId, FrameHeader};
use crate::stats::ServedCall;
use crate::status::Status;

/// The purpose of a long message.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Purpose {
    /// The request of a unary call, to this server.
    Request(ServedCall),
    /// The response to a unary call of this side.
    Response(CallId),
    /// A message of a stream.
    Stream(StreamKey),
    /// No call or stream of this side wants the message any more.
    Nobody,
}

/// A long message that has arrived.
#[derive(Debug)]
pub(in super::super) struct LongMessage {
    /// The header of its first frame.
    pub(in super::super) header: FrameHeader,
    pub(in super::super) metadata: Box<[u8]>,
    pub(in super::super) message: Bytes,
    /// Length from which fields share the message's memory.
    pub(in super::super) share_from: usize,
}

/// The outcome of a long message, which a frame or an event of it has decided.
#[derive(Debug)]
pub(in super::super) enum Completed {
    /// A message has arrived.
    Message {
        link: LinkKey,
        key: IncomingKey,
        purpose: Purpose,
        message: LongMessage,
    },
    /// The sender has given up a message of a stream.
    Abandoned { key: IncomingKey, stream: StreamKey },
    /// This side does not receive the response to a call, which ends with the status.
    Refused {
        link: LinkKey,
        call: CallId,
        status: Status,
    },
    /// A request was not received, and its handler does not start.
    NotStarted { call: IncomingCall, status: Status },
}
