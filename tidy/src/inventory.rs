//! How many lines a checkout has of what: product, tests, golden files, measurements, scripts, documents.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Kinds of files, in the order in which a file is tried: what its path contains, and its name ends with.
const KINDS: [(&str, &[&str], &[&str]); 8] = [
    ("golden files", &["/golden/"], &[".rs", ".proto"]),
    ("benches", &["/benches/"], &[".rs"]),
    ("attacks", &["/attacks/"], &[".rs"]),
    (
        "tests and what they need",
        &[
            "/tests/",
            "/tests.rs",
            "/testing",
            "/for_testing",
            "/fuzz/",
            "/interop/",
        ],
        &[".rs", ".py", ".js"],
    ),
    (
        "examples and tidy",
        &["/examples/", "/tidy/", "/proto/"],
        &[".rs"],
    ),
    ("product", &["/src/", "/build.rs"], &[".rs"]),
    (
        "scripts",
        &["/.ci/", "/benches/", "/examples/", "/Makefile"],
        &["", ".yml", ".txt"],
    ),
    ("documents", &["/"], &[".md"]),
];

/// The lines of each kind of file.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    lines: [Lines; KINDS.len()],
}

#[derive(Clone, Copy, Debug, Default)]
struct Lines {
    files: usize,
    all: usize,
    /// Without blank lines and lines of comments.
    code: usize,
}

impl Inventory {
    /// Counts the files of the checkout at `root`.
    ///
    /// # Panics
    ///
    /// If a folder cannot be read.
    #[must_use]
    pub fn of(root: &Path) -> Self {
        let mut inventory = Self::default();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            let entries = fs::read_dir(&folder)
                .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            for path in entries.map(|entry| entry.expect("an entry of a folder").path()) {
                let name = path.file_name().unwrap_or_default();
                if !path.is_dir() {
                    inventory.add(root, &path);
                } else if name != "target" && name != ".git" {
                    folders.push(path);
                }
            }
        }
        inventory
    }

    fn add(&mut self, root: &Path, path: &PathBuf) {
        let relative = path.strip_prefix(root).unwrap_or(path);
        let place = format!("/{}", relative.display());
        let ending = match path.extension() {
            Some(ending) => format!(".{}", ending.display()),
            None => String::new(),
        };
        let kind = KINDS.iter().position(|(_, places, endings)| {
            endings.contains(&ending.as_str()) && places.iter().any(|part| place.contains(part))
        });
        // What is no text has no lines.
        let (Some(kind), Ok(text)) = (kind, fs::read_to_string(path)) else {
            return;
        };
        let is_code = |line: &&str| {
            let line = line.trim_start();
            !line.is_empty() && !line.starts_with("//") && !line.starts_with("# ")
        };
        let lines = &mut self.lines[kind];
        lines.files += 1;
        lines.all += text.lines().count();
        lines.code += text.lines().filter(is_code).count();
    }
}

impl fmt::Display for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| files of the checkout | | lines | without blank lines and comments |\n| --- | ---: | ---: | ---: |"
        )?;
        for ((kind, ..), Lines { files, all, code }) in KINDS.iter().zip(&self.lines) {
            writeln!(f, "| {kind} | {files} | {all} | {code} |")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_file_is_counted_once() {
        let root = crate::source::workspace_root();
        let inventory = Inventory::of(&root);
        for ((kind, ..), lines) in KINDS.iter().zip(&inventory.lines) {
            assert!(lines.files > 0 && lines.code > 0, "{kind}: {lines:?}");
            assert!(lines.code < lines.all, "{kind}: {lines:?}");
        }
    }

    #[test]
    fn comments_and_blank_lines_are_no_code() {
        let root = std::env::temp_dir().join(format!("tidy-inventory-{}", std::process::id()));
        let folder = root.join("src");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("lib.rs"), "// why\n\nfn f() {}\n").unwrap();
        let inventory = Inventory::of(&root);
        fs::remove_dir_all(&root).unwrap();
        let product = KINDS
            .iter()
            .position(|(kind, ..)| *kind == "product")
            .unwrap();
        let Lines { files, all, code } = inventory.lines[product];
        assert_eq!((files, all, code), (1, 3, 1));
    }
}
