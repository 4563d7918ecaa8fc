//! Rules about Verbline's own source tree that a machine can check, and figures that describe it.
//!
//! ```sh
//! cargo test -p tidy                    # checks the rules; a failure names file, line and remedy
//! UPDATE_GOLDEN=1 cargo test -p tidy    # writes the lists of public items again
//! cargo run -p tidy                     # prints the figures
//! cargo run -p tidy -- OTHER_CHECKOUT   # prints the figures of another checkout
//! ```
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`source`] | a crate's files as syntax trees, each with its module path |
//! | [`imports`] | which module imports which, and the circles among them |
//! | [`layers`] | the folders of each crate, and the arrows that are allowed between them |
//! | [`logs`] | log lines that peers can cause: each is limited, and none is an error |
//! | [`definitions`] | which types a crate defines, and in which files their methods stand |
//! | [`type_at`], [`variables`] | what a type's name means where it is written, and types of variables |
//! | [`calls`] | which file calls methods that another one defines for the same type |
//! | [`tangles`] | circles among these calls, types in many files, and their ceilings |
//! | [`documents`] | lengths and widths of files that people read |
//! | [`programs`] | programs that `cargo test` does not build as tests |
//! | [`surface`] | the public items of a crate, one line each |
//! | [`facade`] | what the package that programs depend on has to export |
//! | [`inventory`] | lines of product, tests, golden files, measurements, scripts and documents |
//! | [`figures`] | the numbers behind "is it getting better?" |
#![forbid(unsafe_code)]

pub mod calls;
pub mod definitions;
pub mod documents;
pub mod facade;
pub mod figures;
pub mod imports;
pub mod inventory;
pub mod layers;
pub mod logs;
pub mod programs;
pub mod source;
pub mod surface;
pub mod tangles;
pub mod type_at;
pub mod variables;

use std::fmt;
use std::path::PathBuf;

/// A place where a rule is broken, with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Relative to the checkout's root.
    pub file: PathBuf,
    /// Counted from 1.
    pub line: usize,
    /// What is wrong, and the remedy.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            line,
            message,
        } = self;
        write!(f, "{}:{line}: {message}", file.display())
    }
}

/// Panics with all violations, one a line, if there are any.
///
/// # Panics
///
/// If `violations` is not empty: this is how a test fails.
pub fn expect_none(mut violations: Vec<Violation>) {
    violations.sort();
    let lines: Vec<String> = violations.iter().map(Violation::to_string).collect();
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
}
