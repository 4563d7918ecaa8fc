//! A transport that sleeps: what wakes it, at any time, and what sleeping costs.

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rpc_core::transport::{CloseReason, Fabric, Transport};
use rpc_core::{Intents, Waiting};
use rpc_transport_verbs::Sizing;
use rustix::process::Signal;

use crate::transport_harness::{
    AdmitAll, ChildProcess, PATIENCE, Rig, Side, device, frame, write_line,
};

fn intents() -> Intents {
    Intents {
        max_message_len: 4096,
        max_in_flight: 64,
        connections: 8,
        waiting: Waiting::Event,
        ..Intents::default()
    }
}

/// Runs like a driver that sleeps whenever there is nothing to do, until `done` returns true. Only
/// a lost wakeup makes a wait last as long as the time limit.
fn sleep_until(side: &mut Side, what: &str, mut done: impl FnMut(&mut Side) -> bool) {
    while !done(side) {
        side.transport.arm();
        if side.turn() == 0 {
            wait(side, what);
        }
    }
}

fn wait(side: &mut Side, what: &str) {
    let start = Instant::now();
    side.transport.wait(Some(PATIENCE));
    assert!(start.elapsed() < PATIENCE, "asleep for ever: {what}");
}

/// Arms and polls until nothing is found: from then on, only new events end a wait. Earlier events
/// have been consumed.
fn make_ready_to_sleep(side: &mut Side) {
    loop {
        side.transport.arm();
        if side.turn() == 0 {
            let start = Instant::now();
            let nap = Duration::from_millis(50);
            side.transport.wait(Some(nap));
            if start.elapsed() >= nap {
                break;
            }
        }
    }
    side.transport.arm();
    assert_eq!(side.turn(), 0);
}

#[test]
fn a_wait_without_anything_ends_in_time_and_not_before() {
    let mut rig = Rig::new(&intents(), &Sizing::default());
    rig.connect(1);
    make_ready_to_sleep(&mut rig.server);
    let start = Instant::now();
    rig.server.transport.wait(Some(Duration::from_millis(40)));
    assert!(start.elapsed() >= Duration::from_millis(40));
}

/// A client and a server that both sleep whenever they have nothing to do.
#[test]
fn frames_wake_sleepers() {
    const FRAMES: usize = 300;
    let mut other = ChildProcess::start("transport_sleep::other_echoes_asleep", &HashMap::new());
    let address = other.wait_for_line("ADDRESS");
    let mut side = Side::open(&device(), &intents());
    let id = side.connect(&address).connection;
    for number in 0..FRAMES {
        // Both short inline frames and long ones.
        let sent = frame(number, 1 + number * 13 % 4000);
        side.send(id, &sent).unwrap();
        side.transport.flush();
        sleep_until(&mut side, "an echo", |side| side.received.len() > number);
        assert!(side.received[number].1 == sent, "frame {number}");
    }
}

/// The other process: a server that echoes every frame, and sleeps when there is none.
#[test]
#[ignore = "run by the other tests, as another process"]
fn other_echoes_asleep() {
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
    loop {
        sleep_until(&mut side, "a frame", |side| !side.received.is_empty());
        for (connection, frame) in std::mem::take(&mut side.received) {
            side.send(connection, &frame).unwrap();
        }
        side.transport.flush();
    }
}

#[test]
fn a_frame_that_comes_between_arming_and_waiting_ends_the_wait() {
    let mut rig = Rig::new(&intents(), &Sizing::default());
    let (client, _) = rig.connect(1)[0];
    for number in 1..=50 {
        make_ready_to_sleep(&mut rig.server);
        rig.client.send(client, &frame(number, 100)).unwrap();
        rig.client.transport.flush();
        wait(&mut rig.server, "a frame");
        rig.step_until("the frame", |server, _| server.received.len() == number);
    }
}

#[test]
fn a_frame_that_came_before_arming_is_found_by_the_poll_before_the_wait() {
    let mut rig = Rig::new(&intents(), &Sizing::default());
    let (client, _) = rig.connect(1)[0];
    make_ready_to_sleep(&mut rig.server);
    rig.client.send(client, b"early").unwrap();
    rig.client.transport.flush();
    rig.client.assert_quiet_pool();
    sleep_until(&mut rig.server, "a frame", |server| {
        !server.received.is_empty()
    });
}

#[test]
fn a_waker_ends_the_current_wait_or_the_next() {
    let mut rig = Rig::new(&intents(), &Sizing::default());
    // With a connection, so that the device is armed too.
    rig.connect(1);
    make_ready_to_sleep(&mut rig.server);
    const ROUNDS: u32 = 2000;
    let waker = rig.server.transport.waker();
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                barrier.wait();
                // Notify sometimes before the wait, sometimes during it.
                for _ in 0..round * 7919 % 5000 {
                    std::hint::spin_loop();
                }
                waker.wake_by_ref();
            }
        });
        for round in 0..ROUNDS {
            barrier.wait();
            for _ in 0..round * 104_729 % 5000 {
                std::hint::spin_loop();
            }
            rig.server.transport.arm();
            rig.server.turn();
            wait(&mut rig.server, "a waker");
        }
    });
    // Each wakeup ended one wait: none is left over for another wait.
    let start = Instant::now();
    rig.server.transport.arm();
    rig.server.turn();
    rig.server.transport.wait(Some(Duration::from_millis(20)));
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[test]
fn a_waker_outlives_its_transport() {
    let side = Side::open(&device(), &intents());
    let waker = side.transport.waker();
    drop(side);
    waker.wake();
}

