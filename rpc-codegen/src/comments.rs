//! Sanitizes the comments of a `.proto` for use as documentation.
//!
//! rustdoc reads comments as Markdown, but their authors wrote plain text: rustdoc would compile an
//! indented or fenced block as a doctest, take `[brackets]` for a broken link and `<name>` for an
//! unclosed tag. This module rewrites the comments in the descriptors, before prost reads them, so
//! that messages and services are treated alike. prost then turns bare URLs into links; its other
//! rules find nothing to change in sanitized comments.
//!
//! prost-build's feature `cleanup-markdown` is not enough. It leaves tags and `[text](target)` as they
//! are, doubles the brackets of `<https://…>`, and makes a block marked `rust` a doctest that must not
//! compile.

use std::iter;

use prost_types::{FileDescriptorProto, SourceCodeInfo};

/// Rewrites all comments of `file`.
pub(crate) fn sanitize(file: &mut FileDescriptorProto) {
    let Some(SourceCodeInfo { location, .. }) = &mut file.source_code_info else {
        return;
    };
    for location in location {
        for comment in location
            .leading_comments
            .iter_mut()
            .chain(&mut location.trailing_comments)
        {
            *comment = sanitized(comment);
        }
        for comment in &mut location.leading_detached_comments {
            // These become plain comments, in which rustc denies nothing else.
            *comment = without_denied(comment);
        }
    }
}

/// Returns `comment` without the characters that are errors in Rust's comments: carriage returns, and
/// those that change the direction of text.
fn without_denied(comment: &str) -> String {
    let is_denied = |c| matches!(c, '\r' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    comment.replace(is_denied, "")
}

/// Returns `comment` as Markdown that looks the same, without links, tags or code to run.
fn sanitized(comment: &str) -> String {
    // Markdown expands a tab to four columns.
    let comment = without_denied(comment).replace('\t', "    ");
    let mut lines = text_lines(&comment).into_iter().peekable();
    let mut out = Vec::new();
    let mut paragraph: Vec<&str> = Vec::new();
    while let Some(line) = lines.next() {
        let opens_block = paragraph.last().is_none_or(|last| !continues(last));
        // An indented fence within a paragraph belongs to a list. A block would split the list, so
        // such a fence is escaped like text.
        if let Some(fence) = fence(line).filter(|_| paragraph.is_empty() || indent(line) == 0) {
            flush(&mut paragraph, &mut out);
            let block: Vec<_> = lines
                .by_ref()
                .take_while(|line| !closes(line, fence))
                .collect();
            push_block(&block, &mut out);
        } else if indent(line) >= 4 && opens_block {
            flush(&mut paragraph, &mut out);
            let mut block = vec![line];
            block.extend(iter::from_fn(|| {
                lines.next_if(|line| line.is_empty() || indent(line) >= 4)
            }));
            push_indented_block(&block, &mut out);
        } else if line.is_empty() {
            flush(&mut paragraph, &mut out);
            out.push(String::new());
        } else {
            paragraph.push(line);
        }
    }
    flush(&mut paragraph, &mut out);
    out.join("\n")
}

/// Splits `comment` into lines, without comment signs, common indentation and trailing spaces.
fn text_lines(comment: &str) -> Vec<&str> {
    // Protobuf strips `/*` and `//`: `/** … */` leaves a star, `///` a slash on each line.
    let comment = comment.strip_prefix('*').unwrap_or(comment);
    let mut lines: Vec<&str> = comment.lines().map(str::trim_end).collect();
    if lines.iter().all(|line| line.starts_with('/')) {
        lines.iter_mut().for_each(|line| *line = &line[1..]);
    }
    dedented(&lines)
}

/// Removes the indentation that all `lines` have in common.
fn dedented<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let margin = lines
        .iter()
        .filter(|line| !line.is_empty())
        .map(|line| indent(line))
        .min()
        .unwrap_or(0);
    lines
        .iter()
        .map(|line| line.get(margin..).unwrap_or_default())
        .collect()
}

/// Returns true if an indented line after `line` continues its paragraph, false if it begins a
/// block of code.
fn continues(line: &str) -> bool {
    !line.trim_start().starts_with('#') && line.contains(char::is_alphanumeric)
}

/// Returns the fence that `line` opens: three or more backticks or tildes, indented by at most
/// three.
fn fence(line: &str) -> Option<&str> {
    let rest = line.trim_start();
    let mark = rest
        .chars()
        .next()
        .filter(|mark| matches!(mark, '`' | '~'))?;
    let len = rest.len() - rest.trim_start_matches(mark).len();
    (len >= 3 && indent(line) < 4 && !rest[len..].contains('`')).then(|| &rest[..len])
}

