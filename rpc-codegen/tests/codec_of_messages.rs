//! Which messages get a codec, and the errors if one cannot be generated.

use std::collections::BTreeSet;
use std::fs;

use rpc_codegen::{Builder, Config, Error, configure};
use tempfile::TempDir;

/// Methods of all four kinds, with messages of this package and of another one. What should have a
/// codec is called so.
const A: &str = r#"
    syntax = "proto2";
    package a;
    import "b.proto";
    import "google/protobuf/timestamp.proto";
    service Users {
      rpc Unary(Used1) returns (b.Used);
      rpc ClientStreaming(stream Used2) returns (b.Used);
      rpc ServerStreaming(Used1) returns (stream Used3);
      rpc Both(stream Used4) returns (stream foreign);
    }
    message Used1 {
      optional Used5 field = 1;
      map<string, Used6> map = 2;
      oneof either { Used7 variant = 3; int32 number = 4; }
      optional group Used8 = 5 { repeated Used9 repeated = 1; }
      optional Kind kind = 6;
      optional google.protobuf.Timestamp time = 7;
      optional Outer.Used10 nested = 8;
      // An extension of the name of a used message.
      message Unused {}
    }
    message Used2 { optional Used2 again = 1; }
    message Used3 { required Used11 there = 1; }
    message Used4 {}
    message Used5 {}
    message Used6 {}
    message Used7 {}
    message Used9 {}
    message Used11 { optional Used3 back = 1; }
    message Outer { message Used10 {} }
    message UnusedToo { optional Used1 used = 1; }
    message foreign { optional OnlyInForeign field = 1; }
    message OnlyInForeign {}
    enum Kind { NONE = 0; }
"#;
const B: &str = r#"
    syntax = "proto3";
    package b;
    import "c.proto";
    message Used { c.Used there = 1; }
    message Unused {}
    service Unwanted { rpc Go(Unused) returns (Unused); }
"#;
const C: &str = r#"syntax = "proto3"; package c; message Used {} message Unused {}"#;
/// No method uses a message of this package.
const D: &str = r#"syntax = "proto3"; package d; message Unused {}"#;

/// Generates the code of the service in `a.proto`, and the messages of all packages.
fn generate(settings: Builder) -> Result<TempDir, Error> {
    generate_with(settings, Config::new())
}

fn generate_with(settings: Builder, config: Config) -> Result<TempDir, Error> {
    let dir = TempDir::new().unwrap();
    let files = [("a.proto", A), ("b.proto", B), ("c.proto", C)];
    for (name, text) in files.into_iter().chain([("d.proto", D)]) {
        fs::write(dir.path().join(name), text).unwrap();
    }
    settings.out_dir(dir.path()).compile_protos_with_config(
        config,
        &["a.proto", "d.proto"],
        &[dir.path()],
    )?;
    Ok(dir)
}

fn code(dir: &TempDir, package: &str) -> String {
    fs::read_to_string(dir.path().join(package).with_extension("rs")).unwrap_or_default()
}

