//! An experiment: what the cache lines of a message cost, in round trips over two rings between two
//! threads, each pinned to a core of its own.
//!
//! ```sh
//! cargo test --release -p verbline-verbs --lib ring::experiment -- --ignored --nocapture
//! ```
//!
//! A message of 48 bytes takes one line, one of 88 bytes two. The receiver requests the second line
//! with each look at an empty ring (`NextMessage::look`), or does not (`RingReceiver::peek`). The
//! variants take turns, because the time that a line takes from one core to the other depends on
//! where the machine places the two and their memory, and changes from round to round: lines that
//! are near show in the best rounds, lines that are far in the median.

#![allow(clippy::print_stdout, reason = "run by a person")]

use std::ptr::NonNull;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_setaffinity};

use super::tests::pair;
use super::{RingReceiver, RingSender, in_buffer};
use crate::provider::soft::shared::copy::copy_message;
use crate::provider::soft::shared::wake::ReceiverState;

const ROUNDS: usize = 24;
const ROUND_TRIPS: usize = 4000;

#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    len: usize,
    requests_second_line: bool,
}

const VARIANTS: [Variant; 4] = [
    Variant {
        name: "88 bytes, second line requested when the first has come",
        len: 88,
        requests_second_line: false,
    },
    Variant {
        name: "88 bytes, second line requested with each empty look",
        len: 88,
        requests_second_line: true,
    },
    Variant {
        name: "48 bytes, one line",
        len: 48,
        requests_second_line: false,
    },
    Variant {
        name: "48 bytes, second line requested with each empty look",
        len: 48,
        requests_second_line: true,
    },
];

fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).expect("a core for each thread");
}

fn send(sender: &mut RingSender, message: &mut [u8; 240], len: usize) {
    while !sender.has_room(in_buffer(0, len)) {}
    sender.send(NonNull::from(message).cast(), len, 0);
    assert_eq!(sender.ring_doorbell(), ReceiverState::Hot);
}

fn receive(receiver: &mut RingReceiver, message: &mut [u8; 240], variant: Variant) {
    let mut next = receiver.next_message();
    let incoming = loop {
        let has_come = !variant.requests_second_line || next.look().is_some();
        if has_come && let Some(incoming) = receiver.peek().expect("a valid message") {
            break incoming;
        }
    };
    assert_eq!(incoming.len, variant.len);
    // SAFETY: the slot has `len` bytes, which its sender leaves alone until the acknowledgement;
    // the array is longer, and only this thread uses it.
    unsafe {
        copy_message(
            incoming.payload,
            NonNull::from(message).cast(),
            incoming.len,
        )
    };
    receiver.advance_and_ack(incoming.commit(), &mut next);
}

/// Returns the median of a round's round trips, in nanoseconds.
fn round(variant: Variant) -> u64 {
    let (mut to_server, mut at_server) = pair(0);
    let (mut to_client, mut at_client) = pair(0);
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(1);
            let mut message = [0; 240];
            for _ in 0..ROUND_TRIPS {
                receive(&mut at_server, &mut message, variant);
                send(&mut to_client, &mut message, variant.len);
            }
        });
        pin(0);
        let mut message = [7; 240];
        let mut last = Instant::now();
        for _ in 0..ROUND_TRIPS {
            send(&mut to_server, &mut message, variant.len);
            receive(&mut at_client, &mut message, variant);
            let now = Instant::now();
            times.push(now.duration_since(last).as_nanos() as u64);
            last = now;
        }
    });
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
#[ignore = "an experiment: it measures, and holds nothing"]
fn lines_of_a_message() {
    let mut medians = VARIANTS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (variant, medians) in VARIANTS.iter().zip(&mut medians) {
            medians.push(round(*variant));
        }
    }
    for (variant, medians) in VARIANTS.iter().zip(&mut medians) {
        medians.sort_unstable();
        let (best, median) = (medians[0], medians[medians.len() / 2]);
        println!(
            "{:56} best round {best:5} ns, median round {median:5} ns",
            variant.name
        );
    }
}