/// Nothing is armed yet: the notice from the control thread wakes the poller.
#[test]
fn a_new_connection_wakes_a_server_that_has_none() {
    let Rig {
        mut server,
        mut client,
        listener,
        ..
    } = Rig::new(&intents(), &Sizing::default());
    let address = listener.local_addr().to_string();
    for count in 1..=3 {
        make_ready_to_sleep(&mut server);
        thread::scope(|scope| {
            scope.spawn(|| client.connect(&address));
            sleep_until(&mut server, "a connection", |server| {
                server.accepted.len() == count
            });
        });
    }
}

#[test]
fn the_end_of_a_killed_peer_wakes_a_sleeper() {
    let mut other = ChildProcess::start("transport_sleep::other_echoes_asleep", &HashMap::new());
    let address = other.wait_for_line("ADDRESS");
    let mut side = Side::open(&device(), &intents());
    let id = side.connect(&address).connection;
    make_ready_to_sleep(&mut side);
    other.signal(Signal::KILL);
    other.child.wait().unwrap();
    sleep_until(&mut side, "the end", |side| !side.closed.is_empty());
    let (closed, reason) = &side.closed[0];
    assert_eq!(*closed, id);
    assert!(matches!(reason, CloseReason::PeerGone), "{reason}");
}

/// Polls drive the steps of closing, and a sleeping poller continues to make them.
#[test]
fn a_connection_is_closed_while_its_poller_sleeps() {
    let mut rig = Rig::new(&intents(), &Sizing::default());
    let (client, server) = rig.connect(1)[0];
    rig.client.send(client, &frame(1, 3000)).unwrap();
    rig.client.transport.close(client);
    sleep_until(&mut rig.client, "its own end", |side| {
        !side.closed.is_empty()
    });
    sleep_until(&mut rig.server, "the client's end", |side| {
        !side.closed.is_empty()
    });
    assert_eq!(rig.server.closed[0].0, server);
    assert_eq!(rig.server.received.len(), 1);
}

#[test]
fn a_sleeper_gets_its_send_slots_back() {
    let mut rig = Rig::new(&intents(), &Sizing::default());
    let (client, _) = rig.connect(1)[0];
    let mut sent = 0;
    // Far more frames than slots: each time no slot is left, the client sleeps until some are free.
    // The server receives the frames through its device's own progress, and is polled now and then.
    while sent < 500 {
        match rig.client.send(client, &frame(sent, 3000)) {
            Ok(()) => sent += 1,
            Err(_) => {
                rig.client.transport.flush();
                rig.client.transport.arm();
                if rig.client.turn() == 0 {
                    rig.client.transport.wait(Some(Duration::from_millis(50)));
                }
                rig.server.turn();
            }
        }
    }
    rig.client.transport.flush();
    rig.step_until("all frames", |server, _| server.received.len() == 500);
}

#[test]
fn a_transport_for_busy_polling_does_not_sleep() {
    let mut rig = Rig::new(
        &Intents {
            waiting: Waiting::Busy,
            ..intents()
        },
        &Sizing::default(),
    );
    rig.connect(1);
    rig.server.transport.arm();
    rig.server.turn();
    wait(&mut rig.server, "it was not armed");
}

/// A measurement, not a check: `cargo test --release -p rpc-transport-verbs --test it -- --ignored
/// --nocapture what_an_idle_process_costs`, with `SECONDS` if ten are not enough.
#[test]
#[ignore = "measures, and checks nothing"]
fn what_an_idle_process_costs() {
    let used = || {
        let clock = rustix::time::ClockId::ProcessCPUTime;
        Duration::try_from(rustix::time::clock_gettime(clock)).unwrap()
    };
    let seconds = std::env::var("SECONDS").map_or(10, |seconds| seconds.parse().unwrap());
    let mut other = ChildProcess::start("transport_sleep::other_echoes_asleep", &HashMap::new());
    let address = other.wait_for_line("ADDRESS");
    let mut side = Side::open(&device(), &intents());
    let id = side.connect(&address).connection;
    side.send(id, b"hello").unwrap();
    side.transport.flush();
    sleep_until(&mut side, "an echo", |side| !side.received.is_empty());
    let (start, before) = (Instant::now(), used());
    let mut waits = 0;
    while start.elapsed() < Duration::from_secs(seconds) {
        side.transport.arm();
        if side.turn() == 0 {
            side.transport.wait(Some(Duration::from_secs(1)));
            waits += 1;
        }
    }
    let (elapsed, used) = (start.elapsed(), used() - before);
    let share = used.as_secs_f64() / elapsed.as_secs_f64() * 100.0;
    write_line(
        "IDLE",
        &format!("{used:?} of processor in {elapsed:?}: {share:.3} %, {waits} waits"),
    );
}
