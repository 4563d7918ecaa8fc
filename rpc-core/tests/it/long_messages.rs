//! Messages that are longer than a slot, in both directions and both forms.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::support::{ECHO, Gate, HELD, register};
use rpc_core::{Caller, Intents, LocalChannel, Request};
use rpc_core_testing::{Faults, Node, Pair};

/// Lengths around those at which something changes: a slot, the fragments that a receiver has not
/// accepted, and a piece.
const LENGTHS: [usize; 12] = [
    4090, 4097, 4336, 4337, 8192, 65_535, 65_536, 65_537, 70_000, 262_144, 1_000_003, 4_194_298,
];

fn message(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

async fn echo(channel: &LocalChannel, message: Vec<u8>) -> Result<Vec<u8>, rpc_core::CallError> {
    let response = channel.unary(&ECHO, Request::new(message)).await?;
    Ok(response.into_inner())
}

fn pair() -> Pair {
    Pair::new(|methods| register(methods, &Gate::default()))
}

#[test]
fn messages_of_any_length_come_back_as_they_were() {
    let pair = pair();
    let channel = pair.connect();
    for len in LENGTHS {
        let sent = message(len);
        let received = pair.run(echo(&channel, sent.clone())).unwrap();
        assert!(received == sent, "{len} bytes");
        pair.assert_nothing_left();
    }
}

#[test]
fn messages_of_any_length_are_read() {
    let pair = pair();
    pair.network().use_reads();
    let channel = pair.connect();
    for len in LENGTHS {
        let sent = message(len);
        let received = pair.run(echo(&channel, sent.clone())).unwrap();
        assert!(received == sent, "{len} bytes");
        pair.assert_nothing_left();
    }
}

/// Nothing wakes a poller for pieces that it can send.
#[test]
fn a_poller_does_not_sleep_while_it_can_send_pieces() {
    let pair = pair();
    pair.network().use_reads();
    let channel = pair.connect();
    let sent = || {
        pair.client().poller().stats().pollers[0]
            .transfers
            .bytes_sent
    };
    let mut call = Box::pin(echo(&channel, message(4_194_298)));
    let mut cx = Context::from_waker(Waker::noop());
    let mut sent_alone = 0;
    for step in 0.. {
        if call.as_mut().poll(&mut cx).is_ready() {
            break;
        }
        let would_sleep = !pair.client().has_undone_work();
        let before = sent();
        let found_any = pair.client().step();
        if !found_any && sent() > before {
            assert!(!would_sleep, "it would sleep after {before} bytes");
            sent_alone += 1;
        }
        // So the client often has turns in which nothing arrives.
        if step % 20 == 0 {
            pair.server().step();
        }
    }
    assert!(sent_alone > 16, "{sent_alone} pieces");
    drop(call);
    pair.assert_nothing_left();
}

#[test]
fn where_no_window_is_free_a_message_travels_in_fragments() {
    let pair = pair();
    pair.network().use_reads();
    let channel = pair.connect();
    let in_fragments = || in_fragments(pair.server());
    for may_come in [true, false] {
        pair.network().refuse_windows(Some(may_come));
        for len in LENGTHS {
            let before = in_fragments();
            let sent = message(len);
            let received = pair.run(echo(&channel, sent.clone())).unwrap();
            assert!(received == sent, "{len} bytes");
            pair.assert_nothing_left();
            assert!(in_fragments() > before || len <= 4097, "{len} bytes");
        }
        // Later messages are read again.
        pair.network().refuse_windows(None);
        let before = in_fragments();
        pair.run(echo(&channel, message(262_144))).unwrap();
        assert_eq!(in_fragments(), before);
    }
}

/// Returns the bytes that a side has received in fragments.
fn in_fragments(node: &Node) -> u64 {
    let stats = node.poller().stats();
    stats.pollers[0].transfers.bytes_in_fragments
}

#[test]
fn a_message_of_few_frames_goes_at_once_and_is_not_read() {
    let pair = pair();
    pair.network().use_reads();
    let channel = pair.connect();
    let (most, received) = (8 * 4336 - 100, || {
        [pair.server(), pair.client()].map(in_fragments)
    });
    // Each side gets credits for the frames when it had too few.
    pair.run(echo(&channel, message(most))).unwrap();
    assert_eq!(received(), [0, 0]);
    for _ in 0..4 {
        pair.run(echo(&channel, message(most))).unwrap();
    }
    for len in [4337, 8192, most] {
        let before = received();
        let mut call = Box::pin(echo(&channel, message(len)));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(call.as_mut().poll(&mut cx).is_pending());
        // All frames of the request are there, and all of the response.
        pair.client().step();
        pair.server().step();
        pair.client().step();
        assert!(call.as_mut().poll(&mut cx).is_ready(), "{len} bytes");
        let after = received();
        let added = [after[0] - before[0], after[1] - before[1]];
        assert!(added.iter().all(|&it| it >= len as u64), "{added:?}");
    }
    let before = received();
    pair.run(echo(&channel, message(most + 200))).unwrap();
    assert_eq!(received(), before, "a longer one is read");
    drop(channel);
    pair.assert_nothing_left();
}

/// A server without streams is idle, and returns credits that it has no use for.
#[test]
fn a_server_keeps_the_credits_that_it_has_asked_for() {
    let pair = pair();
    pair.network().use_reads();
    let channel = pair.connect();
    pair.run(echo(&channel, message(7))).unwrap();
    let idle = || {
        for _ in 0..4 {
            pair.network().advance(Duration::from_millis(700));
            pair.network().settle();
        }
    };
    idle();
    for _ in 0..8 {
        pair.run(echo(&channel, message(8192))).unwrap();
        pair.network().settle();
    }
    assert!(in_fragments(pair.client()) > 4 * 8192);
    // Some time later, it returns them.
    idle();
    idle();
    pair.network().settle();
    let before = in_fragments(pair.client());
    pair.run(echo(&channel, message(8192))).unwrap();
    assert_eq!(in_fragments(pair.client()), before, "it is read");
    drop(channel);
    pair.assert_nothing_left();
}

#[test]
fn windows_for_responses_leave_half_of_the_receives_to_calls() {
    let intents = Intents {
        max_in_flight: 2,
        connections: 16,
        ..Intents::default()
    };
    let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
        register(methods, &Gate::default())
    });
    pair.network().use_reads();
    let channels: Vec<_> = (0..16).map(|_| pair.connect()).collect();
    for channel in channels.iter().cycle().take(64) {
        pair.run(echo(channel, message(20_000))).unwrap();
    }
    assert!(in_fragments(pair.client()) > 0);
    let receives = pair.client().poller().limits().promisable_receives();
    let promised = pair.client().promised_receives();
    assert!(promised <= receives / 2, "{promised} of {receives}");
}

