//! [`OneCaller`]: makes one call after the other, of any kind of method, over any channel.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use verbline::client::{Caller, MethodKind, MethodSpec};
use verbline::message::BytesCodec;
use verbline::message::bytes::Bytes;
use verbline::{CallError, Metadata, Request, Sender, Streaming, sender};

use super::unread::Unread;

const RAW: BytesCodec = BytesCodec;
const UNREAD: Unread = Unread;

/// What all callers have in common.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) spec: &'static MethodSpec,
    /// At least one.
    pub(crate) messages: Vec<Bytes>,
    /// The message that is sent next, of all callers.
    pub(crate) next: Cell<usize>,
    pub(crate) metadata: Metadata,
    pub(crate) timeout: Option<Duration>,
    pub(crate) unit: Unit,
}

/// What counts as a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A call, with this many messages if it has a stream of requests, and all responses.
    Call { requests: u32 },
    /// A message and its answer, on a stream that stays open; a message of a stream of responses, if there
    /// is one request.
    Message,
}

/// Why a call does not count as answered.
#[derive(Debug)]
pub(crate) enum NotAnswered {
    Failed(CallError),
    /// The server has ended a stream on which the next message was waited for.
    StreamEnded,
}

impl fmt::Display for NotAnswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::StreamEnded => f.write_str("the server has ended the stream"),
        }
    }
}

impl From<CallError> for NotAnswered {
    fn from(error: CallError) -> Self {
        Self::Failed(error)
    }
}

/// A stream that stays open.
struct Open {
    /// `None` of a stream of responses only.
    requests: Option<Sender<Bytes>>,
    responses: Streaming<()>,
}

/// Makes one call at a time.
pub(crate) struct OneCaller<'a, C> {
    channel: &'a C,
    calls: &'a Calls,
    open: Option<Open>,
}

impl Calls {
    fn message(&self) -> Bytes {
        let index = self.next.get();
        self.next.set((index + 1) % self.messages.len());
        self.messages[index].clone()
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if !self.metadata.is_empty() {
            request = request.with_metadata(self.metadata.clone());
        }
        match self.timeout {
            Some(timeout) => request.with_timeout(timeout),
            None => request,
        }
    }
}

impl<'a, C: Caller> OneCaller<'a, C> {
    pub(crate) fn new(channel: &'a C, calls: &'a Calls) -> Self {
        Self {
            channel,
            calls,
            open: None,
        }
    }

    /// Makes a call, or sends a message, and waits for the answer.
    pub(crate) async fn call(&mut self) -> Result<(), NotAnswered> {
        match self.calls.unit {
            Unit::Message => self.exchange().await,
            Unit::Call { requests } => Ok(self.whole_call(requests).await?),
        }
    }

    async fn whole_call(&self, requests: u32) -> Result<(), CallError> {
        let Calls { spec, .. } = *self.calls;
        if !spec.kind.client_streams() {
            let request = self.calls.request(self.calls.message());
            if !spec.kind.server_streams() {
                self.channel.unary_with(spec, request, RAW, UNREAD).await?;
                return Ok(());
            }
            let call = self
                .channel
                .server_streaming_with(spec, request, RAW, UNREAD);
            return read_to_end(call.await?.into_inner()).await;
        }
        let (mut sender, messages) = sender();
        let request = self.calls.request(messages);
        let sending = async {
            for _ in 0..requests {
                // A call that has ended tells why.
                if sender.send(self.calls.message()).await.is_err() {
                    break;
                }
            }
            drop(sender);
        };
        let call = async {
            if spec.kind.server_streams() {
                let response = self
                    .channel
                    .streaming_with(spec, request, RAW, UNREAD)
                    .await?;
                return read_to_end(response.into_inner()).await;
            }
            let call = self
                .channel
                .client_streaming_with(spec, request, RAW, UNREAD);
            call.await.map(drop)
        };
        tokio::join!(sending, call).1
    }

    /// Waits for the next message of an open stream, after it has sent one if the method takes a stream. A
    /// stream of responses that has come to its end is followed by another one.
    async fn exchange(&mut self) -> Result<(), NotAnswered> {
        let outcome = match &mut self.open {
            Some(open) => match open.exchange(self.calls).await {
                Err(NotAnswered::StreamEnded) if open.requests.is_none() => {
                    self.open_and_exchange().await
                }
                outcome => outcome,
            },
            None => self.open_and_exchange().await,
        };
        if outcome.is_err() {
            self.open = None;
        }
        outcome
    }

    async fn open_and_exchange(&mut self) -> Result<(), NotAnswered> {
        let spec = self.calls.spec;
        let open = match spec.kind {
            MethodKind::Streaming => {
                let (mut sender, messages) = sender();
                let request = self.calls.request(messages);
                let opening = self.channel.streaming_with(spec, request, RAW, UNREAD);
                // A server may begin to respond only when it has a message.
                let first = sender.send(self.calls.message());
                let (_, response) = tokio::join!(first, opening);
                Open {
                    responses: response?.into_inner(),
                    requests: Some(sender),
                }
            }
            _ => {
                let request = self.calls.request(self.calls.message());
                let opening = self
                    .channel
                    .server_streaming_with(spec, request, RAW, UNREAD);
                Open {
                    responses: opening.await?.into_inner(),
                    requests: None,
                }
            }
        };
        next(&mut self.open.insert(open).responses).await
    }
}

impl Open {
    async fn exchange(&mut self, calls: &Calls) -> Result<(), NotAnswered> {
        let Some(requests) = &mut self.requests else {
            return next(&mut self.responses).await;
        };
        let sending = requests.send(calls.message());
        let (_, received) = tokio::join!(sending, next(&mut self.responses));
        received
    }
}

async fn next(responses: &mut Streaming<()>) -> Result<(), NotAnswered> {
    match responses.message().await? {
        Some(_) => Ok(()),
        None => Err(NotAnswered::StreamEnded),
    }
}

async fn read_to_end(mut responses: Streaming<()>) -> Result<(), CallError> {
    while responses.message().await?.is_some() {}
    Ok(())
}
