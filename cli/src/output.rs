//! [`Output`]: standard output.

use std::io::{self, ErrorKind, Write};

use crate::failure::Failure;

/// Standard output. What has been written is visible when a function returns.
#[derive(Debug)]
pub(crate) struct Output;

impl Output {
    /// Writes a line.
    pub(crate) fn line(&mut self, line: &str) -> Result<(), Failure> {
        self.text(&format!("{line}\n"))
    }

    /// Writes text. Control characters, which could be a server's and which a terminal may obey, are
    /// written as `\u001b`: in JSON that is the same string.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        let written = match text.contains(is_obeyed) {
            false => out.write_all(text.as_bytes()),
            true => out.write_all(visible(text).as_bytes()),
        };
        written
            .and_then(|()| out.flush())
            .map_err(|error| match error.kind() {
                ErrorKind::BrokenPipe => Failure::PipeClosed,
                _ => Failure::Output(error),
            })
    }
}

/// Returns the text without control characters besides ends of lines and tabs.
pub(crate) fn visible(text: &str) -> String {
    text.chars()
        .map(|c| match is_obeyed(c) {
            true => format!("\\u{:04x}", u32::from(c)),
            false => c.to_string(),
        })
        .collect()
}

fn is_obeyed(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
}
