//! Messages that are longer than a slot, in both directions and both forms.

mod support;

use rpc_core::testing::Pair;
use rpc_core::{Caller, LocalChannel, Request};
use support::{ECHO, Gate, register};

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
