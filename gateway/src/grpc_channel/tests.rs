//! Calls of servers that answer in every way, which are played with h2.

use std::sync::Arc;
use std::time::{Duration, Instant};

use h2::Reason;
use h2::server::SendResponse;
use http::header::{HeaderMap, HeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_stream::StreamExt;
use verbline::client::{Idempotency, MethodKind, MethodSpec, SendCaller};
use verbline::message::BytesCodec;
use verbline::message::bytes::Bytes;
use verbline::{CallError, Code, Execution, Request, Response};

use super::{GrpcChannel, write_timeout};

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
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(socket).await.unwrap();
                while let Some(Ok(stream)) = connection.accept().await {
                    tokio::spawn(answer(stream));
                }
            });
        }
    });
    format!("http://{address}")
}

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let pairs = pairs.iter();
    pairs
        .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
        .collect()
}

fn head(pairs: &[(&'static str, &'static str)]) -> http::Response<()> {
    let mut head = http::Response::new(());
    *head.headers_mut() = headers(pairs);
    head
}

fn framed(message: &[u8]) -> Bytes {
    let len = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &len[..], message].concat().into()
}

async fn unary(target: &str) -> Result<Response<Bytes>, CallError> {
    let channel = GrpcChannel::connect_lazy(target).unwrap();
    let request = Request::new(Bytes::from_static(b"question"));
    channel
        .unary_with(&UNARY, request, BytesCodec, BytesCodec)
        .await
}

/// The error of a call that this answers.
async fn error_of<F, Fut>(answer: F) -> (Code, Execution)
where
    F: Fn(Stream) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let error = unary(&serve(answer).await).await.unwrap_err();
    (error.code(), error.execution())
}

#[tokio::test]
async fn a_call_has_the_headers_of_grpc_and_its_metadata_and_so_has_its_answer() {
    let target = serve(|(request, mut respond)| async move {
        let (asked, mut body) = request.into_parts();
        assert_eq!(asked.uri.path(), "/a.B/C");
        for (name, value) in [
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("key-bin", "AP8"),
        ] {
            assert_eq!(asked.headers[name], value);
        }
        assert!(
            asked.headers["grpc-timeout"]
                .to_str()
                .unwrap()
                .ends_with('u')
        );
        assert_eq!(body.data().await.unwrap().unwrap(), framed(b"question"));
        let mut body = respond
            .send_response(head(&[("initial", "1")]), false)
            .unwrap();
        let answer = framed(b"answer");
        body.send_data(answer.slice(..3), false).unwrap();
        body.send_data(answer.slice(3..), false).unwrap();
        body.send_trailers(headers(&[("grpc-status", "0"), ("trailing-bin", "AQ")]))
            .unwrap();
    });
    let channel = GrpcChannel::connect(&target.await).await.unwrap();
    let mut request =
        Request::new(Bytes::from_static(b"question")).with_timeout(Duration::from_secs(30));
    request
        .metadata_mut()
        .insert("key-bin", vec![0_u8, 255])
        .unwrap();
    let response = channel
        .unary_with(&UNARY, request, BytesCodec, BytesCodec)
        .await
        .unwrap();
    assert_eq!(response.metadata().get("initial"), Some("1"));
    assert_eq!(
        response.trailing_metadata().get_bin("trailing-bin"),
        Some(&[1][..])
    );
    assert_eq!(response.into_inner(), "answer");
}

#[tokio::test]
async fn the_trailers_say_how_a_call_has_ended() {
    let target = serve(|(_, mut respond)| async move {
        let trailers = [
            ("grpc-status", "10"),
            ("grpc-message", "50%25 %E2%98%BA"),
            ("grpc-status-details-bin", "AQI"),
            ("grpc-retry-pushback-ms", "250"),
            ("why", "busy"),
        ];
        respond.send_response(head(&trailers), true).unwrap();
    });
    let error = unary(&target.await).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Aborted, "50% ☺"));
    assert_eq!(error.details(), [1, 2]);
    assert_eq!(error.metadata().get("why"), Some("busy"));
    assert_eq!(error.pushback(), Some(Duration::from_millis(250)));
    assert_eq!(error.execution(), Execution::Answered);
}

