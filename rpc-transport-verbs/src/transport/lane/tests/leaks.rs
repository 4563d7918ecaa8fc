//! Memory that peers may read although their connection has ended.

use std::thread;
use std::time::Instant;

use bytes::Bytes;
use rpc_core::transport::{Chunks, ExposeError, Transport};

use super::transport_harness::{PATIENCE, Rig};
use super::{SOFT, intents};
use crate::Device;

/// `soft` never refuses to destroy a queue pair, so the test tells the lane that it did.
#[test]
fn pieces_of_a_queue_pair_that_cannot_be_destroyed_are_never_free() {
    let device = Device::open(SOFT).unwrap();
    let mut rig = Rig::with(&device, &device, &intents());
    let (client, _) = rig.connect(1)[0];
    let mut message = Chunks::from(Bytes::from(vec![7; 10_000]));
    let deadline = Instant::now() + PATIENCE;
    let exposed = loop {
        match rig.client.transport.expose(client, &mut message, false) {
            Ok(exposed) => break exposed,
            Err(ExposeError::NotNow) => assert!(Instant::now() < deadline),
            Err(error) => panic!("{error}"),
        }
        rig.client.turn();
        thread::yield_now();
    };
    let before = rig.client.transport.memory_by_owner();
    assert!(before.exposed > 0);
    let lane = &mut rig.client.transport.first;
    lane.end_long_messages_of(client, false);
    rig.client.transport.conceal(exposed.key);
    for _ in 0..1000 {
        rig.client.turn();
    }
    assert_eq!(rig.client.transport.memory_by_owner(), before);
}
