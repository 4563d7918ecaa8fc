//! `verbline health`.

use std::io::{BufRead, BufReader};

use verbline::health::ServingStatus;

use crate::program::{command, end, verbline};
use crate::server::Fixture;

const KINDS: &str = "verbline.kinds.Kinds";
/// No test waits for it: machines may be slow.
const LONG: &[&str] = &["--timeout", "60"];

fn health(arguments: &[&str]) -> crate::program::Ended {
    verbline(&[&["health"], arguments, LONG].concat())
}

#[test]
fn the_exit_code_tells_the_status() {
    let server = Fixture::new();
    for address in server.both() {
        assert_eq!(health(&[address]).ok(), "SERVING\n");
        let other = health(&[address, KINDS]);
        assert_eq!((other.code, other.out.as_str()), (1, "NOT_SERVING\n"));
        let says = health(&[address, "no.such.Service"]).failed(2);
        assert!(says.contains("NOT_FOUND"), "{says}");
    }
}

#[test]
fn a_watch_prints_each_status_until_the_server_ends() {
    let mut server = Fixture::new();
    let watches = server.both().map(|address| {
        let mut command = command(&[&["health", address, KINDS, "--watch"], LONG].concat());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (child, lines)
    });
    let [(direct, mut of_direct), (through, mut of_through)] = watches;
    let mut expect = |status: &str| {
        assert_eq!(of_direct.next().unwrap().unwrap(), status);
        assert_eq!(of_through.next().unwrap().unwrap(), status);
    };
    expect("NOT_SERVING");
    server.health.set(KINDS, ServingStatus::Serving);
    expect("SERVING");
    server.health.set(KINDS, ServingStatus::ServiceUnknown);
    expect("SERVICE_UNKNOWN");
    server.shutdown();
    for child in [direct, through] {
        let ended = end(child);
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(
            ended.err.starts_with("verbline: the watch has ended: "),
            "{ended:?}"
        );
    }
}

#[test]
fn a_server_without_health_has_no_status() {
    let server = Fixture::without_health();
    for address in server.both() {
        let says = health(&[address]).failed(2);
        assert!(says.contains("UNIMPLEMENTED"), "{says}");
    }
}
