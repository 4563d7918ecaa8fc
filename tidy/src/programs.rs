//! The programs of a package, as its `Cargo.toml` declares them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::documents::read;

/// A program whose declaration has `test = false`.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name, which is also that of its file or folder below `src/bin`.
    pub name: String,
    sources: Vec<PathBuf>,
}

impl Program {
    /// The program's files that contain tests.
    pub fn tests(&self) -> impl Iterator<Item = PathBuf> {
        let has_tests =
            |file: &&PathBuf| fs::read_to_string(file).is_ok_and(|text| text.contains("#[test]"));
        self.sources.iter().filter(has_tests).cloned()
    }
}

/// The programs of `package`, below `root`, that `cargo test` does not build as tests.
///
/// # Panics
///
/// If the package's `Cargo.toml` cannot be read, or declares a program that has no file.
#[must_use]
pub fn untested_programs(root: &Path, package: &str) -> Vec<Program> {
    let manifest = read(root, &format!("{package}/Cargo.toml"));
    let sections = manifest.split("\n[").map(str::lines);
    let programs = sections.filter_map(|mut lines| {
        (lines.next() == Some("[bin]]")).then_some(())?;
        let lines: Vec<&str> = lines.collect();
        lines.contains(&"test = false").then_some(())?;
        let value = |key: &str| {
            lines.iter().find_map(|line| {
                line.strip_prefix(key)?
                    .strip_prefix(" = \"")?
                    .strip_suffix('"')
            })
        };
        let name = value("name")?;
        let source = root.join(package).join("src");
        let sources = match value("path") {
            Some(path) => vec![root.join(package).join(path)],
            None if source.join(format!("bin/{name}.rs")).exists() => {
                vec![source.join(format!("bin/{name}.rs"))]
            }
            None => files(&source.join("bin").join(name)),
        };
        assert!(
            !sources.is_empty(),
            "{package}/Cargo.toml: the program {name} has no source file"
        );
        Some(Program {
            name: name.to_owned(),
            sources,
        })
    });
    programs.collect()
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths
        .flat_map(|path| match path.is_dir() {
            true => files(&path),
            false => vec![path],
        })
        .collect()
}
