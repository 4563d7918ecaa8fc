//! What of a call goes over to the other side, and how: deadlines, cancellation, statuses, headers.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use http::header::CONTENT_TYPE;
use proto::greeter::{Greeter, GreeterServer, HelloReply, HelloRequest};
use rpc_core::{Channel, Metadata, Request, Response, Server, Status};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Code;
use verbline::Device;
use verbline_gateway::Gateway;

use crate::support::{Answer, Client, Fixture, send};

const SAY_HELLO: &str = "/verbline.greeter.Greeter/SayHello";

/// Messages with these names.
const SLEEP: &[u8] = b"\0\0\0\0\x07\x0a\x05sleep";
const WORK: &[u8] = b"\0\0\0\0\x06\x0a\x04work";

/// Tells a process of these tests that it is a server.
const VARIABLE: &str = "VERBLINE_TEST_SERVE_GREETER";

/// Does what the name says.
struct Odd {
    /// What happens to calls that sleep.
    events: mpsc::UnboundedSender<Event>,
}

#[derive(Debug, PartialEq)]
enum Event {
    /// A call has begun, with a deadline that is so far away.
    Begun(Option<Duration>),
    Dropped,
}

struct TellDrop(mpsc::UnboundedSender<Event>);

impl Drop for TellDrop {
    fn drop(&mut self) {
        let _ = self.0.send(Event::Dropped);
    }
}

impl Greeter for Odd {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let deadline = request.deadline();
        let keys: Vec<_> = request
            .metadata()
            .iter()
            .map(|(key, _)| key.to_owned())
            .collect();
        match request.into_inner().name.as_str() {
            "sleep" => {
                let _drop = TellDrop(self.events.clone());
                let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
                let _ = self.events.send(Event::Begun(left));
                std::future::pending().await
            }
            "work" => {
                std::thread::sleep(Duration::from_millis(5));
                Ok(Response::new(HelloReply::default()))
            }
            "fail" => {
                let mut metadata = Metadata::new();
                metadata.insert("reason", "none")?;
                metadata.insert("grpc-status", "0")?;
                let status = Status::not_found("no user").with_details(vec![1, 2, 255]);
                Err(status.with_metadata(metadata))
            }
            "keys" => Ok(Response::new(HelloReply {
                message: keys.join(" "),
            })),
            name => Ok(Response::new(HelloReply {
                message: name.to_owned(),
            })),
        }
    }
}

async fn odd() -> (Fixture, mpsc::UnboundedReceiver<Event>) {
    let (events, received) = mpsc::unbounded_channel();
    let device = Device::open("soft").unwrap();
    let server = Server::builder(&device)
        .max_concurrent_calls(1)
        .add_service(GreeterServer::new(Odd { events }))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    (
        Fixture::start(&device, server, |builder| builder).await,
        received,
    )
}

fn hello(name: &str) -> tonic::Request<HelloRequest> {
    tonic::Request::new(HelloRequest {
        name: name.to_owned(),
    })
}

