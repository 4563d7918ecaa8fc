//! Compares the code generated for each `.proto` of `tests/golden` with the golden file beside it, so
//! that a review of the generator shows what changes for users.
//!
//! `tests/golden/sorted` has messages with other settings, `Bytes` and `BTreeMap`. Maps of this type
//! have an order, so tests of the codec can compare encodings. It has the messages of `proto/` too.
//!
//! `tests/golden/options` has the settings that change what is generated. The test `options` uses it.
//!
//! `UPDATE_GOLDEN=1 cargo test -p rpc-codegen --test golden` rewrites the golden files.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use rpc_codegen::Builder;
use tempfile::TempDir;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
const SORTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/sorted");
const OPTIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/options");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../proto");
const UPDATE: &str = "UPDATE_GOLDEN=1 cargo test -p rpc-codegen --test golden";

#[test]
fn generated_code_is_the_golden_code() {
    compare(&generate(), Path::new(GOLDEN));
}

#[test]
fn generated_code_with_other_settings_is_the_golden_code() {
    compare(&generate_sorted(), Path::new(SORTED));
}

#[test]
fn generated_code_with_options_is_the_golden_code() {
    compare(&generate_options(), Path::new(OPTIONS));
}

#[test]
fn the_same_input_gives_the_same_output() {
    assert_eq!(generate(), generate());
}

#[test]
fn without_the_codec_everything_goes_through_prost() {
    for code in generate_with(|builder| builder.build_codec(false)).values() {
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

fn generate() -> BTreeMap<String, String> {
    generate_with(|builder| builder)
}

fn generate_with(set: impl FnOnce(Builder) -> Builder) -> BTreeMap<String, String> {
    let protos: Vec<_> = files_in(Path::new(GOLDEN), "proto").into_keys().collect();
    let out = TempDir::new().unwrap();
    set(rpc_codegen::configure())
        .out_dir(out.path())
        .include_file("packages.rs")
        .compile_protos(&protos, &[GOLDEN])
        .unwrap();
    files_in(out.path(), "rs")
}

fn generate_sorted() -> BTreeMap<String, String> {
    let mut protos = vec!["fields.proto".to_owned(), "fields2.proto".to_owned()];
    protos.extend(files_in(Path::new(PROTO), "proto").into_keys());
    protos.push("grpc/testing/test.proto".to_owned());
    let out = TempDir::new().unwrap();
    rpc_codegen::configure()
        .build_server(false)
        .bytes(".")
        .btree_map(".")
        .out_dir(out.path())
        .include_file("packages.rs")
        .compile_protos(&protos, &[PROTO, GOLDEN])
        .unwrap();
    files_in(out.path(), "rs")
}

fn generate_options() -> BTreeMap<String, String> {
    let out = TempDir::new().unwrap();
    let trait_attribute = r#"#[diagnostic::on_unimplemented(message = "no $Shop")]"#;
    rpc_codegen::configure()
        .enable_type_names()
        .type_name_domain(".Shop.V1.Order", "type.example.com")
        .trait_attribute("Shop", trait_attribute)
        .client_attribute(".Shop.V1.Shop", "#[derive(PartialEq)]")
        .server_attribute(".", "#[must_use]")
        .generate_default_stubs(true)
        .use_arc_self(true)
        .disable_comments("Order.color")
        .disable_comments("Shop.Watch")
        .disable_comments(".Shop.V1.Quiet")
        .skip_debug("Secret")
        .retain_enum_prefix()
        .out_dir(out.path())
        .compile_protos(&["options.proto"], &[OPTIONS])
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
