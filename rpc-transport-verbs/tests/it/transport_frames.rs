//! Frames between two transports of one process: order, lengths, slots, signals, and closing.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use rpc_core::Intents;
use rpc_core::transport::{
    CloseReason, ConnectError, ConnectionId, Event, Fabric, ReserveError, Transport,
};
use rpc_transport_verbs::Sizing;

use crate::transport_harness::{AdmitAll, PATIENCE, Rig, Side, device, frame, step_until};

fn intents(connections: u32) -> Intents {
    Intents {
        max_message_len: 4096,
        max_in_flight: 32,
        connections,
        ..Intents::default()
    }
}

#[test]
fn a_frame_goes_each_way() {
    let mut rig = Rig::new(&intents(4), &Sizing::default());
    let (client, server) = rig.connect(1)[0];

    rig.client
        .send(client, b"ping, longer than nothing")
        .unwrap();
    rig.client.transport.flush();
    rig.step_until("the ping", |server, _| !server.received.is_empty());
    assert_eq!(
        rig.server.received,
        [(server, b"ping, longer than nothing".to_vec())]
    );

    rig.server.send(server, b"pong").unwrap();
    rig.server.transport.flush();
    rig.step_until("the pong", |_, client| !client.received.is_empty());
    assert_eq!(rig.client.received, [(client, b"pong".to_vec())]);
}

#[test]
fn each_core_is_given_the_others_session() {
    let mut rig = Rig::new(&intents(4), &Sizing::default());
    let connected = rig.client.connect(&rig.address());
    assert_eq!(connected.session, b"welcome");
    assert_eq!(connected.remote, rig.listener.local_addr());
    rig.step_until("the client is accepted", |server, _| {
        !server.accepted.is_empty()
    });
    assert_eq!(rig.server.accepted[0].1.client_session, b"hello");
}

/// Lengths from 1 byte to a whole slot, inline and not, in windows of 32: all frames arrive in
/// order, and afterwards every slot is free again.
#[test]
fn a_thousand_frames_of_mixed_lengths_arrive_in_order() {
    let mut rig = Rig::new(&intents(4), &Sizing::default());
    let (client, server) = rig.connect(1)[0];
    let slot_len = rig.client.transport.limits().slot_len;
    let len_of = |number: usize| match number % 5 {
        0 => 1 + number % 64,
        1 => 200 + number % 100,
        2 => slot_len - number % 64,
        3 => 1 + (number * 37) % slot_len,
        _ => slot_len,
    };
    for window in 0..32 {
        for number in window * 32..(window + 1) * 32 {
            // Slots come back with completions, for which a transport looks now and then.
            rig.step_until("a free slot", |_, client| {
                client.transport.slots_by_state().sends_free > 0
            });
            rig.client
                .send(client, &frame(number, len_of(number)))
                .unwrap();
        }
        rig.client.transport.flush();
        let until = (window + 1) * 32;
        rig.step_until("a window of frames", |server, _| {
            server.received.len() >= until
        });
    }
    assert_eq!(rig.server.received.len(), 1024);
    for (number, (connection, received)) in rig.server.received.iter().enumerate() {
        assert_eq!(*connection, server);
        assert!(
            *received == frame(number, len_of(number)),
            "frame {number} arrived otherwise than it was sent"
        );
    }
    rig.step_until("every slot is back", |_, client| {
        client.transport.slots_by_state().sends_in_flight == 0
    });
    rig.client.assert_quiet_pool();
    rig.server.assert_quiet_pool();
    assert_eq!(rig.server.transport.counters().rnr, 0);
    assert_eq!(rig.server.transport.counters().receives, 1024);
}

/// The sizing has slots for all calls of both connections.
#[test]
fn each_of_two_connections_takes_as_many_slots_as_it_may_have_calls() {
    const CALLS: usize = 128;
    let intents = Intents {
        max_in_flight: CALLS as u32,
        ..intents(2)
    };
    let mut rig = Rig::new(&intents, &Sizing::default());
    let connections = rig.connect(2);
    // Slots come back in turns only, of which none is taken here.
    for (client, _) in connections {
        for number in 0..CALLS {
            let sent = rig.client.send(client, &frame(number, 3000));
            sent.unwrap_or_else(|error| panic!("frame {number}: {error}"));
        }
    }
    rig.client.transport.flush();
    rig.step_until("all frames", |server, _| server.received.len() == 2 * CALLS);
    rig.client.assert_quiet_pool();
    rig.server.assert_quiet_pool();
}