/// Returns the Rust types with a codec in `package`.
fn with_codec(dir: &TempDir, package: &str) -> BTreeSet<String> {
    let code = code(dir, package);
    let impls = code.split("impl GeneratedMessage for super::").skip(1);
    impls
        .map(|rest| rest.split(' ').next().unwrap().to_owned())
        .collect()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

#[test]
fn messages_that_methods_use() {
    let dir = generate(configure().extern_path(".a.foreign", "::foreign::Foreign")).unwrap();
    let used = set([
        "Used1",
        "Used11",
        "Used2",
        "Used3",
        "Used4",
        "Used5",
        "Used6",
        "Used7",
        "Used9",
        "outer::Used10",
        "used1::Used8",
    ]);
    assert_eq!(with_codec(&dir, "a"), used);
    assert_eq!(with_codec(&dir, "b"), set(["Used"]));
    assert_eq!(with_codec(&dir, "c"), set(["Used"]));
    assert!(code(&dir, "d").contains("pub struct Unused"));
    assert!(!code(&dir, "d").contains("_codec"));
}

#[test]
fn the_fields_of_a_message_that_is_not_generated_use_nothing() {
    let externs = [".b", ".a.foreign"];
    let settings = externs
        .iter()
        .fold(configure(), |all, path| all.extern_path(*path, "::x"));
    let dir = generate(settings).unwrap();
    assert!(!with_codec(&dir, "a").contains("OnlyInForeign"));
    assert!(code(&dir, "c").contains("pub struct Used"));
    assert!(!code(&dir, "c").contains("_codec"));
    let dir = generate(configure()).unwrap();
    assert!(with_codec(&dir, "a").contains("OnlyInForeign"));
}

#[test]
fn without_stubs_no_method_uses_a_message() {
    let no_stubs = || configure().build_client(false).build_server(false);
    for (all, expected) in [(false, set([])), (true, set(["Unused"]))] {
        let dir = generate(no_stubs().codec_for_all_messages(all)).unwrap();
        assert_eq!(with_codec(&dir, "d"), expected);
        assert_eq!(with_codec(&dir, "a").is_empty(), !all);
    }
}

#[test]
fn all_messages() {
    let dir = generate(configure().codec_for_all_messages(true)).unwrap();
    for package in ["a", "b", "c", "d"] {
        let structs = code(&dir, package)
            .matches(", ::rpc_core::codegen::v1::prost::Message)")
            .count();
        assert_eq!(with_codec(&dir, package).len(), structs, "{package}");
    }
    let off = configure().codec_for_all_messages(true).build_codec(false);
    assert!(with_codec(&generate(off).unwrap(), "a").is_empty());
}

#[test]
fn marks_are_not_in_the_code() {
    for all in [true, false] {
        let dir = generate(configure().codec_for_all_messages(all)).unwrap();
        for package in ["a", "b", "c", "d"] {
            assert!(!code(&dir, package).contains("verbline_message"));
        }
    }
}

#[test]
fn fields_go_by_reference_in_messages_with_a_codec() {
    let dir = TempDir::new().unwrap();
    let proto = "syntax = \"proto3\"; package p; service S { rpc Go(Used) returns (Used); } \
                 message Used { bytes data = 1; } message Unused { bytes data = 1; }";
    fs::write(dir.path().join("p.proto"), proto).unwrap();
    let documented = |all| {
        let settings = configure().bytes(".").codec_for_all_messages(all);
        settings
            .out_dir(dir.path())
            .compile_protos(&["p.proto"], &[dir.path()])
            .unwrap();
        code(&dir, "p").matches("/// By reference: ").count()
    };
    assert_eq!([documented(false), documented(true)], [1, 2]);
}

#[track_caller]
fn fails(settings: Builder, config: Config, expected: &str) {
    let error = generate_with(settings, config).unwrap_err();
    assert_eq!(error.to_string(), expected);
    assert!(matches!(error, Error::NoCodec { .. }));
}

#[test]
fn what_is_not_understood_is_an_error() {
    let advice = "which is not understood; with `.build_codec(false)` prost encodes all messages";
    let settings = || configure().field_attribute("Used2.again", "#[prost(lazy)]");
    fails(
        settings(),
        Config::new(),
        &format!(
            "a.proto: no codec for message `a.Used2`: prost's code for the field `again` has \
             #[prost(message , optional , boxed , tag = \"1\")]#[prost(lazy)], {advice}"
        ),
    );
    generate(settings().build_codec(false)).unwrap();
    // A message without a codec may have it.
    generate(configure().field_attribute("UnusedToo.used", "#[prost(lazy)]")).unwrap();

    // The codec does not know these paths.
    let mut config = Config::new();
    config.extern_path(".a.Used5", "::x::Used5");
    fails(
        configure(),
        config,
        &format!(
            "a.proto: no codec for message `a.Used5`: prost's code for it has no struct, {advice}"
        ),
    );
}
