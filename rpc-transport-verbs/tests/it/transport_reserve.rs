//! The limit of the shared receive queue: a poller stops for a while, and every promised receive is
//! available.

use std::time::{Duration, Instant};

use rpc_core::Intents;
use rpc_core::transport::Transport;
use rpc_transport_verbs::Sizing;

use crate::transport_harness::{Rig, frame};

/// A poller is blocked for 200 ms while four peers send as many frames as were promised to all of
/// them together. This happens twice. Each time the limit event is raised, the reserve is posted
/// and returned, the limit is armed again, and no frame finds the queue empty.
#[test]
fn a_blocked_poller_keeps_its_promises() {
    let sizing = Sizing {
        receives_posted: Some(64),
        receives_reserved: Some(16),
        receives_held: Some(48),
        ..Sizing::default()
    };
    let intents = Intents {
        max_message_len: 1024,
        max_in_flight: 32,
        connections: 4,
        ..Intents::default()
    };
    let mut rig = Rig::new(&intents, &sizing);
    let pairs = rig.connect(4);
    let promised = rig.server.transport.limits().promisable_receives() as usize;
    assert_eq!(promised, 80);
    assert_eq!(rig.server.transport.counters().srq_limit_events, 0);
    // The async-event thread arms the limit as soon as it runs.
    rig.step_until("the limit is armed", |server, _| {
        server.transport.limit_armings() > 0
    });
    assert_eq!(rig.server.transport.limit_armings(), 1);

    let mut sent = 0;
    for round in 1..=2 {
        for number in 0..promised {
            let (client, _) = pairs[number % pairs.len()];
            // Both inline and not.
            let len = if number % 3 == 0 { 900 } else { 64 };
            rig.client.send(client, &frame(sent, len)).unwrap();
            sent += 1;
        }
        rig.client.transport.flush();
        // The server's poller does nothing at all for this long; the client continues.
        let blocked = Instant::now();
        while blocked.elapsed() < Duration::from_millis(200) {
            rig.client.turn();
            std::thread::sleep(Duration::from_millis(1));
        }
        let counters = rig.server.transport.counters();
        assert!(counters.srq_limit_events >= round, "{counters:?}");
        assert_eq!(counters.reserve_posted, 16 * round, "{counters:?}");
        assert_eq!(counters.receives, 80 * (round - 1), "it was blocked");

        rig.step_until("all frames", |server, _| server.received.len() == sent);
        rig.step_until(
            "the reserve is home, and the limit armed again",
            |server, _| {
                server.transport.slots_by_state().receives_reserved == 16
                    && server.transport.limit_armings() > round
            },
        );
    }
    assert_eq!(rig.server.transport.counters().rnr, 0);
    rig.step_until("every slot is back", |_, client| {
        client.transport.slots_by_state().sends_in_flight == 0
    });
    rig.client.assert_quiet_pool();
    rig.server.assert_quiet_pool();
}

/// Sets how many receives the server may promise, checks that they are posted at once, and waits until
/// the limit is armed again: while a higher one is armed, all free receives are posted.
fn promise(rig: &mut Rig, receives: u32) {
    let before = rig.server.transport.limit_armings();
    rig.server.transport.set_promised(receives);
    let posted = rig.server.transport.slots_by_state().receives_posted;
    assert!(posted >= receives, "{posted}");
    rig.step_until("the limit is armed again", |server, _| {
        server.transport.limit_armings() > before
    });
}

/// With few receives promised, few are posted, and they are always enough for what was promised;
/// no limit event is raised by that.
#[test]
fn a_transport_posts_what_is_promised_and_a_margin() {
    let sizing = Sizing {
        receives_posted: Some(256),
        receives_reserved: Some(64),
        receives_held: Some(192),
        ..Sizing::default()
    };
    let intents = Intents {
        max_message_len: 1024,
        max_in_flight: 32,
        connections: 4,
        ..Intents::default()
    };
    let mut rig = Rig::new(&intents, &sizing);
    let (client, _) = rig.connect(1)[0];
    let mut round = 0;
    let mut exchange = |rig: &mut Rig, burst: usize, rounds: usize| {
        for _ in 0..rounds {
            for number in 0..burst {
                let len = if number % 3 == 0 { 900 } else { 64 };
                // The send queue is not as deep as the largest promise.
                while rig.client.send(client, &frame(round, len)).is_err() {
                    rig.client.transport.flush();
                    rig.client.turn();
                }
                round += 1;
            }
            rig.client.transport.flush();
            rig.step_until("all frames", |server, _| server.received.len() == round);
        }
    };
    let posted = |rig: &Rig| rig.server.transport.slots_by_state().receives_posted;
    assert_eq!(posted(&rig), 256 + 192, "all of them at first");
    rig.step_until("the limit is armed", |server, _| {
        server.transport.limit_armings() > 0
    });
    promise(&mut rig, 32);
    exchange(&mut rig, 32, 20);
    assert!(
        (32..=32 + 3 * 32).contains(&posted(&rig)),
        "{}",
        posted(&rig)
    );
    // More are posted before the first of them can be promised.
    promise(&mut rig, 320);
    // The device takes receives by itself if the poller is slow: the limit is reached when three
    // quarters of the promised ones are used.
    exchange(&mut rig, 240, 4);
    promise(&mut rig, 1);
    exchange(&mut rig, 1, 500);
    assert!(posted(&rig) <= 1 + 3 * 32, "{}", posted(&rig));
    let counters = rig.server.transport.counters();
    if rig.server.transport.limits().device == "soft" {
        // Other devices take receives while the poller does nothing, so a burst of 32, or of 1, may
        // reach the limit.
        assert_eq!(counters.srq_limit_events, 0, "{counters:?}");
    }
    rig.server.transport.set_promised(320);
    exchange(&mut rig, 320, 3);
    let counters = rig.server.transport.counters();
    assert_eq!(counters.rnr, 0, "{counters:?}");
    rig.server.assert_quiet_pool();
}
