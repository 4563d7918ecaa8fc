//! `verbline describe`.

use crate::golden::golden;
use crate::program::verbline;
use crate::server::{Fixture, protos};

#[test]
fn symbols_are_described_over_both_protocols() {
    let server = Fixture::new();
    for address in server.both() {
        for (symbol, name) in [
            ("verbline.kinds.Kinds", "describe-service.txt"),
            ("verbline.kinds.Kinds.Last", "describe-method.txt"),
            ("verbline.kinds.Kinds/Last", "describe-method.txt"),
            ("verbline.kinds.EveryKind", "describe-message.txt"),
            (".verbline.kinds.EveryKind.Color", "describe-enum.txt"),
            ("verbline.kinds.EveryKind.COLOR_RED", "describe-enum.txt"),
            ("verbline.kinds.EveryKind.by_int64", "describe-field.txt"),
            ("google.protobuf.Timestamp", "describe-timestamp.txt"),
        ] {
            golden(name, &verbline(&["describe", address, symbol]).ok());
        }
    }
}

/// With the comments, and without a server.
#[test]
fn symbols_of_files_are_described() {
    let file = |name: &str| protos().join(name).display().to_string();
    let (kinds, old) = (file("kinds.proto"), file("old.proto"));
    for (file, symbol, name) in [
        (
            &kinds,
            "verbline.kinds.Kinds",
            "describe-service-of-file.txt",
        ),
        (
            &kinds,
            "verbline.kinds.EveryKind",
            "describe-message-of-file.txt",
        ),
        (&old, "verbline.old.Old", "describe-proto2.txt"),
        (&old, "verbline.old.limit", "describe-extension.txt"),
    ] {
        let arguments = ["describe", "127.0.0.1:1", symbol, "--proto", file];
        golden(name, &verbline(&arguments).ok());
    }
}

#[test]
fn a_symbol_that_does_not_exist_is_refused_with_the_nearest_names() {
    let server = Fixture::new();
    for address in server.both() {
        for (wrong, right) in [
            ("verbline.kinds.EveryKin", "verbline.kinds.EveryKind"),
            ("verbline.kinds.Kinds.Ecko", "verbline.kinds.Kinds.Echo"),
            ("EveryKind", "verbline.kinds.EveryKind"),
        ] {
            let says = verbline(&["describe", address, wrong]).failed(1);
            let begins = format!("verbline: {address} has no symbol {wrong}; did you mean {right}");
            assert!(says.starts_with(&begins), "{says}");
        }
        let says = verbline(&["describe", address, "no.such.thing.at.all"]).failed(1);
        assert!(
            says.ends_with(
                "has no symbol no.such.thing.at.all. `verbline list` prints what there is\n"
            ),
            "{says}"
        );
    }
}

#[test]
fn a_service_without_descriptors_is_not_said_to_be_missing() {
    let server = Fixture::new();
    for address in server.both() {
        let says = verbline(&["describe", address, "verbline.echo.Echo"]).failed(1);
        assert!(
            says.contains("does not describe verbline.echo.Echo"),
            "{says}"
        );
        assert!(says.contains("--proto"), "{says}");
    }
}

#[test]
fn a_server_without_reflection_describes_nothing() {
    let server = Fixture::without_reflection();
    for address in server.both() {
        let says = verbline(&["describe", address, "verbline.kinds.Kinds"]).failed(1);
        assert!(says.contains("has no reflection"), "{says}");
    }
}
