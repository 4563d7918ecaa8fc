//! Connections that end while they are in lists of their lane.

use std::panic::{self, AssertUnwindSafe};
use std::thread;
use std::time::Instant;

use bytes::Bytes;
use rpc_core::transport::{
    AllocateError, Chunks, CloseReason, ConnectionId, ExposeError, Exposed, Transport,
};

use super::transport_harness::{PATIENCE, Rig, Side};
use super::{SOFT, intents};
use crate::{Device, RegisteredBuf, Sizing};

/// Bytes of the message that is fetched: of several READs.
const MESSAGE_LEN: usize = 1 << 20;

/// Not the device under test, as in the other tests here.
fn rig() -> Rig {
    rig_with(Sizing::default())
}

pub(super) fn rig_with(sizing: Sizing) -> Rig {
    let device = Device::open(SOFT).unwrap().with_sizing(sizing);
    Rig::with(&device, &device, &intents())
}

/// Tries until the side has the memory for it.
fn when_possible<T>(side: &mut Side, mut take: impl FnMut(&mut Side) -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(taken) = take(side) {
            return taken;
        }
        assert!(Instant::now() < deadline, "no memory");
        side.turn();
        thread::yield_now();
    }
}

pub(super) fn expose(side: &mut Side, connection: ConnectionId) -> Exposed {
    let mut message = Chunks::from(Bytes::from(vec![7; MESSAGE_LEN]));
    when_possible(side, |side| {
        match side.transport.expose(connection, &mut message, false) {
            Ok(exposed) => Some(exposed),
            Err(ExposeError::NotNow) => None,
            Err(error) => panic!("{error}"),
        }
    })
}

pub(super) fn allocate(side: &mut Side, connection: ConnectionId) -> RegisteredBuf {
    when_possible(side, |side| {
        match side.transport.allocate_for(connection, MESSAGE_LEN) {
            Ok(memory) => Some(memory),
            Err(AllocateError::NotNow | AllocateError::InUse) => None,
            Err(error) => panic!("{error}"),
        }
    })
}

#[test]
fn a_connection_that_ends_before_the_flush_is_flushed_no_more() {
    let mut rig = rig();
    let (client, _) = rig.connect(1)[0];
    rig.client.send(client, b"short").unwrap();
    assert_eq!(rig.client.transport.first.dirty.len(), 1);
    rig.client.transport.close(client);
    // Turns poll, and do not flush.
    rig.step_until("its end", |_, client| !client.closed.is_empty());
    assert!(rig.client.transport.first.dirty.is_empty());
}

#[test]
fn a_connection_that_ends_with_segments_to_fetch_has_no_more_turns() {
    let mut rig = rig();
    let pairs: [_; 2] = rig.connect(2).try_into().unwrap();
    let pieces = pairs.map(|(client, server)| {
        let exposed = expose(&mut rig.client, client);
        let memory = allocate(&mut rig.server, server);
        let fetch = rig.server.transport.begin_fetch(server, memory).unwrap();
        (fetch, exposed.segment)
    });
    for (fetch, segment) in pieces {
        rig.server.transport.fetch(fetch, segment, 0);
    }
    // Asserts the sums of the lane.
    rig.server.transport.flush();
    // The first has the turn before the next poll.
    let lane = &mut rig.server.transport.first;
    let before = lane.long_messages.ring.len();
    lane.fail(pairs[1].1.index, CloseReason::Local);
    let deadline = Instant::now() + PATIENCE;
    while lane.connections.len() == 2 {
        assert!(Instant::now() < deadline, "it does not end");
        lane.advance_closing(true);
    }
    assert_eq!(lane.long_messages.ring.len(), before - 1);
}

#[test]
fn a_cancelled_fetch_whose_reads_have_completed_has_no_more_turns() {
    // Each READ has a completion of its own.
    let mut rig = rig_with(Sizing {
        read_depth: Some(1),
        ..Sizing::default()
    });
    let (client, server) = rig.connect(1)[0];
    let exposed = expose(&mut rig.client, client);
    let memory = allocate(&mut rig.server, server);
    let fetch = rig.server.transport.begin_fetch(server, memory).unwrap();
    rig.server.transport.fetch(fetch, exposed.segment, 0);
    // Begun: it is to end with a READ that covers the others.
    rig.server.transport.cancel_fetch(fetch);
    rig.step_until("its end", |server, _| !server.cancelled.is_empty());
    for _ in 0..10 {
        rig.server.turn();
        rig.server.transport.flush();
    }
    assert_eq!(rig.server.cancelled, [fetch]);
    assert_eq!(rig.server.transport.first.misses(), 0);
}

/// Without the assertions, the miss is counted.
#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "generation 0 removed at "))]
fn a_look_up_of_a_connection_that_has_ended_tells_where_it_ended() {
    let mut rig = rig();
    let (client, _) = rig.connect(1)[0];
    rig.client.transport.close(client);
    rig.step_until("its end", |_, client| !client.closed.is_empty());
    let lane = &mut rig.client.transport.first;
    assert!(lane.connections.get(client).is_none());
    assert!(lane.connections.at(client.index).is_none());
    assert_eq!(lane.misses(), 1);
}

#[test]
fn a_look_up_that_found_nothing_is_in_the_counters_for_users() {
    let mut rig = rig();
    let (client, _) = rig.connect(1)[0];
    let reader = rig.client.transport.counter_reader();
    let miss = |rig: &mut Rig| {
        let connections = &mut rig.client.transport.first.connections;
        // With the assertions, it also panics.
        let look_up = || assert!(connections.at(client.index + 1).is_none());
        let panics = panic::catch_unwind(AssertUnwindSafe(look_up)).is_err();
        assert_eq!(panics, cfg!(debug_assertions));
    };
    miss(&mut rig);
    assert_eq!(rig.client.transport.counters().missed, 1);
    miss(&mut rig);
    drop(rig);
    assert_eq!(reader.counters().missed, 2);
}
