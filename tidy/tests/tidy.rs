//! The rules that hold Verbline's source tree to itself. A failure names the file, the line and
//! the remedy.

use tidy::documents::{long_files, too_long, wide_lines};
use tidy::expect_none;
use tidy::figures::PACKAGES;
use tidy::rooms::{CORE, House, VERBS};
use tidy::source::{Crate, workspace_root};

fn hold(house: &House) {
    assert!(house.rows_are_in_order(), "{}", house.package);
    let root = std::env::var_os("TIDY_ROOT").map_or_else(workspace_root, Into::into);
    expect_none(house.breaches(&root));
}

#[test]
fn arrows_in_core_run_down() {
    hold(&CORE);
}

#[test]
fn arrows_in_the_verbs_crate_run_down() {
    hold(&VERBS);
}