#[tokio::test]
async fn how_far_a_call_got_is_what_http_2_says() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("http://{}", gone.local_addr().unwrap());
    drop(gone);
    let error = unary(&target).await.unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::Unavailable, Execution::NeverSent)
    );

    let refused = error_of(|(_, mut respond)| async move {
        respond.send_reset(Reason::REFUSED_STREAM);
    });
    assert_eq!(refused.await, (Code::Unavailable, Execution::NotStarted));
    let reset = error_of(|(_, mut respond)| async move { respond.send_reset(Reason::CANCEL) });
    assert_eq!(reset.await, (Code::Cancelled, Execution::MayHaveRun));
    let gateway = error_of(|(_, mut respond)| async move {
        let trailers = [("grpc-status", "14"), ("verbline-execution", "never-sent")];
        respond.send_response(head(&trailers), true).unwrap();
    });
    assert_eq!(gateway.await, (Code::Unavailable, Execution::NotStarted));
    let web = error_of(|(_, mut respond)| async move {
        let mut head = head(&[]);
        *head.status_mut() = http::StatusCode::NOT_FOUND;
        respond.send_response(head, true).unwrap();
    });
    assert_eq!(web.await, (Code::Unimplemented, Execution::MayHaveRun));
    // hyper takes this for the end of a body.
    let torn = error_of(|(_, mut respond)| async move {
        let mut body = respond.send_response(head(&[]), false).unwrap();
        body.send_data(framed(b"answer"), false).unwrap();
        body.send_reset(Reason::NO_ERROR);
    });
    assert_eq!(torn.await.1, Execution::MayHaveRun);
    // After its response has begun, a handler may have run, whatever the server says. A status counts only
    // at the end of a stream.
    let late = error_of(|(_, mut respond)| async move {
        let mut body = respond.send_response(head(&[]), false).unwrap();
        body.send_data(framed(b"answer"), false).unwrap();
        // A reset takes back what has not been written.
        tokio::time::sleep(Duration::from_millis(100)).await;
        body.send_reset(Reason::REFUSED_STREAM);
    });
    assert_eq!(late.await, (Code::Unavailable, Execution::MayHaveRun));
    let late = error_of(|(_, mut respond)| async move {
        let mut body = respond.send_response(head(&[]), false).unwrap();
        let trailers = [("grpc-status", "14"), ("verbline-execution", "never-sent")];
        body.send_trailers(headers(&trailers)).unwrap();
    });
    assert_eq!(late.await, (Code::Unavailable, Execution::MayHaveRun));
    let early = error_of(|(_, mut respond)| async move {
        let head = head(&[("grpc-status", "0")]);
        let mut body = respond.send_response(head, false).unwrap();
        body.send_data(framed(b"answer"), true).unwrap();
    });
    assert_eq!(early.await, (Code::Unavailable, Execution::MayHaveRun));
    let no_trailers = error_of(|(_, mut respond)| async move {
        let mut body = respond.send_response(head(&[]), false).unwrap();
        body.send_data(framed(b"answer"), true).unwrap();
    });
    assert_eq!(
        no_trailers.await,
        (Code::Unavailable, Execution::MayHaveRun)
    );
    let several = error_of(|(_, mut respond)| async move {
        let mut body = respond.send_response(head(&[]), false).unwrap();
        body.send_data([framed(b"a"), framed(b"b")].concat().into(), false)
            .unwrap();
        body.send_trailers(headers(&[("grpc-status", "0")]))
            .unwrap();
    });
    assert_eq!(several.await, (Code::Internal, Execution::Answered));
}

