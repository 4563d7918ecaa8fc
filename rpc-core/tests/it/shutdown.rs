//! Server shutdown: clients are notified, calls in flight end, and nothing takes longer than the
//! given limits.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::support::{ECHO, Gate, HELD, call, register};
use rpc_core::transport::CloseReason;
use rpc_core::{CallError, Cause, Code, Execution, Intents, Shutdown};
use rpc_core_testing::{Faults, Network, Pair};

const WITHIN: Shutdown = {
    let (finish, close) = (Duration::from_secs(10), Duration::from_secs(5));
    let lame_duck = Duration::ZERO;
    Shutdown {
        lame_duck,
        finish,
        close,
    }
};

/// Creates a pair. The number of expected connections determines the initial window: eight or one.
fn pair_for(connections: u32) -> (Pair, Gate) {
    let gate = Gate::default();
    let intents = Intents {
        connections,
        ..Intents::default()
    };
    let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
        register(methods, &gate);
    });
    (pair, gate)
}

fn pair() -> (Pair, Gate) {
    pair_for(4)
}

/// Polls a future once, which sends its call.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs until the handler of a call is pending, then begins to shut the server down.
fn shut_down_during<F: Future + Unpin>(pair: &Pair, held: &mut F) {
    assert!(pair.network().try_run(held).is_none());
    pair.server().shut_down(WITHIN);
    pair.network().settle();
}

#[track_caller]
fn assert_never_sent(error: &CallError) {
    assert_eq!(
        (error.code(), error.execution()),
        (Code::Unavailable, Execution::NeverSent)
    );
    assert!(
        matches!(error.cause(), Cause::Disconnected(CloseReason::GoingAway)),
        "{error}"
    );
}

#[test]
fn when_nothing_is_in_flight_a_server_ends_without_waiting() {
    let (pair, _) = pair();
    let (idle, used) = (pair.connect(), pair.connect());
    pair.run(call(&used, &ECHO, "x")).unwrap();
    pair.server().shut_down(WITHIN);
    // The clock does not advance.
    pair.network().settle();
    assert!(pair.server().is_shut_down());
    for channel in [&idle, &used] {
        assert_never_sent(&pair.run(call(channel, &ECHO, "x")).unwrap_err());
    }
    pair.assert_nothing_left();
}

#[test]
fn handlers_at_work_finish_and_no_calls_are_begun_beside_them() {
    let (pair, gate) = pair();
    let channel = pair.connect();
    let mut held = Box::pin(call(&channel, &HELD, "held"));
    shut_down_during(&pair, &mut held);
    pair.network().advance(Duration::from_secs(9));
    pair.network().settle();
    assert!(!pair.server().is_shut_down());
    assert_never_sent(&pair.run(call(&channel, &ECHO, "x")).unwrap_err());
    gate.open();
    assert_eq!(pair.run(held).unwrap(), b"held");
    pair.network().settle();
    assert!(pair.server().is_shut_down());
    pair.assert_nothing_left();
}

/// The server has sent a control frame with the credit of the call, and there is no receive for
/// another one until the client acknowledges it. The client does, although it sends nothing else.
#[test]
fn a_client_that_sends_nothing_is_told_after_a_control_frame() {
    let (pair, gate) = pair_for(64);
    let channel = pair.connect();
    let mut held = Box::pin(call(&channel, &HELD, "held"));
    shut_down_during(&pair, &mut held);
    assert_never_sent(&pair.run(call(&channel, &ECHO, "x")).unwrap_err());
    gate.open();
    assert_eq!(pair.run(held).unwrap(), b"held");
    pair.network().settle();
    assert!(pair.server().is_shut_down());
    pair.assert_nothing_left();
}

#[test]
fn handlers_that_do_not_finish_in_time_are_dropped_and_answered_for() {
    let (pair, gate) = pair();
    let channel = pair.connect();
    let mut held = Box::pin(call(&channel, &HELD, "held"));
    shut_down_during(&pair, &mut held);
    pair.network().advance(WITHIN.finish);
    let error = pair.run(held).unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::Unavailable, Execution::Answered)
    );
    assert!(error.to_string().contains("may have run"), "{error}");
    assert_eq!(gate.dropped(), 1);
    pair.network().settle();
    assert!(pair.server().is_shut_down());
    pair.assert_nothing_left();
}

#[test]
fn requests_that_were_on_their_way_are_served_until_the_first_deadline() {
    let (pair, _) = pair();
    let channel = pair.connect();
    pair.server().shut_down(WITHIN);
    let mut sent = Box::pin(call(&channel, &ECHO, "just in time"));
    assert!(poll_once(&mut sent).is_pending());
    assert_eq!(pair.run(sent).unwrap(), b"just in time");
    pair.network().settle();
    assert!(pair.server().is_shut_down());
    pair.assert_nothing_left();
}

