//! What a call makes of its answer.

use std::time::Duration;

use h2::Reason;
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

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
    let mut request = question().with_timeout(Duration::from_secs(30));
    request
        .metadata_mut()
        .insert("key-bin", vec![0_u8, 255])
        .unwrap();
    let response = ask(&channel, request).await.unwrap();
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
    let (gone, target) = listen().await;
    drop(gone);
    let error = unary(&target).await.unwrap_err();
    assert_eq!(parts(&error), (Code::Unavailable, Execution::NeverSent));

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

/// The error of a call whose server sends these frames when the question has arrived, and closes the
/// connection.
async fn error_after(frames: &[[u8; 17]]) -> (Code, Execution) {
    let (listener, target) = listen().await;
    let frames = frames.concat();
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
        socket.write_all(&frames).await.unwrap();
        socket.shutdown().await.unwrap();
        // Until the client closes the connection too.
        let _ = socket.read_to_end(&mut received).await;
    });
    parts(&unary(&target).await.unwrap_err())
}

/// `GOAWAY` of a server that answers the streams up to the last one. The call's is 1.
fn goaway(last: u32, error: u8) -> [u8; 17] {
    let [a, b, c, d] = last.to_be_bytes();
    [0, 0, 8, 7, 0, 0, 0, 0, 0, a, b, c, d, 0, 0, 0, error]
}

#[tokio::test]
async fn only_a_stream_that_a_goaway_leaves_out_was_not_started() {
    const ALL: u32 = u32::MAX >> 1;
    let left_out = (Code::Unavailable, Execution::NotStarted);
    assert_eq!(error_after(&[goaway(0, 0)]).await, left_out);
    // A server announces its end, and then says which streams it answers.
    assert_eq!(error_after(&[goaway(ALL, 0), goaway(0, 0)]).await, left_out);
    let taken = [goaway(ALL, 0), goaway(1, 0)];
    for frames in [&taken[..1], &taken[1..], &taken] {
        assert_eq!(error_after(frames).await.1, Execution::MayHaveRun);
    }
    assert_eq!(error_after(&[goaway(0, 2)]).await.1, Execution::MayHaveRun);
}

#[tokio::test]
async fn a_server_that_goes_away_answers_the_calls_that_it_has() {
    let (listener, target) = listen().await;
    let server = tokio::spawn(async move {
        for _ in 0..2 {
            let (socket, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(socket).await.unwrap();
            let stream = connection.accept().await.unwrap().unwrap();
            connection.graceful_shutdown();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                answer(stream).await;
            });
            assert!(connection.accept().await.is_none());
        }
    });
    let channel = GrpcChannel::connect(&target).await.unwrap();
    for _ in 0..2 {
        assert_eq!(
            ask(&channel, question()).await.unwrap().into_inner(),
            "answer"
        );
    }
    server.await.unwrap();
}

/// The error of a call whose response has this status of HTTP, and this content.
async fn error_of_http(status: u16, content_type: &'static str) -> CallError {
    let target = serve(move |(_, mut respond)| async move {
        let mut head = head(&[("content-type", content_type)]);
        if content_type.is_empty() {
            head.headers_mut().clear();
        }
        *head.status_mut() = StatusCode::from_u16(status).unwrap();
        let mut body = respond.send_response(head, false).unwrap();
        body.send_data(framed(b"answer"), false).unwrap();
        let _ = body.send_trailers(headers(&[("grpc-status", "0")]));
    });
    unary(&target.await).await.unwrap_err()
}

#[tokio::test]
async fn a_response_that_is_not_of_grpc_has_the_code_that_grpc_gives_it() {
    for (status, code) in [
        (400, Code::Internal),
        (401, Code::Unauthenticated),
        (403, Code::PermissionDenied),
        (404, Code::Unimplemented),
        (429, Code::Unavailable),
        (502, Code::Unavailable),
        (503, Code::Unavailable),
        (504, Code::Unavailable),
        (500, Code::Unknown),
        (204, Code::Unknown),
    ] {
        let error = error_of_http(status, "application/grpc").await;
        assert_eq!(parts(&error), (code, Execution::MayHaveRun), "{status}");
    }
    for content in ["text/html", "application/grpc-web", "application/grpcx"] {
        let error = error_of_http(200, content).await;
        assert_eq!(parts(&error), (Code::Unknown, Execution::MayHaveRun));
        let says = error.message().contains("200 OK") && error.message().contains(content);
        assert!(says, "{error}");
    }
    let error = error_of_http(200, "").await;
    assert!(error.message().contains("no content-type"), "{error}");

    // A status of gRPC counts, whatever came with it.
    let page = error_of(|(_, mut respond)| async move {
        let mut head = head(&[("content-type", "text/html"), ("grpc-status", "5")]);
        *head.status_mut() = StatusCode::BAD_GATEWAY;
        respond.send_response(head, true).unwrap();
    });
    assert_eq!(page.await, (Code::NotFound, Execution::Answered));
    let named = serve(|(request, mut respond)| async move {
        let head = head(&[("content-type", "application/grpc+proto; charset=utf-8")]);
        let mut body = respond.send_response(head, false).unwrap();
        body.send_data(framed(b"answer"), false).unwrap();
        body.send_trailers(headers(&[("grpc-status", "0")]))
            .unwrap();
        drop(request);
    });
    assert_eq!(unary(&named.await).await.unwrap().into_inner(), "answer");
}

/// The error of a call whose server has not started its handler, and pushes back with this value.
async fn pushed_back(value: &'static str) -> CallError {
    let target = serve(move |(_, mut respond)| async move {
        let trailers = [
            ("grpc-status", "14"),
            ("verbline-execution", "not-started"),
            ("grpc-retry-pushback-ms", value),
        ];
        respond.send_response(head(&trailers), true).unwrap();
    });
    unary(&target.await).await.unwrap_err()
}

#[tokio::test]
async fn a_call_that_the_server_asks_not_to_repeat_is_not_retryable() {
    for (value, pushback) in [
        ("0", None),
        ("250", Some(Duration::from_millis(250))),
        ("2147483647", Some(Duration::from_secs(10))),
    ] {
        let error = pushed_back(value).await;
        assert!(error.is_retryable(), "{value}: {error}");
        assert_eq!(error.pushback(), pushback);
    }
    for value in ["-1", "", "soon", "1.5", "2147483648"] {
        let error = pushed_back(value).await;
        assert!(!error.is_retryable(), "{value}: {error}");
        assert_eq!(error.pushback(), None);
        assert_eq!(parts(&error), (Code::Unavailable, Execution::MayHaveRun));
    }
}

#[tokio::test]
async fn a_status_counts_even_if_its_metadata_is_malformed() {
    let error = serve(|(_, mut respond)| async move {
        let trailers = [
            ("grpc-status", "10"),
            ("grpc-message", "busy"),
            ("key-bin", "!"),
        ];
        respond.send_response(head(&trailers), true).unwrap();
    });
    let error = unary(&error.await).await.unwrap_err();
    assert_eq!(parts(&error), (Code::Aborted, Execution::Answered));
    assert_eq!(error.message(), "busy");
    let success = serve(|(_, mut respond)| async move {
        let mut body = respond.send_response(head(&[]), false).unwrap();
        body.send_data(framed(b"answer"), false).unwrap();
        body.send_trailers(headers(&[("grpc-status", "0"), ("key-bin", "!")]))
            .unwrap();
    });
    assert_eq!(unary(&success.await).await.unwrap().into_inner(), "answer");
}
