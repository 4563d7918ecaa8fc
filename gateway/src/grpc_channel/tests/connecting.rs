//! From a target to a connection, and to the next one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::*;

#[tokio::test]
async fn targets_of_other_forms_are_refused_with_a_sentence() {
    for (target, why) in [
        #[cfg(not(feature = "tls"))]
        ("https://a:1", "enable the feature `tls`"),
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

#[tokio::test]
async fn a_lost_connection_ends_its_calls_and_the_next_call_makes_another() {
    let (listener, target) = listen().await;
    let server = tokio::spawn(async move {
        for is_lost in [true, false] {
            let (socket, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(socket).await.unwrap();
            let stream = connection.accept().await.unwrap().unwrap();
            answer(stream).await;
            if is_lost {
                connection.accept().await.unwrap().unwrap();
                continue;
            }
            while connection.accept().await.is_some() {}
        }
    });
    let channel = GrpcChannel::connect(&target).await.unwrap();
    ask(&channel, question()).await.unwrap();
    let error = ask(&channel, question()).await.unwrap_err();
    assert_eq!(parts(&error), (Code::Unavailable, Execution::MayHaveRun));
    let response = ask(&channel, question()).await.unwrap();
    assert_eq!(response.into_inner(), "answer");
    drop(channel);
    server.await.unwrap();
}

#[tokio::test]
async fn an_attempt_goes_on_when_the_deadline_of_its_caller_has_passed() {
    let (listener, target) = listen().await;
    let (begin, begins) = oneshot::channel::<()>();
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        begins.await.unwrap();
        serve_connection(socket, Arc::new(answer)).await;
    });
    let channel = GrpcChannel::connect_lazy(&target).unwrap();
    for _ in 0..3 {
        let short = question().with_timeout(Duration::from_millis(20));
        let error = ask(&channel, short).await.unwrap_err();
        let expected = (Code::DeadlineExceeded, Execution::NeverSent);
        assert_eq!(parts(&error), expected);
    }
    begin.send(()).unwrap();
    // The listener takes no second connection.
    let response = ask(&channel, question()).await.unwrap();
    assert_eq!(response.into_inner(), "answer");
}

#[tokio::test]
async fn calls_of_a_server_that_is_away_fail_without_an_attempt_each() {
    let (listener, target) = listen().await;
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    let closing = tokio::spawn(async move {
        loop {
            drop(listener.accept().await.unwrap());
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let channel = GrpcChannel::connect_lazy(&target).unwrap();
    for _ in 0..1000 {
        let error = ask(&channel, question()).await.unwrap_err();
        assert_eq!(parts(&error), (Code::Unavailable, Execution::NeverSent));
        let has_reason = error.message().contains(&target);
        assert!(error.is_retryable() && has_reason, "{error}");
    }
    let count = attempts.load(Ordering::Relaxed);
    assert!((1..100).contains(&count), "{count} attempts");
    closing.abort();
    let _ = closing.await;

    let address = target.strip_prefix("http://").unwrap().to_owned();
    let listener = TcpListener::bind(address).await.unwrap();
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        serve_connection(socket, Arc::new(answer)).await;
    });
    while ask(&channel, question()).await.is_err() {
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn calls_of_a_server_that_ends_its_connections_at_once_make_no_connection_each() {
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    const GOAWAY: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let (listener, target) = listen().await;
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                socket.write_all(&[SETTINGS, GOAWAY].concat()).await?;
                socket.shutdown().await?;
                copy(&mut socket, &mut sink()).await
            });
        }
    });
    let channel = GrpcChannel::connect_lazy(&target).unwrap();
    let mut with_reason = 0;
    for _ in 0..1000 {
        let error = ask(&channel, question()).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        if error.execution() == Execution::NeverSent {
            assert!(error.message().contains(&target), "{error}");
        }
        with_reason += usize::from(error.message().contains("before any response"));
    }
    let count = connections.load(Ordering::Relaxed);
    assert!((1..100).contains(&count), "{count} connections");
    assert!(with_reason > 900, "{with_reason} errors say why");
}

/// The error of connecting to a server that begins so, and closes the connection.
async fn error_of_server(first: &'static [u8]) -> String {
    let (listener, target) = listen().await;
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(first).await.unwrap();
        socket.shutdown().await.unwrap();
        sleep(Duration::from_secs(60)).await;
    });
    let error = GrpcChannel::connect(&target).await.unwrap_err().to_string();
    assert!(error.contains(&target), "{error}");
    error
}

#[tokio::test]
async fn a_server_that_does_not_speak_http_2_is_no_connection() {
    const TLS: &[u8] = &[0x15, 3, 1, 0, 2, 2, 70];
    for (first, what) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "speaks HTTP/1"),
        (TLS, "speaks TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP/2"),
        // `PING` comes after `SETTINGS`.
        (&[0, 0, 8, 6, 0, 0, 0, 0, 0], "does not speak HTTP/2"),
        (b"HTTP", "does not speak HTTP/2"),
        (b"", "without a word of HTTP/2"),
    ] {
        let error = error_of_server(first).await;
        assert!(error.contains(what), "{error}");
    }
    // The system of a server that has not read everything resets the connection.
    let (listener, target) = listen().await;
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.read_exact(&mut [0; 24 + 9]).await.unwrap();
    });
    let error = GrpcChannel::connect(&target).await.unwrap_err().to_string();
    assert!(error.contains("reset by peer"), "{error}");
    // One that is silent has the time limit.
    let (silent, target) = listen().await;
    let connecting = timeout(Duration::from_millis(300), GrpcChannel::connect(&target));
    assert!(connecting.await.is_err());
    drop(silent);
}

/// Calls must not wait for an attempt that nothing makes.
#[test]
fn a_channel_whose_runtime_has_ended_says_so() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (channel, used) = runtime.block_on(async {
        let target = serve(answer).await;
        let used = GrpcChannel::connect(&target).await.unwrap();
        ask(&used, question()).await.unwrap();
        (GrpcChannel::connect_lazy(&target).unwrap(), used)
    });
    drop(runtime);
    for channel in [channel, used] {
        let request = question().with_timeout(Duration::from_secs(60));
        let error = rpc_core::block_on(ask(&channel, request)).unwrap_err();
        assert_eq!(parts(&error), (Code::Unavailable, Execution::NeverSent));
        assert!(error.message().contains("runtime"), "{error}");
    }
}

/// A timer panics then.
#[test]
fn a_stream_with_a_deadline_ends_with_an_error_when_its_runtime_has_ended() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut watch = runtime.block_on(async {
        let target = serve(|(_, mut respond)| async move {
            let mut body = respond.send_response(head(&[]), false).unwrap();
            body.send_data(framed(b"first"), false).unwrap();
            std::future::pending().await
        });
        let channel = GrpcChannel::connect(&target.await).await.unwrap();
        let request = question().with_timeout(Duration::from_secs(60));
        let watch = channel.server_streaming_with(&WATCH, request, BytesCodec, BytesCodec);
        let mut watch = watch.await.unwrap().into_inner();
        assert_eq!(watch.message().await.unwrap().unwrap(), "first");
        watch
    });
    drop(runtime);
    let error = rpc_core::block_on(watch.message()).unwrap_err();
    assert_eq!(parts(&error), (Code::Unavailable, Execution::MayHaveRun));
}
