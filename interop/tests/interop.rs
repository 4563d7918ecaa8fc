//! Runs the program as a user does. `VERBLINE_DEVICE` names the device; the default is `soft`.

use std::env;
use std::process::{Command, Output};

use proto::greeter::{Greeter, GreeterServer, HelloReply, HelloRequest};
use rpc_core::{Request, Response, Server, Status};
use rpc_transport_verbs::Device;

const CASES: [&str; 17] = [
    "empty_unary",
    "large_unary",
    "concurrent_large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "custom_metadata",
    "status_code_and_message",
    "special_status_message",
    "unimplemented_method",
    "unimplemented_service",
    "cancel_after_begin",
    "cancel_after_first_response",
    "timeout_on_sleeping_server",
    "rpc_soak",
    "channel_soak",
];

fn device() -> String {
    env::var("VERBLINE_DEVICE").unwrap_or_else(|_| "soft".to_owned())
}

fn interop(arguments: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_interop"))
        .args(["--device", &device()])
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output, text)
}

#[test]
fn every_case_passes_in_both_flavors_and_between_processes() {
    // In an emulated guest, gRPC's thousand calls would take a quarter of an hour.
    let calls = if device() == "soft" { "1000" } else { "20" };
    let (output, text) = interop(&["--calls", calls]);
    assert!(output.status.success(), "{text}");
    let device = device();
    for processes in ["one process  ", "two processes"] {
        for flavor in ["local ", "shared"] {
            for case in CASES {
                let line = format!("passed  {device}, {processes}, {flavor}  {case} ");
                let count = text
                    .lines()
                    .filter(|found| found.starts_with(&line))
                    .count();
                assert_eq!(count, 1, "'{line}' in:\n{text}");
            }
        }
    }
    assert!(text.ends_with("68 passed, 0 failed\n"), "{text}");
}

struct Deaf;

impl Greeter for Deaf {
    async fn say_hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        Err(Status::not_found("nobody"))
    }
}

#[test]
fn a_case_that_fails_is_printed_and_the_exit_code_says_so() {
    let server = Server::builder(&Device::open(&device()).unwrap())
        .add_service(GreeterServer::new(Deaf))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let address = server.local_addr().to_string();
    let (output, text) = interop(&["--server", &address, "empty_unary", "unimplemented_method"]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let lines: Vec<_> = text.lines().collect();
    // The server lacks the whole service, so both calls end with UNIMPLEMENTED.
    assert_eq!(lines.len(), 5, "{text}");
    for local_or_shared in [&lines[0..2], &lines[2..4]] {
        assert!(local_or_shared[0].starts_with("FAILED  "), "{text}");
        assert!(local_or_shared[0].contains(" empty_unary "), "{text}");
        assert!(local_or_shared[1].starts_with("passed  "), "{text}");
    }
    assert_eq!(lines[4], "2 passed, 2 failed", "{text}");
    server.shutdown().unwrap();
}