/// Each frame after the first takes a credit, and so does each request.
#[test]
fn a_message_for_whose_frames_there_are_no_credits_is_read() {
    let gate = Gate::default();
    let intents = Intents {
        max_in_flight: 4,
        connections: 1,
        ..Intents::default()
    };
    let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
        register(methods, &gate)
    });
    pair.network().use_reads();
    let channel = pair.connect();
    let mut cx = Context::from_waker(Waker::noop());
    let mut held: Vec<_> = (0..3)
        .map(|_| Box::pin(channel.unary::<Vec<u8>, Vec<u8>>(&HELD, Request::new(vec![]))))
        .collect();
    for call in &mut held {
        assert!(call.as_mut().poll(&mut cx).is_pending());
    }
    pair.run(echo(&channel, message(8192))).unwrap();
    assert_eq!(in_fragments(pair.server()), 0);
    gate.open();
    for call in held {
        pair.run(call).unwrap();
    }
    pair.run(echo(&channel, message(8192))).unwrap();
    assert!(in_fragments(pair.server()) > 8192);
}

/// Begins a call with a message of 4 MiB, and stops when its first pieces are exposed.
fn begun<'a>(
    pair: &Pair,
    channel: &'a LocalChannel,
) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, rpc_core::CallError>> + 'a>> {
    pair.network().hold_reads_after(0);
    let mut call = Box::pin(echo(channel, message(4_194_298)));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut cx).is_pending());
    pair.network().settle();
    call
}

#[test]
fn a_message_that_has_begun_waits_for_windows_that_may_come() {
    let pair = pair();
    pair.network().use_reads();
    let channel = pair.connect();
    let mut call = begun(&pair, &channel);
    pair.network().refuse_windows(Some(true));
    pair.network().hold_reads_after(usize::MAX);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..100 {
        assert!(call.as_mut().poll(&mut cx).is_pending(), "it waits");
        pair.network().step();
    }
    pair.network().refuse_windows(None);
    assert!(pair.run(call).unwrap() == message(4_194_298));
    pair.assert_nothing_left();
}

#[test]
fn a_message_that_has_begun_does_not_wait_for_windows_that_never_come() {
    let pair = pair();
    pair.network().use_reads();
    let channel = pair.connect();
    let call = begun(&pair, &channel);
    pair.network().refuse_windows(Some(false));
    pair.network().hold_reads_after(usize::MAX);
    let error = pair.run(call).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("gives no memory windows any more"), "{text}");
    // The next connection is of use.
    let channel = pair.connect();
    let sent = message(4_194_298);
    assert!(pair.run(echo(&channel, sent.clone())).unwrap() == sent);
}
