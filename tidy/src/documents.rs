//! Lengths and widths of the files that people read.

use std::fs;
use std::path::Path;

use crate::Violation;
use crate::source::Crate;

/// Columns of a document's lines, outside of tables, code and lines that a link makes long.
pub const MAX_WIDTH: usize = 100;

/// The lines that are wider than [`MAX_WIDTH`] in the document at `path`, relative to `root`.
///
/// # Panics
///
/// If the document cannot be read.
#[must_use]
pub fn wide_lines(root: &Path, path: &str) -> Vec<Violation> {
    let text = read(root, path);
    let mut in_code = false;
    let mut violations = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        let width = line.chars().count();
        let is_exempt = in_code || line.trim_start().starts_with('|') || has_unbreakable_link(line);
        if width > MAX_WIDTH && !is_exempt {
            violations.push(Violation {
                file: path.into(),
                line: index + 1,
                message: format!("{width} columns: wrap the line at {MAX_WIDTH}"),
            });
        }
    }
    violations
}

/// True if one word of the line, a link, is what makes it wide.
fn has_unbreakable_link(line: &str) -> bool {
    let links = line.split_whitespace().filter(|word| word.contains("]("));
    let longest = links.map(|word| word.chars().count()).max();
    longest.is_some_and(|link| line.chars().count() - link <= MAX_WIDTH / 2)
}

/// The documents of the workspace, relative to `root`: those at the top, and those in `docs`.
///
/// # Panics
///
/// If a folder cannot be listed.
#[must_use]
pub fn documents(root: &Path) -> Vec<String> {
    let mut documents: Vec<String> = ["", "docs/"]
        .into_iter()
        .flat_map(|folder| {
            let entries = fs::read_dir(root.join(folder)).expect("the folder can be listed");
            entries.map(move |entry| {
                let name = entry.expect("a listed folder has entries").file_name();
                format!("{folder}{}", name.to_string_lossy())
            })
        })
        .filter(|path| Path::new(path).extension() == Some("md".as_ref()))
        .collect();
    documents.sort();
    documents
}

/// Those of the `documents` that the one at `index`, in `docs`, does not link to.
///
/// # Panics
///
/// If the index cannot be read.
#[must_use]
pub fn not_in_index(root: &Path, index: &str, documents: &[String]) -> Vec<Violation> {
    let text = read(root, index);
    let others = documents.iter().filter(|document| *document != index);
    others
        .filter_map(|document| {
            let link = match document.strip_prefix("docs/") {
                Some(name) => format!("]({name})"),
                None => format!("](../{document})"),
            };
            (!text.contains(&link)).then(|| Violation {
                file: index.into(),
                line: 1,
                message: format!("{document} is not in the index: say which question it answers"),
            })
        })
        .collect()
}

/// The links of the document at `path` that lead to no file of the checkout.
///
/// # Panics
///
/// If the document cannot be read.
#[must_use]
pub fn dead_links(root: &Path, path: &str) -> Vec<Violation> {
    let text = read(root, path);
    let folder = root.join(path);
    let folder = folder.parent().expect("a document is in a folder");
    let mut violations = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for link in line.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap_or_default();
            if target.contains("://") || folder.join(target).exists() {
                continue;
            }
            violations.push(Violation {
                file: path.into(),
                line: index + 1,
                message: format!("there is no file {target}: correct the link"),
            });
        }
    }
    violations
}

/// Violations if the document has more lines or words than allowed.
///
/// # Panics
///
/// If the document cannot be read.
#[must_use]
pub fn too_long(root: &Path, path: &str, max_lines: usize, max_words: usize) -> Vec<Violation> {
    let text = read(root, path);
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    let violation = |message: String| Violation {
        file: path.into(),
        line: lines,
        message,
    };
    let mut violations = Vec::new();
    if lines > max_lines {
        violations.push(violation(format!(
            "{lines} lines, at most {max_lines} are allowed: move details to docs/"
        )));
    }
    if words > max_words {
        violations.push(violation(format!(
            "{words} words, at most {max_words} are allowed: move details to docs/"
        )));
    }
    violations
}

/// The hand-written source files with more than `max_lines` lines.
#[must_use]
pub fn long_files(source: &Crate, max_lines: usize) -> Vec<Violation> {
    let files = source.files.iter().filter(|file| !file.is_generated());
    files
        .filter_map(|file| {
            let lines = file.text.lines().count();
            (lines > max_lines).then(|| Violation {
                file: file.path.clone(),
                line: lines,
                message: format!(
                    "{lines} lines, at most {max_lines} are allowed: give state that changes \
                     together a type and a file of its own"
                ),
            })
        })
        .collect()
}

/// The text of the file at `path`, relative to `root`.
///
/// # Panics
///
/// If it cannot be read.
#[must_use]
pub fn read(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path))
        .unwrap_or_else(|error| panic!("cannot read {path}: {error}"))
}
