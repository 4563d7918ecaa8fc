//! [`Download`]: the body of a response as messages, and how the call has ended.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use base64::Engine;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http_body::Body;
use hyper::body::Incoming;
use percent_encoding::percent_decode;
use tokio::time::{Instant, Sleep};
use verbline::client::MessageSource;
use verbline::message::bytes::{Buf, Bytes, BytesMut};
use verbline::message::{BY_REFERENCE_LEN, Codec};
use verbline::{CallError, Code, Execution, Metadata, Response, Status};

use super::deadline_exceeded;
use super::error::failed;
use super::upload::Sending;
use crate::grpc_status::{EXECUTION, GRPC_DETAILS, GRPC_MESSAGE, GRPC_PUSHBACK, GRPC_STATUS};
use crate::headers::{BASE64, is_grpc, read_metadata};
use crate::request_body::PREFIX_LEN;

/// What [`CallError::pushback`] is at most, whatever a server says.
const LONGEST_PUSHBACK: Duration = Duration::from_secs(10);

/// How much of a `content-type` is shown that is not gRPC's.
const SHOWN_LEN: usize = 100;

/// A field of a long message shares its memory if it is at least this part of it.
const SHARED_PART: usize = 8;

/// The messages of one response, which `S` decodes. Dropping it before its end resets the call.
pub(super) struct Download<S> {
    body: Incoming,
    /// Bytes that have arrived and have not been decoded.
    arrived: BytesMut,
    max_message_len: usize,
    timer: Option<Pin<Box<Sleep>>>,
    /// The outcome, if it is known before the body has been read.
    end: Option<Result<Metadata, CallError>>,
    sending: Sending,
    codec: PhantomData<fn(S)>,
}

impl<S> Download<S> {
    /// Reads the head of a response. Returns its metadata with the messages.
    ///
    /// # Errors
    ///
    /// Returns the error of a call that has ended with its head.
    pub(super) fn begin(
        answer: http::Response<Incoming>,
        sending: Sending,
        timer: Option<Sleep>,
        max_message_len: usize,
    ) -> Result<Response<Self>, CallError> {
        let (head, body) = answer.into_parts();
        let mut end = None;
        let mut initial = Metadata::new();
        if body.is_end_stream() && head.headers.contains_key(GRPC_STATUS) {
            // There is no body: these are the trailers.
            end = Some(Ok(outcome(&head.headers)?));
        } else if head.status != StatusCode::OK || !is_grpc(head.headers.get(CONTENT_TYPE)) {
            return Err(of_http(&head));
        } else {
            initial = read_metadata(&head.headers).map_err(|what| {
                let message = format!("the server has sent metadata that is malformed: {what}");
                failed(Code::Internal, message, Execution::MayHaveRun)
            })?;
        }
        let mut response = Response::new(Self {
            body,
            arrived: BytesMut::new(),
            max_message_len,
            timer: timer.map(Box::pin),
            end,
            sending,
            codec: PhantomData,
        });
        *response.metadata_mut() = initial;
        Ok(response)
    }

    /// Takes the next message from what has arrived.
    fn take(&mut self) -> Result<Option<Bytes>, CallError> {
        let Some((&flag, rest)) = self.arrived.split_first() else {
            return Ok(None);
        };
        let Some(len) = rest
            .first_chunk()
            .map(|len| u32::from_be_bytes(*len) as usize)
        else {
            return Ok(None);
        };
        if flag != 0 {
            let message = "the server has sent a compressed message, which was not asked for";
            return Err(failed(Code::Internal, message, Execution::MayHaveRun));
        }
        if len > self.max_message_len {
            let limit = self.max_message_len;
            let message =
                format!("the response's message of {len} bytes exceeds the limit of {limit} bytes");
            return Err(failed(
                Code::ResourceExhausted,
                message,
                Execution::MayHaveRun,
            ));
        }
        if self.arrived.len() < PREFIX_LEN + len {
            return Ok(None);
        }
        self.arrived.advance(PREFIX_LEN);
        Ok(Some(self.arrived.split_to(len).freeze()))
    }

    /// Waits for more of the body. Returns false at its end.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, CallError>> {
        loop {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
            match frame.transpose() {
                Ok(None) => return Poll::Ready(Ok(false)),
                Ok(Some(frame)) => match frame.into_data() {
                    Ok(data) => {
                        self.arrived.extend_from_slice(&data);
                        return Poll::Ready(Ok(true));
                    }
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            self.end = Some(outcome(&trailers).map_err(has_begun));
                        }
                    }
                },
                Err(error) => return Poll::Ready(Err(has_begun(self.sending.why(&error)))),
            }
        }
    }

    /// Returns the outcome of a call whose body has ended.
    fn end(&mut self) -> Result<(), CallError> {
        let is_torn = !self.arrived.is_empty();
        match &self.end {
            Some(Err(error)) => Err(error.clone()),
            Some(Ok(_)) if !is_torn => Ok(()),
            // hyper takes some resets for the end of a body. Only trailers are one.
            _ => Err(failed(
                Code::Unavailable,
                "the server has ended its response without a status",
                Execution::MayHaveRun,
            )),
        }
    }
}

