//! [`RequestBody`]: the messages of a request, and whether they have come to a clean end.
//!
//! The trap: a client that cancels an upload, loses its connection or is killed ends its body too.
//! Libraries turn some of these ends into that of a complete body: hyper those by `RST_STREAM` with
//! `NO_ERROR`, tonic's decoder those with `CANCEL`. A handler then takes half of an upload for all of
//! it. Here only `END_STREAM` is an end. Any other one is a [`Torn`] body: its stream of messages
//! stays pending, so that nobody sees an end, and whoever polls the call drops it, which cancels it.

use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use http_body::Body;
use tokio::time::{Sleep, sleep};
use verbline::message::bytes::{Buf, Bytes, BytesMut};
use verbline::{Code, Execution};

use crate::grpc_status::GrpcStatus;
use crate::memory::{COUNTED_FROM, Claim, Claiming, MessageMemory};

/// The flag and the length before each message.
pub(crate) const PREFIX_LEN: usize = 5;

/// The messages of one request. `B` is hyper's body.
pub(crate) struct RequestBody<B> {
    body: B,
    /// What is left of the latest frame of data.
    frame: Bytes,
    /// The beginning of a prefix or of a message whose rest is not there yet.
    partial: BytesMut,
    /// The length of the message that follows, if its prefix has been read.
    len: Option<usize>,
    /// The memory of the message that follows, if it is long.
    claim: Option<Claim>,
    claiming: Option<Claiming>,
    /// Ends when the message that has begun should be complete.
    message_timer: Option<Pin<Box<Sleep>>>,
    /// The request has one message, so its end follows that message at once: the time is that of both,
    /// and runs from the beginning.
    has_one_message: bool,
    limits: MessageLimits,
    has_ended: bool,
}

/// What bounds the messages of a request.
#[derive(Clone, Debug)]
pub(crate) struct MessageLimits {
    /// Bytes of the longest message.
    pub(crate) max_len: usize,
    /// How long a message may take from its first byte to its last.
    pub(crate) time: Duration,
    pub(crate) memory: MessageMemory,
}

impl<B: Body<Data = Bytes> + Unpin> RequestBody<B> {
    pub(crate) fn new(body: B, limits: MessageLimits) -> Self {
        Self {
            body,
            frame: Bytes::new(),
            partial: BytesMut::new(),
            len: None,
            claim: None,
            claiming: None,
            message_timer: None,
            has_one_message: false,
            limits,
            has_ended: false,
        }
    }

    /// Limits the time of the whole body to that of one message.
    pub(crate) fn with_one_message(mut self) -> Self {
        self.has_one_message = true;
        self
    }

    /// Waits for the next message. Returns `None` after the last one of a body that ended cleanly.
    ///
    /// # Errors
    ///
    /// Returns the status of a request that is torn, malformed or too long.
    pub(crate) fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, GrpcStatus>> {
        loop {
            if let Some(message) = ready!(self.poll_take(cx))? {
                return Poll::Ready(Ok(Some(message)));
            }
            if !ready!(self.poll_frame_in_time(cx))? {
                return Poll::Ready(self.end().map(|()| None));
            }
        }
    }

    /// Takes a message from the bytes that have arrived, if it is complete. Waits for memory for it.
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, GrpcStatus>> {
        let len = match self.len {
            Some(len) => len,
            None => {
                let Some(mut prefix) = self.take(PREFIX_LEN) else {
                    return Poll::Ready(Ok(None));
                };
                let flag = prefix.get_u8();
                let len = prefix.get_u32() as usize;
                self.check_prefix(flag, len)?;
                if len >= COUNTED_FROM {
                    self.claiming = Some(self.limits.memory.claim(len));
                }
                *self.len.insert(len)
            }
        };
        if let Some(claiming) = &mut self.claiming {
            let Poll::Ready(claim) = claiming.as_mut().poll(cx) else {
                let time = ready!(self.poll_timer(cx));
                let message = format!(
                    "the gateway has no memory for this message: other messages have held it for {time:?}. \
                     Send it again later, or give the gateway more `message_memory`"
                );
                return Poll::Ready(Err(GrpcStatus::new(Code::ResourceExhausted, message)));
            };
            self.claim = claim;
            self.claiming = None;
        }
        let Some(message) = self.take(len) else {
            return Poll::Ready(Ok(None));
        };
        self.len = None;
        if !self.has_one_message {
            self.message_timer = None;
        }
        Poll::Ready(Ok(Some(match self.claim.take() {
            Some(claim) => claim.tie(message),
            None => message,
        })))
    }

