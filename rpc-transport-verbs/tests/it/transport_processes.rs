//! Two processes: frames between them, and what one process observes when the other is killed or
//! stopped.

use std::collections::HashMap;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use rpc_core::Intents;
use rpc_core::transport::{CloseReason, Fabric, Transport};
use rpc_transport_verbs::{Device, Sizing};
use rustix::process::Signal;

use crate::transport_harness::{
    AdmitAll, ChildProcess, PATIENCE, Rig, Side, connect_and_flood, device, frame, step_until,
    write_line,
};

fn intents() -> Intents {
    Intents {
        max_message_len: 4096,
        max_in_flight: 64,
        connections: 8,
        ..Intents::default()
    }
}

/// The other process: a server that echoes every frame until it is killed.
#[test]
#[ignore = "run by the other tests, as another process"]
fn other_echoes() {
    let device = device();
    let mut side = Side::open(&device, &intents());
    let ports = vec![device.port(&side.transport)];
    let listener = device
        .listen(
            TcpListener::bind("127.0.0.1:0").unwrap(),
            ports,
            AdmitAll::with_pollers(1),
        )
        .unwrap();
    write_line("ADDRESS", &listener.local_addr().to_string());
    let mut back = Vec::new();
    let started = Instant::now();
    // Killed by the test; ends by itself if its parent was killed.
    while started.elapsed() < 3 * PATIENCE {
        if side.turn() == 0 {
            std::thread::yield_now();
        }
        back.append(&mut side.received);
        while let Some((connection, frame)) = back.first() {
            if side.send(*connection, frame).is_err() {
                break;
            }
            back.remove(0);
        }
        side.transport.flush();
    }
}

fn start() -> (ChildProcess, String) {
    let mut other = ChildProcess::start("transport_processes::other_echoes", &HashMap::new());
    let address = other.wait_for_line("ADDRESS");
    (other, address)
}

#[test]
fn frames_go_to_another_process_and_back() {
    let (_other, address) = start();
    let mut side = Side::open(&device(), &intents());
    let id = side.connect(&address).connection;
    let slot_len = side.transport.limits().slot_len;
    for window in 0..32 {
        for number in window * 32..(window + 1) * 32 {
            let len = 1 + (number * 131) % slot_len;
            side.send(id, &frame(number, len)).unwrap();
        }
        side.transport.flush();
        step_until(&mut [&mut side], "a window of echoes", |sides| {
            sides[0].received.len() == (window + 1) * 32
        });
    }
    for (number, (connection, received)) in side.received.iter().enumerate() {
        assert_eq!(*connection, id);
        assert!(*received == frame(number, 1 + (number * 131) % slot_len));
    }
    step_until(&mut [&mut side], "every slot is back", |sides| {
        sides[0].transport.slots_by_state().sends_in_flight == 0
    });
    side.assert_quiet_pool();
}

#[test]
fn a_killed_peer_is_reported_and_its_slots_come_back() {
    let (mut other, address) = start();
    let mut side = Side::open(&device(), &intents());
    let id = side.connect(&address).connection;
    side.send(id, b"are you there").unwrap();
    side.transport.flush();
    step_until(&mut [&mut side], "an echo", |sides| {
        !sides[0].received.is_empty()
    });
    // In the middle of an exchange, with frames that hold slots.
    for number in 0..32 {
        side.send(id, &frame(number, 3000)).unwrap();
    }
    side.transport.flush();
    other.signal(Signal::KILL);
    other.child.wait().unwrap();
    step_until(&mut [&mut side], "the end of the connection", |sides| {
        !sides[0].closed.is_empty()
    });
    let (closed, reason) = &side.closed[0];
    assert_eq!(*closed, id);
    assert!(matches!(reason, CloseReason::PeerGone), "{reason}");
    side.assert_quiet_pool();
}

/// If the peer had received the unsignaled sends before its end, there is nothing to flush: closing
/// does not wait for its time limit of one second.
#[test]
fn sends_that_were_taken_and_ask_for_no_completion_delay_no_end() {
    let fastest = (0..5).map(|_| {
        let mut rig = Rig::new(&intents(), &Sizing::default());
        let (client, _) = rig.connect(1)[0];
        for _ in 0..8 {
            rig.client.send(client, b"inline").unwrap();
        }
        rig.client.transport.flush();
        rig.step_until("its frames", |server, _| server.received.len() == 8);
        let Rig {
            server,
            mut client,
            listener,
            ..
        } = rig;
        drop((server, listener));
        let gone = Instant::now();
        step_until(&mut [&mut client], "its end", |sides| {
            !sides[0].closed.is_empty()
        });
        client.assert_quiet_pool();
        gone.elapsed()
    });
    // The fastest of several runs, because a machine that stalls for a second would look like the
    // time limit.
    assert!(fastest.min() < Some(Duration::from_secs(1)));
}

