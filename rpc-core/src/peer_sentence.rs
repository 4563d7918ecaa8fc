//! [`PeerSentence`]: what a peer says, as people may read it.

use std::fmt;

/// The most characters of a sentence that are kept. Those of this version's servers have some hundreds.
const MAX_LEN: usize = 2000;

/// A sentence of a peer for a log, a terminal or an error: of limited length, and without characters
/// that control a terminal or begin another line of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerSentence(String);

impl PeerSentence {
    /// Cuts the sentence, and escapes what cannot be printed.
    #[must_use]
    pub fn new(said: &str) -> Self {
        let mut sentence = String::with_capacity(said.len().min(MAX_LEN));
        let mut characters = said.chars();
        for character in characters.by_ref().take(MAX_LEN) {
            match character {
                // They are escaped in literals only.
                '\'' | '"' | '\\' => sentence.push(character),
                _ => sentence.extend(character.escape_debug()),
            }
        }
        if characters.next().is_some() {
            sentence.push('…');
        }
        Self(sentence)
    }
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
        for sentence in ["", "it's \"full\": raise `connections` (µs, größer)"] {
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
