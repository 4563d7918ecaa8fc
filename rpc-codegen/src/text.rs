//! The text of a `.proto` file, as the parser takes it.
//!
//! protoc accepts a few spellings that protox-parse does not: a byte order mark, bytes that are not
//! UTF-8 in comments and strings, and some literals. [`read`] rewrites these, and nothing else, so
//! the lines of a file stay where they are.

use std::fs;
use std::io;
use std::path::Path;

use self::Kind::{Comment, Number, Other, Space, Str, Word};

/// Reads a file.
///
/// # Errors
///
/// Returns the error of reading it, of kind `InvalidData` if its encoding is UTF-16 or UTF-32.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let bytes = fs::read(path)?;
    let has_mark = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
    // Without a mark, half of the bytes of ASCII are zero.
    if has_mark || bytes.iter().take(4).any(|byte| *byte == 0) {
        let what =
            "its encoding is UTF-16 or UTF-32, which no Protobuf compiler reads: save it as UTF-8";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(rewritten(&bytes))
}

/// The kinds of tokens that the rewriting distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Space,
    Comment,
    Str,
    Word,
    Number,
    /// One byte, or one that is not ASCII.
    Other,
}

/// Splits the first token off.
fn token(text: &[u8]) -> (Kind, usize) {
    let run = |is_part: fn(u8) -> bool| text.iter().take_while(|byte| is_part(**byte)).count();
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    match text {
        [b'/', b'/', ..] => (Comment, run(|byte| byte != b'\n')),
        [b'/', b'*', rest @ ..] => {
            let end = rest.windows(2).position(|pair| pair == b"*/");
            (Comment, end.map_or(text.len(), |end| 2 + end + 2))
        }
        [quote @ (b'"' | b'\''), rest @ ..] => {
            let mut len = 0;
            while let Some(byte) = rest.get(len).filter(|byte| **byte != b'\n') {
                len += if *byte == b'\\' { 2 } else { 1 };
                if byte == quote {
                    break;
                }
            }
            (Str, 1 + len.min(rest.len()))
        }
        // A fraction belongs to it, and so does an exponent with its sign.
        [first, ..] if first.is_ascii_digit() => {
            let is_exponent = |at: usize| matches!(text[at - 1], b'e' | b'E');
            let is_part = |at: &usize| match text[*at] {
                b'+' | b'-' => is_exponent(*at) && !text.starts_with(b"0x"),
                byte => is_word(byte) || byte == b'.',
            };
            (Number, 1 + (1..text.len()).take_while(is_part).count())
        }
        [first, ..] if is_word(*first) => {
            (Word, text.iter().take_while(|byte| is_word(**byte)).count())
        }
        [first, ..] if first.is_ascii_whitespace() => {
            (Space, run(|byte| byte.is_ascii_whitespace()))
        }
        _ => (Other, 1),
    }
}

/// Returns the text of a file with these bytes.
fn rewritten(bytes: &[u8]) -> String {
    let mut rest = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let mut text = String::with_capacity(rest.len());
    // The tokens of the statement so far, without spaces and comments.
    let mut statement: Vec<&[u8]> = Vec::new();
    while !rest.is_empty() {
        let (kind, len) = token(rest);
        let (token, behind) = rest.split_at(len);
        rest = behind;
        // `extensions 4 [declaration = {}];`
        if let (Other, b"[", [b"extensions", .., number]) = (kind, token, statement.as_slice())
            && number[0].is_ascii_digit()
            && statement[statement.len() - 2] != b"to"
        {
            if !text.ends_with(char::is_whitespace) {
                text.push(' ');
            }
            text.push_str(&format!("to {} ", String::from_utf8_lossy(number)));
        }
        match (kind, statement.as_slice()) {
            (Str, _) => push_string(&mut text, token),
            // `(option) = -inf`, which the parser takes as a default only.
            (Word, [.., name, b"=", b"-"]) if *name != b"default" && is_infinity(token) => {
                text.push_str("1e999");
            }
            (Word, [.., name, b"=", b"-"]) if *name != b"default" && token == b"nan" => {
                let minus = text.rfind('-').expect("the statement has one");
                text.replace_range(minus..=minus, " ");
                text.push_str("nan");
            }
            // The end of a MessageSet's numbers.
            (Number, [b"extensions", .., b"to"]) if token == b"2147483646" => text.push_str("max"),
            (Number, before) if is_beyond_integers(token, before.last() == Some(&&b"-"[..])) => {
                text.push_str(&String::from_utf8_lossy(token));
                text.push_str(".0");
            }
            _ => text.push_str(&String::from_utf8_lossy(token)),
        }
        match (kind, token) {
            (Space | Comment, _) => {}
            (Other, b";" | b"{" | b"}") => statement.clear(),
            _ => statement.push(token),
        }
    }
    text
}

