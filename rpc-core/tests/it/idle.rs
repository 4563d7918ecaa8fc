//! Idle connections return surplus credits, and regain them later.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use crate::support::{ECHO, Gate, HELD, call, register};
use rpc_core::{Intents, LocalChannel};
use rpc_core_testing::{Faults, Pair};

/// The initial window of a connection, plus the receives for its frames without a credit.
const AT_FIRST: u32 = 8 + 2;

fn pair(faults: Faults, seed: u64) -> (Pair, Gate) {
    let gate = Gate::default();
    let intents = Intents {
        connections: 4,
        ..Intents::default()
    };
    let pair = Pair::with(&intents, faults, seed, |methods| register(methods, &gate));
    (pair, gate)
}

/// Makes many concurrent calls repeatedly, so that the window grows.
fn make_busy(pair: &Pair, channel: &LocalChannel) {
    for _ in 0..10 {
        let mut calls: Vec<_> = (0..100u8)
            .map(|n| Box::pin(call(channel, &ECHO, [n])))
            .collect();
        pair.run(poll_fn(|cx| {
            calls.retain_mut(|call| match call.as_mut().poll(cx) {
                Poll::Ready(answer) => {
                    answer.unwrap();
                    false
                }
                Poll::Pending => true,
            });
            if calls.is_empty() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        }));
    }
}

/// Lets time pass without calls.
fn advance_idle(pair: &Pair) {
    for _ in 0..4 {
        pair.network().advance(Duration::from_millis(700));
        pair.network().settle();
    }
}

#[test]
fn an_idle_connection_keeps_its_first_window_and_gives_the_rest_to_others() {
    let (pair, _) = pair(Faults::none(), 0);
    let (one, other) = (pair.connect(), pair.connect());
    pair.network().settle();
    assert_eq!(pair.server().promised_receives(), 2 * AT_FIRST);
    let mut grown = Vec::new();
    for channel in [&one, &other, &one] {
        make_busy(&pair, channel);
        grown.push(pair.server().promised_receives());
        assert!(grown[grown.len() - 1] > 2 * AT_FIRST + 50, "{grown:?}");
        advance_idle(&pair);
        assert_eq!(pair.server().promised_receives(), 2 * AT_FIRST);
    }
    // Returning credits did not reduce how far either window grows later.
    assert_eq!(grown, [grown[0]; 3]);
    drop((one, other));
    pair.assert_nothing_left();
    assert_eq!(pair.server().promised_receives(), 0);
}

#[test]
fn a_connection_with_a_rhythm_keeps_its_window() {
    let (pair, _) = pair(Faults::none(), 0);
    let channel = pair.connect();
    make_busy(&pair, &channel);
    let grown = pair.server().promised_receives();
    for _ in 0..10 {
        pair.network().advance(Duration::from_millis(900));
        pair.run(call(&channel, &ECHO, "tick")).unwrap();
    }
    assert_eq!(pair.server().promised_receives(), grown);
    pair.assert_nothing_left();
}

#[test]
fn calls_in_flight_keep_what_they_need_while_the_rest_is_given_back() {
    let (pair, gate) = pair(Faults::none(), 0);
    let channel = pair.connect();
    make_busy(&pair, &channel);
    let mut held: Vec<_> = (0..40u8)
        .map(|n| Box::pin(call(&channel, &HELD, [n])))
        .collect();
    for call in &mut held {
        assert!(pair.network().try_run(call).is_none());
    }
    advance_idle(&pair);
    assert!(pair.server().promised_receives() <= 2 * AT_FIRST);
    gate.open();
    for (n, call) in (0..).zip(held) {
        assert_eq!(pair.run(call).unwrap(), [n]);
    }
    make_busy(&pair, &channel);
    pair.assert_nothing_left();
}

#[test]
fn whatever_is_late_nothing_is_lost() {
    for seed in 0..30 {
        let (pair, _) = pair(Faults::rough(), seed);
        let channels = [(); 3].map(|()| pair.connect());
        for channel in &channels {
            make_busy(&pair, channel);
            pair.network().advance(Duration::from_millis(600));
            for _ in 0..seed {
                pair.network().step();
            }
        }
        advance_idle(&pair);
        assert_eq!(
            pair.server().promised_receives(),
            3 * AT_FIRST,
            "seed {seed}"
        );
        pair.assert_nothing_left();
    }
}
