//! The `protoc` plugin writes what a build script writes.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use prost::Message;
use prost_types::compiler::{CodeGeneratorRequest, CodeGeneratorResponse};
use rpc_codegen::{Builder, configure, protoc_plugin};
use tempfile::TempDir;

const PROTOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/protos");

/// Returns what `protoc` writes to a plugin for these files of `tests/protos`.
fn request(files: &[&str], parameter: &str) -> Vec<u8> {
    let mut compiler = protox::Compiler::new([PROTOS]).unwrap();
    let compiler = compiler.include_imports(true).include_source_info(true);
    compiler.open_files(files).unwrap();
    let request = CodeGeneratorRequest {
        file_to_generate: files.iter().map(|name| (*name).to_owned()).collect(),
        parameter: Some(parameter.to_owned()),
        proto_file: compiler.file_descriptor_set().file,
        compiler_version: None,
    };
    request.encode_to_vec()
}

/// Returns the files of an answer.
fn files(answer: &[u8]) -> Result<BTreeMap<String, String>, String> {
    let response = CodeGeneratorResponse::decode(answer).unwrap();
    match response.error {
        Some(error) => Err(error),
        None => {
            let file = |file: prost_types::compiler::code_generator_response::File| {
                (file.name().to_owned(), file.content().to_owned())
            };
            Ok(response.file.into_iter().map(file).collect())
        }
    }
}

/// Returns the files that a build script with these settings writes.
fn written(settings: Builder, protos: &[&str]) -> BTreeMap<String, String> {
    let dir = TempDir::new().unwrap();
    let protos: Vec<_> = protos
        .iter()
        .map(|name| Path::new(PROTOS).join(name))
        .collect();
    let settings = settings.crate_path("::verbline").out_dir(dir.path());
    settings.compile_protos(&protos, &[PROTOS]).unwrap();
    let entries = fs::read_dir(dir.path()).unwrap().map(Result::unwrap);
    let file = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read_to_string(entry.path()).unwrap())
    };
    entries.map(file).collect()
}

/// Files of `tests/protos`, one of which imports others.
const FILES: [&str; 2] = ["greeter.proto", "types.proto"];

#[test]
fn the_plugin_writes_what_a_build_script_writes() {
    assert_eq!(
        files(&protoc_plugin(&request(&FILES, ""))).unwrap(),
        written(configure(), &FILES)
    );
    let parameter = "include_file=mod.rs,bytes=.,build_client=false, use_arc_self ,decode_budget=.=12,\
                     extern_path=.google.protobuf.Timestamp=::time::Stamp,retain_enum_prefix,\
                     max_request_len=.=1000";
    let settings = configure()
        .include_file("mod.rs")
        .bytes(".")
        .build_client(false)
        .use_arc_self(true)
        .decode_budget(".", 12)
        .extern_path(".google.protobuf.Timestamp", "::time::Stamp")
        .retain_enum_prefix()
        .max_request_len(".", 1000);
    assert_eq!(
        files(&protoc_plugin(&request(&FILES, parameter))).unwrap(),
        written(settings, &FILES)
    );
}

#[test]
fn what_is_wrong_with_the_options_is_said() {
    for (parameter, expected) in [
        (
            "build_clients",
            "the option `build_clients` does not exist: see `rpc_codegen::protoc_plugin`",
        ),
        (
            "build_client=no",
            "the option `build_client=no` takes `true` or `false`",
        ),
        (
            "extern_path=.a",
            "the option `extern_path=.a` takes a path and a value: `name=path=value`",
        ),
        (
            "include_file",
            "the option `include_file` takes a value: `name=value`",
        ),
        (
            "crate_path=",
            "the option `crate_path=` takes a value: `name=value`",
        ),
        (
            "decode_budget=.a=x",
            "the option `decode_budget=.a=x` takes a path and a number: `name=path=number`",
        ),
        (
            "bytes=.nowhere",
            "bytes: no field has the path `.nowhere`, for example `.package.Message.field`, and none is below it",
        ),
    ] {
        let answer = protoc_plugin(&request(&FILES[..1], parameter));
        assert_eq!(files(&answer).unwrap_err(), expected);
    }
    let error = files(&protoc_plugin(b"not a request")).unwrap_err();
    assert!(
        error.starts_with("the input is no CodeGeneratorRequest: "),
        "{error}"
    );
}

#[test]
fn the_program_answers_from_its_standard_input() {
    let plugin = env!("CARGO_BIN_EXE_protoc-gen-verbline");
    let mut child = Command::new(plugin)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let request = request(&FILES, "");
    child.stdin.take().unwrap().write_all(&request).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, protoc_plugin(&request));

    let output = Command::new(plugin).arg("--help").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("protoc --verbline_out="), "{message}");
}
