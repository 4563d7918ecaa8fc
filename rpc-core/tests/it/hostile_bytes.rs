//! The counterparts of the fuzz targets: the same functions (`rpc_core_testing::hostile`), on
//! random bytes and on the fuzzers' corpora.

use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use rpc_core_testing::{Random, hostile};

/// Runs every file of a target's corpus.
fn replay<T>(target: &str, run: fn(&[u8]) -> T) -> Vec<T> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(target);
    let mut outcomes = Vec::new();
    for entry in directory.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        // The panic reports the problem; this assertion reports the file.
        let outcome = std::panic::catch_unwind(|| run(&bytes));
        match outcome {
            Ok(outcome) => outcomes.push(outcome),
            Err(_) => panic!("{} fails", path.display()),
        }
    }
    assert!(!outcomes.is_empty(), "{} is empty", directory.display());
    outcomes
}

#[test]
fn corpus_of_frames() {
    replay("frame", hostile::frame);
}

#[test]
fn corpus_of_sessions() {
    let accepted = replay("session", hostile::session);
    let accepted = accepted.iter().filter(|&&is_accepted| is_accepted).count();
    // Of a client, of a server, and of a server with methods.
    assert!(accepted >= 3, "{accepted} parameters were accepted");
}

#[test]
fn corpus_of_connections() {
    replay("connection", hostile::connection);
}

#[test]
fn corpus_of_drivers() {
    replay("driver", hostile::driver);
}

#[test]
fn corpus_of_streams() {
    replay("streams", hostile::streams);
}

#[test]
fn corpus_of_transfers() {
    replay("transfers", hostile::transfers);
}

/// Random scripts reach everything that long messages count: otherwise they would test little.
#[test]
fn random_scripts_of_transfers_reach_the_counters() {
    let random = Random::new(1);
    let mut reached = [0; 7];
    for _ in 0..200 {
        let script: Vec<u8> = (0..300).map(|_| random.next_u64() as u8).collect();
        for stats in hostile::transfers(&script) {
            let transfers = &stats.transfers;
            let counts = [
                transfers.received,
                transfers.bytes_fetched,
                transfers.bytes_in_fragments,
                transfers.waited,
                transfers.refused,
                transfers.stopped,
                stats.connections.closed(),
            ];
            for (sum, count) in reached.iter_mut().zip(counts) {
                *sum += count;
            }
        }
    }
    assert!(!reached.contains(&0), "{reached:?}");
}

proptest! {
    #[test]
    fn any_frame(bytes in vec(any::<u8>(), 0..200)) {
        hostile::frame(&bytes);
    }

    #[test]
    fn any_session(bytes in vec(any::<u8>(), 0..200)) {
        hostile::session(&bytes);
    }

    #[test]
    fn any_script_of_a_connection(bytes in vec(any::<u8>(), 0..600)) {
        hostile::connection(&bytes);
    }

    #[test]
    fn any_script_of_a_driver(bytes in vec(any::<u8>(), 0..400)) {
        hostile::driver(&bytes);
    }

    #[test]
    fn any_script_of_transfers(bytes in vec(any::<u8>(), 0..600)) {
        drop(hostile::transfers(&bytes));
    }

    #[test]
    fn any_script_of_streams(bytes in vec(any::<u8>(), 0..600)) {
        hostile::streams(&bytes);
    }
}