/// Returns true if `line` closes the block that `fence` opened.
fn closes(line: &str, fence: &str) -> bool {
    let line = line.trim();
    line.starts_with(fence) && line.trim_start_matches(&fence[..1]).is_empty()
}

/// Appends `block` as a fenced block of text.
fn push_block(block: &[&str], out: &mut Vec<String>) {
    // Nothing in the block closes this fence, and rustdoc does not run `text`.
    let longest = block
        .iter()
        .flat_map(|line| line.split(|c| c != '`'))
        .map(str::len)
        .max()
        .unwrap_or(0);
    let fence = "`".repeat(3.max(longest + 1));
    out.push(format!("{fence}text"));
    out.extend(dedented(block).into_iter().map(str::to_owned));
    out.push(fence);
}

/// Appends the indented `block`, and an empty line if it ends with empty lines.
fn push_indented_block(block: &[&str], out: &mut Vec<String>) {
    let end = block.iter().rposition(|line| !line.is_empty());
    let len = end.map_or(0, |last| last + 1);
    push_block(&block[..len], out);
    out.extend((len < block.len()).then(String::new));
}

/// Appends the sanitized `paragraph` and clears it.
fn flush(paragraph: &mut Vec<&str>, out: &mut Vec<String>) {
    if !paragraph.is_empty() {
        // Code in backticks may span lines, so the lines are joined first.
        out.extend(inline(&paragraph.join("\n")).lines().map(str::to_owned));
        paragraph.clear();
    }
}

/// Returns the text of a paragraph, with links, tags and code fences escaped.
fn inline(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            '`' => code(rest, &mut out),
            '~' if rest.starts_with("~~~") => escape(&rest[..3], &mut out),
            '\\' => {
                let escaped = rest.chars().nth(1).map_or(0, char::len_utf8);
                out.push_str(&rest[..1 + escaped]);
                1 + escaped
            }
            '<' if rest[1..].starts_with("http") => match autolink(rest) {
                // prost adds the angle brackets again.
                Some(url) => url_text(url, &mut out) + 2,
                None => escape("<", &mut out),
            },
            '[' => match link(rest) {
                Some(link) => {
                    out.push_str(link);
                    link.len()
                }
                None => escape("[", &mut out),
            },
            '<' | ']' => escape(&rest[..1], &mut out),
            'h' if rest.starts_with("http://") || rest.starts_with("https://") => {
                let end = rest
                    .find(|c: char| c.is_whitespace() || c == ')')
                    .unwrap_or(rest.len());
                url_text(&rest[..end], &mut out)
            }
            // Several spaces show as one, except after a list mark, where they would begin a block
            // of code.
            ' ' | '\t' if !out.is_empty() && !out.ends_with('\n') => {
                out.push(' ');
                rest.len() - rest.trim_start_matches([' ', '\t']).len()
            }
            other => {
                out.push(other);
                other.len_utf8()
            }
        };
        rest = &rest[taken..];
        if out.ends_with('\n') {
            let margin = rest.len() - rest.trim_start_matches(' ').len();
            out.push_str(&rest[..margin]);
            rest = &rest[margin..];
        }
    }
    out
}

/// Copies code in backticks unchanged. Escapes backticks that are not closed or that open a block.
fn code(rest: &str, out: &mut String) -> usize {
    let ticks = rest.len() - rest.trim_start_matches('`').len();
    let after = &rest[ticks..];
    let mut from = 0;
    while let Some(start) = after[from..]
        .find('`')
        .map(|at| from + at)
        .filter(|_| ticks < 3)
    {
        let closing = after[start..].len() - after[start..].trim_start_matches('`').len();
        if closing == ticks {
            let len = ticks + start + closing;
            out.push_str(&rest[..len]);
            return len;
        }
        from = start + closing;
    }
    escape(&rest[..ticks], out)
}

/// Returns the URL if `rest` begins with `<https://…>`.
fn autolink(rest: &str) -> Option<&str> {
    let url = &rest[1..rest.find('>')?];
    let is_url = url.starts_with("http://") || url.starts_with("https://");
    (is_url && !url.contains(|c: char| c.is_whitespace() || c == ')')).then_some(url)
}