/// A connection whose peer acknowledges nothing for the moment leaves most slots to another one.
#[test]
fn a_connection_takes_a_share_of_the_slots_only() {
    let mut rig = Rig::new(&intents(32), &Sizing::default());
    let connections = rig.connect(2);
    let [(greedy, _), (other, _)] = connections[..] else {
        panic!("two connections");
    };
    let all = rig.client.transport.slots_by_state().sends_free;
    // Slots come back in turns only, of which none is taken here.
    let mut taken = 0;
    while rig.client.send(greedy, &frame(taken, 3000)).is_ok() {
        taken += 1;
    }
    let free = rig.client.transport.slots_by_state().sends_free;
    assert!(taken >= 8 && free * 5 >= all * 4 - 4, "{free} of {all}");
    for number in 0..8 {
        rig.client.send(other, &frame(number, 3000)).unwrap();
    }
    rig.client.transport.flush();
    rig.step_until("all frames", |server, _| server.received.len() == taken + 8);
    rig.step_until("every slot is back", |_, client| {
        client.transport.slots_by_state().sends_in_flight == 0
    });
    rig.client.assert_quiet_pool();
    rig.server.assert_quiet_pool();
}

#[test]
fn short_frames_need_few_signals_and_few_doorbells() {
    let mut rig = Rig::new(&intents(4), &Sizing::default());
    let (client, _) = rig.connect(1)[0];
    for window in 1..=64 {
        for number in 0..16 {
            rig.client.send(client, &frame(number, 64)).unwrap();
        }
        rig.client.transport.flush();
        rig.step_until("a window", |server, _| server.received.len() == window * 16);
    }
    let counters = rig.client.transport.counters();
    assert_eq!(counters.sends, 1024);
    assert_eq!(counters.signaled, 1024 / 32, "one in an interval of 32");
    assert_eq!(counters.doorbells, 128, "chains of 8");
}

/// The core keeps tables by connection index. While it handles the event that a connection is
/// closed, a handler may connect: the new connection must not have the index of the old one.
#[test]
fn an_index_is_reused_after_the_driver_has_handled_the_end_of_its_connection() {
    let mut rig = Rig::new(&intents(8), &Sizing::default());
    let closed = rig.connect(2).into_iter().map(|(client, _)| client);
    let closed: Vec<_> = closed.collect();
    for &connection in &closed {
        rig.client.transport.close(connection);
    }
    let address = rig.address();
    let mut seen = Vec::new();
    while seen.len() < closed.len() {
        rig.server.turn();
        match rig.client.transport.poll() {
            Some(Event::Closed { connection, .. }) => {
                assert!(closed.contains(&connection));
                seen.push(connection);
                let meanwhile = rig.client.connect(&address).connection;
                let free: Vec<_> = seen[..seen.len() - 1].iter().map(|it| it.index).collect();
                let is_taken =
                    |old: &ConnectionId| old.index == meanwhile.index && !free.contains(&old.index);
                assert!(
                    !closed.iter().any(is_taken),
                    "{meanwhile} is one of {closed:?}"
                );
            }
            Some(other) => panic!("{other:?}"),
            None => thread::yield_now(),
        }
    }
    assert!(rig.client.transport.poll().is_none());
    let later = rig.client.connect(&address).connection;
    let last = seen.last().unwrap();
    assert_eq!(later.index, last.index);
    assert_ne!(later.generation, last.generation);
}

/// 64 connections share 128 slots. Each connection sends fewer frames than a signal interval, none
/// of them inline, and then nothing more: only the signal at the end of its chain can free its
/// slots.
#[test]
fn after_silence_every_slot_of_a_small_pool_is_back() {
    let sizing = Sizing {
        receives_posted: Some(64),
        receives_reserved: Some(8),
        receives_held: Some(24),
        send_slots: Some(32),
        signal_interval: Some(16),
        ..Sizing::default()
    };
    let mut rig = Rig::new(&intents(64), &sizing);
    assert_eq!(rig.client.transport.limits().slots(), 128);
    let pairs = rig.connect(64);
    let mut sent = 0;
    for round in 0..5 {
        for (index, &(client, _)) in pairs.iter().enumerate() {
            let frame = frame(index, 1000 + round);
            while let Err(error) = rig.client.send(client, &frame) {
                assert_eq!(error, ReserveError::NoSlot);
                rig.client.transport.flush();
                rig.client.turn();
                rig.server.turn();
            }
            sent += 1;
        }
        rig.client.transport.flush();
        rig.step_until("the frames of a round", |server, _| {
            server.received.len() == sent
        });
    }
    rig.step_until("every slot is back", |_, client| {
        client.transport.slots_by_state().sends_in_flight == 0
    });
    rig.client.assert_quiet_pool();
    rig.server.assert_quiet_pool();
    assert_eq!(rig.server.transport.counters().rnr, 0);
}

