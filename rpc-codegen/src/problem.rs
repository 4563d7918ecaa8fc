//! Mistakes in `.proto` files, displayed with their locations.

use std::fmt;
use std::path::{Path, PathBuf};

/// A mistake in a `.proto` file.
///
/// `Display` shows it as rustc would: file, line and column, the message, then the line with the
/// location marked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// A description of the mistake.
    pub message: String,
    /// The path of the file, relative to the directory in which the build script ran, or absolute.
    pub file: PathBuf,
    /// The relevant locations, the most important one first; empty if only the file is known.
    pub places: Vec<Place>,
    /// Advice on how to correct the mistake.
    pub help: Option<String>,
}

/// A location in a `.proto` file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The line, counted from one.
    pub line: usize,
    /// The column in characters, counted from one.
    pub column: usize,
    /// The text of the whole line, without its line ending.
    pub text: String,
    /// The number of characters to mark, from `column` on.
    pub width: usize,
    /// A remark on the marked characters; may be empty.
    pub label: String,
}

impl Place {
    /// Returns the location of `len` bytes at byte `offset` of `source`.
    pub(crate) fn new(source: &str, offset: usize, len: usize, label: String) -> Place {
        let offset = floor_char_boundary(source, offset);
        let line_start = source[..offset]
            .rfind('\n')
            .map_or(0, |newline| newline + 1);
        let text = source[line_start..].lines().next().unwrap_or_default();
        // A span may cover several lines; only its part on the first line is marked.
        let in_line = (offset - line_start).min(text.len());
        let marked = &text[in_line..floor_char_boundary(text, in_line.saturating_add(len))];
        Place {
            line: source[..line_start].matches('\n').count() + 1,
            column: text[..in_line].chars().count() + 1,
            text: text.to_owned(),
            width: marked.chars().count().max(1),
            label,
        }
    }

    /// Returns the end of `source`, for a file that ends too early.
    pub(crate) fn end_of(source: &str) -> Place {
        Place::new(
            source,
            source.trim_end().len(),
            0,
            "the file ends here".to_owned(),
        )
    }
}

impl Problem {
    /// Creates a problem without a location.
    pub(crate) fn in_file(file: &Path, message: String) -> Problem {
        Problem {
            message,
            file: file.to_owned(),
            places: Vec::new(),
            help: None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match self.places.first() {
            Some(place) => write!(
                f,
                "{file}:{}:{}: {}",
                place.line, place.column, self.message
            )?,
            None => write!(f, "{file}: {}", self.message)?,
        }
        let gutter = self
            .places
            .iter()
            .map(|place| place.line.to_string().len())
            .max()
            .unwrap_or(0);
        for Place {
            line,
            column,
            text,
            width,
            label,
        } in &self.places
        {
            // Repeat tabs below the line, so that the mark is aligned whatever the width of a tab
            // is.
            let before = text
                .chars()
                .take(column - 1)
                .map(|c| if c == '\t' { '\t' } else { ' ' });
            let (before, mark): (String, String) = (before.collect(), "^".repeat(*width));
            write!(
                f,
                "\n{:gutter$} |\n{line:>gutter$} | {text}\n{:gutter$} | {before}{mark} {label}",
                "", ""
            )?;
        }
        if let Some(help) = &self.help {
            write!(f, "\n{:gutter$} = help: {help}", "")?;
        }
        Ok(())
    }
}

/// Returns the nearest character boundary of `text` at or before `index`.
fn floor_char_boundary(text: &str, index: usize) -> usize {
    let mut index = index.min(text.len());
    while !text.is_char_boundary(index) {
        index -= 1;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_the_place_under_the_line() {
        let source = "syntax = \"proto3\";\n\tmessage Überall { strin name = 1; }\n";
        let offset = source.find("strin").unwrap();
        let problem = Problem {
            message: "name 'strin' is not defined".to_owned(),
            file: "proto/a.proto".into(),
            places: vec![Place::new(source, offset, 5, "found here".to_owned())],
            help: Some("did you mean 'string'?".to_owned()),
        };
        assert_eq!(
            problem.to_string(),
            "proto/a.proto:2:20: name 'strin' is not defined\n  \
             |\n\
             2 | \tmessage Überall { strin name = 1; }\n  \
             | \t                  ^^^^^ found here\n  \
             = help: did you mean 'string'?"
        );
    }

    #[test]
    fn any_offset_is_safe() {
        let source = "é\n\nü";
        for offset in 0..10 {
            for len in 0..10 {
                let place = Place::new(source, offset, len, String::new());
                assert!(
                    place.line >= 1 && place.line <= 3 && place.width >= 1,
                    "{place:?}"
                );
            }
        }
        assert_eq!(Place::end_of("a\nb\n\n").line, 2);
    }
}
