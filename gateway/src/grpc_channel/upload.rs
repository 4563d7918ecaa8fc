//! [`Upload`]: the messages of a request as the body of HTTP/2.

use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use http_body::{Body, Frame};
use verbline::client::MethodSpec;
use verbline::message::Codec;
use verbline::message::bytes::Bytes;
use verbline::{CallError, Code, Execution, Stream};

use super::error::failed;
use crate::request_body::PREFIX_LEN;

/// Messages that are there together share a frame of this many bytes, and what the last one has more.
const SHARED_FRAME_LEN: usize = 32 << 10;

/// The body of any request.
pub(super) type RequestBody = Pin<Box<dyn Body<Data = Bytes, Error = GivenUp> + Send>>;

/// The caller's side of a request. Dropping it drops the messages that have not been taken, and resets the
/// stream of a request that is not complete.
#[derive(Default)]
pub(super) struct Sending {
    failure: Arc<OnceLock<CallError>>,
    messages: Option<Arc<dyn GiveUp>>,
}

impl Sending {
    /// Returns why the request could not be sent on, if that is what has ended the call.
    pub(super) fn failure(&self) -> Option<CallError> {
        self.failure.get().cloned()
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(messages) = &self.messages {
            messages.give_up();
        }
    }
}

/// Encodes the only message of a request.
pub(super) fn encode<Q: Codec<Req>, Req>(
    message: &Req,
    method: &MethodSpec,
) -> Result<(RequestBody, Sending), CallError> {
    let mut frame = Vec::new();
    push::<Q, Req>(message, method, &mut frame)
        .map_err(|(code, message)| failed(code, message, Execution::NeverSent))?;
    Ok((Box::pin(Single(Some(frame.into()))), Sending::default()))
}

/// Appends a message with its prefix.
fn push<Q: Codec<Req>, Req>(
    message: &Req,
    method: &MethodSpec,
    out: &mut Vec<u8>,
) -> Result<(), (Code, String)> {
    let len = Q::encoded_len(message);
    let limit = method.max_request_len.unwrap_or(u32::MAX);
    let prefix = u32::try_from(len).ok().filter(|len| *len <= limit);
    let prefix = prefix.ok_or_else(|| {
        let message = format!(
            "the request's message of {len} bytes exceeds the method's limit of {limit} bytes"
        );
        (Code::ResourceExhausted, message)
    })?;
    out.reserve(PREFIX_LEN + len);
    out.push(0);
    out.extend_from_slice(&prefix.to_be_bytes());
    let at = out.len();
    out.resize(at + len, 0);
    Q::encode(message, &mut out[at..]).map_err(|error| (Code::Internal, error.to_string()))
}

/// The body of a request with one message.
struct Single(Option<Bytes>);

impl Body for Single {
    type Data = Bytes;
    type Error = GivenUp;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GivenUp>>> {
        Poll::Ready(self.0.take().map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}

/// The messages of a request, which both sides hold.
struct Shared<St>(Mutex<State<St>>);

struct State<St> {
    /// `None` while they are polled, without the lock, and after the end.
    messages: Option<Pin<Box<St>>>,
    is_given_up: bool,
    body: Option<Waker>,
}

impl<St> Shared<St> {
    fn lock(&self) -> MutexGuard<'_, State<St>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a request from the caller's side.
trait GiveUp: Send + Sync {
    fn give_up(&self);
}

impl<St: Send> GiveUp for Shared<St> {
    fn give_up(&self) {
        let mut state = self.lock();
        state.is_given_up = true;
        let (messages, body) = (state.messages.take(), state.body.take());
        drop(state);
        drop(messages);
        if let Some(body) = body {
            body.wake();
        }
    }
}

/// The body of a request with a stream of messages.
pub(super) struct Upload<Q, St> {
    shared: Arc<Shared<St>>,
    method: &'static MethodSpec,
    failure: Arc<OnceLock<CallError>>,
    has_ended: bool,
    codec: PhantomData<fn(Q)>,
}

impl<Q, St> Upload<Q, St> {
    pub(super) fn body<Req>(messages: St, method: &'static MethodSpec) -> (RequestBody, Sending)
    where
        Q: Codec<Req>,
        Req: 'static,
        St: Stream<Item = Req> + Send + 'static,
    {
        let shared = Arc::new(Shared(Mutex::new(State {
            messages: Some(Box::pin(messages)),
            is_given_up: false,
            body: None,
        })));
        let sending = Sending {
            failure: Arc::default(),
            messages: Some(Arc::<Shared<St>>::clone(&shared)),
        };
        let body = Self {
            shared,
            method,
            failure: Arc::clone(&sending.failure),
            has_ended: false,
            codec: PhantomData,
        };
        (Box::pin(body), sending)
    }

    /// Appends the messages that are there to a frame.
    fn fill(
        &mut self,
        messages: &mut Pin<Box<St>>,
        frame: &mut Vec<u8>,
        cx: &mut Context<'_>,
    ) -> Result<(), GivenUp>
    where
        Q: Codec<St::Item>,
        St: Stream,
    {
        while frame.len() < SHARED_FRAME_LEN {
            match messages.as_mut().poll_next(cx) {
                Poll::Ready(Some(message)) => {
                    let pushed = push::<Q, St::Item>(&message, self.method, frame);
                    pushed.map_err(|(code, message)| {
                        let error = failed(code, message, Execution::MayHaveRun);
                        let _ = self.failure.set(error);
                        GivenUp
                    })?;
                }
                Poll::Ready(None) => {
                    self.has_ended = true;
                    break;
                }
                Poll::Pending => break,
            }
        }
        Ok(())
    }
}

impl<Q: Codec<St::Item>, St: Stream> Body for Upload<Q, St> {
    type Data = Bytes;
    type Error = GivenUp;

    /// Takes the messages that are there. An error resets the stream, so the server does not take what
    /// it has for everything.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GivenUp>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let mut state = self.shared.lock();
        let Some(mut messages) = state.messages.take() else {
            return Poll::Ready(Some(Err(GivenUp)));
        };
        let before = state.body.replace(cx.waker().clone());
        drop(state);
        drop(before);
        let mut frame = Vec::new();
        if let Err(error) = self.fill(&mut messages, &mut frame, cx) {
            return Poll::Ready(Some(Err(error)));
        }
        let mut state = self.shared.lock();
        if state.is_given_up {
            drop(state);
            return Poll::Ready(Some(Err(GivenUp)));
        }
        if !self.has_ended {
            state.messages = Some(messages);
        }
        drop(state);
        match (frame.is_empty(), self.has_ended) {
            (false, _) => Poll::Ready(Some(Ok(Frame::data(frame.into())))),
            (true, true) => Poll::Ready(None),
            (true, false) => Poll::Pending,
        }
    }
}

/// The error of a body that is not complete.
#[derive(Debug)]
pub(super) struct GivenUp;

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request was given up before its end")
    }
}

impl Error for GivenUp {}
