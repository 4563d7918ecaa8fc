//! Random calls over a network with injected faults. Failing seeds are printed.
//!
//! `VERBLINE_SEED=<seed> cargo test -p rpc-core --test it faults::` replays a seed;
//! `VERBLINE_SEEDS=<count>` sets the number of seeds to try.

#![allow(
    clippy::print_stderr,
    reason = "prints a failing seed for the person who runs the test"
)]

use std::collections::HashMap;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rpc_core::{CallError, Code, Intents, Request};
use rpc_core_testing::{Faults, Network, Random};

use crate::support::{ECHO, Gate, HELD, PANIC, register, send};

/// The longest message.
const LONGEST: usize = 100_000;

type Call<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, CallError>> + 'a>>;

/// Several clients of one server make random calls with drops, deadlines and waits. Every call ends
/// once, with its own response or a permitted error; afterwards nothing is left.
fn run(seed: u64, faults: Faults) {
    let random = Random::new(seed);
    let intents = Intents {
        max_in_flight: 1 + random.below(12) as u32,
        connections: 1 + random.below(6) as u32,
        max_message_len: LONGEST,
        // Enough for a few messages: others wait.
        message_memory: LONGEST as u64 * (2 + random.below(8)),
        ..Intents::default()
    };
    let gate = Gate::default();
    let mut network = Network::new(faults, random.next_u64());
    if random.happens(500) {
        network.use_reads();
    }
    let server = network.add("server", &intents, |methods| register(methods, &gate));
    let clients: Vec<_> = (0..intents.connections)
        .map(|n| network.add(&format!("client {n}"), &intents, |_| ()))
        .collect();
    let channels: Vec<_> = clients
        .iter()
        .map(|client| client.poller().connect("server").expect("there is room"))
        .collect();

    let mut calls: HashMap<u64, Call<'_>> = HashMap::new();
    let mut ended = 0u64;
    let mut check = |id: u64, outcome: Result<Vec<u8>, CallError>| {
        ended += 1;
        match outcome {
            Ok(answer) => assert!(
                answer == content(seed, id),
                "seed {seed}: another call's answer"
            ),
            Err(error) => {
                let expected = match error.code() {
                    Code::Internal => error.message().contains("the handler panicked"),
                    Code::DeadlineExceeded => true,
                    Code::Unavailable => faults.disconnect > 0,
                    _ => false,
                };
                assert!(expected, "seed {seed}: {error}");
            }
        }
    };
    let started = 200u64;
    for id in 0..started {
        let method = [&ECHO, &ECHO, &HELD, &PANIC][random.below(4) as usize];
        let mut request = Request::new(content(seed, id));
        if random.happens(300) {
            request = request.with_timeout(Duration::from_micros(random.below(50)));
        }
        let channel = &channels[random.below(channels.len() as u64) as usize];
        calls.insert(id, Box::pin(send(channel, method, request)));
        for _ in 0..random.below(4) {
            network.step();
        }
        if random.happens(100) {
            network.advance(Duration::from_micros(random.below(30)));
        }
        if random.happens(50) {
            gate.open();
        }
        let mut ids: Vec<u64> = calls.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            if random.happens(20) {
                calls.remove(&id);
                check(id, Ok(content(seed, id)));
            } else if random.happens(400)
                && let Some(call) = calls.get_mut(&id)
                && let Poll::Ready(outcome) =
                    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                calls.remove(&id);
                check(id, outcome);
            }
        }
    }
    gate.open();
    let mut rest: Vec<_> = calls.into_iter().collect();
    rest.sort_unstable_by_key(|(id, _)| *id);
    // All at once: calls that wait for a credit must not prevent calls that hold one from being
    // polled.
    for _ in 0..100_000 {
        rest.retain_mut(|(id, call)| {
            match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(outcome) => {
                    check(*id, outcome);
                    false
                }
                Poll::Pending => true,
            }
        });
        if rest.is_empty() {
            break;
        }
        network.step();
    }
    assert!(
        rest.is_empty(),
        "seed {seed}: {} calls never end; the server has {:?}, the clients {:?}",
        rest.len(),
        server.leftovers(),
        clients
            .iter()
            .map(|client| client.leftovers())
            .collect::<Vec<_>>()
    );
    assert_eq!(ended, started, "seed {seed}");
    drop(rest);
    drop(channels);
    network.assert_nothing_left();
}

/// Returns the message of a call. One in eight does not fit a slot.
fn content(seed: u64, id: u64) -> Vec<u8> {
    let mut message = id.to_le_bytes().to_vec();
    let random = Random::new(seed ^ id << 32);
    if random.below(8) == 0 {
        let len = 4096 + random.below((LONGEST - 4096 - 3) as u64) as usize;
        message.extend((8..len).map(|at| (at / 64) as u8 ^ id as u8));
    }
    message
}

fn run_seeds(faults: Faults) {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse().ok())
    };
    if let Some(seed) = number("VERBLINE_SEED") {
        return run(seed, faults);
    }
    for seed in 0..number("VERBLINE_SEEDS").unwrap_or(100) {
        // Reports the seed, because the panic itself does not.
        let outcome = std::panic::catch_unwind(|| run(seed, faults));
        if let Err(panic) = outcome {
            eprintln!("VERBLINE_SEED={seed} replays this failure, with {faults:?}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn without_faults() {
    run_seeds(Faults::none());
}

#[test]
fn with_faults_that_pass() {
    run_seeds(Faults::rough());
}

#[test]
fn with_connections_that_fail() {
    run_seeds(Faults {
        disconnect: 10,
        ..Faults::rough()
    });
}
