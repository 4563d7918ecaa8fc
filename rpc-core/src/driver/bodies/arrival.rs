//! [`Purpose`] and [`Completed`]: the purpose of a long message that arrives, and its outcome.

use std::sync::Arc;

use bytes::Bytes;

use super::super::link::LinkKey;
use super::super::link_bodies::IncomingKey;
use super::super::link_streams::StreamKey;
use super::super::tasks::IncomingCall;
use crate::protocol::frame::{CallId, FrameHeader};
use crate::stats::{PollerCounters, ServedCall};
use crate::status::Status;
use crate::stream::long::ReceivedLong;

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

impl LongMessage {
    /// Returns the message for what decodes it.
    pub(in super::super) fn received(&self, counters: &PollerCounters) -> ReceivedLong {
        ReceivedLong {
            message: self.message.clone(),
            share_from: self.share_from,
            copied_in: Arc::clone(&counters.copied_in_anywhere),
        }
    }
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
    /// This side does not receive a message of a stream, which ends with the status.
    StreamRefused { stream: StreamKey, status: Status },
}

impl Completed {
    /// The outcome of the request of a unary call that was not received.
    pub(super) fn not_started(
        link: LinkKey,
        call: CallId,
        served: ServedCall,
        status: Status,
    ) -> Self {
        let stream = None;
        let call = IncomingCall {
            link,
            call,
            served,
            stream,
        };
        Self::NotStarted { call, status }
    }

    /// The outcome of a request that its client has cancelled.
    pub(super) fn cancelled(link: LinkKey, call: CallId, served: ServedCall) -> Self {
        let status = Status::cancelled("the client cancelled the call; it did not run");
        Self::not_started(link, call, served, status)
    }
}