#[test]
fn calls_that_wait_for_a_credit_find_that_they_were_never_sent() {
    let (pair, gate) = pair();
    let channel = pair.connect();
    let mut calls: Vec<_> = (0..200u8)
        .map(|n| Box::pin(call(&channel, &HELD, [n])))
        .collect();
    for call in &mut calls {
        assert!(poll_once(call).is_pending());
    }
    pair.network().settle();
    let sent = gate.entered();
    assert!(sent < 200, "some wait");
    pair.server().shut_down(WITHIN);
    pair.network().settle();
    gate.open();
    let mut answered = 0;
    for call in calls {
        match pair.run(call) {
            Ok(_) => answered += 1,
            Err(error) => assert_never_sent(&error),
        }
    }
    assert_eq!(answered, gate.entered());
    pair.network().settle();
    assert!(pair.server().is_shut_down());
    pair.assert_nothing_left();
}

#[test]
fn after_the_first_deadline_requests_are_refused_undecoded() {
    let gate = Gate::default();
    let mut network = Network::new(Faults::none(), 0);
    let intents = Intents::default();
    let server = network.add("server", &intents, |methods| register(methods, &gate));
    let [early, late] = ["early", "late"].map(|name| network.add(name, &intents, |_| ()));
    let [early_channel, late_channel] =
        [&early, &late].map(|node| node.poller().connect("server").unwrap());
    network.settle();
    server.shut_down(WITHIN);
    network
        .clock()
        .advance(WITHIN.finish - Duration::from_millis(10));
    // Neither client has taken a turn since.
    let mut served = Box::pin(call(&early_channel, &ECHO, "served"));
    assert!(poll_once(&mut served).is_pending());
    assert!(server.step());
    network.clock().advance(Duration::from_millis(20));
    server.step();
    let mut refused = Box::pin(call(&late_channel, &HELD, "refused"));
    assert!(poll_once(&mut refused).is_pending());
    assert_eq!(network.try_run(served).unwrap().unwrap(), b"served");
    let error = network.try_run(refused).unwrap().unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.to_string().contains("did not run"), "{error}");
    assert_eq!(gate.entered(), 0);
    network.settle();
    assert!(server.is_shut_down());
    drop((early_channel, late_channel));
    network.assert_nothing_left();
}

#[test]
fn a_client_that_does_not_run_holds_nobody_up() {
    let (pair, _) = pair();
    let channel = pair.connect();
    pair.network().settle();
    pair.server().shut_down(WITHIN);
    let steps = || {
        for _ in 0..10 {
            pair.server().step();
        }
    };
    steps();
    assert!(!pair.server().is_shut_down());
    pair.network().clock().advance(Duration::from_millis(60));
    steps();
    assert!(pair.server().is_shut_down());
    // When the client runs again, its server is gone.
    pair.network().settle();
    assert_never_sent(&pair.run(call(&channel, &ECHO, "x")).unwrap_err());
    pair.assert_nothing_left();
}

#[test]
fn whoever_connects_at_the_last_moment_is_told_too() {
    let (pair, gate) = pair();
    let first = pair.connect();
    let mut held = Box::pin(call(&first, &HELD, ""));
    assert!(pair.network().try_run(&mut held).is_none());
    pair.server().shut_down(WITHIN);
    let last = pair.connect();
    pair.network().settle();
    assert_never_sent(&pair.run(call(&last, &ECHO, "x")).unwrap_err());
    gate.open();
    pair.run(held).unwrap();
    pair.network().settle();
    assert!(pair.server().is_shut_down());
    pair.assert_nothing_left();
}

#[test]
fn whatever_goes_wrong_meanwhile_every_call_ends_once_and_the_server_does() {
    for seed in 0..60 {
        let gate = Gate::default();
        let pair = Pair::with(&Intents::default(), Faults::rough(), seed, |methods| {
            register(methods, &gate);
        });
        let channels: Vec<_> = (0..3).map(|_| pair.connect()).collect();
        pair.network().settle();
        let mut calls: Vec<_> = (0..60u8)
            .map(|n| {
                let method = if n % 3 == 0 { &HELD } else { &ECHO };
                Box::pin(call(&channels[usize::from(n) % 3], method, [n]))
            })
            .collect();
        let mut outcomes = Vec::new();
        let poll_all = |calls: &mut Vec<_>, outcomes: &mut Vec<_>| {
            calls.retain_mut(|call| match poll_once(call) {
                Poll::Ready(outcome) => {
                    outcomes.push(outcome);
                    false
                }
                Poll::Pending => true,
            });
        };
        for _ in 0..seed % 7 {
            poll_all(&mut calls, &mut outcomes);
            pair.network().step();
        }
        pair.server().shut_down(WITHIN);
        let opens = seed % 2 == 0;
        for round in 0..400 {
            if round == 20 && opens {
                gate.open();
            }
            if round == 60 {
                pair.network().advance(WITHIN.finish);
            }
            poll_all(&mut calls, &mut outcomes);
            pair.network().step();
        }
        assert_eq!(outcomes.len(), 60, "seed {seed}");
        for outcome in outcomes {
            if let Err(error) = outcome {
                assert_eq!(error.code(), Code::Unavailable, "seed {seed}: {error}");
            }
        }
        pair.network().advance(WITHIN.close);
        pair.network().settle();
        assert!(pair.server().is_shut_down(), "seed {seed}");
        drop(calls);
        pair.assert_nothing_left();
    }
}
