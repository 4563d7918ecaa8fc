//! One call: from a request of HTTP/2 to a call of the channel, and back.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use http_body::Body;
use tokio::time::timeout_at;
use verbline::client::{MethodKind, MethodSpec, SendCaller};
use verbline::message::BytesCodec;
use verbline::message::bytes::Bytes;
use verbline::{CallError, Code, Execution, Metadata, Request, Response, Streaming};

use crate::client::Client;
use crate::grpc_status::GrpcStatus;
use crate::headers::{
    GRPC, GRPC_ACCEPT_ENCODING, GRPC_ENCODING, is_grpc, read_metadata, read_timeout, write_metadata,
};
use crate::request_body::{RequestBody, Requests, Torn};
use crate::response_body::{Receiver, ResponseBody};
use crate::unread::CountedBody;
use crate::upstream::Upstream;

/// What the calls of one request share.
struct Call<'a> {
    client: &'a Client,
    method: &'static MethodSpec,
    metadata: Metadata,
    deadline: Option<Instant>,
}

/// Answers one request. Dropping the future cancels its call.
pub(crate) async fn answer<B>(
    upstream: &Upstream,
    client: &Arc<Client>,
    request: http::Request<B>,
) -> Answer
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    let begun = client.begin();
    let (head, body) = request.into_parts();
    let body = CountedBody::new(body, client.unread());
    if let Some(refused) = refuse_http(&head).or_else(|| refuse_compression(&head.headers)) {
        begun.refused();
        return refused;
    }
    let outcome = forward(upstream, client, &head, body).await;
    match &outcome {
        Err(status) if status.is_torn() => drop(begun),
        Err(status) if status.is_never_sent() => begun.refused(),
        _ => begun.answered(),
    }
    outcome.unwrap_or_else(|status| match is_repeated(&head.headers) {
        true => headers_only(&status.after_other_attempts()),
        false => headers_only(&status),
    })
}

/// Makes the call of a request.
async fn forward<B>(
    upstream: &Upstream,
    client: &Arc<Client>,
    head: &http::request::Parts,
    body: B,
) -> Result<Answer, GrpcStatus>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    // Admission comes first, because a request takes memory once its headers are read.
    let receiver = Receiver::new(client.stalls(), upstream.admit()?);
    let call = Call::new(upstream, client, head).await;
    let call = call.map_err(|status| status.with_execution(Execution::NeverSent))?;
    let body = RequestBody::new(body, upstream.message_limits(client));
    call.forward(upstream, receiver, body).await
}

pub(crate) type Answer = http::Response<ResponseBody>;

impl<'a> Call<'a> {
    async fn new(
        upstream: &Upstream,
        client: &'a Client,
        head: &http::request::Parts,
    ) -> Result<Self, GrpcStatus> {
        // First: the timeout runs while the rest is done.
        let now = Instant::now();
        let timeout = read_timeout(&head.headers).map_err(GrpcStatus::malformed)?;
        let deadline = timeout.and_then(|timeout| now.checked_add(timeout));
        let metadata = read_metadata(&head.headers).map_err(GrpcStatus::malformed)?;
        let path = head.uri.path();
        let path = path.strip_prefix('/').unwrap_or(path);
        Ok(Self {
            client,
            method: upstream.method(path, deadline).await?,
            metadata,
            deadline,
        })
    }

    async fn forward<B>(
        self,
        upstream: &Upstream,
        receiver: Receiver,
        body: RequestBody<B>,
    ) -> Result<Answer, GrpcStatus>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
    {
        let (channel, method) = (upstream.channel(), self.method);
        let torn = Torn::default();
        match method.kind {
            MethodKind::Unary => {
                let request = self.one_message(body).await?;
                let call = SendCaller::unary_with(channel, method, request, BytesCodec, BytesCodec);
                Ok(one_response(receiver, call.await?))
            }
            MethodKind::ServerStreaming => {
                let request = self.one_message(body).await?;
                let call = SendCaller::server_streaming_with(
                    channel, method, request, BytesCodec, BytesCodec,
                );
                Ok(stream_of_responses(receiver, call.await?, torn))
            }
            MethodKind::ClientStreaming => {
                let request = self.request(Requests::new(body, torn.clone()));
                let call = SendCaller::client_streaming_with(
                    channel, method, request, BytesCodec, BytesCodec,
                );
                Ok(one_response(receiver, unless_torn(&torn, call).await?))
            }
            MethodKind::Streaming => {
                let request = self.request(Requests::new(body, torn.clone()));
                let call =
                    SendCaller::streaming_with(channel, method, request, BytesCodec, BytesCodec);
                let response = unless_torn(&torn, call).await?;
                Ok(stream_of_responses(receiver, response, torn))
            }
            _ => Err(GrpcStatus::never_sent(
                Code::Unimplemented,
                "this gateway is older than the kind of the method",
            )),
        }
    }