/// Returns the whole link if `rest` begins with `[text](https://…)`. rustdoc takes other targets
/// for Rust paths.
fn link(rest: &str) -> Option<&str> {
    let close = rest
        .find([']', '\n'])
        .filter(|at| rest[*at..].starts_with("](http"))?;
    let text = &rest[1..close];
    let target = &rest[close + 2..];
    let end = target
        .find([')', ' ', '\n', '<'])
        .filter(|at| target[*at..].starts_with(')'))?;
    (!text.contains(['[', '<', '`'])).then(|| &rest[..close + 2 + end + 1])
}

/// Copies a URL, which prost turns into a link. Escapes a URL that would not be a valid link.
fn url_text(url: &str, out: &mut String) -> usize {
    if url.contains(['<', '>', '`', '[', ']', '\\']) {
        for c in url.chars() {
            // Escape the colon as well, because prost looks for `http://`.
            if matches!(c, ':' | '<' | '>' | '`' | '[' | ']' | '\\') {
                out.push('\\');
            }
            out.push(c);
        }
        return url.len();
    }
    // prost takes everything up to the next space for the URL. Exclude the punctuation at its end.
    let address = url.trim_end_matches(['.', ',', ';', ':', '!', '?', '\'', '"']);
    match (address.split_once(':'), &url[address.len()..]) {
        (Some((scheme, rest)), end) if !end.is_empty() => {
            out.push_str(&format!("[{scheme}\\:{rest}]({address}){end}"));
        }
        _ => out.push_str(url),
    }
    url.len()
}

/// Copies `text` with a backslash before each character.
fn escape(text: &str, out: &mut String) -> usize {
    for c in text.chars() {
        out.push('\\');
        out.push(c);
    }
    text.len()
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn becomes(comment: &str, expected: &str) {
        assert_eq!(sanitized(comment), expected);
    }

    #[test]
    fn ordinary_text_is_left_alone() {
        becomes(
            " Says hello.\n\n Once, *politely*.\n",
            "Says hello.\n\nOnce, *politely*.",
        );
        becomes(" - one\n   more\n - two\n", "- one\n  more\n- two");
    }

    #[test]
    fn code_is_never_run() {
        becomes(
            " For example:\n\n     let x = y[0];\n\n Then.",
            "For example:\n\n```text\nlet x = y[0];\n```\n\nThen.",
        );
        becomes(" ```rust\n boom!()\n ```\n", "```text\nboom!()\n```");
        becomes(" ```\n never closed", "```text\nnever closed\n```");
        becomes(" ~~~\n a ``` b\n ~~~", "````text\na ``` b\n````");
        becomes(" # Title\n     code", "# Title\n```text\ncode\n```");
        becomes(
            " - ```\n   code\n   ```",
            "- \\`\\`\\`\n  code\n  \\`\\`\\`",
        );
        becomes(" -      code\n", "- code");
        becomes("\tone\n\n\t\ttwo", "one\n\n```text\ntwo\n```");
    }

    #[test]
    fn no_link_is_broken() {
        becomes(" See [Other] and x[1].", "See \\[Other\\] and x\\[1\\].");
        becomes(
            " See [it](Other), [docs](https://a.b/c).",
            "See \\[it\\](Other), [docs](https://a.b/c).",
        );
        becomes(
            " `a[0]` stays, `unclosed [x]",
            "`a[0]` stays, \\`unclosed \\[x\\]",
        );
        becomes(" Already \\[escaped\\].", "Already \\[escaped\\].");
    }

    #[test]
    fn no_tag_is_opened() {
        becomes(" A Vec<u8> of <html>.", "A Vec\\<u8> of \\<html>.");
        becomes(
            " <https://a.b> or https://c.d/e",
            "https://a.b or https://c.d/e",
        );
        becomes(" https://host/<id>", "https\\://host/\\<id\\>");
        becomes(" At https://a.b/c.", "At [https\\://a.b/c](https://a.b/c).");
    }

    #[test]
    fn line_ends_of_all_kinds() {
        becomes(" a\r\n b\r c", "a\nb c");
        becomes("", "");
    }

    #[test]
    fn no_direction_is_changed() {
        becomes(" a\u{202e}b `\u{2066}c\u{2069}`", "ab `c`");
        assert_eq!(without_denied("\u{202a}a\u{200b}"), "a\u{200b}");
    }

    #[test]
    fn comments_of_other_languages() {
        becomes("* Javadoc\n more", "Javadoc\nmore");
        becomes("/ three\n/\n/ slashes", "three\n\nslashes");
    }
}
