//! Lengths and widths of the files that people read.

use std::fs;
use std::path::Path;

use crate::Breach;
use crate::source::Crate;

/// Columns of a document's lines, outside of tables, code and lines that a link makes long.
pub const MAX_WIDTH: usize = 100;

/// The lines that are wider than [`MAX_WIDTH`] in the document at `path`, relative to `root`.
///
/// # Panics
///
/// If the document cannot be read.
#[must_use]
pub fn wide_lines(root: &Path, path: &str) -> Vec<Breach> {
    let text = read(root, path);
    let mut in_code = false;
    let mut breaches = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        let width = line.chars().count();
        let is_exempt = in_code || line.starts_with('|') || has_unbreakable_link(line);
        if width > MAX_WIDTH && !is_exempt {
            breaches.push(Breach {
                file: path.into(),
                line: index + 1,
                message: format!("{width} columns: wrap the line at {MAX_WIDTH}"),
            });
        }
    }
    breaches
}

/// True if one word of the line, a link, is what makes it wide.
fn has_unbreakable_link(line: &str) -> bool {
    let longest = line
        .split_whitespace()
        .max_by_key(|word| word.chars().count());
    longest.is_some_and(|word| word.contains("](") && word.chars().count() > MAX_WIDTH / 2)
}

/// Breaches if the document has more lines or words than allowed.
///
/// # Panics
///
/// If the document cannot be read.
#[must_use]
pub fn too_long(root: &Path, path: &str, max_lines: usize, max_words: usize) -> Vec<Breach> {
    let text = read(root, path);
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    let breach = |message: String| Breach {
        file: path.into(),
        line: lines,
        message,
    };
    let mut breaches = Vec::new();
    if lines > max_lines {
        breaches.push(breach(format!(
            "{lines} lines, at most {max_lines} are allowed: move details to docs/"
        )));
    }
    if words > max_words {
        breaches.push(breach(format!(
            "{words} words, at most {max_words} are allowed: move details to docs/"
        )));
    }
    breaches
}

/// The hand-written source files with more than `max_lines` lines.
#[must_use]
pub fn long_files(source: &Crate, max_lines: usize) -> Vec<Breach> {
    let files = source.files.iter().filter(|file| !file.is_generated());
    files
        .filter_map(|file| {
            let lines = file.text.lines().count();
            (lines > max_lines).then(|| Breach {
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
