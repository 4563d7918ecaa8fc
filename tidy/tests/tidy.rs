//! The rules that hold Verbline's source tree to itself. A failure names the file, the line and
//! the remedy.

use std::fs;

use tidy::documents::{
    dead_links, documents, long_files, not_in_index, read, too_long, wide_lines,
};
use tidy::facade::not_exported;
use tidy::figures::PACKAGES;
use tidy::imports::{circles, imports, uses_of_testing};
use tidy::layers::{CORE, GATEWAY, LOAD, Package, TLS, TRANSPORT, VERBS};
use tidy::logs::{ERRORS, UNLIMITED, unlimited};
use tidy::programs::{forgotten_tests, tests_that_nothing_runs, untested_programs};
use tidy::source::{Crate, workspace_root};
use tidy::surface::{front_page, public_items};
use tidy::tangles::{CIRCLES, TYPES, Tangles};
use tidy::{Violation, expect_none};

/// Lines of a hand-written source file: a few screens, one owner, one story.
const MAX_FILE_LINES: usize = 500;

/// Lines and words of the README: one screen and a half.
const MAX_README_LINES: usize = 120;
const MAX_README_WORDS: usize = 1200;

fn hold(package: &Package) {
    if let Some(row) = package.row_out_of_order() {
        panic!(
            "tidy/src/allowed.rs: {}: the row {row} names a layer that is not above it: move it down",
            package.folder
        );
    }
    expect_none(package.violations(&workspace_root()));
}

#[test]
fn arrows_in_core_run_down() {
    hold(&CORE);
}

#[test]
fn arrows_in_the_verbs_crate_run_down() {
    hold(&VERBS);
}

#[test]
fn arrows_in_the_transport_run_down() {
    hold(&TRANSPORT);
}

#[test]
fn arrows_in_the_gateway_run_down() {
    hold(&GATEWAY);
}

#[test]
fn arrows_in_the_load_generator_run_down() {
    hold(&LOAD);
}

#[test]
fn arrows_in_tls_run_down() {
    hold(&TLS);
}

#[test]
fn modules_of_the_generator_form_no_circle() {
    let source = Crate::read(&workspace_root(), "rpc-codegen");
    assert_eq!(circles(&source, &imports(&source)), []);
}

/// Whoever can reach a port could fill the disk.
#[test]
fn log_lines_that_peers_can_cause_are_limited_and_no_errors() {
    let crates = PACKAGES.map(|package| Crate::read(&workspace_root(), package));
    expect_none(unlimited(&crates, UNLIMITED, ERRORS));
}

/// Methods and functions that take a type by `&mut` reach each other without an import.
#[test]
fn files_that_call_each_other_and_types_in_many_files_stay_below_their_ceilings() {
    let crates = PACKAGES.map(|package| Crate::read(&workspace_root(), package));
    let unmeasured = CIRCLES
        .iter()
        .chain(TYPES)
        .find(|row| !crates.iter().any(|one| one.name == row.package));
    assert!(
        unmeasured.is_none(),
        "tidy/src/ceilings.rs: {unmeasured:?} is of a crate that is not measured: correct its name"
    );
    let violations = crates
        .iter()
        .flat_map(|one| Tangles::of(one).violations(CIRCLES, TYPES))
        .collect();
    expect_none(violations);
}

#[test]
fn product_code_uses_nothing_of_testing() {
    let root = workspace_root();
    expect_none(
        PACKAGES
            .iter()
            .flat_map(|package| uses_of_testing(&Crate::read(&root, package)))
            .collect(),
    );
}

#[test]
fn source_files_are_short() {
    let root = workspace_root();
    expect_none(
        PACKAGES
            .iter()
            .flat_map(|package| long_files(&Crate::read(&root, package), MAX_FILE_LINES))
            .collect(),
    );
}

#[test]
fn documents_are_wrapped_and_the_readme_is_short() {
    let root = workspace_root();
    let mut violations = too_long(&root, "README.md", MAX_README_LINES, MAX_README_WORDS);
    for document in documents(&root) {
        // Generated from the explanations in the source.
        if document != "docs/verbs-errors.md" {
            violations.extend(wide_lines(&root, &document));
        }
    }
    expect_none(violations);
}

#[test]
fn every_document_is_in_the_index() {
    let root = workspace_root();
    expect_none(not_in_index(&root, "docs/README.md", &documents(&root)));
}

