//! The programs of a package, as its `Cargo.toml` declares them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Violation;
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
        self.sources.iter().filter(|file| has_tests(file)).cloned()
    }
}

fn has_tests(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.contains("#[test]"))
}

/// The programs of `package`, below `root`, that `cargo test` does not build as tests.
///
/// # Panics
///
/// If the package's `Cargo.toml` cannot be read, or declares a program that has no file.
#[must_use]
pub fn untested_programs(root: &Path, package: &str) -> Vec<Program> {
    let manifest = read(root, &format!("{package}/Cargo.toml"));
    let programs = untested(&manifest, "bin").map(|section| {
        let name = value(section, "name").expect("a program has a name");
        let source = root.join(package).join("src");
        let sources = match value(section, "path") {
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
        Program {
            name: name.to_owned(),
            sources,
        }
    });
    programs.collect()
}

/// The test programs of `package`, below `root`, that `cargo test` leaves out and no script in `.ci` names.
///
/// # Panics
///
/// If the package's `Cargo.toml` or a script cannot be read.
#[must_use]
pub fn tests_that_nothing_runs(root: &Path, package: &str) -> Vec<Violation> {
    let scripts: String = files(&root.join(".ci"))
        .iter()
        .map(|file| fs::read_to_string(file).expect("a script can be read"))
        .collect();
    let manifest = format!("{package}/Cargo.toml");
    let text = read(root, &manifest);
    let own = value(&text, "name").expect("a package has a name");
    let names = untested(&text, "test").filter_map(|section| value(section, "name"));
    let runs = |name: &str| {
        [format!("--test {name}"), format!("{own}/{name}")]
            .iter()
            .any(|run| scripts.contains(run))
    };
    names
        .filter(|name| !runs(name))
        .map(|name| Violation {
            file: manifest.clone().into(),
            line: 1,
            message: format!(
                "no script in .ci runs the test program {name}, and `test = false` hides it from cargo"
            ),
        })
        .collect()
}

/// The files with tests below the `tests` of `package` that are neither programs nor modules of one: nobody compiles
/// them.
///
/// # Panics
///
/// If a file cannot be read.
#[must_use]
pub fn forgotten_tests(root: &Path, package: &str) -> Vec<Violation> {
    let folder = root.join(package).join("tests");
    let sources: Vec<PathBuf> = files(&folder)
        .into_iter()
        .filter(|file| file.extension() == Some("rs".as_ref()))
        .collect();
    let mut texts: String = sources
        .iter()
        .map(|file| fs::read_to_string(file).expect("a test can be read"))
        .collect();
    texts += &read(root, &format!("{package}/Cargo.toml"));
    let is_forgotten = |file: &PathBuf| {
        let path = file.strip_prefix(&folder).expect("it is in the folder");
        let is_program = path.components().count() == 1 || path.ends_with("main.rs");
        let module = match path.file_stem() {
            Some(stem) if stem == "mod" => path.parent().and_then(Path::file_stem),
            stem => stem,
        };
        let module = module.expect("a file has a name").to_string_lossy();
        let name = path
            .file_name()
            .expect("a file has a name")
            .to_string_lossy();
        let is_module =
            texts.contains(&format!("mod {module};")) || texts.contains(&format!("{name}\""));
        !(is_program || is_module)
    };
    sources
        .iter()
        .filter(|file| has_tests(file) && is_forgotten(file))
        .map(|file| Violation {
            file: file.clone(),
            line: 1,
            message: "no `mod` names this file, so its tests never run".to_owned(),
        })
        .collect()
}

/// The sections of a manifest that declare a program of this kind with `test = false`.
fn untested<'a>(manifest: &'a str, kind: &str) -> impl Iterator<Item = &'a str> {
    // Split before the first of two brackets.
    let heading = format!("[{kind}]]");
    manifest.split("\n[").filter(move |section| {
        let mut lines = section.lines();
        lines.next() == Some(&heading) && lines.any(|line| line == "test = false")
    })
}

/// The value of a key that a section of a manifest sets to a string.
fn value<'a>(section: &'a str, key: &str) -> Option<&'a str> {
    section.lines().find_map(|line| {
        line.strip_prefix(key)?
            .strip_prefix(" = \"")?
            .strip_suffix('"')
    })
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
