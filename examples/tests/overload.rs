//! Far more busy threads than cores, in one process. A thread may lose its core between any two
//! instructions, for any time; every response must still find its call.

mod echo_process;

use std::thread;
use std::time::{Duration, Instant};

use echo_process::{all, call, connect, server};

/// Pairs of a server's poller and a client's thread: twelve threads that do not sleep on their own.
const PAIRS: u8 = 6;

/// More than a ring of the software device has slots, so the ring wraps around in every round.
const IN_FLIGHT: u32 = 160;

/// Returns the duration of the test. `SOAK_SECONDS=600 cargo test -p examples --test overload` runs
/// it for longer.
fn time() -> Duration {
    let seconds = std::env::var("SOAK_SECONDS");
    Duration::from_secs(seconds.map_or(5, |text| text.parse().unwrap()))
}

#[test]
fn in_process_pairs_on_too_few_cores_lose_and_mix_up_nothing() {
    let until = Instant::now() + time();
    thread::scope(|scope| {
        for pair in 0..PAIRS {
            scope.spawn(move || {
                let server = server().spawn();
                let (poller, echo) = connect(&server.local_addr().to_string());
                let mut round = 0u32;
                while Instant::now() < until || round == 0 {
                    let payloads: Vec<Vec<u8>> = (0..IN_FLIGHT)
                        .map(|number| {
                            let mut payload =
                                vec![pair; 16 + (number as usize * 37 + round as usize) % 600];
                            payload[..4].copy_from_slice(&number.to_le_bytes());
                            payload[4..8].copy_from_slice(&round.to_le_bytes());
                            payload
                        })
                        .collect();
                    let calls = payloads.iter().map(|payload| call(&echo, payload));
                    for (answer, payload) in poller.block_on(all(calls)).iter().zip(&payloads) {
                        match answer {
                            Ok(answer) => assert!(answer == payload, "pair {pair}, round {round}"),
                            Err(error) => panic!("pair {pair}, round {round}: {error}"),
                        }
                    }
                    round += 1;
                }
            });
        }
    });
}
