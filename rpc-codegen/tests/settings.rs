//! The effect of each setting on the generated files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use prost::Message;
use prost_types::FileDescriptorSet;
use rpc_codegen::{Builder, Config, Error, configure};
use tempfile::TempDir;

const A: &str = r#"
    syntax = "proto3";
    package a;
    import "b.proto";
    import "google/protobuf/timestamp.proto";
    // A message.
    message Record {
      bytes data = 1;
      map<string, int32> counts = 2;
      b.Part part = 3;
      google.protobuf.Timestamp at = 4;
    }
    enum Kind { KIND_NONE = 0; }
    service Records { rpc Put(Record) returns (b.Part); }
"#;
const B: &str = "syntax = \"proto3\"; package b; message Part { int32 id = 1; } service Parts { rpc Go(Part) returns (Part); }";

struct Run {
    dir: TempDir,
}

impl Run {
    fn new() -> Run {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("a.proto"), A).unwrap();
        fs::write(dir.path().join("b.proto"), B).unwrap();
        Run { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn compile(&self, settings: Builder) -> Result<(), Error> {
        settings
            .out_dir(self.path("out"))
            .compile_protos(&[self.path("a.proto")], &[self.dir.path()])
    }

    fn code(&self, package: &str) -> String {
        fs::read_to_string(self.path("out").join(format!("{package}.rs"))).unwrap()
    }
}

/// Generates the code of package `a` with `settings`.
fn code(settings: Builder) -> String {
    let run = Run::new();
    run.compile(settings).unwrap();
    run.code("a")
}

#[track_caller]
fn has(code: &str, part: &str) {
    assert!(code.contains(part), "no {part:?} in:\n{code}");
}

#[track_caller]
fn lacks(code: &str, part: &str) {
    assert!(!code.contains(part), "{part:?} in:\n{code}");
}

#[test]
fn defaults() {
    let run = Run::new();
    run.compile(configure()).unwrap();
    let code = run.code("a");
    for part in [
        "pub trait Records",
        "struct RecordsServer",
        "struct RecordsClient",
        "/// A message.",
        "HashMap",
    ] {
        has(&code, part);
    }
    has(
        &code,
        "pub data: ::rpc_core::codegen::v1::prost::alloc::vec::Vec<u8>",
    );
    has(&code, "::rpc_core::codegen::v1::prost_types::Timestamp");
    // An imported file gets messages, but no stubs.
    has(&run.code("b"), "pub struct Part");
    lacks(&run.code("b"), "Parts");
    assert!(!run.path("out/google.protobuf.rs").exists());
}

#[test]
fn halves() {
    let only_client = code(configure().build_server(false));
    has(&only_client, "struct RecordsClient");
    has(&only_client, "mod records_methods");
    lacks(&only_client, "Server");
    lacks(&only_client, "trait ");

    let only_server = code(configure().build_client(false));
    has(&only_server, "struct RecordsServer");
    lacks(&only_server, "Client");

    lacks(
        &code(configure().build_client(false).build_server(false)),
        "records_methods",
    );
}

#[test]
fn paths() {
    let code = code(configure().crate_path("crate::rpc"));
    has(&code, "use crate::rpc::codegen::v1::{");
    has(
        &code,
        "#[prost(prost_path = \"crate::rpc::codegen::v1::prost\")]",
    );
    lacks(&code, "rpc_core");
}

#[test]
fn extern_path() {
    let run = Run::new();
    run.compile(configure().extern_path(".b", "::other::b"))
        .unwrap();
    has(&run.code("a"), "::core::option::Option<::other::b::Part>");
    has(&run.code("a"), "Response<::other::b::Part>");
    // The codec cannot be generated for a foreign type.
    has(&run.code("a"), "ProstCodec");
    has(&run.code("a"), "field::Extern::encode");
    assert!(!run.path("out/b.rs").exists());
}

#[test]
fn types_of_fields() {
    has(
        &code(configure().bytes(".a.Record.data")),
        "::prost::bytes::Bytes",
    );
    has(&code(configure().btree_map(".")), "BTreeMap");
    has(
        &code(configure().boxed(".a.Record.part")),
        "boxed::Box<super::b::Part>",
    );
    // Each call adds a path.
    has(
        &code(configure().bytes(".a.Record.data").bytes(".b")),
        "::prost::bytes::Bytes",
    );
}

#[test]
fn limits_of_methods() {
    lacks(&code(configure()), "max_request_len");
    let limited = code(
        configure()
            .max_request_len(".a", 1)
            .max_request_len(".a.Records.Put", 1 << 20)
            .max_response_len("Put", 4096),
    );
    has(
        &limited,
        ".with_max_request_len(1048576)\n        .with_max_response_len(4096);",
    );
    for unknown in [".a.Records.Get", ".a.Record", "Records"] {
        let result = Run::new().compile(configure().max_response_len(unknown, 1));
        let expected = format!("max_response_len: no method has the path `{unknown}`");
        assert!(
            matches!(&result, Err(Error::Setting { message }) if *message == expected),
            "{result:?}"
        );
    }
}

#[test]
fn what_makes_the_code_no_rust_is_an_error() {
    for settings in [
        configure().type_attribute(".", "#[derive("),
        configure().field_attribute("data", "#[serde"),
        configure()
            .field_attribute("data", "data")
            .build_codec(false),
        configure().server_attribute(".", "]"),
        configure().crate_path("::a b"),
        configure().extern_path(".b", "::b::<"),
    ] {
        let result = Run::new().compile(settings);
        let expected =
            "the code of package `a` is not Rust, because of an attribute or a path that was set: ";
        assert!(
            matches!(&result, Err(Error::Setting { message }) if message.starts_with(expected)),
            "{result:?}"
        );
    }
}

#[test]
fn budgets_of_decoding() {
    lacks(&code(configure()), "DECODED_PER_BYTE");
    let run = Run::new();
    run.compile(configure().decode_budget(".a", 30)).unwrap();
    has(
        &run.code("a"),
        "const DECODED_PER_BYTE: Option<usize> = Some(30);",
    );
    lacks(&run.code("b"), "DECODED_PER_BYTE");
}

#[test]
fn fields_that_go_by_reference_are_documented() {
    const DOCS: &str = "/// By reference: ";
    lacks(&code(configure()), DOCS);
    has(&code(configure().bytes(".a.Record.data")), DOCS);
    lacks(&code(configure().bytes(".a.Record.counts")), DOCS);
    // prost copies.
    lacks(&code(configure().bytes(".").build_codec(false)), DOCS);
}

#[test]
fn attributes() {
    let code = code(
        configure()
            .type_attribute(".a", "#[on_type]")
            .message_attribute(".a.Record", "#[on_message]")
            .enum_attribute(".", "#[on_enum]")
            .field_attribute("Record.data", "#[on_field]"),
    );
    assert_eq!(
        ["#[on_type]", "#[on_message]", "#[on_enum]", "#[on_field]"]
            .map(|it| code.matches(it).count()),
        [2, 1, 1, 1]
    );
}

#[test]
fn well_known_types() {
    let run = Run::new();
    run.compile(configure().compile_well_known_types(true))
        .unwrap();
    has(&run.code("google.protobuf"), "pub struct Timestamp");
    has(&run.code("a"), "super::google::protobuf::Timestamp");
}

#[test]
fn include_file() {
    let run = Run::new();
    run.compile(configure().include_file("all.rs")).unwrap();
    let code = run.code("all");
    has(&code, "pub mod a {\n    include!(\"a.rs\");\n}\n");
    has(&code, "pub mod b {\n    include!(\"b.rs\");\n}\n");
    let error = run.compile(configure().include_file("b.rs")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "include_file: a package has the file `b.rs`: choose another name"
    );
}

#[test]
fn files_have_the_names_of_packages() {
    let run = Run::new();
    for package in ["s.type.self", "Foo.Bar", "camelCase"] {
        fs::write(
            run.path("a.proto"),
            format!("syntax = \"proto3\"; package {package}; message M {{}}"),
        )
        .unwrap();
        run.compile(configure().include_file("all.rs")).unwrap();
        has(&run.code(package), "pub struct M {}");
        has(&run.code("all"), &format!("include!(\"{package}.rs\");"));
    }
    has(&run.code("all"), "pub mod camel_case {");
}

#[test]
fn settings_of_prost() {
    let run = Run::new();
    let mut config = Config::new();
    config
        .bytes(["."])
        .btree_map(["."])
        .type_attribute("Record", "#[of_config]")
        .service_generator(Box::new(NoServices));
    let settings = configure()
        .out_dir(run.path("out"))
        .type_attribute("Record", "#[of_builder]")
        .bytes(".b.Part");
    settings
        .compile_protos_with_config(config, &[run.path("a.proto")], &[run.dir.path()])
        .unwrap();
    let code = run.code("a");
    for part in ["#[of_config]", "#[of_builder]", "BTreeMap", "RecordsClient"] {
        has(&code, part);
    }
    // Both have paths for `bytes`, and the builder's count.
    lacks(&code, "bytes::Bytes");
}

/// A generator of services that must not be used.
struct NoServices;

impl prost_build::ServiceGenerator for NoServices {
    fn generate(&mut self, _: prost_build::Service, _: &mut String) {
        panic!("Verbline's generator is to be used");
    }
}

#[test]
fn descriptors_are_written_and_can_be_compiled() {
    let run = Run::new();
    run.compile(configure().file_descriptor_set_path(run.path("all.pb")))
        .unwrap();
    let set = FileDescriptorSet::decode(fs::read(run.path("all.pb")).unwrap().as_slice()).unwrap();
    let names: Vec<_> = set.file.iter().map(|file| file.name()).collect();
    assert_eq!(
        names,
        ["b.proto", "google/protobuf/timestamp.proto", "a.proto"]
    );

    let from_protos = run.code("a");
    configure()
        .out_dir(run.path("out"))
        .compile_fds(set)
        .unwrap();
    assert_eq!(run.code("a"), from_protos);
    // All files of a descriptor set get stubs.
    has(&run.code("b"), "struct PartsClient");
}

#[test]
fn unchanged_files_are_not_written() {
    let run = Run::new();
    let settings = || {
        configure()
            .include_file("all.rs")
            .file_descriptor_set_path(run.path("out/all.pb"))
    };
    run.compile(settings()).unwrap();
    let files = ["a.rs", "b.rs", "all.rs", "all.pb"].map(|name| run.path("out").join(name));
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for file in &files {
        fs::File::options()
            .write(true)
            .open(file)
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
    }
    let unwritten = || {
        files
            .each_ref()
            .map(|file| file.metadata().unwrap().modified().unwrap() == long_ago)
    };

    run.compile(settings()).unwrap();
    assert_eq!(unwritten(), [true; 4]);

    fs::write(run.path("b.proto"), B.replace("id", "number")).unwrap();
    run.compile(settings()).unwrap();
    assert_eq!(unwritten(), [true, false, true, false]);
}

/// Writes a `protoc` that outputs the descriptors in `answer` if its arguments are as expected, with
/// `args` before the file.
fn fake_protoc(run: &Run, answer: &Path, args: &str) -> PathBuf {
    let protoc = run.path("protoc");
    let script = format!(
        "#!/bin/sh\n\
         [ \"$*\" = \"--include_imports --include_source_info --descriptor_set_out=/dev/stdout -I {dir}{args} {dir}/a.proto\" ] ||\n\
         {{ echo \"a.proto:1:2: called as $*\" >&2; exit 3; }}\n\
         cat {}\n",
        answer.display(),
        dir = run.dir.path().display(),
    );
    fs::write(&protoc, script).unwrap();
    fs::set_permissions(&protoc, fs::Permissions::from_mode(0o755)).unwrap();
    protoc
}

#[test]
fn protoc_and_protox_give_the_same_code() {
    let run = Run::new();
    run.compile(configure().file_descriptor_set_path(run.path("all.pb")))
        .unwrap();
    let by_protox = (run.code("a"), run.code("b"));
    fs::remove_dir_all(run.path("out")).unwrap();

    let protoc = fake_protoc(&run, &run.path("all.pb"), " --fast --twice");
    let settings = configure().protoc(&protoc).protoc_arg("--fast");
    run.compile(settings.protoc_arg("--twice")).unwrap();
    assert_eq!((run.code("a"), run.code("b")), by_protox);

    let protoc = fake_protoc(&run, &run.path("all.pb"), "");
    run.compile(configure().protoc(&protoc)).unwrap();
    assert_eq!((run.code("a"), run.code("b")), by_protox);

    fs::write(run.path("all.pb"), "not descriptors").unwrap();
    let error = run.compile(configure().protoc(&protoc)).unwrap_err();
    assert!(matches!(error, Error::ProtocOutput { .. }), "{error}");

    let error = configure()
        .out_dir(run.path("out"))
        .protoc(&protoc)
        .compile_protos(&[run.path("b.proto")], &[run.dir.path()]);
    let Err(Error::Protoc { status, stderr, .. }) = error else {
        panic!("{error:?}")
    };
    assert_eq!(status.code(), Some(3));
    assert!(stderr.starts_with("a.proto:1:2: "), "{stderr}");
}
