//! Output that is closed, or cannot be written, and terminals.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::program::{command, end, on_terminal};
use crate::server::Fixture;

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let server = Fixture::new();
    let address = server.address.as_str();
    for (arguments, code) in [
        (&["list", address][..], 74),
        (&["describe", address, "verbline.kinds.Kinds"], 74),
        (&["completions", "bash"], 74),
        // Here 74 is ABORTED.
        (&["call", address, "verbline.kinds.Kinds/Echo"], 1),
        (&["health", address, "--timeout", "60"], 2),
    ] {
        let says = end(command(arguments).stdout(full()).spawn().unwrap()).failed(code);
        assert_eq!(
            says,
            "verbline: cannot write to standard output: No space left on device (os error 28)\n"
        );
    }
}

/// As with `| head -1`.
#[test]
fn a_reader_that_has_enough_ends_the_program_quietly() {
    let server = Fixture::new();
    for address in server.both() {
        let chat = ["call", address, "verbline.kinds.Kinds/Chat", "-d", "-"];
        let mut child = command(&chat).stdin(endless()).spawn().unwrap();
        let mut first = String::new();
        let mut responses = BufReader::new(child.stdout.take().unwrap());
        responses.read_line(&mut first).unwrap();
        assert_eq!(first, "{\"anInt32\":1}\n");
        drop(responses);
        assert_eq!(end(child).ok(), "");
        for arguments in [&["list", address][..], &["completions", "zsh"]] {
            let mut child = command(arguments).spawn().unwrap();
            drop(child.stdout.take());
            assert_eq!(end(child).ok(), "");
        }
    }
}

/// Requests without an end, from a program that ends when nobody reads them.
fn endless() -> Stdio {
    let yes = std::process::Command::new("yes")
        .arg("{\"anInt32\": 1}")
        .stdout(Stdio::piped())
        .spawn();
    Stdio::from(yes.unwrap().stdout.unwrap())
}

/// The probe has no reader, and its exit code is the answer.
#[test]
fn a_probe_whose_output_is_closed_tells_the_status() {
    let server = Fixture::new();
    for (service, code) in [("", 0), ("verbline.kinds.Kinds", 1)] {
        let arguments = ["health", &server.address, service, "--timeout", "60"];
        let mut child = command(&arguments).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(end(child).code, code);
    }
}

/// A new terminal has no width and no height.
#[test]
fn a_terminal_without_width_gets_the_same_output() {
    let server = Fixture::new();
    for arguments in [
        &["list", server.address.as_str()][..],
        &["--help"],
        &["call", "--help"],
    ] {
        let (code, shown) = on_terminal(&mut command(arguments), 0);
        assert_eq!(code, 0);
        let piped = end(command(arguments).spawn().unwrap()).ok();
        assert_eq!(shown, piped);
    }
}
