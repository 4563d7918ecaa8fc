//! [`Upload`]: the messages of a request as the body of HTTP/2.

use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use http_body::{Body, Frame};
use verbline::client::MethodSpec;
use verbline::message::Codec;
use verbline::message::bytes::Bytes;
use verbline::{CallError, Code, Execution, Stream};

use super::error::{failed, of_hyper};
use crate::request_body::PREFIX_LEN;

/// Messages that are there together share a frame of this many bytes, and what the last one has more.
const SHARED_FRAME_LEN: usize = 32 << 10;

/// The body of any request.
pub(super) type RequestBody = Pin<Box<dyn Body<Data = Bytes, Error = GivenUp> + Send>>;

/// The caller's side of a request. Dropping it drops the messages that have not been taken, and resets the
/// stream of a request that is not complete.
pub(super) struct Sending {
    progress: Arc<Progress>,
    messages: Option<Arc<dyn GiveUp>>,
}

/// How far the body of a request has got.
#[derive(Default)]
struct Progress {
    /// The connection has asked for it: from then on, an error is that of its stream.
    was_asked_for: AtomicBool,
    /// Why it has ended before its end.
    failure: OnceLock<CallError>,
}

impl Progress {
    fn ask(&self) {
        self.was_asked_for.store(true, Ordering::Relaxed);
    }
}

impl Sending {
    /// Returns why a call has ended with this error: because its request could not be sent on, or because
    /// of the server or the connection.
    pub(super) fn why(&self, error: &hyper::Error) -> CallError {
        let Progress {
            was_asked_for,
            failure,
        } = &*self.progress;
        let failure = failure.get().cloned();
        failure.unwrap_or_else(|| of_hyper(error, was_asked_for.load(Ordering::Relaxed)))
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
    let progress = Arc::<Progress>::default();
    let body = Single {
        frame: Some(frame.into()),
        progress: Arc::clone(&progress),
    };
    let sending = Sending {
        progress,
        messages: None,
    };
    Ok((Box::pin(body), sending))
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
struct Single {
    frame: Option<Bytes>,
    progress: Arc<Progress>,
}

impl Body for Single {
    type Data = Bytes;
    type Error = GivenUp;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GivenUp>>> {
        self.progress.ask();
        Poll::Ready(self.frame.take().map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.frame.is_none()
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
        if let Some(body) = body {
            body.wake();
        }
        // Their destructor is the caller's, and may panic.
        drop(messages);
    }
}

/// The body of a request with a stream of messages.
pub(super) struct Upload<Q, St> {
    shared: Arc<Shared<St>>,
    method: &'static MethodSpec,
    progress: Arc<Progress>,
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
            progress: Arc::default(),
            messages: Some(Arc::<Shared<St>>::clone(&shared)),
        };
        let body = Self {
            shared,
            method,
            progress: Arc::clone(&sending.progress),
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
    ) -> Result<(), (Code, String)>
    where
        Q: Codec<St::Item>,
        St: Stream,
    {
        while frame.len() < SHARED_FRAME_LEN {
            match messages.as_mut().poll_next(cx) {
                Poll::Ready(Some(message)) => push::<Q, St::Item>(&message, self.method, frame)?,
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
    /// it has for everything. The caller's code runs here, in a task of the connection: its panic ends
    /// the call, and nothing else.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GivenUp>>> {
        self.progress.ask();
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
        let fill = AssertUnwindSafe(|| self.fill(&mut messages, &mut frame, cx));
        let filled = catch_unwind(fill).unwrap_or_else(|payload| {
            // Its destructor is the caller's too, and may panic.
            mem::forget(payload);
            let message = "the stream of the request's messages, or their codec, has panicked";
            Err((Code::Internal, message.to_owned()))
        });
        let is_filled = filled.is_ok();
        if let Err((code, message)) = filled {
            let error = failed(code, message, Execution::MayHaveRun);
            let _ = self.progress.failure.set(error);
        }
        let mut state = self.shared.lock();
        let is_given_up = state.is_given_up || !is_filled;
        if !is_given_up && !self.has_ended {
            state.messages = Some(messages);
        } else {
            drop(state);
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(messages))) {
                mem::forget(payload);
            }
        }
        match (frame.is_empty(), self.has_ended) {
            _ if is_given_up => Poll::Ready(Some(Err(GivenUp))),
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
