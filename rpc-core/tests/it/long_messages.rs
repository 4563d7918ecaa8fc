//! Messages that are longer than a slot, in both directions and both forms.

use std::pin::Pin;
use std::task::{Context, Waker};

use crate::support::{ECHO, Gate, register};
use rpc_core::{Caller, LocalChannel, Request};
use rpc_core_testing::Pair;

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
    let in_fragments = || {
        let stats = pair.server().poller().stats();
        stats.pollers[0].transfers.bytes_in_fragments
    };
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
