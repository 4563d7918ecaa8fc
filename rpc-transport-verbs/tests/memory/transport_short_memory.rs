//! Memory for long messages is short: what a transport has lent comes back at once.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use rpc_core::Intents;
use rpc_core::transport::{Chunks, ExposeError, Exposed, Transport};
use rpc_transport_verbs::Sizing;

use crate::alone;
use crate::transport_harness::{PATIENCE, Rig, Side, device};

/// The memory of both transports, for a few pieces.
const MEMORY: usize = 32 << 10;

/// Polls in which the key of a piece is revoked, if its memory is wanted. Without that, a transport
/// collects more pieces for longer.
const FEW_POLLS: usize = 16;

#[test]
fn a_piece_that_waits_for_memory_gets_that_of_released_pieces_at_once() {
    let _alone = alone();
    let intents = Intents {
        max_message_len: MEMORY,
        message_memory: MEMORY as u64,
        ..Intents::default()
    };
    let by_default = Side::open(&device(), &intents);
    let sizing = Sizing {
        // Soft-RoCE does not protect memory by windows.
        trusted_peers: by_default.transport.limits().read_depth == 0,
        ..Sizing::default()
    };
    let mut rig = Rig::new(&intents, &sizing);
    let (client, _) = rig.connect(1)[0];
    // In parts so short that they are copied over TCP, too.
    let mut message = Chunks::new();
    for _ in 0..64 {
        message.push(Bytes::from(vec![7; 16 << 10]));
    }
    let mut expose = |rig: &mut Rig, attempts: usize| -> Option<Exposed> {
        for _ in 0..attempts {
            match rig.client.transport.expose(client, &mut message, false) {
                Ok(exposed) => return Some(exposed),
                Err(ExposeError::NotNow) => {}
                Err(error) => panic!("{error}"),
            }
            rig.client.turn();
        }
        None
    };
    // Memory is registered by another thread, until none is left.
    let mut exposed = VecDeque::new();
    let deadline = Instant::now() + PATIENCE;
    while !is_used_up(&rig) {
        assert!(Instant::now() < deadline, "{} pieces", exposed.len());
        exposed.extend(expose(&mut rig, 1));
        std::thread::yield_now();
    }
    assert!(expose(&mut rig, 1000).is_none(), "no memory is left");
    for _ in 0..20 {
        let first: Exposed = exposed.pop_front().expect("some are exposed");
        rig.client.transport.conceal(first.key);
        let next = expose(&mut rig, FEW_POLLS);
        exposed.push_back(next.expect("the memory of the first piece is wanted"));
    }
}

/// Returns true if the pieces to send have all the memory that they may have: half of it.
fn is_used_up(rig: &Rig) -> bool {
    let transport = &rig.client.transport;
    transport.memory_by_owner().exposed == transport.limits().message_memory / 2
}
