//! A device that loses track of its sends.

use rpc_core::transport::Transport;

use super::transport_harness::{frame, step_until};
use super::{ROCE, Server, assert_all_slots_back, side_with};
use crate::transport::stall_watch::{STALLED_AFTER, STUCK_AFTER};

#[test]
fn a_connection_ends_whose_sends_the_device_neither_completes_nor_fails() {
    let mut server = Server::with(&[ROCE]);
    let mut client = side_with(&[ROCE]);
    let (at_client, _) = server.accept(&mut client);
    // In a slot, so a completion is due. Nobody polls it, as if the device had none.
    let long = frame(1, client.transport.first.plan.limits.slot_len);
    client.send(at_client, &long).expect("there is a place");
    client.transport.flush();
    let lane = &mut client.transport.first;
    let looks = (1..=STUCK_AFTER).find(|_| {
        lane.look_at_sends();
        !lane.closing.is_empty()
    });
    assert_eq!(looks, Some(STUCK_AFTER));
    step_until(&mut [&mut server.side, &mut client], "its end", |sides| {
        sides[0].closed.len() + sides[1].closed.len() == 2
    });
    let (closed, reason) = &client.closed[0];
    assert_eq!(*closed, at_client);
    let text = reason.to_string();
    assert!(
        text.contains("neither completed nor failed a send"),
        "{text}"
    );
    assert_all_slots_back(&mut [&mut server.side, &mut client]);
}

/// On a busy server there is always a send in flight, and new clients would wait until their time limit.
#[test]
fn nobody_waits_for_a_connection_whose_sends_are_acknowledged() {
    let mut server = Server::with(&[ROCE]);
    let mut client = side_with(&[ROCE]);
    let (at_client, _) = server.accept(&mut client);
    let long = frame(1, client.transport.first.plan.limits.slot_len);
    for looks in 0..10 {
        client.send(at_client, &long).expect("there is a place");
        client.transport.flush();
        let stalled = client.transport.stalled_connections(looks);
        assert!(stalled.connections.is_empty());
        assert_eq!(stalled.may_follow, looks == 0, "at look {looks}");
        let sides = &mut [&mut server.side, &mut client];
        step_until(sides, "the acknowledgement", |sides| {
            let connections = &mut sides[1].transport.first.connections;
            let connection = connections.get(at_client).expect("it is open");
            connection.in_flight() == 0
        });
    }
    // This one is not acknowledged.
    client.send(at_client, &long).expect("there is a place");
    client.transport.flush();
    let looks = (1..=STALLED_AFTER).find(|look| {
        let stalled = client.transport.stalled_connections((look - 1).min(4));
        assert!(stalled.may_follow || !stalled.connections.is_empty());
        stalled.connections == [at_client]
    });
    assert_eq!(looks, Some(STALLED_AFTER));
}