impl<S: Codec<T>, T> MessageSource<T> for Download<S> {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<T>, CallError>> {
        // The deadline comes first, because a server may send without a pause.
        if let Some(timer) = &self.timer
            && timer.deadline() <= Instant::now()
        {
            return Poll::Ready(Err(deadline_exceeded(Execution::MayHaveRun)));
        }
        loop {
            if let Some(message) = self.take()? {
                let share_from = BY_REFERENCE_LEN.max(message.len() / SHARED_PART);
                let decoded = S::decode_shared(&message, share_from).map_err(|error| {
                    let message = format!("cannot decode the response: {error}");
                    failed(Code::Internal, message, Execution::Answered)
                })?;
                return Poll::Ready(Ok(Some(decoded.message)));
            }
            match self.poll_body(cx) {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => return Poll::Ready(self.end().map(|()| None)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                // A timer panics when its runtime has ended. The body has ended with it.
                Poll::Pending => {
                    let Some(timer) = &mut self.timer else {
                        return Poll::Pending;
                    };
                    ready!(timer.as_mut().poll(cx));
                    return Poll::Ready(Err(deadline_exceeded(Execution::MayHaveRun)));
                }
            }
        }
    }

    fn trailers(&mut self) -> Metadata {
        match self.end.take() {
            Some(Ok(metadata)) => metadata,
            Some(Err(_)) | None => Metadata::new(),
        }
    }
}

/// Returns the error of a call whose response has begun: its handler may have started, whatever ends it.
fn has_begun(error: CallError) -> CallError {
    let execution = has_perhaps_run(error.execution());
    match error.status() {
        Some(status) if execution != error.execution() => {
            CallError::from_status(status.clone(), execution)
        }
        _ => error,
    }
}

/// Takes a promise back that the handler was not started.
fn has_perhaps_run(execution: Execution) -> Execution {
    match execution {
        Execution::NotStarted | Execution::NeverSent => Execution::MayHaveRun,
        Execution::MayHaveRun | Execution::Answered => execution,
    }
}

/// Returns the metadata of trailers, or the error that they say.
fn outcome(trailers: &HeaderMap) -> Result<Metadata, CallError> {
    let text = |name| {
        trailers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    let code = text(GRPC_STATUS).and_then(|code| code.parse().ok());
    // A server that says no number has not succeeded.
    let code = code.map_or(Code::Unknown, Code::from_i32);
    // The status counts, whatever comes with it.
    let metadata = read_metadata(trailers).unwrap_or_else(|what| {
        tracing::debug!(%code, "left out the metadata of a status, which is malformed: {what}");
        Metadata::new()
    });
    if code == Code::Ok {
        return Ok(metadata);
    }
    let message = trailers
        .get(GRPC_MESSAGE)
        .map_or_else(String::new, |message| {
            percent_decode(message.as_bytes())
                .decode_utf8_lossy()
                .into_owned()
        });
    let details = text(GRPC_DETAILS).and_then(|details| BASE64.decode(details).ok());
    let status = Status::new(code, message)
        .with_details(details.unwrap_or_default())
        .with_metadata(metadata);
    // What a gateway says of the call behind it. It has sent the call to nobody, or to a server that has
    // not started it: for this side, it was not started.
    let execution = match text(EXECUTION) {
        Some("never-sent" | "not-started") => Execution::NotStarted,
        Some("may-have-run") => Execution::MayHaveRun,
        _ => Execution::Answered,
    };
    let (pushback, execution) = match trailers.get(GRPC_PUSHBACK).map(read_pushback) {
        None => (Duration::ZERO, execution),
        Some(Some(pushback)) => (pushback.min(LONGEST_PUSHBACK), execution),
        // The server asks not to repeat the call, so the error must not call it retryable.
        Some(None) => (Duration::ZERO, has_perhaps_run(execution)),
    };
    Err(CallError::from_status(status, execution).with_pushback(pushback))
}

/// Reads how long to wait before the call is repeated. `None` says not to repeat it, as all values do that
/// are no number of 32 bits, or a negative one (gRPC's proposal A6).
fn read_pushback(value: &HeaderValue) -> Option<Duration> {
    let millis: i32 = value.to_str().ok()?.parse().ok()?;
    Some(Duration::from_millis(millis.try_into().ok()?))
}

/// Returns the error of a response that is not gRPC's, with the code that gRPC gives it. It may be that
/// of something on the way.
#[cold]
fn of_http(head: &http::response::Parts) -> CallError {
    let code = match head.status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    let content = match head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes) {
        Some(value) => {
            let value = &value[..value.len().min(SHOWN_LEN)];
            format!("the content-type '{}'", value.escape_ascii())
        }
        None => "no content-type".to_owned(),
    };
    let status = head.status;
    let message =
        format!("the response is not one of gRPC: it has the status {status} and {content}");
    failed(code, message, Execution::MayHaveRun)
}
