//! Streams of messages, in both directions.

use std::panic::panic_any;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rpc_core::sender;
use tokio_stream::StreamExt;
use verbline::message::Codec;
use verbline::message::bytes::BufMut;
use verbline::message::prost::EncodeError;
use verbline::message::{DecodeError, LengthChanged};

use super::*;

#[tokio::test]
async fn streams_go_both_ways_and_a_message_that_is_too_long_fails_its_call() {
    let target = serve(|(request, mut respond)| async move {
        let mut asked = request.into_body();
        let mut body = respond.send_response(head(&[]), false).unwrap();
        while let Some(Ok(data)) = asked.data().await {
            asked.flow_control().release_capacity(data.len()).unwrap();
            body.send_data(data, false).unwrap();
        }
        if asked.is_end_stream() {
            body.send_trailers(headers(&[("grpc-status", "0"), ("end", "1")]))
                .unwrap();
        }
    });
    let channel = GrpcChannel::connect(&target.await).await.unwrap();
    let numbers = || tokio_stream::iter(0..100).map(|number| Bytes::from(vec![number; 100]));
    let chat = channel.streaming_with(&CHAT, Request::new(numbers()), BytesCodec, BytesCodec);
    let mut chat = chat.await.unwrap().into_inner();
    for number in 0..100 {
        assert_eq!(
            chat.message().await.unwrap(),
            Some(Bytes::from(vec![number; 100]))
        );
    }
    assert_eq!(chat.message().await.unwrap(), None);
    assert_eq!(chat.trailers().await.unwrap().get("end"), Some("1"));

    let watch = Request::new(Bytes::from_static(b"once"));
    let watch = channel.server_streaming_with(&WATCH, watch, BytesCodec, BytesCodec);
    let mut watch = watch.await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap(), "once");
    assert_eq!(watch.message().await.unwrap(), None);

    let long = tokio_stream::iter([10, 1001]).map(|len| Bytes::from(vec![0; len]));
    let upload = channel.client_streaming_with(&UPLOAD, Request::new(long), BytesCodec, BytesCodec);
    let error = upload.await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(
        error
            .message()
            .contains("1001 bytes exceeds the method's limit of 1000"),
        "{error}"
    );
    let long = Request::new(Bytes::from(vec![0; 1001]));
    let error = channel
        .unary_with(&UNARY, long, BytesCodec, BytesCodec)
        .await
        .unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::ResourceExhausted, Execution::NeverSent)
    );
    let short = channel.max_message_len(3);
    let request = Request::new(Bytes::from_static(b"1234"));
    let error = short
        .unary_with(&UNARY, request, BytesCodec, BytesCodec)
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
}

/// The server must see that the call is over, and no clean end of what was uploaded.
#[tokio::test]
async fn a_call_that_is_dropped_resets_its_stream_while_it_uploads() {
    let (seen, mut sees) = tokio::sync::mpsc::unbounded_channel();
    let target = serve(move |(request, mut respond)| {
        let seen = seen.clone();
        async move {
            let mut asked = request.into_body();
            let mut body = respond.send_response(head(&[]), false).unwrap();
            let first = asked.data().await.unwrap().unwrap();
            body.send_data(first, false).unwrap();
            let next = asked.data().await;
            seen.send(matches!(next, Some(Err(_)))).unwrap();
        }
    });
    let channel = GrpcChannel::connect(&target.await).await.unwrap();
    let messages = tokio_stream::iter([Bytes::from_static(b"first")]);
    let messages = messages.chain(tokio_stream::pending());
    let chat = channel.streaming_with(&CHAT, Request::new(messages), BytesCodec, BytesCodec);
    let mut chat = chat.await.unwrap().into_inner();
    assert_eq!(chat.message().await.unwrap().unwrap(), "first");
    drop(chat);
    assert_eq!(sees.recv().await, Some(true));
}

/// Messages until a panic, which comes when it is polled, or when it is dropped.
struct Panics {
    messages: usize,
    is_dropped_later: bool,
}

impl verbline::Stream for Panics {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.messages == 0 {
            if !self.is_dropped_later {
                panic_any(PanicsAgain);
            }
            return Poll::Ready(None);
        }
        // Each in a frame of its own.
        self.messages -= 1;
        match self.messages % 2 {
            0 => Poll::Ready(Some(Bytes::from_static(b"more"))),
            _ => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        if self.is_dropped_later {
            panic_any(PanicsAgain);
        }
    }
}

/// The payload of a panic, which panics when it is dropped.
struct PanicsAgain;

impl Drop for PanicsAgain {
    fn drop(&mut self) {
        panic!("a panic of the payload's destructor");
    }
}

/// A codec whose messages cannot be encoded.
struct PanicCodec;

impl Codec<Bytes> for PanicCodec {
    fn encoded_len(message: &Bytes) -> usize {
        message.len()
    }

