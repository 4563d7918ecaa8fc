//! Calls of servers that answer in every way, which are played with h2.

mod answers;
mod connecting;
mod deadlines;
mod streams;

use std::sync::Arc;

use h2::server::SendResponse;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use tokio::net::{TcpListener, TcpStream};
use verbline::client::{Idempotency, MethodKind, MethodSpec, SendCaller};
use verbline::message::BytesCodec;
use verbline::message::bytes::Bytes;
use verbline::{CallError, Code, Execution, Request, Response};

use super::GrpcChannel;
use crate::headers::GRPC;

const UNARY: MethodSpec = method(MethodKind::Unary);
const WATCH: MethodSpec = method(MethodKind::ServerStreaming);
const UPLOAD: MethodSpec = method(MethodKind::ClientStreaming);
const CHAT: MethodSpec = method(MethodKind::Streaming);

const fn method(kind: MethodKind) -> MethodSpec {
    MethodSpec::new("a.B/C", kind, Idempotency::Unknown, "bytes", "bytes")
        .with_max_request_len(1000)
}

type Stream = (http::Request<h2::RecvStream>, SendResponse<Bytes>);

/// Answers each stream of each connection, and returns where.
async fn serve<F, Fut>(answer: F) -> String
where
    F: Fn(Stream) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let (listener, target) = listen().await;
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve_connection(socket, Arc::clone(&answer)));
        }
    });
    target
}

async fn serve_connection<F, Fut>(socket: TcpStream, answer: Arc<F>)
where
    F: Fn(Stream) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let mut connection = h2::server::handshake(socket).await.unwrap();
    while let Some(Ok(stream)) = connection.accept().await {
        tokio::spawn(answer(stream));
    }
}

/// Returns a listener, and the target of its server.
async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("http://{}", listener.local_addr().unwrap());
    (listener, target)
}

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let pairs = pairs.iter();
    pairs
        .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
        .collect()
}

/// The head of a response with these headers.
fn head(pairs: &[(&'static str, &'static str)]) -> http::Response<()> {
    let mut head = http::Response::new(());
    *head.headers_mut() = headers(pairs);
    head.headers_mut().entry(CONTENT_TYPE).or_insert(GRPC);
    head
}

fn framed(message: &[u8]) -> Bytes {
    let len = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &len[..], message].concat().into()
}

/// Answers a call that is unary.
async fn answer((_, mut respond): Stream) {
    let mut body = respond.send_response(head(&[]), false).unwrap();
    body.send_data(framed(b"answer"), false).unwrap();
    body.send_trailers(headers(&[("grpc-status", "0")]))
        .unwrap();
}

async fn ask(channel: &GrpcChannel, request: Request<Bytes>) -> Result<Response<Bytes>, CallError> {
    channel
        .unary_with(&UNARY, request, BytesCodec, BytesCodec)
        .await
}

fn question() -> Request<Bytes> {
    Request::new(Bytes::from_static(b"question"))
}

async fn unary(target: &str) -> Result<Response<Bytes>, CallError> {
    ask(&GrpcChannel::connect_lazy(target).unwrap(), question()).await
}

fn parts(error: &CallError) -> (Code, Execution) {
    (error.code(), error.execution())
}

/// The error of a call that this answers.
async fn error_of<F, Fut>(answer: F) -> (Code, Execution)
where
    F: Fn(Stream) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    parts(&unary(&serve(answer).await).await.unwrap_err())
}
