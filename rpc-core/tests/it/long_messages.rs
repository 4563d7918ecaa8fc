//! Messages that are longer than a slot, in both directions and both forms.

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