    fn check_prefix(&self, flag: u8, len: usize) -> Result<(), GrpcStatus> {
        if flag != 0 {
            let what = match flag {
                1 => "a message is compressed, and 'grpc-encoding' names no compression".to_owned(),
                _ => format!("a message has the flag {flag}"),
            };
            return Err(GrpcStatus::malformed(what));
        }
        if len > self.limits.max_len {
            let limit = self.limits.max_len;
            let message = format!(
                "the request's message of {len} bytes exceeds the gateway's limit of {limit} bytes"
            );
            return Err(GrpcStatus::new(Code::ResourceExhausted, message));
        }
        Ok(())
    }

    /// Takes `len` bytes if they have arrived. They are copied if they came in several frames.
    ///
    /// Memory grows with the bytes that have arrived, not with the length that the client announces.
    fn take(&mut self, len: usize) -> Option<Bytes> {
        if self.partial.is_empty() && self.frame.len() >= len {
            return Some(self.frame.split_to(len));
        }
        let missing = len - self.partial.len();
        let part = self.frame.split_to(missing.min(self.frame.len()));
        self.partial.extend_from_slice(&part);
        (self.partial.len() == len).then(|| self.partial.split().freeze())
    }

    /// Waits for a frame of data, for as long as a message that has begun may take.
    fn poll_frame_in_time(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, GrpcStatus>> {
        if let Poll::Ready(outcome) = self.poll_frame(cx) {
            return Poll::Ready(outcome);
        }
        if self.has_one_message || self.has_begun() {
            let time = ready!(self.poll_timer(cx));
            let message = format!("a message of the request was not complete after {time:?}");
            return Poll::Ready(Err(GrpcStatus::new(Code::DeadlineExceeded, message)));
        }
        Poll::Pending
    }

    /// Waits until the message should be complete. Returns the time that it had.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<Duration> {
        let time = self.limits.time;
        let timer = self
            .message_timer
            .get_or_insert_with(|| Box::pin(sleep(time)));
        timer.as_mut().poll(cx).map(|()| time)
    }

    /// Returns true if a part of a message has been read.
    fn has_begun(&self) -> bool {
        self.len.is_some() || !self.partial.is_empty()
    }

    /// Waits for a frame of data. Returns false at the end of the body.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, GrpcStatus>> {
        while !self.has_ended {
            match ready!(pin!(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // gRPC's clients send no trailers.
                    if let Ok(data) = frame.into_data() {
                        self.frame = data;
                        return Poll::Ready(Ok(true));
                    }
                }
                // Without `END_STREAM`, the client has reset the stream.
                None if self.body.is_end_stream() => self.has_ended = true,
                Some(Err(_)) | None => return Poll::Ready(Err(GrpcStatus::torn())),
            }
        }
        Poll::Ready(Ok(false))
    }

    fn end(&self) -> Result<(), GrpcStatus> {
        if !self.has_begun() {
            return Ok(());
        }
        Err(GrpcStatus::malformed("it ends in the middle of a message"))
    }
}

/// Whether a stream of requests is torn, and how.
#[derive(Clone, Debug, Default)]
pub(crate) struct Torn(Arc<OnceLock<GrpcStatus>>);

impl Torn {
    /// Returns the status of the call if its requests are torn. To be asked after each poll of the
    /// call, which polls the requests.
    pub(crate) fn status(&self) -> Option<&GrpcStatus> {
        self.0.get()
    }
}

/// The messages of a request as a stream, which ends only if the body ends cleanly.
pub(crate) struct Requests<B> {
    body: RequestBody<B>,
    torn: Torn,
}

impl<B> Requests<B> {
    pub(crate) fn new(body: RequestBody<B>, torn: Torn) -> Self {
        Self { body, torn }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Stream for Requests<B> {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.torn.status().is_some() {
            return Poll::Pending;
        }
        match ready!(self.body.poll_message(cx)) {
            Ok(message) => Poll::Ready(message),
            Err(status) => {
                // Messages before this one are on their way.
                let status = status.with_execution(Execution::MayHaveRun);
                let _ = self.torn.0.set(status);
                Poll::Pending
            }
        }
    }
}
