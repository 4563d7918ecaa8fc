//! `verbline call` with streams: one JSON value for each message, in both directions.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::program::{command, end, verbline, verbline_reads};
use crate::server::Fixture;

fn method(name: &str) -> String {
    format!("verbline.kinds.Kinds/{name}")
}

#[test]
fn streams_go_in_either_direction() {
    let server = Fixture::new();
    let two = "{\"anInt32\": 1}\n{\"anInt32\": 2}\n";
    for address in server.both() {
        let last = verbline_reads(&["call", address, &method("Last"), "-d", "-"], two).ok();
        assert_eq!(last, "{\"anInt32\":2}\n");
        let chat = verbline_reads(&["call", address, &method("Chat"), "-d", "-"], two).ok();
        assert_eq!(chat, "{\"anInt32\":1}\n{\"anInt32\":2}\n");
        let repeat = verbline(&["call", address, &method("Repeat"), "-d", "{\"anInt32\": 3}"]).ok();
        assert_eq!(repeat, "{\"anInt32\":3}\n{\"anInt32\":3}\n");
        // Values need no lines of their own.
        let chat = verbline(&[
            "call",
            address,
            &method("Chat"),
            "-d",
            "{\"anInt32\": 1}{}\n{\n}",
        ]);
        assert_eq!(chat.ok(), "{\"anInt32\":1}\n{}\n{}\n");
        // Without data: an empty stream.
        assert_eq!(verbline(&["call", address, &method("Chat")]).ok(), "");
        assert_eq!(verbline(&["call", address, &method("Last")]).ok(), "{}\n");
    }
}

/// Each request is sent when it has been read, and each response printed when it has come.
#[test]
fn a_conversation_goes_line_by_line() {
    let server = Fixture::new();
    for address in server.both() {
        let mut command = command(&["call", address, &method("Chat"), "-d", "-"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut requests = child.stdin.take().unwrap();
        let mut responses = BufReader::new(child.stdout.take().unwrap());
        for number in 1..=20 {
            writeln!(requests, "{{\"anInt32\": {number}}}").unwrap();
            let mut line = String::new();
            responses.read_line(&mut line).unwrap();
            assert_eq!(line, format!("{{\"anInt32\":{number}}}\n"));
        }
        drop(requests);
        end(child).ok();
    }
}

#[test]
fn many_messages_go_through() {
    let server = Fixture::new();
    let lines: String = (1..=2000)
        .map(|n| format!("{{\"anInt32\":{n}}}\n"))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("requests.json");
    std::fs::write(&path, &lines).unwrap();
    let data = format!("@{}", path.display());
    for address in server.both() {
        let chat = verbline(&["call", address, &method("Chat"), "-d", &data]).ok();
        assert_eq!(chat, lines);
    }
}

/// The server sees no end of the stream, but that the call is cancelled.
#[test]
fn a_stream_with_a_bad_request_is_not_taken_for_a_complete_one() {
    let server = Fixture::new();
    let mut calls = 0;
    let mut last = |address: &str, input: &str| {
        let ended = verbline_reads(&["call", address, &method("Last"), "-d", "-"], input);
        calls += 1;
        // The program may have ended before the server has noticed.
        while server.uploads.ended.load(Ordering::SeqCst) < calls {
            thread::sleep(Duration::from_millis(1));
        }
        (ended, server.uploads.complete.load(Ordering::SeqCst))
    };
    for (complete, address) in server.both().into_iter().enumerate() {
        for (input, says) in [
            (
                "{\"anInt32\": 1}\n{\"anInt32\": \"x\"}\n",
                "request 2 does not fit",
            ),
            ("{\"anInt32\": 1}\n{\"anInt32\":", "request 2 is not JSON"),
        ] {
            // So much that the call begins before the bad one.
            let input = format!("{}{input}", "{\"anInt32\": 0}\n".repeat(500));
            let (ended, seen) = last(address, &input);
            let said = ended.failed(1);
            assert!(said.contains(&says.replace('2', "502")), "{said}");
            assert_eq!(seen, complete);
        }
        let (ended, seen) = last(address, "{\"anInt32\": 1}\n");
        assert_eq!(
            (ended.ok().as_str(), seen),
            ("{\"anInt32\":1}\n", complete + 1)
        );
    }
}

#[test]
fn one_request_is_not_several() {
    let server = Fixture::new();
    for name in ["Echo", "Repeat"] {
        let arguments = ["call", &server.address, &method(name), "-d"];
        let says = verbline(&[&arguments[..], &["{} {}"]].concat()).failed(1);
        assert!(
            says.contains("takes one request, and there are several"),
            "{says}"
        );
        let says = verbline(&[&arguments[..], &[" "]].concat()).failed(1);
        assert!(
            says.contains("takes a request, and there is none"),
            "{says}"
        );
    }
}

#[test]
fn a_status_in_the_middle_of_a_stream_is_the_exit_code() {
    let server = Fixture::new();
    for address in server.both() {
        let says = verbline(&["call", address, &method("Repeat"), "-H", "fail-with: 8"]).failed(72);
        assert!(says.starts_with("verbline: RESOURCE_EXHAUSTED"), "{says}");
    }
}