/// A full send queue rejects frames, and accepts them again once completions have been polled.
#[test]
fn a_full_send_queue_refuses_and_recovers() {
    let sizing = Sizing {
        send_queue_depth: Some(16),
        signal_interval: Some(8),
        ..Sizing::default()
    };
    let mut rig = Rig::new(&intents(4), &sizing);
    let (client, _) = rig.connect(1)[0];
    for number in 0..16 {
        rig.client.send(client, &frame(number, 64)).unwrap();
    }
    assert_eq!(
        rig.client.send(client, b"one too many"),
        Err(ReserveError::NoSlot)
    );
    rig.client.transport.flush();
    rig.step_until("places come back", |_, client_side| {
        match client_side.transport.reserve(client, 64) {
            Ok(buf) => {
                client_side.transport.cancel(buf);
                true
            }
            Err(error) => {
                assert_eq!(error, ReserveError::NoSlot);
                false
            }
        }
    });
    rig.client.send(client, b"room again").unwrap();
    rig.client.transport.flush();
    rig.step_until("all of them", |server, _| server.received.len() == 17);
    rig.client.assert_quiet_pool();
}

#[test]
fn when_no_send_slot_is_free_one_that_is_cancelled_helps() {
    let sizing = Sizing {
        send_slots: Some(2),
        ..Sizing::default()
    };
    let mut rig = Rig::new(&intents(4), &sizing);
    let (client, _) = rig.connect(1)[0];
    let transport = &mut rig.client.transport;
    let first = transport.reserve(client, 10).unwrap();
    let second = transport.reserve(client, 10).unwrap();
    assert_eq!(
        transport.reserve(client, 10).unwrap_err(),
        ReserveError::NoSlot
    );
    transport.cancel(first);
    let third = transport.reserve(client, 10).unwrap();
    transport.cancel(second);
    transport.cancel(third);
    rig.client.assert_quiet_pool();
}

#[test]
fn a_frame_is_limited_by_the_smaller_slot_of_both_sides() {
    let small = Intents {
        max_message_len: 512,
        ..intents(4)
    };
    let device = device();
    let mut server = Side::open(&device, &small);
    let ports = vec![device.port(&server.transport)];
    let listener = device
        .listen(
            TcpListener::bind("127.0.0.1:0").unwrap(),
            ports,
            AdmitAll::with_pollers(1),
        )
        .unwrap();
    let mut client = Side::open(&device, &intents(4));
    let id = client
        .connect(&listener.local_addr().to_string())
        .connection;
    let limit = server.transport.limits().slot_len;
    assert!(limit < client.transport.limits().slot_len);
    assert_eq!(
        client.transport.reserve(id, limit + 1).unwrap_err(),
        ReserveError::TooLong {
            len: limit + 1,
            limit
        }
    );
    client.send(id, &frame(3, limit)).unwrap();
    client.transport.flush();
    step_until(
        &mut [&mut server, &mut client],
        "the longest frame",
        |sides| !sides[0].received.is_empty(),
    );
    assert_eq!(server.received[0].1, frame(3, limit));
}

/// This side closes while sends are in flight, inline and not: they arrive, all slots are freed,
/// both sides are notified, and the other connections stay open.
#[test]
fn closing_with_sends_in_flight_gives_every_slot_back() {
    let mut rig = Rig::new(&intents(4), &Sizing::default());
    let pairs = rig.connect(2);
    let (client, server) = pairs[0];
    for number in 0..20 {
        rig.client
            .send(
                client,
                &frame(number, if number % 2 == 0 { 64 } else { 2000 }),
            )
            .unwrap();
    }
    rig.client.transport.close(client);
    assert_eq!(
        rig.client.transport.reserve(client, 1).unwrap_err(),
        ReserveError::Closed
    );
    rig.step_until("both sides are told", |server, client| {
        !server.closed.is_empty() && !client.closed.is_empty()
    });
    assert!(matches!(
        rig.client.closed[..],
        [(id, CloseReason::Local)] if id == client
    ));
    assert!(matches!(
        rig.server.closed[..],
        [(id, CloseReason::PeerGone)] if id == server
    ));
    assert_eq!(rig.server.received.len(), 20, "sent before the close");
    rig.client.assert_quiet_pool();
    rig.server.assert_quiet_pool();

    // The id refers to no connection any more, and the other connections have lost nothing.
    assert_eq!(
        rig.client.transport.reserve(client, 1).unwrap_err(),
        ReserveError::Closed
    );
    rig.client.transport.close(client);
    let (client, _) = pairs[1];
    rig.client.send(client, b"still here").unwrap();
    rig.client.transport.flush();
    rig.step_until("the other connection", |server, _| {
        server.received.len() == 21
    });
}