    /// Waits for the only message of a request, within the deadline.
    async fn one_message<B>(self, body: RequestBody<B>) -> Result<Request<Bytes>, GrpcStatus>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let mut body = body.with_one_message();
        let message = read_one(&mut body);
        let message = match self.deadline {
            None => message.await,
            Some(deadline) => timeout_at(deadline.into(), message)
                .await
                .unwrap_or_else(|_| {
                    Err(GrpcStatus::new(
                        Code::DeadlineExceeded,
                        "the deadline passed before the request was complete",
                    ))
                }),
        };
        message
            .map(|message| self.request(message))
            .map_err(|status| status.with_execution(Execution::NeverSent))
    }

    fn request<T>(self, message: T) -> Request<T> {
        let request = Request::new(message)
            .with_metadata(self.metadata)
            .with_forwarded(self.client.forwarded());
        match self.deadline {
            Some(deadline) => request.with_deadline(deadline),
            None => request,
        }
    }
}

async fn read_one<B>(body: &mut RequestBody<B>) -> Result<Bytes, GrpcStatus>
where
    B: Body<Data = Bytes> + Unpin,
{
    let Some(message) = poll_fn(|cx| body.poll_message(cx)).await? else {
        return Err(GrpcStatus::malformed("it has no message"));
    };
    // The request is complete at its clean end, not at the end of its message.
    match poll_fn(|cx| body.poll_message(cx)).await? {
        None => Ok(message),
        Some(_) => Err(GrpcStatus::malformed(
            "the method takes one message, and it has several",
        )),
    }
}

/// Waits for a call, and drops it once its requests are torn: that cancels it.
async fn unless_torn<T>(
    torn: &Torn,
    call: impl Future<Output = Result<T, CallError>>,
) -> Result<T, GrpcStatus> {
    let mut call = pin!(call);
    poll_fn(|cx| {
        let outcome = call.as_mut().poll(cx);
        match (torn.status(), outcome) {
            (Some(status), _) => Poll::Ready(Err(status.clone())),
            (None, outcome) => outcome.map_err(|error| GrpcStatus::from_error(&error)),
        }
    })
    .await
}

impl From<CallError> for GrpcStatus {
    fn from(error: CallError) -> Self {
        Self::from_error(&error)
    }
}

fn one_response(receiver: Receiver, response: Response<Bytes>) -> Answer {
    let trailing = response.trailing_metadata().clone();
    let (initial, message, _) = response.into_parts();
    respond(&initial, ResponseBody::one(receiver, message, trailing))
}

fn stream_of_responses(
    receiver: Receiver,
    response: Response<Streaming<Bytes>>,
    torn: Torn,
) -> Answer {
    let (initial, messages, _) = response.into_parts();
    respond(&initial, ResponseBody::stream(receiver, messages, torn))
}

fn respond(initial: &Metadata, body: ResponseBody) -> Answer {
    let mut response = http::Response::new(body);
    let headers = response.headers_mut();
    write_metadata(initial, headers);
    headers.insert(CONTENT_TYPE, GRPC);
    response
}

/// The response of a call that ends before its first message: headers only.
fn headers_only(status: &GrpcStatus) -> Answer {
    let mut response = http::Response::new(ResponseBody::empty());
    let headers = response.headers_mut();
    status.write(headers);
    headers.insert(CONTENT_TYPE, GRPC);
    response
}

/// Refuses what is not gRPC, with HTTP's own statuses, as gRPC asks.
fn refuse_http(head: &http::request::Parts) -> Option<Answer> {
    let status = if head.method != Method::POST {
        StatusCode::METHOD_NOT_ALLOWED
    } else if !is_grpc(head.headers.get(CONTENT_TYPE)) {
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    } else {
        return None;
    };
    let mut response = http::Response::new(ResponseBody::empty());
    *response.status_mut() = status;
    Some(response)
}

/// Returns true if a client or a proxy says that it has made this call before.
fn is_repeated(headers: &HeaderMap) -> bool {
    let count = |name| headers.get(name).map(HeaderValue::as_bytes);
    count("grpc-previous-rpc-attempts").is_some_and(|before| before != b"0")
        || count("x-envoy-attempt-count").is_some_and(|attempt| attempt != b"1")
}

/// Refuses a compressed request, and says which encodings there are: none.
fn refuse_compression(headers: &HeaderMap) -> Option<Answer> {
    let encoding = headers.get(GRPC_ENCODING)?;
    if encoding.as_bytes() == b"identity" {
        return None;
    }
    let encoding = String::from_utf8_lossy(encoding.as_bytes());
    let message = format!("requests with 'grpc-encoding: {encoding}' are not decompressed here");
    let status = GrpcStatus::never_sent(Code::Unimplemented, message);
    let mut response = headers_only(&status);
    response
        .headers_mut()
        .insert(GRPC_ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    Some(response)
}
