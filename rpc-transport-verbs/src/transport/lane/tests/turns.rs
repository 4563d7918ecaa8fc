//! Lanes are polled in turn, and a poll of a lane ends.

use std::time::Instant;

use rpc_core::transport::{Event, Transport};

use super::transport_harness::{PATIENCE, Rig, frame};
use super::{ROCE, SOFT, Server, Sizing, exchange, intents, side_with};
use crate::Device;
use crate::transport::pending::Pending;

#[test]
fn a_busy_lane_does_not_delay_the_events_of_another() {
    let mut server = Server::with(&[ROCE, SOFT]);
    let mut clients = [ROCE, SOFT].map(|kind| {
        let mut client = side_with(&[kind]);
        let (at_client, at_server) = server.accept(&mut client);
        exchange(&mut server.side, at_server, &mut client, at_client);
        (client, at_client, at_server)
    });
    for (busy, calm) in [(0, 1), (1, 0)] {
        for (number, frames) in [(busy, 16), (calm, 1)] {
            let (client, at_client, _) = &mut clients[number];
            for frame_number in 0..frames {
                client.send(*at_client, &frame(frame_number, 64)).unwrap();
            }
            client.transport.flush();
        }
        let mut order = Vec::new();
        while order.len() < 17 {
            match server.side.transport.poll() {
                Some(Event::Received { connection, buf }) => {
                    order.push(connection);
                    server.side.transport.release(buf);
                }
                Some(other) => panic!("{other:?}"),
                None => std::thread::yield_now(),
            }
        }
        let place = order.iter().position(|&it| it == clients[calm].2);
        assert!(place.is_some_and(|place| place < 2), "{order:?}");
    }
}

#[test]
fn a_poll_that_leaves_completions_keeps_its_poller_awake() {
    let sizing = Sizing {
        signal_interval: Some(1),
        send_queue_depth: Some(128),
        ..Sizing::default()
    };
    // Not the device under test: these tests run beside one that must come before any memory of an
    // RDMA device is registered.
    let device = Device::open(SOFT).unwrap().with_sizing(sizing);
    let mut rig = Rig::with(&device, &device, &intents());
    let (client, _) = rig.connect(1)[0];
    for number in 0..100 {
        rig.client.send(client, &frame(number, 64)).unwrap();
    }
    rig.client.transport.flush();
    while rig.server.received.len() < 100 {
        rig.server.turn();
    }
    // Send completions are no events. One poll takes some of the hundred.
    let mut polls = 0;
    loop {
        assert!(rig.client.transport.poll().is_none());
        polls += 1;
        if !rig.client.transport.first.pending.has(Pending::MORE) {
            break;
        }
        // Nothing else would end this wait: the completions came before the arming.
        rig.client.transport.arm();
        let start = Instant::now();
        rig.client.transport.wait(Some(PATIENCE));
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(polls > 1, "all completions at once");
}
