//! Deadlines of calls, on this side and as the server has them.

use std::time::{Duration, Instant};

use super::super::write_timeout;
use super::*;

#[tokio::test]
async fn a_deadline_ends_a_call_on_this_side() {
    let target = serve(|(_, respond)| async move {
        let _respond = respond;
        std::future::pending().await
    });
    let channel = GrpcChannel::connect(&target.await).await.unwrap();
    let request = Request::new(Bytes::new()).with_timeout(Duration::from_millis(20));
    let error = ask(&channel, request).await.unwrap_err();
    let expected = (Code::DeadlineExceeded, Execution::MayHaveRun);
    assert_eq!(parts(&error), expected);
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

#[test]
fn a_timeout_has_eight_digits_at_most() {
    for (left, expected) in [
        (Duration::ZERO, "0u"),
        (Duration::from_micros(99_999_999), "99999999u"),
        (Duration::from_secs(100), "100000m"),
        (Duration::from_secs(100_000), "100000S"),
        (Duration::from_secs(1 << 30), "99999999S"),
    ] {
        let mut headers = HeaderMap::new();
        write_timeout(left, &mut headers);
        assert_eq!(headers["grpc-timeout"], expected);
    }
}

#[tokio::test]
async fn a_call_whose_deadline_has_passed_is_not_sent() {
    let target = serve(answer).await;
    let channel = GrpcChannel::connect(&target).await.unwrap();
    let request = question().with_timeout(Duration::ZERO);
    let error = ask(&channel, request).await.unwrap_err();
    let expected = (Code::DeadlineExceeded, Execution::NeverSent);
    assert_eq!(parts(&error), expected);
}

#[tokio::test]
async fn a_server_has_the_time_that_is_left_after_connecting() {
    let (listener, target) = listen().await;
    let (connecting, call) = (Duration::from_millis(300), Duration::from_secs(60));
    let server = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let accepted = Instant::now();
        tokio::time::sleep(connecting).await;
        let mut connection = h2::server::handshake(socket).await.unwrap();
        let stream = connection.accept().await.unwrap().unwrap();
        assert!(accepted.elapsed() >= connecting);
        let text = stream.0.headers()["grpc-timeout"].to_str().unwrap();
        let micros = text.strip_suffix('u').unwrap().parse().unwrap();
        answer(stream).await;
        while connection.accept().await.is_some() {}
        Duration::from_micros(micros)
    });
    let channel = GrpcChannel::connect_lazy(&target).unwrap();
    let response = ask(&channel, question().with_timeout(call)).await;
    assert_eq!(response.unwrap().into_inner(), "answer");
    drop(channel);
    let left = server.await.unwrap();
    assert!(left <= call - connecting, "{left:?}");
}
