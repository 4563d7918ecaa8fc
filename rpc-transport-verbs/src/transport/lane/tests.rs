//! Several lanes in one transport. Two software devices cannot be told apart, so one of them is
//! opened as a device of another kind.

use std::collections::{HashMap, HashSet};
use std::net::TcpListener;
use std::sync::Arc;

use rpc_core::Intents;
use rpc_core::transport::{CloseReason, ConnectError, ConnectionId, Fabric, Listener, Transport};
use verbline_verbs::{AsyncEvent, LinkLayer, VerbsError};

use self::transport_harness::{AdmitAll, ChildProcess, PATIENCE, Side, device, frame, step_until};
use crate::device::opened::Opened;
use crate::device::setup;
use crate::device::sizing::Sizing;
use crate::transport::device_event::DeviceEvent;
use crate::transport::endpoint::{INFINIBAND, ROCE, SOFT};
use crate::transport::failure::LaneFailure;
use crate::transport::lane::Lane;
use crate::transport::notices::Notice;

mod counts;
mod leaks;
mod lists;
mod sleep;
mod stuck_sends;
mod sums;
mod turns;
#[cfg(feature = "test-util")]
mod windows;

#[path = "../../../tests/transport_harness/mod.rs"]
mod transport_harness;

fn intents() -> Intents {
    Intents {
        max_message_len: 4096,
        max_in_flight: 32,
        connections: 8,
        ..Intents::default()
    }
}