#[test]
fn links_lead_to_files() {
    let root = workspace_root();
    let conformance = "rpc-transport-verbs/verbs/CONFORMANCE.md".to_owned();
    let readmes = PACKAGES
        .iter()
        .map(|package| format!("{package}/README.md"));
    let others = readmes.filter(|path| root.join(path).exists());
    expect_none(
        documents(&root)
            .into_iter()
            .chain([conformance])
            .chain(others)
            .flat_map(|path| dead_links(&root, &path))
            .collect(),
    );
}

#[test]
fn every_test_is_part_of_a_program_that_something_runs() {
    let root = workspace_root();
    let mut packages = PACKAGES.to_vec();
    packages.extend([
        "attacks", "benches", "cli", "examples", "interop", "proto", "tidy",
    ]);
    expect_none(
        packages
            .iter()
            .flat_map(|package| {
                let mut violations = forgotten_tests(&root, package);
                violations.extend(tests_that_nothing_runs(&root, package));
                violations
            })
            .collect(),
    );
}

/// A program with `test = false` is not built as a test, so a test in it would never run.
#[test]
fn programs_that_are_not_tested_contain_no_tests() {
    let root = workspace_root();
    let mut violations = Vec::new();
    for package in ["attacks", "benches", "cli", "examples", "interop", "tidy"] {
        for program in untested_programs(&root, package) {
            violations.extend(program.tests().map(|file| Violation {
                file,
                line: 1,
                message: format!(
                    "{package}/Cargo.toml has `test = false` for the program {}, so no test here would \
                     run: remove that line",
                    program.name
                ),
            }));
        }
    }
    expect_none(violations);
}

/// The lint says which function lacks the section; this says that the lint is on.
#[test]
fn functions_that_return_a_result_document_their_errors() {
    let root = workspace_root();
    let lint = "missing_errors_doc = \"warn\"";
    assert!(
        read(&root, "Cargo.toml").lines().any(|line| line == lint),
        "Cargo.toml: add `{lint}` to [workspace.lints.clippy]"
    );
    for package in PACKAGES {
        let path = format!("{package}/Cargo.toml");
        assert!(
            read(&root, &path).contains("[lints]\nworkspace = true\n"),
            "{path}: add `[lints]` with `workspace = true`"
        );
        for file in Crate::read(&root, package).files {
            assert!(
                !file.text.contains("allow(clippy::missing_errors_doc"),
                "{}: document the errors instead of allowing the lint",
                file.path.display()
            );
        }
    }
}

/// Names on the front page of the package that programs depend on, with the errors of its types: as
/// many as a reader takes in.
const MAX_FRONT_PAGE: usize = 45;

#[test]
fn the_front_page_of_the_facade_is_short() {
    let facade = Crate::read(&workspace_root(), ".");
    let root = facade.files.iter().find(|file| file.module.is_empty());
    let names = front_page(&root.expect("the facade has a root").syntax);
    assert!(names.contains(&"Server".to_owned()), "{names:?}");
    assert!(
        names.len() <= MAX_FRONT_PAGE,
        "src/lib.rs: {} names on the front page, at most {MAX_FRONT_PAGE}: move some to a module. {names:?}",
        names.len()
    );
}

/// A program can write the type of whatever a method returns.
#[test]
fn the_facade_exports_each_item_that_a_public_signature_names() {
    let root = workspace_root();
    let facade = public_items(&Crate::read(&root, "."));
    let crates = ["rpc-core", "rpc-transport-verbs"];
    let items = crates.map(|package| public_items(&Crate::read(&root, package)));
    expect_none(
        not_exported(&facade, &items.concat())
            .into_iter()
            .map(|message| Violation {
                file: "src/lib.rs".into(),
                line: 1,
                message,
            })
            .collect(),
    );
}

/// `<package>/public-items.txt` shows a change of the public surface in review.
#[test]
fn public_items_are_those_of_the_list() {
    let root = workspace_root();
    for package in PACKAGES {
        let path = root.join(package).join("public-items.txt");
        let items = public_items(&Crate::read(&root, package));
        let items = format!("{}\n", items.join("\n"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, items).expect("the list can be written");
            continue;
        }
        let listed = fs::read_to_string(&path).unwrap_or_default();
        let only_in = |one: &str, other: &str, sign: char| -> Vec<String> {
            let missing = one
                .lines()
                .filter(|line| !other.lines().any(|l| l == *line));
            missing.map(|line| format!("{sign} {line}")).collect()
        };
        let mut changes = only_in(&listed, &items, '-');
        changes.extend(only_in(&items, &listed, '+'));
        assert!(
            changes.is_empty(),
            "{package}/public-items.txt: the public surface has changed. If that is intended, run \
             `UPDATE_GOLDEN=1 cargo test -p tidy` and commit the list.\n{}",
            changes.join("\n")
        );
    }
}
