//! Compares the code generated for each `.proto` of `tests/golden` with the golden file beside it, so
//! that a review of the generator shows what changes for users.
//!
//! `UPDATE_GOLDEN=1 cargo test -p rpc-codegen --test golden` rewrites the golden files.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use tempfile::TempDir;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
const UPDATE: &str = "UPDATE_GOLDEN=1 cargo test -p rpc-codegen --test golden";

#[test]
fn generated_code_is_the_golden_code() {
    let generated = generate();
    let golden = files_in(Path::new(GOLDEN), "rs");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        for name in golden.keys().filter(|name| !generated.contains_key(*name)) {
            fs::remove_file(Path::new(GOLDEN).join(name)).unwrap();
        }
        for (name, code) in &generated {
            fs::write(Path::new(GOLDEN).join(name), code).unwrap();
        }
        return;
    }
    let mut report = String::new();
    for (name, code) in &generated {
        match golden.get(name) {
            Some(golden) if golden == code => {}
            Some(golden) => writeln!(
                report,
                "tests/golden/{name} differs:\n{}",
                difference(golden, code)
            )
            .unwrap(),
            None => writeln!(report, "tests/golden/{name} does not exist").unwrap(),
        }
    }
    for name in golden.keys().filter(|name| !generated.contains_key(*name)) {
        writeln!(report, "tests/golden/{name} is no longer generated").unwrap();
    }
    assert!(
        report.is_empty(),
        "\n{report}\nIf the change is intended, run: {UPDATE}"
    );
}

#[test]
fn the_same_input_gives_the_same_output() {
    assert_eq!(generate(), generate());
}

fn generate() -> BTreeMap<String, String> {
    let out = TempDir::new().unwrap();
    let protos: Vec<_> = files_in(Path::new(GOLDEN), "proto").into_keys().collect();
    rpc_codegen::configure()
        .out_dir(out.path())
        .include_file("packages.rs")
        .compile_protos(&protos, &[GOLDEN])
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