/// Opens a transport with a lane for each of these kinds, in this order.
fn side_with(kinds: &[&'static str]) -> Side {
    let mut devices = kinds.iter().map(|&kind| {
        let link_layer = match kind {
            ROCE => LinkLayer::Ethernet,
            INFINIBAND => LinkLayer::InfiniBand,
            _ => LinkLayer::Memory,
        };
        Opened::soft_as(kind, link_layer)
    });
    let first = devices.next().expect("there is a first");
    let transport = setup::open_lanes(first, devices.collect(), &intents(), &Sizing::default())
        .expect("the lanes open");
    Side::new(transport)
}

struct Server {
    side: Side,
    listener: Box<dyn Listener>,
}

impl Server {
    fn with(kinds: &[&'static str]) -> Self {
        let side = side_with(kinds);
        let ports = vec![side.transport.port()];
        let admission = AdmitAll::with_pollers(1);
        let listener = device()
            .listen(TcpListener::bind("127.0.0.1:0").unwrap(), ports, admission)
            .expect("listens");
        Self { side, listener }
    }

    fn address(&self) -> String {
        self.listener.local_addr().to_string()
    }

    /// Connects a client. Returns the client's id of the connection and the server's id.
    fn accept(&mut self, client: &mut Side) -> (ConnectionId, ConnectionId) {
        let before = self.side.accepted.len();
        let id = client.connect(&self.address()).connection;
        step_until(&mut [&mut self.side], "it is accepted", |sides| {
            sides[0].accepted.len() > before
        });
        (id, self.side.accepted[before].0)
    }
}

/// Returns the kind of device that a connection uses.
fn kind_of(side: &mut Side, connection: ConnectionId) -> &'static str {
    let lane = side.transport.lane(connection.index).expect("it has one");
    [SOFT, ROCE, INFINIBAND]
        .into_iter()
        .find(|kind| lane.device() == *kind)
        .expect("a lane is called as its kind")
}

/// Sends frames of various lengths to the other side and back, with many frames in flight.
fn exchange(
    server: &mut Side,
    at_server: ConnectionId,
    client: &mut Side,
    at_client: ConnectionId,
) {
    server.received.clear();
    client.received.clear();
    let slot_len = client.transport.limits().slot_len;
    let frames: Vec<_> = (0..24)
        .map(|number| frame(number, 1 + number * 181 % slot_len))
        .collect();
    for frame in &frames {
        client.send(at_client, frame).expect("there is a place");
    }
    client.transport.flush();
    step_until(&mut [server, client], "frames at the server", |sides| {
        sides[0].received.len() == frames.len()
    });
    for (connection, frame) in std::mem::take(&mut server.received) {
        assert_eq!(connection, at_server);
        server.send(connection, &frame).expect("there is a place");
    }
    server.transport.flush();
    step_until(&mut [server, client], "frames at the client", |sides| {
        sides[1].received.len() == frames.len()
    });
    let expected: Vec<_> = frames.into_iter().map(|frame| (at_client, frame)).collect();
    assert!(client.received == expected, "frames came back changed");
}

fn assert_all_slots_back(sides: &mut [&mut Side]) {
    step_until(sides, "every slot is back", |sides| {
        sides
            .iter()
            .all(|side| side.transport.slots_by_state().sends_in_flight == 0)
    });
    for side in sides {
        side.assert_quiet_pool();
        for lane in side.transport.lanes() {
            let places = lane.slots_by_state();
            assert_eq!(places.total(), lane.plan.limits.slots(), "{places}");
        }
    }
}

#[test]
fn the_first_device_in_the_servers_order_that_both_have_wins() {
    let mut server = Server::with(&[ROCE, SOFT]);
    for (offered, taken) in [
        (&[SOFT][..], SOFT),
        (&[ROCE], ROCE),
        (&[SOFT, ROCE], ROCE),
        (&[ROCE, SOFT], ROCE),
        (&[INFINIBAND, SOFT], SOFT),
        (&[INFINIBAND, SOFT, ROCE], ROCE),
    ] {
        let mut client = side_with(offered);
        let (at_client, at_server) = server.accept(&mut client);
        assert_eq!(kind_of(&mut server.side, at_server), taken, "{offered:?}");
        assert_eq!(kind_of(&mut client, at_client), taken, "{offered:?}");
        exchange(&mut server.side, at_server, &mut client, at_client);
        // Queue pairs that were offered but not chosen are destroyed.
        for lane in client.transport.lanes() {
            let taken = usize::from(lane.device() == taken);
            assert_eq!(lane.queue_pairs.count(), taken as u32);
        }
        assert_all_slots_back(&mut [&mut server.side, &mut client]);
    }
}

#[test]
fn with_none_in_common_each_side_hears_what_the_other_has() {
    let server = Server::with(&[ROCE, INFINIBAND]);
    let mut client = side_with(&[SOFT]);
    let error = client
        .transport
        .connect(&server.address(), b"hello", PATIENCE)
        .unwrap_err();
    let ConnectError::Refused { reason, .. } = error else {
        panic!("{error}");
    };
    assert!(
        reason.contains("the server has roce, infiniband, the client offers soft"),
        "{reason}"
    );
}

#[test]
fn connections_of_all_lanes_live_side_by_side_under_dense_ids() {
    let mut server = Server::with(&[ROCE, SOFT, INFINIBAND]);
    let mut clients: Vec<_> = [ROCE, SOFT, INFINIBAND, SOFT, ROCE]
        .into_iter()
        .map(|kind| {
            let mut client = side_with(&[kind]);
            let ids = server.accept(&mut client);
            (client, ids)
        })
        .collect();
    let indexes: HashSet<_> = clients.iter().map(|(_, (_, id))| id.index).collect();
    assert_eq!(indexes.len(), clients.len(), "two have one index");
    // Three lanes take two bits of the index, and no lane has more than two connections.
    assert!(indexes.iter().all(|&index| index < 8), "{indexes:?}");
    for _ in 0..3 {
        for (client, (at_client, at_server)) in &mut clients {
            exchange(&mut server.side, *at_server, client, *at_client);
        }
    }
    assert_eq!(server.side.transport.counters().receives, 3 * 5 * 24);
    // The id of a lane that does not exist refers to no connection.
    let nobody = ConnectionId {
        index: 3,
        generation: 0,
    };
    assert!(server.side.transport.reserve(nobody, 1).is_err());
    server.side.transport.close(nobody);
    for (client, _) in &mut clients {
        assert_all_slots_back(&mut [&mut server.side, client]);
    }
}

#[test]
fn a_lane_without_connections_rests_until_the_next_comes() {
    let mut server = Server::with(&[ROCE, SOFT]);
    let resting = |server: &Server| -> Vec<_> {
        let lanes = server.side.transport.lanes();
        lanes.map(Lane::is_idle).collect()
    };
    server.side.turn();
    assert_eq!(resting(&server), [true, true]);
    for round in 1..=2 {
        let mut client = side_with(&[SOFT]);
        let (at_client, at_server) = server.accept(&mut client);
        assert_eq!(resting(&server), [true, false]);
        exchange(&mut server.side, at_server, &mut client, at_client);
        drop(client);
        step_until(&mut [&mut server.side], "its end", |sides| {
            sides[0].closed.len() == round
        });
        step_until(&mut [&mut server.side], "rest", |sides| {
            sides[0].transport.lanes().all(Lane::is_idle)
        });
        assert_all_slots_back(&mut [&mut server.side]);
    }
}

#[test]
fn the_death_of_one_client_costs_the_other_lane_nothing() {
    let mut server = Server::with(&[ROCE, SOFT]);
    let mut client = side_with(&[ROCE]);
    let (at_client, at_server) = server.accept(&mut client);
    let environment = HashMap::from([
        ("SERVER", server.address()),
        // Always soft, whatever device the tests run on: this test is about lanes of soft.
        ("VERBLINE_DEVICE", SOFT.to_owned()),
    ]);
    let mut other = ChildProcess::start(
        "transport::lane::tests::other_connects_and_floods",
        &environment,
    );
    other.wait_for_line("CONNECTED");
    step_until(&mut [&mut server.side], "its frames", |sides| {
        sides[0].received.len() >= 32
    });
    let dying = server.side.accepted[1].0;
    assert_eq!(kind_of(&mut server.side, dying), SOFT);
    // Frames in flight to the client hold slots.
    for number in 0..8 {
        server.side.send(dying, &frame(number, 3000)).unwrap();
    }
    server.side.transport.flush();
    other.signal(rustix::process::Signal::KILL);
    other.child.wait().unwrap();
    step_until(&mut [&mut server.side], "its end", |sides| {
        !sides[0].closed.is_empty()
    });
    let (closed, reason) = &server.side.closed[0];
    assert_eq!(*closed, dying);
    assert!(matches!(reason, CloseReason::PeerGone), "{reason}");

    exchange(&mut server.side, at_server, &mut client, at_client);
    assert_eq!(server.side.closed.len(), 1);
    assert_all_slots_back(&mut [&mut server.side, &mut client]);
}

#[test]
#[ignore = "run by another test, as another process"]
fn other_connects_and_floods() {
    transport_harness::connect_and_flood(&intents());
}

#[test]
fn a_lane_that_fails_loses_its_connections_and_new_ones_take_the_next() {
    let mut server = Server::with(&[ROCE, SOFT]);
    let mut lost = side_with(&[ROCE, SOFT]);
    let (_, at_server) = server.accept(&mut lost);
    let mut spared = side_with(&[SOFT]);
    let (spared_id, spared_at_server) = server.accept(&mut spared);
    assert_eq!(kind_of(&mut server.side, at_server), ROCE);

    let lane = server.side.transport.lane(0).unwrap();
    let failure = LaneFailure::Events(VerbsError::Os {
        call: "ibv_get_async_event",
        source: std::io::Error::from_raw_os_error(5),
    });
    lane.notice_sender
        .send(Notice::LaneFailed(Arc::new(failure)))
        .unwrap();
    step_until(
        &mut [&mut server.side, &mut lost],
        "the end on both sides",
        |sides| !sides[0].closed.is_empty() && !sides[1].closed.is_empty(),
    );
    let (closed, reason) = &server.side.closed[0];
    assert_eq!(*closed, at_server);
    assert!(matches!(reason, CloseReason::Failed(_)), "{reason}");
    assert!(
        reason.to_string().contains("ibv_get_async_event"),
        "{reason}"
    );

    exchange(&mut server.side, spared_at_server, &mut spared, spared_id);
    let (again, again_at_server) = server.accept(&mut lost);
    assert_eq!(kind_of(&mut server.side, again_at_server), SOFT);
    exchange(&mut server.side, again_at_server, &mut lost, again);
    assert_eq!(server.side.closed.len(), 1);
    assert_all_slots_back(&mut [&mut server.side, &mut lost, &mut spared]);
}

#[test]
fn a_queue_pair_that_the_device_gives_up_loses_its_connection_and_no_other() {
    let mut server = Server::with(&[SOFT]);
    let (mut lost, mut spared) = (side_with(&[SOFT]), side_with(&[SOFT]));
    let (_, at_server) = server.accept(&mut lost);
    let (spared_id, spared_at_server) = server.accept(&mut spared);
    let lane = server.side.transport.lane(0).unwrap();
    let (_, connection) = lane.connections.at(at_server.index).unwrap();
    let qp_num = connection.queue_pair.qp_num();
    let event = DeviceEvent::new("soft", AsyncEvent::QpFatal { qp_num });
    let notice = Notice::QueuePairFailed(qp_num, event.clone());
    lane.notice_sender.send(notice).unwrap();
    step_until(
        &mut [&mut server.side, &mut lost],
        "the end on both sides",
        |sides| !sides[0].closed.is_empty() && !sides[1].closed.is_empty(),
    );
    let (closed, reason) = &server.side.closed[0];
    assert_eq!(*closed, at_server);
    let text = reason.to_string();
    // The message contains what the event means and the state of the queue pair and the port at
    // that time.
    assert!(text.contains(&event.to_string()), "{text}");
    assert!(text.contains("now in RTS"), "{text}");
    assert!(text.contains("port active"), "{text}");
    exchange(&mut server.side, spared_at_server, &mut spared, spared_id);
    assert_eq!(server.side.closed.len(), 1);
    assert_all_slots_back(&mut [&mut server.side, &mut lost, &mut spared]);
}

#[test]
fn one_limits_holds_for_all_lanes_and_names_them() {
    let side = side_with(&[ROCE, SOFT]);
    let limits = side.transport.limits();
    assert_eq!((&*limits.device, &*limits.others[0].device), (ROCE, SOFT));
    for lane in side.transport.lanes() {
        let lane = &lane.plan.limits;
        assert_eq!(lane.promisable_receives(), limits.promisable_receives());
        assert_eq!(lane.slots(), limits.slots());
        assert!(limits.to_string().contains(&lane.address), "{limits}");
    }
    assert!(
        limits.to_string().contains("also       device soft"),
        "{limits}"
    );
}

/// A connection to a poller with two lanes goes to that poller's own port.
#[test]
fn the_ports_of_two_pollers_are_told_apart() {
    let (mut one, mut two) = (side_with(&[ROCE, SOFT]), side_with(&[ROCE, SOFT]));
    let ports = vec![one.transport.port(), two.transport.port()];
    let admission: Arc<AdmitAll> = AdmitAll::with_pollers(2);
    let listener = device()
        .listen(TcpListener::bind("127.0.0.1:0").unwrap(), ports, admission)
        .unwrap();
    let mut client = side_with(&[SOFT]);
    for _ in 0..4 {
        client.connect(&listener.local_addr().to_string());
    }
    step_until(&mut [&mut one, &mut two], "two each", |sides| {
        sides.iter().all(|side| side.accepted.len() == 2)
    });
}

#[test]
fn lanes_share_the_memory_that_their_poller_may_register() {
    let open = |max_memory| {
        let [first, second] = [ROCE, "soft"].map(|kind| Opened::soft_as(kind, LinkLayer::Memory));
        let intents = Intents {
            max_memory: Some(max_memory),
            ..Intents::default()
        };
        setup::open_lanes(first, vec![second], &intents, &Sizing::default())
    };
    let transport = open(8 << 20).expect("both fit");
    let limits = transport.limits();
    let of_both = 2 * limits.registered_len();
    assert!((6 << 20..=8 << 20).contains(&of_both), "{limits}");
    let Err(refused) = open(3 << 20) else {
        panic!("one would fit, and not both");
    };
    let refused = refused.to_string();
    assert!(
        refused.starts_with("max_memory = 3145728 does not fit"),
        "{refused}"
    );
    assert!(
        refused.ends_with("each of the 2 devices has its share of it"),
        "{refused}"
    );
}
