//! Prints the figures of this checkout, or of the one that the argument names.
#![forbid(unsafe_code)]
// Printing is what it is for.
#![allow(clippy::print_stdout)]

use std::path::PathBuf;

use tidy::figures::Figures;
use tidy::inventory::Inventory;
use tidy::source::workspace_root;

fn main() {
    let root = std::env::args_os()
        .nth(1)
        .map_or_else(workspace_root, PathBuf::from);
    println!("{}", Inventory::of(&root));
    println!("{}", Figures::of(&root));
}
