//! The descriptors in generated servers are those of the compiler: of the service's file and of all
//! that it imports, with custom options and without comments.

use std::fs;
use std::path::Path;

use prost::Message;
use prost_types::compiler::CodeGeneratorResponse;
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use tempfile::TempDir;

const OPTIONS: &str = r#"
    syntax = "proto3";
    package options;
    import "google/protobuf/descriptor.proto";
    extend google.protobuf.MethodOptions { string http = 50001; }
"#;

const ITEMS: &str = r#"
    syntax = "proto3";
    package shop;
    message Item { string name = 1; }
"#;

const SHOP: &str = r##"
    syntax = "proto3";
    package shop;
    import public "items.proto";
    import "options.proto";

    // A comment, which nobody serves.
    service Cart {
      rpc Add(Item) returns (Item) { option (options.http) = "/#add \"\\ $\n é"; }
    }
    service Till { rpc Pay(Item) returns (Item); }
"##;

const UNUSED: &str = "syntax = \"proto3\"; package shop; message Unused {}";

/// Writes the files, and returns their directory.
fn sources() -> TempDir {
    let dir = TempDir::new().unwrap();
    for (name, text) in [
        ("options.proto", OPTIONS),
        ("items.proto", ITEMS),
        ("shop.proto", SHOP),
        ("unused.proto", UNUSED),
    ] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

/// Returns the code that a build script generates from all files.
fn generated(dir: &Path) -> String {
    let out = TempDir::new().unwrap();
    rpc_codegen::configure()
        .reflection(true)
        .crate_path("::verbline")
        .out_dir(out.path())
        .compile_protos(&["unused.proto", "shop.proto"], &[dir])
        .unwrap();
    fs::read_to_string(out.path().join("shop.rs")).unwrap()
}

/// Returns the value of the only static in generated code.
fn descriptor_set(code: &str) -> Vec<u8> {
    let file = syn::parse_file(code).unwrap();
    let statics: Vec<_> = file
        .items
        .iter()
        .filter_map(|item| match item {
            syn::Item::Static(found) => Some(&*found.expr),
            _ => None,
        })
        .collect();
    let [syn::Expr::Lit(literal)] = statics.as_slice() else {
        panic!("{} statics, one was expected", statics.len());
    };
    let syn::Lit::ByteStr(literal) = &literal.lit else {
        panic!("the static is not a byte string");
    };
    literal.value()
}

/// Returns what the compiler makes of a file and its imports, encoded.
fn compiled(dir: &Path, file: &str) -> Vec<u8> {
    let mut compiler = protox::Compiler::new([dir]).unwrap();
    let compiler = compiler.include_imports(true).include_source_info(false);
    compiler.open_file(file).unwrap();
    compiler.encode_file_descriptor_set()
}

#[test]
fn descriptors_are_those_of_the_compiler_with_all_imports_and_custom_options() {
    let dir = sources();
    let set = descriptor_set(&generated(dir.path()));
    let names: Vec<_> = FileDescriptorSet::decode(set.as_slice())
        .unwrap()
        .file
        .into_iter()
        .map(|file| file.name().to_owned())
        .collect();
    // An import precedes the file that imports it.
    assert_eq!(
        names,
        [
            "items.proto",
            "google/protobuf/descriptor.proto",
            "options.proto",
            "shop.proto"
        ]
    );
    assert_eq!(files(&set), files(&compiled(dir.path(), "shop.proto")));
    assert!(contains(&set, "/#add \"\\ $\n é".as_bytes()));
    assert!(!contains(&set, b"nobody serves"));
}

#[test]
fn the_services_of_one_file_share_its_descriptors_and_a_server_without_the_setting_has_none() {
    let dir = sources();
    let code = generated(dir.path());
    assert_eq!(
        code.matches("Some(super::FILE_DESCRIPTOR_SET_0)").count(),
        2
    );

    let out = TempDir::new().unwrap();
    let builder = rpc_codegen::configure().out_dir(out.path());
    builder
        .compile_protos(&["shop.proto"], &[dir.path()])
        .unwrap();
    let code = fs::read_to_string(out.path().join("shop.rs")).unwrap();
    assert!(!code.contains("descriptor_set") && !code.contains("DESCRIPTOR"));
}

/// Custom options are fields that `CodeGeneratorRequest` of prost-types does not have.
#[test]
fn the_plugin_writes_the_descriptors_that_a_build_script_writes() {
    #[derive(Clone, PartialEq, Message)]
    struct Request {
        #[prost(string, repeated, tag = "1")]
        file_to_generate: Vec<String>,
        #[prost(string, tag = "2")]
        parameter: String,
        #[prost(bytes = "vec", repeated, tag = "15")]
        proto_file: Vec<Vec<u8>>,
    }

    let dir = sources();
    let request = Request {
        file_to_generate: vec!["shop.proto".to_owned()],
        parameter: "reflection".to_owned(),
        proto_file: files(&compiled(dir.path(), "shop.proto")),
    };
    let answer = rpc_codegen::protoc_plugin(&request.encode_to_vec());
    let answer = CodeGeneratorResponse::decode(answer.as_slice()).unwrap();
    assert_eq!(answer.error, None);
    let code = answer.file.iter().find(|file| file.name() == "shop.rs");
    let set = descriptor_set(code.unwrap().content());
    assert_eq!(set, descriptor_set(&generated(dir.path())));
}

/// Returns the files of an encoded set, encoded and sorted.
fn files(set: &[u8]) -> Vec<Vec<u8>> {
    #[derive(Clone, PartialEq, Message)]
    struct Set {
        #[prost(bytes = "vec", repeated, tag = "1")]
        files: Vec<Vec<u8>>,
    }
    let mut files = Set::decode(set).unwrap().files;
    files.sort_by_key(|file| {
        let file = FileDescriptorProto::decode(file.as_slice()).unwrap();
        file.name().to_owned()
    });
    files
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