#[tokio::test]
async fn a_lost_connection_ends_its_calls_and_the_next_call_makes_another() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        for is_lost in [true, false] {
            let (socket, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(socket).await.unwrap();
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            if is_lost {
                continue;
            }
            let mut body = respond.send_response(head(&[]), false).unwrap();
            body.send_data(framed(b"answer"), false).unwrap();
            body.send_trailers(headers(&[("grpc-status", "0")]))
                .unwrap();
            while connection.accept().await.is_some() {}
        }
    });
    let channel = GrpcChannel::connect(&target).await.unwrap();
    let call = || {
        let request = Request::new(Bytes::from_static(b"question"));
        channel.unary_with(&UNARY, request, BytesCodec, BytesCodec)
    };
    let error = call().await.unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::Unavailable, Execution::MayHaveRun)
    );
    assert_eq!(call().await.unwrap().into_inner(), "answer");
    drop(channel);
    server.await.unwrap();
}

#[tokio::test]
async fn a_deadline_ends_a_call_on_this_side() {
    let target = serve(|(_, respond)| async move {
        let _respond = respond;
        std::future::pending().await
    });
    let channel = GrpcChannel::connect(&target.await).await.unwrap();
    let request = Request::new(Bytes::new()).with_timeout(Duration::from_millis(20));
    let error = channel
        .unary_with(&UNARY, request, BytesCodec, BytesCodec)
        .await
        .unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::DeadlineExceeded, Execution::MayHaveRun)
    );
}

#[tokio::test]
async fn a_deadline_ends_a_stream_whose_messages_are_all_there() {
    let target = serve(|(_, mut respond)| async move {
        let mut body = respond.send_response(head(&[]), false).unwrap();
        for _ in 0..100 {
            body.send_data(framed(b"more"), false).unwrap();
        }
        std::future::pending().await
    });
    let channel = GrpcChannel::connect(&target.await).await.unwrap();
    let time = Duration::from_secs(2);
    let request = Request::new(Bytes::new()).with_timeout(time);
    let watch = channel.server_streaming_with(&WATCH, request, BytesCodec, BytesCodec);
    let mut watch = watch.await.unwrap().into_inner();
    watch.message().await.unwrap();
    tokio::time::sleep(time).await;
    let error = watch.message().await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
}

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

#[tokio::test]
async fn targets_of_other_forms_are_refused_with_a_sentence() {
    for (target, why) in [
        ("https://a:1", "TLS is not supported"),
        ("a:1", "not of the form"),
        ("http://", "not of the form"),
        ("http://a:1/path", "not of the form"),
        ("http://user@a:1", "not of the form"),
        ("ftp://a:1", "not of the form"),
    ] {
        let error = GrpcChannel::connect_lazy(target).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains(target), "{error}");
    }
    assert!(GrpcChannel::connect_lazy("http://[::1]:80/").is_ok());
}

#[test]
fn a_timeout_has_eight_digits_at_most() {
    let now = Instant::now();
    for (left, expected) in [
        (Duration::ZERO, "0u"),
        (Duration::from_micros(99_999_999), "99999999u"),
        (Duration::from_secs(100), "100000m"),
        (Duration::from_secs(100_000), "100000S"),
        (Duration::from_secs(1 << 30), "99999999S"),
    ] {
        let mut headers = HeaderMap::new();
        write_timeout(Some(now + left), now, &mut headers);
        assert_eq!(headers["grpc-timeout"], expected);
    }
}

/// Leaves the only stream out of those that the server still answers, in a frame of this error.
async fn left_out(error: u8) -> (Code, Execution) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket
            .write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
            .await
            .unwrap();
        let mut received = Vec::new();
        while !received.windows(8).any(|part| part == b"question") {
            socket.read_buf(&mut received).await.unwrap();
        }
        let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, error];
        socket.write_all(&goaway).await.unwrap();
        // Until the client closes the connection.
        let _ = socket.read_to_end(&mut received).await;
    });
    let error = unary(&target).await.unwrap_err();
    (error.code(), error.execution())
}

#[tokio::test]
async fn a_stream_that_a_goaway_leaves_out_was_not_started() {
    assert_eq!(
        left_out(0).await,
        (Code::Unavailable, Execution::NotStarted)
    );
    assert_eq!(left_out(2).await.1, Execution::MayHaveRun);
}
