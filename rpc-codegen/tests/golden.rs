//! Compares the code generated for each `.proto` of `tests/golden` with the golden file beside it, so
//! that a review of the generator shows what changes for users. Each `.proto` shows one feature of the
//! generator, as briefly as it can.
//!
//! That all kinds of messages and services work is not proved here: `compiles` compiles the code of
//! `tests/protos`, and `codec` compares its messages with prost.
//!
//! `UPDATE_GOLDEN=1 cargo test -p rpc-codegen --test golden` rewrites the golden files.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use rpc_codegen::Builder;
use tempfile::TempDir;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
const PROTOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/protos");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../proto");
const FACADE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/generated");
const UPDATE: &str = "UPDATE_GOLDEN=1 cargo test -p rpc-codegen --test golden";

#[test]
fn generated_code_is_the_golden_code() {
    compare(&generate(), Path::new(GOLDEN));
}

/// `verbline` needs no build script: its stubs are committed.
#[test]
fn the_stubs_of_health_and_reflection_are_those_that_are_committed() {
    compare(&generate_facade(), Path::new(FACADE));
}

#[test]
fn the_same_input_gives_the_same_output() {
    assert_eq!(generate(), generate());
    let all = || generate_all(rpc_codegen::configure());
    assert_eq!(all(), all());
}

#[test]
fn without_the_codec_everything_goes_through_prost() {
    let without = generate_all(rpc_codegen::configure().build_codec(false));
    assert!(without.len() > 10);
    for code in without.values() {
        assert!(!code.contains("GeneratedCodec") && !code.contains("_codec"));
    }
}

#[track_caller]
fn compare(generated: &BTreeMap<String, String>, dir: &Path) {
    let golden = files_in(dir, "rs");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        for name in golden.keys().filter(|name| !generated.contains_key(*name)) {
            fs::remove_file(dir.join(name)).unwrap();
        }
        for (name, code) in generated {
            fs::write(dir.join(name), code).unwrap();
        }
        return;
    }
    let mut report = String::new();
    for (name, code) in generated {
        match golden.get(name) {
            Some(golden) if golden == code => {}
            Some(golden) => writeln!(
                report,
                "{} differs:\n{}",
                dir.join(name).display(),
                difference(golden, code)
            )
            .unwrap(),
            None => writeln!(report, "{name} does not exist in {}", dir.display()).unwrap(),
        }
    }
    for name in golden.keys().filter(|name| !generated.contains_key(*name)) {
        writeln!(report, "{name} is no longer generated in {}", dir.display()).unwrap();
    }
    assert!(
        report.is_empty(),
        "\n{report}\nIf the change is intended, run: {UPDATE}"
    );
}

/// Returns the settings of a feature: which stubs show it, and those that it is about.
fn settings(feature: &str) -> Builder {
    // Most features are about messages and need no service.
    let builder = rpc_codegen::configure().codec_for_all_messages(feature != "used_messages");
    match feature {
        "by_reference" => builder.bytes("."),
        "default_stubs" => builder
            .build_client(false)
            .generate_default_stubs(true)
            .use_arc_self(true)
            .trait_attribute(
                "Store",
                r#"#[diagnostic::on_unimplemented(message = "no $Store")]"#,
            )
            .server_attribute(".", "#[must_use]"),
        "doc_comments" => builder.build_codec(false).disable_comments("Message.quiet"),
        "identifiers" => builder.build_server(false),
        "message_settings" => builder
            .build_codec(false)
            .enable_type_names()
            .type_name_domain("Order", "type.example.com")
            .retain_enum_prefix()
            .skip_debug("Secret")
            .boxed("Order.secret")
            .message_attribute("Order", "#[on_message]")
            .enum_attribute("Color", "#[on_enum]")
            .field_attribute("Order.color", "#[on_field]"),
        "method_options" => builder
            .build_server(false)
            .max_request_len("Get", 1 << 20)
            .max_response_len("Get", 4096),
        "packages" => builder.include_file("include_file.rs"),
        "reflection" => builder.build_client(false).reflection(true),
        "sorted" => builder.btree_map(".").decode_budget(".", 30),
        "used_messages" => builder.build_server(false),
        "without_codec" => builder
            .build_server(false)
            .build_codec(false)
            .client_attribute("Store", "#[derive(PartialEq)]"),
        _ => builder,
    }
}

/// Generates the code of each feature, alone.
fn generate() -> BTreeMap<String, String> {
    let mut generated = BTreeMap::new();
    for proto in files_in(Path::new(GOLDEN), "proto").keys() {
        let out = TempDir::new().unwrap();
        settings(proto.trim_end_matches(".proto"))
            .out_dir(out.path())
            .compile_protos(&[proto], &[GOLDEN])
            .unwrap();
        for (name, code) in files_in(out.path(), "rs") {
            // A feature generates the messages that it imports from another one as well.
            let other = generated.insert(name, code.clone());
            assert!(other.is_none_or(|other| other == code));
        }
    }
    generated
}

/// Generates the stubs of the facade.
fn generate_facade() -> BTreeMap<String, String> {
    let out = TempDir::new().unwrap();
    // Both versions of reflection have the same messages.
    let v1alpha = (".grpc.reflection.v1alpha", "crate::reflection::v1");
    for (proto, extern_path) in [
        ("grpc/health/v1/health.proto", None),
        ("grpc/reflection/v1/reflection.proto", None),
        ("grpc/reflection/v1alpha/reflection.proto", Some(v1alpha)),
    ] {
        let mut builder = rpc_codegen::configure()
            .crate_path("::rpc_core")
            .reflection(true)
            // Descriptors are sent from where they are.
            .bytes(".")
            // Names of services, files and items are shorter.
            .max_request_len(".", 4096);
        if let Some((proto, rust)) = extern_path {
            builder = builder.extern_path(proto, rust);
        }
        let builder = builder.out_dir(out.path());
        builder.compile_protos(&[proto], &[PROTO]).unwrap();
    }
    files_in(out.path(), "rs")
}

/// Generates the code of all packages of `tests/protos`.
fn generate_all(settings: Builder) -> BTreeMap<String, String> {
    let protos: Vec<_> = files_in(Path::new(PROTOS), "proto").into_keys().collect();
    let out = TempDir::new().unwrap();
    settings
        .out_dir(out.path())
        .include_file("packages.rs")
        .compile_protos(&protos, &[PROTOS])
        .unwrap();
    files_in(out.path(), "rs")
}

fn files_in(dir: &Path, extension: &str) -> BTreeMap<String, String> {
    let paths = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .map(|path| {
            (
                path.file_name().unwrap().to_str().unwrap().to_owned(),
                fs::read_to_string(&path).unwrap(),
            )
        })
        .collect()
}

/// Returns the lines from the first to the last difference.
fn difference(golden: &str, generated: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (golden.lines().collect(), generated.lines().collect());
    let same_head = old
        .iter()
        .zip(&new)
        .take_while(|(old, new)| old == new)
        .count();
    let (old, new) = (&old[same_head..], &new[same_head..]);
    let same_tail = old
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take_while(|(old, new)| old == new)
        .count();
    let (old, new) = (&old[..old.len() - same_tail], &new[..new.len() - same_tail]);
    let mut out = format!("@@ line {} @@\n", same_head + 1);
    for (mark, lines) in [('-', old), ('+', new)] {
        for line in lines.iter().take(20) {
            writeln!(out, "{mark}{line}").unwrap();
        }
        if lines.len() > 20 {
            writeln!(out, "{mark}… and {} more lines", lines.len() - 20).unwrap();
        }
    }
    out
}