async fn say(
    client: &Client,
    request: tonic::Request<HelloRequest>,
) -> Result<String, tonic::Status> {
    let reply: Result<tonic::Response<HelloReply>, _> = client.unary(SAY_HELLO, request).await;
    reply.map(|reply| reply.into_inner().message)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_reaches_the_handler_and_its_end_comes_back() {
    let (fixture, mut events) = odd().await;
    // tonic's client would end the call by itself.
    let headers = [GRPC, ("grpc-timeout", "200m")];
    let answer = send(fixture.address, SAY_HELLO, &headers, SLEEP, true).await;
    assert_eq!(answer.headers["grpc-status"], "4");
    let Some(Event::Begun(Some(left))) = events.recv().await else {
        panic!("the handler had no deadline");
    };
    assert!(left <= Duration::from_millis(200), "{left:?}");
    assert_eq!(events.recv().await, Some(Event::Dropped));
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_its_client_drops_is_cancelled() {
    let (fixture, mut events) = odd().await;
    let client = fixture.client().await;
    let call = tokio::spawn(async move { say(&client, hello("sleep")).await });
    assert_eq!(events.recv().await, Some(Event::Begun(None)));
    call.abort();
    assert_eq!(events.recv().await, Some(Event::Dropped));
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_keeps_its_message_details_and_metadata() {
    let (fixture, _events) = odd().await;
    let client = fixture.client().await;
    let status = say(&client, hello("fail")).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::NotFound, "no user")
    );
    assert_eq!(status.details(), [1, 2, 255]);
    assert_eq!(status.metadata().get("reason").unwrap(), "none");
    assert!(status.metadata().get("verbline-execution").is_none());
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_an_overloaded_server_refuses_says_that_it_did_not_start() {
    let (fixture, mut events) = odd().await;
    let client = fixture.client().await;
    let other = client.clone();
    let call = tokio::spawn(async move { say(&other, hello("sleep")).await });
    assert_eq!(events.recv().await, Some(Event::Begun(None)));
    // Calls of one connection wait for their turn at the server; another channel's are refused.
    let device = Device::open("soft").unwrap();
    let address = fixture.server.local_addr().to_string();
    let channel = Channel::connect(&device, &address).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let second = Client::connect_later(listener.local_addr().unwrap());
    let gateway =
        tokio::spawn(Gateway::builder(channel).serve_on(listener, std::future::pending()));
    let status = say(&second, hello("x")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let metadata = status.metadata();
    assert_eq!(metadata.get("verbline-execution").unwrap(), "not-started");
    gateway.abort();
    call.abort();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_an_overloaded_server_is_told_when_to_come_back() {
    let (fixture, _events) = odd().await;
    let address = fixture.address;
    // Each waits for the others, and has time for a third of them.
    let mut calls = JoinSet::new();
    let call = move || async move {
        let headers = [GRPC, ("grpc-timeout", "100m")];
        send(address, SAY_HELLO, &headers, WORK, true).await
    };
    (0..64).for_each(|_| drop(calls.spawn(call())));
    let refused = loop {
        let answer = calls.join_next().await.unwrap().unwrap();
        if answer.headers.contains_key("grpc-retry-pushback-ms") {
            break answer.headers;
        }
        calls.spawn(call());
    };
    assert_eq!(refused["grpc-status"], "8");
    assert_ne!(refused["verbline-execution"], "may-have-run");
    let millis = refused["grpc-retry-pushback-ms"].to_str().unwrap();
    assert!(
        (1..=2000).contains(&millis.parse::<u64>().unwrap()),
        "{millis} ms"
    );
    calls.shutdown().await;
    fixture.end().await;
}

/// Does nothing unless a test has started it as a process of its own: a server whose calls sleep.
#[test]
fn the_server_that_is_killed() {
    if env::var_os(VARIABLE).is_none() {
        return;
    }
    let (events, mut received) = mpsc::unbounded_channel();
    let server = Server::builder(&Device::open("soft").unwrap())
        .add_service(GreeterServer::new(Odd { events }))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    println!("listening at {}", server.local_addr());
    while let Some(event) = received.blocking_recv() {
        println!("{event:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_server_is_killed_says_that_it_may_have_run() {
    let mut process = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "mapping::the_server_that_is_killed",
            "--nocapture",
        ])
        .env(VARIABLE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut line_with = |text: &str| {
        let line = lines.find(|line| line.as_ref().unwrap().contains(text));
        line.unwrap().unwrap()
    };
    let line = line_with("listening at ");
    let (_, server) = line.split_once("listening at ").unwrap();
    let channel = Channel::connect(&Device::open("soft").unwrap(), server)
        .await
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let gateway =
        tokio::spawn(Gateway::builder(channel).serve_on(listener, std::future::pending()));
    let call = tokio::spawn(async move { send(address, SAY_HELLO, &[GRPC], SLEEP, true).await });
    line_with("Begun");
    process.kill().unwrap();
    process.wait().unwrap();
    let headers = call.await.unwrap().headers;
    assert_eq!(headers["grpc-status"], "14");
    assert_eq!(headers["verbline-execution"], "may-have-run");
    gateway.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_metadata_of_the_application_is_forwarded() {
    let (fixture, _events) = odd().await;
    let client = fixture.client().await;
    let mut request = hello("keys");
    request.metadata_mut().insert("mine", "1".parse().unwrap());
    request.metadata_mut().append("mine", "2".parse().unwrap());
    let value = tonic::metadata::MetadataValue::from_bytes(&[0]);
    request.metadata_mut().insert_bin("mine-bin", value);
    request.set_timeout(Duration::from_secs(60));
    assert_eq!(say(&client, request).await.unwrap(), "mine mine mine-bin");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_server_a_gateway_says_that_nothing_was_sent() {
    let (fixture, _events) = odd().await;
    let client = fixture.client().await;
    assert_eq!(say(&client, hello("Ada")).await.unwrap(), "Ada");
    let Fixture {
        server,
        channel,
        address,
        ..
    } = fixture;
    let server_address = server.local_addr().to_string();
    tokio::task::spawn_blocking(|| server.shutdown().unwrap())
        .await
        .unwrap();
    // The channel learns of it, and an attempt to connect fails.
    let mut watch = channel.watch();
    while channel.latest_error().is_none() {
        watch.changed().await;
    }
    let status = say(&Client::connect(address).await, hello("Ada"))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(
        status.message(),
        "the gateway is not connected to its server"
    );
    assert_eq!(
        status.metadata().get("verbline-execution").unwrap(),
        "never-sent"
    );
    assert!(!format!("{status:?}").contains(&server_address));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_starts_before_its_server() {
    let device = Device::open("soft").unwrap();
    // A port that nobody listens at, and that the server takes later.
    let server_address = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let channel = Channel::builder(&device, &server_address.to_string())
        .reconnect_backoff(Duration::from_millis(1), Duration::from_millis(10))
        .connect_lazy()
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::connect_later(listener.local_addr().unwrap());
    let gateway =
        tokio::spawn(Gateway::builder(channel).serve_on(listener, std::future::pending()));
    let status = say(&client, hello("Ada")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let (events, _received) = mpsc::unbounded_channel();
    let server = Server::builder(&device)
        .add_service(GreeterServer::new(Odd { events }))
        .bind(&server_address.to_string())
        .unwrap()
        .spawn();
    while say(&client, hello("Ada")).await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    gateway.abort();
    let _ = gateway.await;
    server.shutdown().unwrap();
}

const GRPC: (&str, &str) = ("content-type", "application/grpc");

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_request_is_refused_with_the_encodings_that_there_are() {
    let (fixture, _events) = odd().await;
    let gzip = ("grpc-encoding", "gzip");
    let Answer {
        status,
        headers,
        trailers,
    } = send(
        fixture.address,
        SAY_HELLO,
        &[GRPC, gzip],
        &[1, 0, 0, 0, 1, 0],
        true,
    )
    .await;
    assert_eq!(
        (status, &headers["grpc-status"]),
        (200, &"12".parse().unwrap())
    );
    assert_eq!(headers["grpc-accept-encoding"], "identity");
    assert_eq!(headers[CONTENT_TYPE], "application/grpc");
    assert!(trailers.is_none());
    let identity = ("grpc-encoding", "identity");
    let fine = send(fixture.address, SAY_HELLO, &[GRPC, identity], &[0; 5], true).await;
    assert_eq!(fine.trailers.unwrap()["grpc-status"], "0");
    // A flag without an encoding breaks the rules.
    let broken = send(
        fixture.address,
        SAY_HELLO,
        &[GRPC],
        &[1, 0, 0, 0, 1, 0],
        true,
    )
    .await;
    assert_eq!(broken.headers["grpc-status"], "13");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_break_the_rules_are_answered_as_grpc_says() {
    let (fixture, _events) = odd().await;
    let statuses = [
        (SAY_HELLO, &[][..], &[0, 0, 0, 0, 0, 0][..], "13"),
        (SAY_HELLO, &[][..], &[][..], "13"),
        (SAY_HELLO, &[][..], &[0, 0, 0, 0, 9, 1][..], "13"),
        (SAY_HELLO, &[][..], &[0, 255, 255, 255, 255][..], "8"),
        (
            SAY_HELLO,
            &[("grpc-timeout", "soon")][..],
            &[0; 5][..],
            "13",
        ),
        (SAY_HELLO, &[("grpc-timeout", "0n")][..], &[0; 5][..], "4"),
        (SAY_HELLO, &[("token-bin", "?")][..], &[0; 5][..], "13"),
        ("/", &[][..], &[0; 5][..], "12"),
        ("/verbline.greeter.Greeter", &[][..], &[0; 5][..], "12"),
        (
            "//verbline.greeter.Greeter/SayHello",
            &[][..],
            &[0; 5][..],
            "12",
        ),
    ];
    for (path, more, body, expected) in statuses {
        let headers: Vec<_> = more.iter().copied().chain([GRPC]).collect();
        let raw = send(fixture.address, path, &headers, body, true).await;
        let found = &raw.headers["grpc-status"];
        assert_eq!(
            (raw.status, found.to_str().unwrap()),
            (200, expected),
            "{path} {more:?} {body:?}"
        );
    }
    for content_type in [
        "application/json",
        "application/grpc-web",
        "application/grpcx",
    ] {
        let raw = send(
            fixture.address,
            SAY_HELLO,
            &[("content-type", content_type)],
            &[0; 5],
            true,
        )
        .await;
        assert_eq!(raw.status, 415, "{content_type}");
    }
    let proto = ("content-type", "application/grpc+proto");
    let fine = send(fixture.address, SAY_HELLO, &[proto], &[0; 5], true).await;
    assert_eq!(fine.trailers.unwrap()["grpc-status"], "0");
    fixture.end().await;
}
