//! Attacks of a hostile peer through the memory and the links of the software device, each as a
//! function of bytes.
//!
//! The bytes are a script: what arrives from the peer, and in between the actions of this side. Each
//! function panics if it finds a violation of an invariant that must hold whatever a peer does. The
//! tests below and, under `cfg(fuzzing)`, the fuzz targets of `fuzz/` call the same functions.

pub use crate::provider::soft_hostile::{soft_device, soft_ring};
pub use crate::provider::soft_hostile_link::soft_link;
pub use crate::provider::soft_hostile_tcp::{greetings, soft_tcp};

/// A script that is read from its beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the next byte, or `None` at the end of the script.
    pub(crate) fn step(&mut self) -> Option<u8> {
        self.0.split_off_first().copied()
    }

    /// Returns the next byte as an argument; 0 past the end.
    pub(crate) fn byte(&mut self) -> u8 {
        self.step().unwrap_or(0)
    }

    /// Returns two bytes as an argument, little-endian.
    pub(crate) fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Returns eight bytes as an argument, little-endian.
    pub(crate) fn long(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Reads a length byte and returns that many bytes, or as many as are left.
    pub(crate) fn piece(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte()).min(self.0.len());
        self.0.split_off(..len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    //! Run the functions of the fuzz targets on random bytes and on everything that the fuzzers
    //! have found worth keeping.

    use std::path::Path;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Runs every file of a target's corpus.
    fn replay(target: &str, run: fn(&[u8])) {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../fuzz/corpus")
            .join(target);
        let mut count = 0;
        for entry in directory.read_dir().unwrap() {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            // The panic's own message says what is wrong; this assertion adds the file.
            let outcome = std::panic::catch_unwind(|| run(&bytes));
            assert!(outcome.is_ok(), "{} fails", path.display());
            count += 1;
        }
        assert!(count > 0, "{} is empty", directory.display());
    }

    #[test]
    fn corpus_of_greetings() {
        replay("first_bytes", greetings);
    }

    #[test]
    fn corpus_of_soft_rings() {
        replay("soft_ring", soft_ring);
    }

    #[test]
    fn corpus_of_soft_links() {
        replay("soft_link", soft_link);
    }

    #[test]
    fn corpus_of_tcp_links() {
        replay("soft_tcp", soft_tcp);
    }

    #[test]
    fn corpus_of_soft_devices() {
        replay("soft_device", soft_device);
    }

    proptest! {
        #[test]
        fn any_greetings(
            beginning in proptest::sample::select(vec![&b""[..], b"VBLK\0\x01", b"VBLT\x01\0"]),
            rest in vec(any::<u8>(), 0..80),
        ) {
            greetings(&[beginning, &rest].concat());
        }

        #[test]
        fn any_script_of_a_soft_ring(bytes in vec(any::<u8>(), 0..400)) {
            soft_ring(&bytes);
        }
    }

    proptest! {
        // Each case opens contexts, which creates mappings and files, so there are fewer cases.
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_script_of_a_soft_link(bytes in vec(any::<u8>(), 0..300)) {
            soft_link(&bytes);
        }

        #[test]
        fn any_script_of_a_tcp_link(bytes in vec(any::<u8>(), 0..400)) {
            soft_tcp(&bytes);
        }

        #[test]
        fn any_script_of_a_soft_device(bytes in vec(any::<u8>(), 0..400)) {
            soft_device(&bytes);
        }
    }
}
