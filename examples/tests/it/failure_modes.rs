//! Checks that the tests that docs/failure-modes.md and docs/guarantees.md name exist.

use std::fs;
use std::path::Path;

#[test]
fn every_failure_mode_names_a_test_that_exists_or_why_it_cannot_happen() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let table = fs::read_to_string(root.join("docs/failure-modes.md")).unwrap();
    let mut numbers = Vec::new();
    for row in table.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let Ok(number) = cells[0].parse::<u32>() else {
            continue;
        };
        numbers.push(number);
        let [_, _, holds, test] = cells[..] else {
            panic!("row {number} has {} cells", cells.len());
        };
        if test == "–" {
            assert!(
                holds.starts_with("cannot happen: "),
                "row {number}: {holds}"
            );
            continue;
        }
        assert_exists(&root, test);
    }
    assert!(numbers.len() >= 40 && numbers.iter().copied().eq(1..=numbers.len() as u32));
}

/// Checks that there is the test that a cell names: `file::name`.
fn assert_exists(root: &Path, cell: &str) {
    let (file, name) = cell
        .trim_matches('`')
        .split_once("::")
        .unwrap_or_else(|| panic!("{cell}"));
    let source =
        fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    assert!(
        source.contains(&format!("fn {name}(")),
        "{file} has no test {name}"
    );
}

#[test]
fn every_row_of_the_guarantees_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let guarantees = fs::read_to_string(root.join("docs/guarantees.md")).unwrap();
    for (title, least) in [("## Times, names and errors", 6), ("## The process", 8)] {
        let (_, after) = guarantees.split_once(title).expect(title);
        let section = after.split("\n## ").next().unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| "));
        let mut tests = 0;
        for row in rows.skip(2) {
            let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            for cell in cells.last().unwrap().split(", ") {
                match cell.contains("::") {
                    true => assert_exists(&root, cell),
                    false => assert!(root.join(cell.trim_matches('`')).exists(), "{cell}"),
                }
                tests += 1;
            }
        }
        assert!(tests >= least, "{title}: {tests}");
    }
}