    fn encode(_: &Bytes, _: &mut [u8]) -> Result<(), LengthChanged> {
        panic!("a panic of the codec")
    }

    fn encode_to(_: &Bytes, _: &mut impl BufMut) -> Result<(), EncodeError> {
        panic!("a panic of the codec")
    }

    fn decode(_: &[u8]) -> Result<Bytes, DecodeError> {
        panic!("a panic of the codec")
    }
}

/// Answers when the request has ended.
async fn answer_at_end((request, respond): Stream) {
    let (head, mut body) = request.into_parts();
    while let Some(Ok(data)) = body.data().await {
        body.flow_control().release_capacity(data.len()).unwrap();
    }
    if body.is_end_stream() {
        answer((http::Request::from_parts(head, body), respond)).await;
    }
}

#[tokio::test]
async fn a_panic_of_the_callers_messages_ends_their_call_and_no_other() {
    let (listener, target) = listen().await;
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        serve_connection(socket, Arc::new(answer_at_end)).await;
    });
    let channel = GrpcChannel::connect(&target).await.unwrap();
    let (mut more, messages) = sender();
    let others = channel.clone();
    let other = tokio::spawn(async move {
        let messages = Request::new(messages);
        others
            .client_streaming_with(&UPLOAD, messages, BytesCodec, BytesCodec)
            .await
    });
    more.send(Bytes::from_static(b"first")).await.unwrap();

    let expected = (Code::Internal, Execution::MayHaveRun);
    for count in [0, 5] {
        let messages = Request::new(Panics {
            messages: count,
            is_dropped_later: false,
        });
        let call = channel.client_streaming_with(&UPLOAD, messages, BytesCodec, BytesCodec);
        assert_eq!(parts(&call.await.unwrap_err()), expected);
    }
    let message = tokio_stream::iter([Bytes::from_static(b"message")]);
    let call =
        channel.client_streaming_with(&UPLOAD, Request::new(message), PanicCodec, BytesCodec);
    assert_eq!(parts(&call.await.unwrap_err()), expected);
    let messages = Request::new(Panics {
        messages: 5,
        is_dropped_later: true,
    });
    let call = channel.client_streaming_with(&UPLOAD, messages, BytesCodec, BytesCodec);
    assert_eq!(call.await.unwrap().into_inner(), "answer");
    // The only message of a request is encoded where it is sent.
    let panicking = channel.clone();
    let call = tokio::spawn(async move {
        panicking
            .unary_with(&UNARY, question(), PanicCodec, BytesCodec)
            .await
    });
    assert!(call.await.unwrap_err().is_panic());

    drop(more);
    assert_eq!(other.await.unwrap().unwrap().into_inner(), "answer");
    let response = ask(&channel, question()).await.unwrap();
    assert_eq!(response.into_inner(), "answer");
}

const fn watch(path: &'static str) -> MethodSpec {
    let kind = MethodKind::ServerStreaming;
    MethodSpec::new(path, kind, Idempotency::Unknown, "bytes", "bytes")
}

/// Fills the window of each stream with messages of 15 or of 10,000 bytes.
#[tokio::test]
async fn streams_that_nobody_reads_delay_no_other_call() {
    const SHORT: MethodSpec = watch("a.B/Short");
    const LONG: MethodSpec = watch("a.B/Long");
    let (full, mut fulls) = tokio::sync::mpsc::unbounded_channel();
    let target = serve(move |(request, mut respond)| {
        let full = full.clone();
        async move {
            let message = match request.uri().path().strip_prefix('/') {
                Some("a.B/Short") => framed(&[1; 15]),
                Some("a.B/Long") => framed(&[1; 10_000]),
                _ => return answer((request, respond)).await,
            };
            let mut body = respond.send_response(head(&[]), false).unwrap();
            for _ in 0..(1 << 20) / message.len() {
                body.reserve_capacity(message.len());
                while body.capacity() < message.len() {
                    let more = std::future::poll_fn(|cx| body.poll_capacity(cx)).await;
                    more.unwrap().unwrap();
                }
                body.send_data(message.clone(), false).unwrap();
            }
            full.send(()).unwrap();
            std::future::pending().await
        }
    });
    let channel = GrpcChannel::connect(&target.await).await.unwrap();
    let mut unread = Vec::new();
    for method in [&SHORT].into_iter().chain([&LONG; 8]) {
        let watch = channel.server_streaming_with(method, question(), BytesCodec, BytesCodec);
        unread.push(watch.await.unwrap().into_inner());
    }
    for _ in &unread {
        let full = tokio::time::timeout(Duration::from_secs(60), fulls.recv());
        full.await.unwrap().unwrap();
    }
    let response = ask(&channel, question()).await.unwrap();
    assert_eq!(response.into_inner(), "answer");
    let short = &mut unread[0];
    for _ in 0..(1 << 20) / 20 {
        assert!(short.message().await.unwrap().is_some());
    }
}
