//! `verbline call`: one request and one response, metadata, statuses and exit codes.

use std::fs;

use crate::program::{verbline, verbline_reads};
use crate::server::{Fixture, protos};

const ECHO: &str = "verbline.kinds.Kinds/Echo";

#[test]
fn a_method_is_called_by_either_form_of_its_name() {
    let server = Fixture::new();
    for address in server.both() {
        for method in [
            "verbline.greeter.Greeter/SayHello",
            "/verbline.greeter.Greeter/SayHello",
            "verbline.greeter.Greeter.SayHello",
        ] {
            let said = verbline(&["call", address, method, "-d", r#"{"name": "Ada"}"#]).ok();
            assert_eq!(said, "{\"message\":\"Hello, Ada!\"}\n");
        }
    }
}

#[test]
fn a_request_comes_from_the_command_line_a_file_or_standard_input() {
    let server = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("request.json");
    fs::write(&path, "{\n  \"aString\": \"file\"\n}\n").unwrap();
    let from_file = format!("@{}", path.display());
    for address in server.both() {
        let call = |data: &str| verbline(&["call", address, ECHO, "-d", data]).ok();
        assert_eq!(call(r#"{"a_string": "line"}"#), "{\"aString\":\"line\"}\n");
        assert_eq!(call(&from_file), "{\"aString\":\"file\"}\n");
        let read = verbline_reads(&["call", address, ECHO, "-d", "-"], "{\"aString\": \"in\"}");
        assert_eq!(read.ok(), "{\"aString\":\"in\"}\n");
        // Without data: an empty message.
        assert_eq!(verbline(&["call", address, ECHO]).ok(), "{}\n");
    }
}

#[test]
fn responses_are_indented_if_that_is_asked_for() {
    let server = Fixture::new();
    let arguments = [
        "call",
        &server.address,
        ECHO,
        "--pretty",
        "-d",
        r#"{"int32s": [1, 2]}"#,
    ];
    assert_eq!(
        verbline(&arguments).ok(),
        "{\n  \"int32s\": [\n    1,\n    2\n  ]\n}\n"
    );
}

#[test]
fn types_come_from_a_file_if_the_server_has_no_reflection() {
    let server = Fixture::without_reflection();
    let file = protos().join("kinds.proto").display().to_string();
    let folder = protos().display().to_string();
    for address in server.both() {
        let data = r#"{"aString": "x"}"#;
        let says = verbline(&["call", address, ECHO, "-d", data]).failed(1);
        assert!(
            says.contains("has no reflection") && says.contains("--proto"),
            "{says}"
        );
        for includes in [&[][..], &["-I", &folder]] {
            let arguments = ["call", address, ECHO, "-d", data, "--proto", &file];
            let said = verbline(&[&arguments[..], includes].concat()).ok();
            assert_eq!(said, "{\"aString\":\"x\"}\n");
        }
    }
}

#[test]
fn metadata_goes_both_ways() {
    let server = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("headers");
    fs::write(&path, "initial-token: secret\n\ntrailing-token: last\n").unwrap();
    let from_file = format!("@{}", path.display());
    for address in server.both() {
        let called = verbline(&[
            "call",
            address,
            ECHO,
            "-v",
            "-H",
            "Initial-Text: a: b",
            "-H",
            "initial-bytes-bin: AAH/",
            "-H",
            &from_file,
        ]);
        assert_eq!(
            (called.code, called.out.as_str()),
            (0, "{}\n"),
            "{called:?}"
        );
        for line in [
            "method: verbline.kinds.Kinds/Echo, one request and one response",
            "initial metadata: initial-text: a: b",
            "initial metadata: initial-bytes-bin: AAH/",
            "initial metadata: initial-token: secret",
            "trailing metadata: trailing-token: last",
            "status: OK; execution: answered",
        ] {
            assert!(
                called.err.lines().any(|said| said == line),
                "{line}: {}",
                called.err
            );
        }
        let times = called.err.lines().last().unwrap();
        assert!(times.starts_with("times: connecting "), "{times}");
        assert!(times.ends_with("; 1 message received"), "{times}");
    }
}

/// 64 and the number of the status, for all there are.
#[test]
fn the_exit_code_tells_the_status() {
    let server = Fixture::new();
    for code in 1..=16 {
        let fail = format!("fail-with: {code}");
        let says = verbline(&["call", &server.address, ECHO, "-H", &fail]).failed(64 + code);
        assert!(says.contains(": as you wish\n  detail: {"), "{says}");
    }
    for address in server.both() {
        let failed = verbline(&[
            "call",
            address,
            ECHO,
            "-v",
            "-H",
            "fail-with: 5",
            "-H",
            "trailing-token: last",
        ]);
        assert_eq!(failed.code, 69);
        for line in [
            "trailing metadata: trailing-token: last",
            "status: NOT_FOUND; execution: answered",
            "verbline: NOT_FOUND: as you wish",
            "  detail: {\"@type\":\"type.googleapis.com/google.rpc.RetryInfo\",\"retryDelay\":\"3s\"}",
        ] {
            assert!(
                failed.err.lines().any(|said| said == line),
                "{line}: {}",
                failed.err
            );
        }
    }
}

#[test]
fn a_timeout_is_the_deadline_of_the_call() {
    let server = Fixture::new();
    let chat = "verbline.kinds.Kinds/Chat";
    for address in server.both() {
        // Standard input stays open, so the stream does not end.
        let mut command =
            crate::program::command(&["call", address, chat, "-d", "-", "--timeout", "0.3"]);
        let child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let failed = {
            let mut child = child;
            let stdin = child.stdin.take();
            let ended = crate::program::end(child);
            drop(stdin);
            ended
        };
        let says = failed.failed(64 + 4);
        assert!(says.starts_with("verbline: DEADLINE_EXCEEDED"), "{says}");
    }
}

#[test]
fn a_server_that_is_not_there_is_unavailable() {
    let nobody = "127.0.0.1:1";
    for address in [nobody, "http://127.0.0.1:1"] {
        let says = verbline(&["call", address, ECHO]).failed(64 + 14);
        assert!(says.contains(nobody) && says.contains("refused"), "{says}");
        verbline(&["list", address]).failed(69);
        verbline(&["describe", address, "a.B"]).failed(69);
        verbline(&["health", address]).failed(2);
    }
}
