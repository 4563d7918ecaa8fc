//! The end of a gateway, and the program.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use proto::interop::{
    Empty, StreamingOutputCallRequest, StreamingOutputCallResponse, TestServiceServer,
};
use rpc_core::Server;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use verbline::Device;

use crate::service::TestServer;
use crate::support::{Client, Fixture};

const EMPTY_CALL: &str = "/grpc.testing.TestService/EmptyCall";
const DUPLEX_CALL: &str = "/grpc.testing.TestService/FullDuplexCall";

/// Begins a call with streams in both directions, which has not ended.
async fn begin(
    client: &Client,
) -> (
    mpsc::Sender<StreamingOutputCallRequest>,
    tonic::Streaming<StreamingOutputCallResponse>,
) {
    let (requests, stream) = mpsc::channel(1);
    let request = Request::new(ReceiverStream::new(stream));
    let responses = client.streaming(DUPLEX_CALL, request).await.unwrap();
    (requests, responses.into_inner())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_ends_lets_its_calls_finish() {
    let fixture = Fixture::interop().await;
    let client = fixture.client().await;
    let (requests, mut responses) = begin(&client).await;
    let address = fixture.address;
    let end = tokio::spawn(fixture.end());
    // It listens no more.
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!end.is_finished());
    requests
        .send(StreamingOutputCallRequest::default())
        .await
        .unwrap();
    drop(requests);
    assert!(responses.message().await.unwrap().is_none());
    end.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_do_not_end_are_cut_off() {
    let short = Duration::from_millis(50);
    let fixture = Fixture::interop_with(|builder| builder.drain_time(short)).await;
    let client = fixture.client().await;
    let (_requests, mut responses) = begin(&client).await;
    fixture.end().await;
    responses.message().await.unwrap_err();
}

/// A connection that is not open yet, and has an hour for that, is dropped soon after the end has begun.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_does_not_hold_up_the_end() {
    let hour = Duration::from_secs(3600);
    let fixture =
        Fixture::interop_with(|builder| builder.preface_time(hour).drain_time(hour)).await;
    let mut silent = tokio::net::TcpStream::connect(fixture.address)
        .await
        .unwrap();
    // Connections are accepted in order, so the silent one is.
    let client = fixture.client().await;
    let _: tonic::Response<Empty> = client
        .unary(EMPTY_CALL, Request::new(Empty {}))
        .await
        .unwrap();
    drop(client);
    let ended = tokio::time::timeout(Duration::from_secs(60), fixture.end()).await;
    ended.expect("the silent connection holds it up");
    assert_eq!(silent.read(&mut [0]).await.unwrap(), 0);
}

/// The program, which is killed when it is dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn program(arguments: &[&str]) -> (Program, BufReader<ChildStdout>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_verbline-gateway"))
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (Program(child), output)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_serves_and_drains_when_it_is_terminated() {
    let device = Device::open("soft").unwrap();
    let server = Server::builder(&device)
        .add_service(TestServiceServer::new(TestServer))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let address = server.local_addr().to_string();
    let arguments = [
        "--listen",
        "127.0.0.1:0",
        "--server",
        &address,
        "--device",
        "soft",
    ];
    let (mut program, mut output) = program(&arguments);
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let listening = line
        .trim()
        .strip_prefix("listening at ")
        .unwrap()
        .to_owned();
    let client = Client::connect(listening.parse().unwrap()).await;
    let _: tonic::Response<Empty> = client
        .unary(EMPTY_CALL, Request::new(Empty {}))
        .await
        .unwrap();
    let (requests, mut responses) = begin(&client).await;
    let pid = Pid::from_raw(i32::try_from(program.0.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    while tokio::net::TcpStream::connect(&listening).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(requests);
    assert!(responses.message().await.unwrap().is_none());
    drop((client, responses));
    assert_eq!(program.0.wait().unwrap().code(), Some(0));
    server.shutdown().unwrap();
}

#[test]
fn the_program_says_what_is_wrong() {
    let output = Command::new(env!("CARGO_BIN_EXE_verbline-gateway"))
        .args(["--server", "127.0.0.1:1", "--device", "no-such-device"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("verbline-gateway: "), "{text}");
    assert!(text.contains("no-such-device"), "{text}");
}