/// A server keeps serving after its clients end: one client is killed, and another continues.
#[test]
fn a_killed_client_costs_the_server_nothing() {
    let mut rig = Rig::new(&intents(), &Sizing::default());
    let environment = HashMap::from([("SERVER", rig.address())]);
    let mut other = ChildProcess::start(
        "transport_processes::other_connects_and_floods",
        &environment,
    );
    other.wait_for_line("CONNECTED");
    rig.step_until("its frames", |server, _| server.received.len() >= 32);
    let (flooding, _) = rig.server.accepted[0];
    other.signal(Signal::KILL);
    other.child.wait().unwrap();
    rig.step_until("its end", |server, _| !server.closed.is_empty());
    assert_eq!(rig.server.closed[0].0, flooding);
    rig.server.assert_quiet_pool();

    let (client, _) = rig.connect(1)[0];
    let before = rig.server.received.len();
    rig.client.send(client, b"next, please").unwrap();
    rig.client.transport.flush();
    rig.step_until("the next client's frame", |server, _| {
        server.received.len() > before
    });
}

#[test]
#[ignore = "run by the other tests, as another process"]
fn other_connects_and_floods() {
    connect_and_flood(&intents());
}

/// A stopped peer is not dead: nothing is reported, and when it continues, everything that was sent
/// in the meantime has arrived.
#[test]
fn a_peer_that_is_stopped_for_two_seconds_loses_nothing() {
    let (other, address) = start();
    let mut side = Side::open(&device(), &intents());
    let id = side.connect(&address).connection;
    side.send(id, &frame(0, 100)).unwrap();
    side.transport.flush();
    step_until(&mut [&mut side], "an echo", |sides| {
        sides[0].received.len() == 1
    });

    other.stop();
    for number in 1..=32 {
        side.send(id, &frame(number, 60 * number)).unwrap();
    }
    side.transport.flush();
    let stopped = Instant::now();
    while stopped.elapsed() < Duration::from_secs(2) {
        side.turn();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(side.received.len(), 1, "it is stopped");
    assert!(side.closed.is_empty(), "{:?}", side.closed);
    other.signal(Signal::CONT);
    step_until(&mut [&mut side], "everything", |sides| {
        sides[0].received.len() == 33
    });
    for (number, (_, received)) in side.received.iter().enumerate().skip(1) {
        assert!(*received == frame(number, 60 * number));
    }
    side.assert_quiet_pool();
}

/// The environment variable determines the best device. Each case runs in its own process, because
/// a process's environment cannot be changed while its threads run.
#[test]
fn the_environment_names_the_best_device() {
    let mut cases = vec![
        ("soft", "soft"),
        ("soft,?nothing", "soft"),
        ("?nothing,soft", "soft"),
        ("soft,nothing", "there is no device named 'nothing'"),
        (
            "soft,soft",
            "'soft,soft' names the device 'soft' more than once",
        ),
        ("nothing", "there is no device named 'nothing'"),
    ];
    if !cfg!(feature = "rdma") {
        // With kernel verbs, the result depends on the machine.
        cases.push(("", "soft"));
        cases.push((
            "mlx5_0",
            "'mlx5_0' is an RDMA device, and this program was built without",
        ));
    }
    for (name, answer) in cases {
        let environment = HashMap::from([("VERBLINE_DEVICE", name.to_owned())]);
        let mut other = ChildProcess::start(
            "transport_processes::other_opens_the_best_device",
            &environment,
        );
        let line = other.wait_for_line("DEVICE");
        assert!(line.starts_with(answer), "{name}: {line}");
    }
}

#[test]
#[ignore = "run by the other tests, as another process"]
fn other_opens_the_best_device() {
    match Device::best() {
        Ok(device) => write_line("DEVICE", device.name()),
        Err(error) => write_line("DEVICE", &error.to_string()),
    }
}
