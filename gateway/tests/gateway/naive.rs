//! The gateway that comes to mind first: tonic's decoder, and a stream that ends when it fails. It
//! loses data (`torn.rs`).

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::{Buf, Bytes};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rpc_core::{BytesCodec, Channel, MethodKind, Request, SendCaller, Streaming};
use tokio::net::TcpListener;
use tokio_stream::StreamExt;
use tonic::Status;
use tonic::codec::{DecodeBuf, Decoder};

struct Raw;

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(bytes.copy_to_bytes(bytes.remaining())))
    }
}

/// Answers what its tests need: nothing.
async fn answer(
    channel: Channel,
    request: http::Request<hyper::body::Incoming>,
) -> http::Response<http_body_util::Empty<Bytes>> {
    let methods = channel.methods().unwrap();
    let method = methods.get(&request.uri().path()[1..]).unwrap();
    let messages = tonic::Streaming::new_request(Raw, request.into_body(), None, None);
    let messages = Request::new(messages.map_while(Result::ok));
    if method.kind == MethodKind::ClientStreaming {
        let call = channel
            .client_streaming_with::<_, _, _, Bytes>(method, messages, BytesCodec, BytesCodec);
        let _ = call.await;
    } else {
        let call = channel.streaming_with(method, messages, BytesCodec, BytesCodec);
        if let Ok(responses) = call.await {
            let mut responses: Streaming<Bytes> = responses.into_inner();
            while let Ok(Some(_)) = responses.message().await {}
        }
    }
    http::Response::new(http_body_util::Empty::new())
}

pub(crate) async fn serve(channel: Channel) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let channel = channel.clone();
            let service = service_fn(move |request| {
                let channel = channel.clone();
                async move { Ok::<_, Infallible>(answer(channel, request).await) }
            });
            let builder = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}