/// A server answers and closes while the client's thread does not run. No completion covers the short
/// answer. The client learns of the end before it has looked at this connection: it has used another
/// one lately, and looks at the others less often.
#[test]
fn a_short_frame_arrives_though_its_sender_closes_at_once() {
    let mut rig = Rig::new(&intents(64), &Sizing::default());
    let (_, busy) = rig.connect(1)[0];
    for round in 0..50 {
        let (client, server) = rig.connect(1)[0];
        for number in 0..400 {
            let before = rig.client.received.len();
            rig.server.send(busy, &frame(number, 64)).unwrap();
            rig.server.transport.flush();
            rig.step_until("a frame", |_, client| client.received.len() > before);
        }
        rig.client.received.clear();
        rig.server.send(server, &frame(round, 64)).unwrap();
        rig.server.transport.flush();
        rig.server.transport.close(server);
        for _ in 0..round {
            rig.server.turn();
            thread::sleep(Duration::from_micros(10));
        }
        rig.step_until("the end on both sides", |server, client| {
            server.closed.len() > round && client.closed.len() > round
        });
        let answer = (client, frame(round, 64));
        assert_eq!(rig.client.received, [answer], "round {round}");
        rig.server.accepted.clear();
    }
    rig.client.assert_quiet_pool();
    rig.server.assert_quiet_pool();
}

/// A buffer that was reserved before its connection closed is not lost afterwards.
#[test]
fn a_buffer_outlives_its_connection_without_loss() {
    let mut rig = Rig::new(&intents(4), &Sizing::default());
    let (client, _) = rig.connect(1)[0];
    let kept = rig.client.transport.reserve(client, 100).unwrap();
    let dropped_on_send = rig.client.transport.reserve(client, 100).unwrap();
    rig.client.transport.close(client);
    rig.client
        .transport
        .send(client, dropped_on_send)
        .unwrap_err();
    rig.step_until("the end", |_, client| !client.closed.is_empty());
    rig.client.transport.cancel(kept);
    rig.client.assert_quiet_pool();
}

/// Connections are opened and closed, and indexes are reused under new ids.
#[test]
fn a_hundred_connections_one_after_another_lose_nothing() {
    let mut rig = Rig::new(&intents(2), &Sizing::default());
    let mut seen = std::collections::HashSet::new();
    for round in 0..100 {
        let (client, server) = rig.connect(1)[0];
        assert!(seen.insert(client), "{client} was given out twice");
        rig.server.send(server, &frame(round, 300)).unwrap();
        rig.server.transport.flush();
        rig.step_until("its frame", |_, client| client.received.len() > round);
        if round % 2 == 0 {
            rig.client.transport.close(client);
        } else {
            rig.server.transport.close(server);
        }
        rig.step_until("its end on both sides", |server, client| {
            server.closed.len() > round && client.closed.len() > round
        });
        rig.server.accepted.clear();
    }
    rig.client.assert_quiet_pool();
    rig.server.assert_quiet_pool();
}

#[test]
fn more_connections_than_a_poller_was_sized_for_are_refused_on_each_side() {
    let mut rig = Rig::new(&intents(2), &Sizing::default());
    rig.connect(2);
    let address = rig.address();
    let error = rig
        .client
        .transport
        .connect(&address, b"hello", PATIENCE)
        .unwrap_err();
    assert!(error.to_string().contains("2 connections"), "{error}");

    let mut another = Side::open(&device(), &intents(2));
    let error = another
        .transport
        .connect(&address, b"hello", PATIENCE)
        .unwrap_err();
    assert!(
        matches!(&error, ConnectError::Refused { reason, .. } if reason.contains("2 connections")),
        "{error}"
    );
}

#[test]
fn a_server_with_two_pollers_has_clients_on_both() {
    let device = device();
    let mut first = Side::open(&device, &intents(4));
    let mut second = Side::open(&device, &intents(4));
    let ports = vec![
        device.port(&first.transport),
        device.port(&second.transport),
    ];
    let listener = device
        .listen(
            TcpListener::bind("127.0.0.1:0").unwrap(),
            ports,
            AdmitAll::with_pollers(2),
        )
        .unwrap();
    let address = listener.local_addr().to_string();
    let mut client = Side::open(&device, &intents(4));
    for number in 0..4 {
        let id = client.connect(&address).connection;
        client.send(id, &frame(number, 500)).unwrap();
    }
    client.transport.flush();
    step_until(
        &mut [&mut first, &mut second, &mut client],
        "two frames for each poller",
        |sides| sides[0].received.len() == 2 && sides[1].received.len() == 2,
    );
}

/// Dropping a transport closes its connections for their peers, like any other end.
#[test]
fn peers_of_a_dropped_transport_are_told() {
    let mut rig = Rig::new(&intents(4), &Sizing::default());
    rig.connect(3);
    let Rig {
        mut server, client, ..
    } = rig;
    drop(client);
    step_until(&mut [&mut server], "three ends", |sides| {
        sides[0].closed.len() == 3
    });
    for (_, reason) in &server.closed {
        assert!(matches!(reason, CloseReason::PeerGone), "{reason}");
    }
    server.assert_quiet_pool();
}
