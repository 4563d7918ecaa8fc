//! What is wrong on the command line, in requests and in `.proto` files, and how it is said.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use crate::program::{command, end, verbline};
use crate::server::{Fixture, protos};

const ECHO: &str = "verbline.kinds.Kinds/Echo";

#[test]
fn a_wrong_command_line_is_2() {
    for (arguments, says) in [
        (&["call"][..], "<ADDRESS>"),
        (&["cal", "x"], "similar subcommand exists: 'call'"),
        (&["list", "x:1", "-H", "no colon"], "there is no colon"),
        (&["list", "x:1", "-H", "Ä: b"], "invalid value"),
        (&["list", "x:1", "-H", "a-bin: ~"], "is not base64"),
        (&["list", "x:1", "-H", "a: \u{7f}"], "invalid value"),
        (
            &["list", "x:1", "-H", "@/no/such/file"],
            "cannot read '/no/such/file'",
        ),
        (&["list", "x:1", "--timeout", "soon"], "a number of seconds"),
        (
            &["list", "x:1", "--timeout=-1"],
            "expected a number of seconds",
        ),
        (&["list", "x:1", "--timeout=1e300"], "up to 100000000"),
        (
            &["list", "x:1", "--timeout=nan"],
            "expected a number of seconds",
        ),
        (&["list", "x:1", "--timeout", "0"], "no time at all"),
        (&["call", "x:1", "a/b", "-I", "."], "--proto"),
        (&["completions", "tcsh"], "possible values"),
    ] {
        let said = verbline(arguments).failed(2);
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
}

#[test]
fn an_address_that_is_none_is_refused() {
    for (address, says) in [
        ("localhost", "expected host:port"),
        ("ftp://localhost:1", "cannot connect to 'ftp://localhost:1'"),
    ] {
        let said = verbline(&["list", address]).failed(1);
        assert!(said.contains(says), "{said}");
    }
}

/// The same texts are refused with the same words wherever a device is named. Some were ignored.
#[test]
fn a_device_that_is_none_is_refused_by_option_and_by_environment() {
    for (device, says) in [
        ("nonsense", "there is no device named 'nonsense'"),
        ("soft:x", "'soft:x' is no name of a device"),
        ("@192.0.2.0/33", "a prefix of 0 to 32 bits"),
        (
            "?soft?tc=104",
            "'soft' cannot have tc=104: it has no fabric",
        ),
        (
            "tcp?mtu=1024",
            "'tcp' cannot have mtu=1024: it has no fabric",
        ),
        (
            "mlx5_0?dscp=26",
            "'mlx5_0' cannot have dscp=26: there is no such",
        ),
        ("mlx5_0?tc=104,sl=3", "'sl=3' is no name of one device"),
    ] {
        let by_option = verbline(&["list", "localhost:1", "--device", device]).failed(1);
        assert!(by_option.contains(says), "{by_option}");
        let mut listing = command(&["list", "localhost:1"]);
        let listing = listing.env("VERBLINE_DEVICE", device).spawn().unwrap();
        assert_eq!(end(listing).failed(1), by_option);
    }
    let no_text = OsStr::from_bytes(b"mlx5\xff");
    let mut listing = command(&["list", "localhost:1"]);
    let said = end(listing.env("VERBLINE_DEVICE", no_text).spawn().unwrap()).failed(1);
    assert!(
        said.contains("there is no device named 'mlx5\u{fffd}'"),
        "{said}"
    );
    let said = verbline(&["list", "http://localhost:1", "--device", "mlx5_0?tc=104"]).failed(1);
    assert!(said.contains("leave --device out"), "{said}");
}

#[test]
fn the_other_protocol_is_recognized() {
    let server = Fixture::new();
    let said = verbline(&["list", server.grpc.strip_prefix("http://").unwrap()]).failed(69);
    assert!(
        said.contains("If it is a gRPC server, write http://"),
        "{said}"
    );
    let said = verbline(&["list", &format!("http://{}", server.address)]).failed(69);
    assert!(
        said.contains("If it is a Verbline server, leave http:// out"),
        "{said}"
    );
}

#[test]
fn a_method_that_does_not_exist_is_unimplemented_and_the_nearest_is_named() {
    let server = Fixture::new();
    for address in server.both() {
        for (wrong, right) in [
            (
                "verbline.kinds.Kinds/Ecco",
                "; did you mean verbline.kinds.Kinds/Echo?",
            ),
            (
                "verbline.kind.Kinds/Echo",
                "; did you mean verbline.kinds.Kinds/Echo?",
            ),
            (
                "Greeter/SayHello",
                "; did you mean verbline.greeter.Greeter/SayHello?",
            ),
            (
                "sayhelo",
                "; did you mean verbline.greeter.Greeter/SayHello?",
            ),
            ("a.b.C/Dddddddd", ". `verbline list` prints what there is"),
        ] {
            let says = verbline(&["call", address, wrong]).failed(64 + 12);
            assert_eq!(
                says,
                format!("verbline: {address} has no method {wrong}{right}\n")
            );
        }
    }
}

#[test]
fn a_method_without_descriptors_is_called_with_its_file_only() {
    let server = Fixture::new();
    for address in server.both() {
        let says = verbline(&["call", address, "verbline.echo.Echo/Echo"]).failed(1);
        assert!(
            says.contains("does not describe verbline.echo.Echo"),
            "{says}"
        );
    }
}

/// Where it does not fit, and what was expected.
#[test]
fn json_that_does_not_fit_is_refused_where_it_does_not() {
    let server = Fixture::new();
    for (data, says) in [
        (
            r#"{"aStrin": "x"}"#,
            "verbline.kinds.EveryKind has no field aStrin; did you mean aString?",
        ),
        (
            r#"{"inner": {"again": {"inner": {"nam": 1}}}}"#,
            "at inner.again.inner: verbline.kinds.EveryKind.Inner has no field nam; did you mean name?",
        ),
        (
            r#"{"anInt32": "x"}"#,
            "at anInt32: expected an integer from -2147483648 to 2147483647, found \"x\"",
        ),
        (r#"{"anInt32": 2147483648}"#, "found 2147483648"),
        (
            r#"{"aUint64": -1}"#,
            "at aUint64: expected an integer of 64 bits from 0 on, in quotes or without, found -1",
        ),
        (
            r#"{"inners": [{}, {"name": 5}]}"#,
            "at inners[1].name: expected a string, found 5",
        ),
        (
            r#"{"int32s": 5}"#,
            "at int32s: expected an array, each element an integer from -2147483648 to 2147483647, \
             found 5",
        ),
        (
            r#"{"byInt64": {"1": 5}}"#,
            "at byInt64.1: expected an object with the fields of verbline.kinds.EveryKind.Inner, found 5",
        ),
        (
            r#"{"byInt32": {"x": 5}}"#,
            "at byInt32.x: expected an integer from -2147483648 to 2147483647, found \"x\"",
        ),
        (
            r#"{"color": "COLOR_GREEN"}"#,
            "at color: expected a value of verbline.kinds.EveryKind.Color: COLOR_UNSPECIFIED, COLOR_RED, \
             COLOR_BLUE, found \"COLOR_GREEN\"",
        ),
        (
            r#"{"someBytes": "~"}"#,
            "at someBytes: expected a string of base64, found \"~\"",
        ),
        (
            r#"{"timestamp": "yesterday"}"#,
            "at timestamp: expected a time such as \"2026-01-31T12:00:00.5Z\", found \"yesterday\"",
        ),
        (
            r#"{"duration": "1"}"#,
            "at duration: expected seconds such as \"1.5s\", found \"1\"",
        ),
        (
            r#"{"any": {"@type": "x/no.such.Type"}}"#,
            "at any.@type: the type no.such.Type is not known",
        ),
        (
            r#"{"any": {"@type": "x/google.protobuf.Duration"}}"#,
            "at any: expected \"@type\" and \"value\"",
        ),
        (
            r#"{"wrappedBool": 1}"#,
            "at wrappedBool: expected true or false, found 1",
        ),
        (
            r#"{"chosenBool": true, "chosenInt64": 1}"#,
            "at chosenInt64: the oneof has another field already, chosenBool",
        ),
        (
            r#"{"anInt32": 1, "an_int32": 1}"#,
            "at an_int32: the field is there twice",
        ),
        (
            r#"[]"#,
            "expected an object with the fields of verbline.kinds.EveryKind, found []",
        ),
    ] {
        let said = verbline(&["call", &server.address, ECHO, "-d", data]).failed(1);
        assert!(
            said.starts_with("verbline: request 1 does not fit verbline.kinds.EveryKind: "),
            "{said}"
        );
        assert!(said.contains(says), "{data}: {said}");
    }
    for data in [
        "{",
        "x",
        "{}}",
        "{\"aString\": \"\u{0}\"}",
        "{\"a\": 1, \"a\": 1}",
    ] {
        let data = data.replace('\0', "\u{1}");
        let said = verbline(&["call", &server.address, ECHO, "-d", &data]).failed(1);
        assert!(
            said.contains("is not JSON: ") && said.contains("at line 1"),
            "{said}"
        );
    }
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let server = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.proto");
    fs::write(&broken, "syntax = \"proto3\";\nmessage {").unwrap();
    let other = folder.path().join("other.proto");
    let text = fs::read_to_string(protos().join("kinds.proto")).unwrap();
    fs::write(
        &other,
        text.replace("rpc Echo(EveryKind)", "rpc Echo(stream EveryKind)"),
    )
    .unwrap();
    let old = protos().join("old.proto").display().to_string();
    let (broken, other) = (broken.display().to_string(), other.display().to_string());
    for (more, says) in [
        (&["-d", "@/no/such.json"][..], "/no/such.json: No such file"),
        (&["--proto", "/no/such.proto"], "/no/such.proto"),
        (&["--proto", &broken], "broken.proto:2:9"),
        (&["--proto", &other], "is another version of the file"),
        (&["--proto", &old], "verbline.kinds.Kinds/Echo is not in "),
    ] {
        let arguments = [&["call", &server.address, ECHO], more].concat();
        let said = verbline(&arguments).failed(1);
        assert!(said.contains(says), "{said}");
    }
    // A folder opens, and cannot be read.
    let said = verbline(&["call", &server.address, ECHO, "-d", "@/"]).failed(1);
    assert!(said.contains("Is a directory"), "{said}");
}

#[test]
fn completions_are_those_of_the_shell() {
    for (shell, says) in [
        ("bash", "complete -F _verbline"),
        ("zsh", "#compdef verbline"),
        ("fish", "complete -c verbline"),
    ] {
        let script = verbline(&["completions", shell]).ok();
        assert!(script.contains(says), "{script}");
    }
}
