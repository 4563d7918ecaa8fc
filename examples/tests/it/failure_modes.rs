//! Checks that the tests that docs/failure-modes.md names exist.

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
        let (file, name) = test
            .trim_matches('`')
            .split_once("::")
            .unwrap_or_else(|| panic!("row {number}: {test}"));
        let source = fs::read_to_string(root.join(file))
            .unwrap_or_else(|error| panic!("row {number}: {file}: {error}"));
        assert!(
            source.contains(&format!("fn {name}(")),
            "row {number}: {file} has no test {name}"
        );
    }
    assert!(numbers.len() >= 40 && numbers.iter().copied().eq(1..=numbers.len() as u32));
}
