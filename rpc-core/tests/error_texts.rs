//! The sentences of public errors: each names the object, the reason and, where the user can do
//! something, the remedy. Their wording is free.

use std::error::Error;
use std::io;
use std::time::Duration;

use rpc_core::ServerError;
use rpc_core::transport::{ConnectError, FabricError, VersionRange};

const ADDRESS: &str = "192.0.2.7:4242";

fn connect_errors() -> Vec<(ConnectError, &'static [&'static str])> {
    let address = || ADDRESS.to_owned();
    let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
    let reason = || "the reason".to_owned();
    vec![
        (
            ConnectError::Address {
                address: address(),
                source: refused(),
            },
            &["refused", "host:port"],
        ),
        (
            ConnectError::Unresolved {
                address: address(),
                source: refused(),
            },
            &["refused", "host name", "could not be resolved"],
        ),
        (
            ConnectError::Unreachable {
                address: address(),
                source: refused(),
            },
            &["refused", "running", "port"],
        ),
        (
            ConnectError::NotVerbline {
                address: address(),
                reason: reason(),
            },
            &["the reason", "Verbline", "compatible versions"],
        ),
        (
            ConnectError::Version {
                address: address(),
                local: VersionRange::only(11),
                remote: VersionRange {
                    oldest: 12,
                    newest: 13,
                },
            },
            &["version 11", "versions 12 to 13", "upgrade"],
        ),
        (
            ConnectError::Refused {
                address: address(),
                reason: reason(),
            },
            &["the reason", "refused"],
        ),
        (
            ConnectError::TimedOut {
                address: address(),
                timeout: Duration::from_secs(5),
                reached: "no response arrived".to_owned(),
            },
            &["5s", "handshake", "no response arrived"],
        ),
        (
            ConnectError::Device {
                address: address(),
                source: reason().into(),
            },
            &["the reason", "local device"],
        ),
    ]
}

fn assert_says(error: &dyn Error, wanted: &[&str]) {
    let text = error.to_string();
    for word in wanted {
        assert!(text.contains(word), "'{word}' is missing: {text}");
    }
    // A `main` that returns an error prints it with `Debug`.
    assert_eq!(format!("{error:?}"), text);
}

#[test]
fn errors_of_connecting_name_the_address_the_reason_and_the_remedy() {
    for (error, wanted) in connect_errors() {
        assert_says(&error, &[wanted, &[ADDRESS]].concat());
    }
}

#[test]
fn errors_of_starting_name_the_object_the_reason_and_the_remedy() {
    let listen = FabricError::Listen {
        address: ADDRESS.to_owned(),
        source: io::Error::from(io::ErrorKind::AddrInUse),
    };
    assert_says(&listen, &[ADDRESS, "in use", "free port"]);
    let intent = FabricError::Intent {
        setting: "connections",
        value: 4711,
        reason: "the device has 16".to_owned(),
    };
    assert_says(&intent, &["connections", "4711", "the device has 16"]);
    let pin = ServerError::Pin {
        core: 77,
        source: io::Error::from(io::ErrorKind::InvalidInput),
    };
    assert_says(&pin, &["77", "invalid", "`cores`"]);
    let duplicate = ServerError::DuplicateService { name: "demo.Echo" };
    assert_says(&duplicate, &["demo.Echo", "different name"]);
}
