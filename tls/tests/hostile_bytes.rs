//! The counterpart of the fuzz target `tls`: the same function, on random bytes and on the fuzzer's corpus.

use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use tls_testing::hostile::{self, Reached};

#[test]
fn corpus_of_tls() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/tls");
    let mut reached = Vec::new();
    for entry in directory.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        // The panic reports the problem; this assertion reports the file.
        match std::panic::catch_unwind(|| hostile::bytes(&bytes)) {
            Ok(outcome) => reached.push(outcome),
            Err(_) => panic!("{} fails", path.display()),
        }
    }
    for how in [
        Reached::Refused,
        Reached::Waits,
        Reached::Done,
        Reached::Ended,
    ] {
        assert!(reached.contains(&how), "no input: {how:?}");
    }
}

/// The genuine flight in any pieces completes the handshake on either side.
#[test]
fn what_is_genuine_in_small_pieces_is_taken() {
    for side in [0, 1] {
        for len in [1_u8, 7, 100, 255] {
            let mut script = vec![side];
            script.extend([1, len].repeat(300 / usize::from(len) + 1));
            script.extend([3, len].repeat(2000 / usize::from(len) + 1));
            script.extend([14, 2, b'o', b'k']);
            assert_eq!(hostile::bytes(&script), Reached::Done, "{side} {len}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_bytes_do_no_harm(script in vec(any::<u8>(), 0..300)) {
        hostile::bytes(&script);
    }
}
