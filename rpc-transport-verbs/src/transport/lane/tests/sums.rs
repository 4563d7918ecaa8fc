//! What is counted comes back. Each poll and each flush asserts the sums of its lane, so these tests
//! assert little themselves: the patches in `tests/mutants` name the test that fails when a count is
//! forgotten.

use rpc_core::transport::{CloseReason, Transport};

use super::lists::{allocate, expose, rig_with};
use super::transport_harness::{frame, step_until};
use super::{SOFT, Server, Sizing, assert_all_slots_back, exchange, side_with};

#[test]
fn slots_and_entries_of_frames_come_back() {
    let mut server = Server::with(&[SOFT]);
    let mut client = side_with(&[SOFT]);
    let (at_client, at_server) = server.accept(&mut client);
    // Far more frames than the send queue has entries.
    for _ in 0..40 {
        exchange(&mut server.side, at_server, &mut client, at_client);
        let unsent = client.transport.reserve(at_client, 3000).unwrap();
        client.transport.cancel(unsent);
    }
    assert_all_slots_back(&mut [&mut server.side, &mut client]);
}

#[test]
fn receives_are_posted_for_all_that_is_promised() {
    let mut server = Server::with(&[SOFT]);
    let mut client = side_with(&[SOFT]);
    let (at_client, at_server) = server.accept(&mut client);
    step_until(&mut [&mut server.side], "the limit is armed", |sides| {
        sides[0].transport.limit_armings() > 0
    });
    let before = server.side.transport.limit_armings();
    server.side.transport.set_promised(16);
    step_until(&mut [&mut server.side], "it is armed again", |sides| {
        sides[0].transport.limit_armings() > before
    });
    for _ in 0..40 {
        exchange(&mut server.side, at_server, &mut client, at_client);
    }
    assert_all_slots_back(&mut [&mut server.side, &mut client]);
}

#[test]
fn pieces_fetches_and_reads_of_long_messages_end() {
    let mut rig = rig_with(Sizing::default());
    let (client, server) = rig.connect(1)[0];
    for round in 1..=4 {
        let exposed = expose(&mut rig.client, client);
        // Its announcement. The completion of this frame is that of the binding, too.
        rig.client.send(client, &frame(round, 3000)).unwrap();
        rig.client.transport.flush();
        rig.step_until("the announcement", |server, client| {
            let is_sent = client.transport.slots_by_state().sends_in_flight == 0;
            is_sent && server.received.len() == round
        });
        let memory = allocate(&mut rig.server, server);
        let fetch = rig.server.transport.begin_fetch(server, memory).unwrap();
        rig.server.transport.fetch(fetch, exposed.segment, 0);
        rig.step_until("the segment", |server, _| server.fetched.len() == round);
        assert!(rig.server.transport.finish_fetch(fetch).is_some());
        rig.client.transport.conceal(exposed.key);
        rig.step_until("the piece is free", |_, client| {
            client.transport.flush();
            client.transport.memory_by_owner().exposed == 0
        });
        rig.server.transport.flush();
    }
    assert_eq!(rig.server.transport.memory_by_owner().fetching, 0);
}

#[test]
fn connections_end_and_leave_their_lists() {
    let mut server = Server::with(&[SOFT]);
    for round in 1..=3 {
        let mut client = side_with(&[SOFT]);
        let (at_client, at_server) = server.accept(&mut client);
        exchange(&mut server.side, at_server, &mut client, at_client);
        client.send(at_client, &frame(1, 3000)).unwrap();
        client.transport.close(at_client);
        step_until(
            &mut [&mut server.side, &mut client],
            "its end on both sides",
            |sides| sides[0].closed.len() == round && sides[1].closed.len() == 1,
        );
        let (_, reason) = &client.closed[0];
        assert!(matches!(reason, CloseReason::Local), "{reason}");
        client.transport.flush();
        assert_all_slots_back(&mut [&mut server.side, &mut client]);
    }
}