fn is_infinity(word: &[u8]) -> bool {
    matches!(word, b"inf" | b"infinity")
}

/// Returns true if a decimal integer fits no integer of 64 bits. protoc takes it for a `double`.
fn is_beyond_integers(number: &[u8], is_negative: bool) -> bool {
    let is_decimal = number.iter().all(u8::is_ascii_digit) && number[0] != b'0';
    let parsed = std::str::from_utf8(number).map(str::parse::<u64>);
    let most = if is_negative { 1 << 63 } else { u64::MAX };
    is_decimal && !matches!(parsed, Ok(Ok(value)) if value <= most)
}

/// Writes bytes that are not UTF-8 as escapes.
fn push_string(text: &mut String, token: &[u8]) {
    for chunk in token.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\{byte:03o}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn becomes(bytes: &[u8], text: &str) {
        assert_eq!(rewritten(bytes), text);
        // The rewritten text needs no rewriting.
        assert_eq!(rewritten(text.as_bytes()), text);
    }

    #[test]
    fn a_byte_order_mark_goes() {
        becomes(b"\xef\xbb\xbfsyntax = \"proto3\";", "syntax = \"proto3\";");
    }

    #[test]
    fn bytes_that_are_not_utf_8_stay_in_strings_and_are_replaced_in_comments() {
        becomes(
            b"// caf\xe9 \"\n/* \xff */ a",
            "// caf\u{fffd} \"\n/* \u{fffd} */ a",
        );
        becomes(
            b"default = \"\xe9\\\"\xc3\xa9\"; '\xff' // '\xff",
            "default = \"\\351\\\"\u{e9}\"; '\\377' // '\u{fffd}",
        );
    }

    #[test]
    fn ranges_with_options_get_an_end() {
        becomes(b"extensions 4[a = 1];", "extensions 4 to 4 [a = 1];");
        becomes(
            b"extensions 4 to 6, 9 /* [ */ [a = 1];",
            "extensions 4 to 6, 9 /* [ */ to 9 [a = 1];",
        );
        becomes(b"extensions 4 to 2147483646;", "extensions 4 to max;");
        for unchanged in [
            "extensions 4 to 6 [a = 1];",
            "extensions 4 to max [a = 1];",
            "reserved 4 to 2147483646;",
            "extensions 4, 5;",
            "int32 extensions = 4 [a = 1];",
        ] {
            becomes(unchanged.as_bytes(), unchanged);
        }
    }

    #[test]
    fn literals_become_those_that_the_parser_takes() {
        becomes(b"[(a) = -inf, b = - inf]", "[(a) = -1e999, b = - 1e999]");
        becomes(b"(a) = -nan, (b) = - nan;", "(a) =  nan, (b) =   nan;");
        becomes(
            b"default = 18446744073709551616]",
            "default = 18446744073709551616.0]",
        );
        becomes(
            b"default = -9223372036854775809]",
            "default = -9223372036854775809.0]",
        );
        for unchanged in [
            "[default = -inf, default = - nan]",
            "default = 18446744073709551615]",
            "default = -9223372036854775808]",
            "default = 0xFFFFFFFFFFFFFFFFFF, 00000000000000000000000000007, 1e-400, 1.5E+3-2",
            "{ a: -inf } -infx",
        ] {
            becomes(unchanged.as_bytes(), unchanged);
        }
    }

    #[test]
    fn any_bytes_are_read() {
        for bytes in [
            &b"\""[..],
            b"'\\",
            b"/*",
            b"/",
            b"1e",
            b"\xff\xff",
            b"/* *",
            b"\"\\\xff",
        ] {
            rewritten(bytes);
        }
    }
}
