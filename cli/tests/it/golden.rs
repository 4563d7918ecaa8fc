//! Outputs that are kept in files. `UPDATE_GOLDEN=1` writes them.

use std::path::Path;
use std::{env, fs};

/// Compares a text with `tests/golden/<name>`.
#[track_caller]
pub(crate) fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, text).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        kept, text,
        "cli/tests/golden/{name}: if the change is intended, run with UPDATE_GOLDEN=1"
    );
}
