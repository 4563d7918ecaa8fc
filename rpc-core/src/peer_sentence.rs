//! [`PeerSentence`]: what a peer says, as people may read it.

use std::fmt;
use std::ops::RangeInclusive;

/// The most characters of a sentence that are kept. Those of this version's servers have some hundreds.
const MAX_LEN: usize = 2000;

/// The format characters (Unicode's category Cf): they are invisible, and some reorder or hide the text
/// beside them. Those of Unicode 16.
const FORMAT_CHARACTERS: [RangeInclusive<char>; 21] = [
    '\u{ad}'..='\u{ad}',
    '\u{600}'..='\u{605}',
    '\u{61c}'..='\u{61c}',
    '\u{6dd}'..='\u{6dd}',
    '\u{70f}'..='\u{70f}',
    '\u{890}'..='\u{891}',
    '\u{8e2}'..='\u{8e2}',
    '\u{180e}'..='\u{180e}',
    '\u{200b}'..='\u{200f}',
    '\u{202a}'..='\u{202e}',
    '\u{2060}'..='\u{2064}',
    '\u{2066}'..='\u{206f}',
    '\u{feff}'..='\u{feff}',
    '\u{fff9}'..='\u{fffb}',
    '\u{110bd}'..='\u{110bd}',
    '\u{110cd}'..='\u{110cd}',
    '\u{13430}'..='\u{1343f}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0001}'..='\u{e0001}',
    '\u{e0020}'..='\u{e007f}',
];

/// A sentence of a peer for a log, a terminal or an error: of limited length, and without characters
/// that control a terminal, begin another line of a log, or hide or reorder what is beside them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerSentence(String);

impl PeerSentence {
    /// Cuts the sentence, and escapes controls, format characters and the separators of lines and
    /// paragraphs.
    #[must_use]
    pub fn new(said: &str) -> Self {
        let mut sentence = String::with_capacity(said.len().min(MAX_LEN));
        let mut characters = said.chars();
        for character in characters.by_ref().take(MAX_LEN) {
            match character {
                '\0' | '\t' | '\r' | '\n' => sentence.extend(character.escape_debug()),
                _ if misleads(character) => sentence.extend(character.escape_unicode()),
                _ => sentence.push(character),
            }
        }
        if characters.next().is_some() {
            sentence.push('…');
        }
        Self(sentence)
    }
}

/// Returns true for the categories Cc, Cf, Zl and Zp.
fn misleads(character: char) -> bool {
    let is_separator = matches!(character, '\u{2028}' | '\u{2029}');
    let mut formats = FORMAT_CHARACTERS.iter();
    character.is_control() || is_separator || formats.any(|range| range.contains(&character))
}

impl fmt::Display for PeerSentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_stays_as_it_is_and_what_is_none_can_be_printed() {
        for sentence in [
            "",
            "it's \"full\": raise `connections` (µs, größer)",
            "gro\u{308}ßer, Việt Nam, हिन्दी, ไทย, 中文 ☺\u{fe0f}",
            "a\u{a0}b\u{3000}c",
        ] {
            assert_eq!(PeerSentence::new(sentence).to_string(), sentence);
        }
        for (said, printed) in [
            (
                "\x1b[2J\x1b[31mINFO all is well",
                "\\u{1b}[2J\\u{1b}[31mINFO all is well",
            ),
            ("one\r\nERROR two\x07", "one\\r\\nERROR two\\u{7}"),
            (
                "abc\u{202e}cba\u{9b}1m\u{2028}",
                "abc\\u{202e}cba\\u{9b}1m\\u{2028}",
            ),
            ("\0\x7f", "\\0\\u{7f}"),
            (
                "a\u{2066}b\u{200b}c\u{feff}d\u{ad}e\u{e0041}",
                "a\\u{2066}b\\u{200b}c\\u{feff}d\\u{ad}e\\u{e0041}",
            ),
        ] {
            assert_eq!(PeerSentence::new(said).to_string(), printed);
        }
        let long = PeerSentence::new(&"ü".repeat(90_000)).to_string();
        assert_eq!(long, format!("{}…", "ü".repeat(MAX_LEN)));
        let any: String = (0..0x3000).filter_map(char::from_u32).collect();
        for part in any.chars().collect::<Vec<_>>().chunks(MAX_LEN) {
            let printed = PeerSentence::new(&part.iter().collect::<String>()).to_string();
            assert!(!printed.contains(char::is_control), "{printed}");
        }
    }
}
