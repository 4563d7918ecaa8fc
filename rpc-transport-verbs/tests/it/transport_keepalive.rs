//! The keepalive detects a stopped peer, does not mistake a busy peer for a stopped one, and closes
//! the connection of a peer that violates the protocol.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rpc_core::transport::{CloseReason, Fabric, PeerClock, Transport};
use rpc_core::{Intents, Keepalive};
use rpc_transport_verbs::Sizing;
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use crate::transport_harness::{
    AdmitAll, ChildProcess, PATIENCE, Rig, Side, connect_and_flood, device, forward_challenge,
    step_until, write_line,
};

const ENQ: u8 = 0x05;
const ACK: u8 = 0x06;
const CLOCK_QUESTION: u8 = 0x11;
const CLOCK_ANSWER: u8 = 0x12;

const KEEPALIVE: Keepalive = Keepalive {
    every: Duration::from_millis(50),
    gone_after: Duration::from_millis(300),
};

/// Much longer than the keepalive waits.
const LONG: Duration = Duration::from_millis(1500);

fn monotonic_us() -> i64 {
    let reading = clock_gettime(ClockId::Monotonic);
    reading.tv_sec * 1_000_000 + reading.tv_nsec / 1000
}

fn intents(keepalive: Option<Keepalive>) -> Intents {
    Intents {
        connections: 8,
        keepalive,
        ..Intents::default()
    }
}

/// The other process: a server that echoes every frame, and sleeps before it echoes "sleep".
#[test]
#[ignore = "run by the other tests, as another process"]
fn other_echoes_and_sleeps() {
    let device = device();
    let mut side = Side::open(&device, &intents(None));
    let ports = vec![device.port(&side.transport)];
    let admission = AdmitAll::with_pollers(1);
    let listener = device
        .listen(TcpListener::bind("127.0.0.1:0").unwrap(), ports, admission)
        .unwrap();
    write_line("ADDRESS", &listener.local_addr().to_string());
    let started = Instant::now();
    // Killed by the test; ends by itself if its parent was killed.
    while started.elapsed() < 3 * PATIENCE {
        side.turn();
        for (connection, frame) in std::mem::take(&mut side.received) {
            if frame == b"sleep" {
                thread::sleep(LONG);
            }
            let _ = side.send(connection, &frame);
        }
        side.transport.flush();
        thread::yield_now();
    }
}

fn start() -> (ChildProcess, String) {
    let mut other = ChildProcess::start(
        "transport_keepalive::other_echoes_and_sleeps",
        &HashMap::new(),
    );
    let address = other.wait_for_line("ADDRESS");
    (other, address)
}

#[test]
fn a_peer_whose_poller_is_blocked_answers_and_stays() {
    let (_other, address) = start();
    let mut side = Side::open(&device(), &intents(Some(KEEPALIVE)));
    let id = side.connect(&address).connection;
    side.send(id, b"sleep").unwrap();
    side.transport.flush();
    step_until(&mut [&mut side], "an echo", |sides| {
        !sides[0].received.is_empty()
    });
    assert!(side.closed.is_empty(), "{:?}", side.closed);
}

#[test]
fn a_stopped_peer_is_found_silent_and_its_slots_come_back() {
    let (other, address) = start();
    let mut side = Side::open(&device(), &intents(Some(KEEPALIVE)));
    let id = side.connect(&address).connection;
    side.send(id, b"are you there").unwrap();
    side.transport.flush();
    step_until(&mut [&mut side], "an echo", |sides| {
        !sides[0].received.is_empty()
    });
    other.stop();
    for _ in 0..32 {
        side.send(id, &[7; 3000]).unwrap();
    }
    side.transport.flush();
    step_until(&mut [&mut side], "the end of the connection", |sides| {
        !sides[0].closed.is_empty()
    });
    let (closed, reason) = &side.closed[0];
    assert_eq!(*closed, id);
    assert!(matches!(reason, CloseReason::Failed(_)), "{reason}");
    assert!(
        reason.to_string().contains("has been silent for"),
        "{reason}"
    );
    side.assert_quiet_pool();
    other.signal(Signal::CONT);
}

/// The reverse: the server asks.
#[test]
fn a_stopped_client_is_found_silent_by_its_server() {
    let mut rig = Rig::new(&intents(Some(KEEPALIVE)), &Sizing::default());
    let environment = HashMap::from([("SERVER", rig.address())]);
    let mut other = ChildProcess::start(
        "transport_keepalive::other_connects_and_floods",
        &environment,
    );
    other.wait_for_line("CONNECTED");
    rig.step_until("its frames", |server, _| server.received.len() >= 32);
    // A client is asked once it has shown that it can answer: give its control thread time to do
    // so.
    let spoken = Instant::now() + Duration::from_secs(1);
    rig.step_until("its first byte", |_, _| Instant::now() >= spoken);
    other.stop();
    rig.step_until("its end", |server, _| !server.closed.is_empty());
    let (_, reason) = &rig.server.closed[0];
    assert!(
        reason.to_string().contains("has been silent for"),
        "{reason}"
    );
    rig.server.assert_quiet_pool();
}

#[test]
#[ignore = "run by the other tests, as another process"]
fn other_connects_and_floods() {
    connect_and_flood(&intents(None));
}

/// Forwards the handshake between a client and the rig's server, and then passes both sockets to
/// `then`: the client's and the server's.
fn between(
    rig: &Rig,
    then: impl FnOnce(TcpStream, TcpStream) + Send + 'static,
) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let upstream = rig.address();
    let thread = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(&upstream).unwrap();
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        let mut bytes = [0; 4096];
        let len = client.read(&mut bytes).unwrap();
        server.write_all(&bytes[..len]).unwrap();
        forward_challenge(&mut server, &mut client);
        let len = server.read(&mut bytes).unwrap();
        client.write_all(&bytes[..len]).unwrap();
        if device().name() == "tcp" {
            forward_calls(&listener, &upstream);
        }
        // Magic, version, length, range of versions, and an empty message of field 3.
        let mut ready = [0; 16];
        client.read_exact(&mut ready).unwrap();
        assert_eq!(ready[14..], [0x1a, 0]);
        // Forward `Ready` together with the client's first ENQ, as a busy server would read them.
        let mut first = [0];
        client.read_exact(&mut first).unwrap();
        assert_eq!(first, [ENQ]);
        server.write_all(&[&ready[..], &first].concat()).unwrap();
        let mut answer = [0];
        server.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [ACK]);
        client.write_all(&answer).unwrap();
        then(client, server);
    });
    (address, thread)
}

/// Accepts the connection that the client dials for its calls, and forwards it until one side
/// closes it.
fn forward_calls(listener: &TcpListener, upstream: &str) {
    let (client, _) = listener.accept().unwrap();
    let server = TcpStream::connect(upstream).unwrap();
    for (from, to) in [(&client, &server), (&server, &client)] {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        to.set_nodelay(true).unwrap();
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
}

/// Reads until the other side closes the connection.
fn read_to_end(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    bytes
}

/// Reads a byte that is not a question about the clock, which a client asks over RDMA devices.
fn read_keepalive(stream: &mut TcpStream) -> io::Result<u8> {
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        if byte != [CLOCK_QUESTION] {
            return Ok(byte[0]);
        }
    }
}

/// Connects through `address` and returns how the connection ends on the client's side.
fn end_of_a_client(rig: &mut Rig, address: &str, thread: JoinHandle<()>) -> String {
    let id = rig.client.connect(address).connection;
    rig.step_until("the end of the client", |_, client| {
        !client.closed.is_empty()
    });
    thread.join().unwrap();
    rig.step_until("the end of the server", |server, _| {
        !server.closed.is_empty()
    });
    rig.client.assert_quiet_pool();
    rig.server.assert_quiet_pool();
    let (closed, reason) = rig.client.closed.remove(0);
    assert_eq!(closed, id);
    assert!(matches!(reason, CloseReason::Failed(_)), "{reason}");
    reason.to_string()
}

fn rig_asking_by_the_client() -> Rig {
    let device = device();
    let mut rig = Rig::new(&intents(None), &Sizing::default());
    rig.client = Side::open(&device, &intents(Some(KEEPALIVE)));
    rig
}

#[test]
fn a_peer_that_answers_no_question_is_asked_once_and_given_up() {
    let mut rig = rig_asking_by_the_client();
    let (address, thread) = between(&rig, |client, _server| {
        let mut bytes = read_to_end(client);
        bytes.retain(|byte| *byte != CLOCK_QUESTION);
        assert_eq!(bytes, [ENQ]);
    });
    let reason = end_of_a_client(&mut rig, &address, thread);
    assert!(reason.contains("has been silent for"), "{reason}");
}

#[test]
fn bytes_that_are_no_keepalive_and_answers_to_no_question_end_the_connection() {
    for bytes in [&b"!"[..], &[ACK, ACK], &[ENQ, 0], &[ENQ; 1000]] {
        let mut rig = Rig::new(&intents(None), &Sizing::default());
        let (address, thread) = between(&rig, |mut client, _server| {
            client.write_all(bytes).unwrap();
            read_to_end(client);
        });
        let reason = end_of_a_client(&mut rig, &address, thread);
        assert!(
            reason.contains("bytes other than keepalives"),
            "{bytes:?}: {reason}"
        );
    }
}

/// A server answers each question about its clock.
#[test]
fn a_server_says_what_its_clock_shows() {
    let mut rig = Rig::new(&intents(None), &Sizing::default());
    let (address, thread) = between(&rig, |_client, mut server| {
        for _ in 0..100 {
            let before = monotonic_us();
            server.write_all(&[CLOCK_QUESTION]).unwrap();
            let mut answer = [0; 9];
            server.read_exact(&mut answer).unwrap();
            let after = monotonic_us();
            let (&first, reading) = answer.split_first().unwrap();
            assert_eq!(first, CLOCK_ANSWER);
            let reading = i64::from_be_bytes(reading.try_into().unwrap());
            assert!((before..=after).contains(&reading));
        }
    });
    rig.client.connect(&address);
    rig.step_until("the end of the server", |server, _| {
        !server.closed.is_empty()
    });
    thread.join().unwrap();
    let (_, reason) = &rig.server.closed[0];
    assert!(matches!(reason, CloseReason::PeerGone), "{reason}");
}

/// A server does not ask, a client on the server's host neither asks nor answers, and a client that
/// asks waits for the answer.
#[test]
fn questions_about_the_clock_that_break_the_rules_end_the_connection() {
    type Meddle = fn(TcpStream, TcpStream);
    let cases: [Meddle; 4] = [
        |mut client, _| {
            client.write_all(&[CLOCK_QUESTION]).unwrap();
            read_to_end(client);
        },
        |mut client, _| {
            // Over RDMA devices, three answers are expected.
            client.write_all(&[CLOCK_ANSWER; 40]).unwrap();
            read_to_end(client);
        },
        |_, mut server| {
            server.write_all(&[CLOCK_ANSWER]).unwrap();
            read_to_end(server);
        },
        |_, mut server| {
            server.write_all(&[CLOCK_QUESTION; 1000]).unwrap();
            read_to_end(server);
        },
    ];
    for (number, meddle) in cases.into_iter().enumerate() {
        let mut rig = Rig::new(&intents(None), &Sizing::default());
        let (address, thread) = between(&rig, meddle);
        rig.client.connect(&address);
        rig.step_until("the end of both", |server, client| {
            !server.closed.is_empty() && !client.closed.is_empty()
        });
        thread.join().unwrap();
        let blamed = [&rig.client, &rig.server][number / 2];
        let (_, reason) = &blamed.closed[0];
        assert!(
            reason.to_string().contains("other than keepalives"),
            "{number}: {reason}"
        );
    }
}

/// Over a device of another host, the client measures the server's clock. Here both are processes of
/// one host, so the true difference is zero.
#[test]
fn the_clock_of_a_peer_on_this_host_is_the_same() {
    let mut rig = Rig::new(&intents(None), &Sizing::default());
    let (id, _) = rig.connect(1)[0];
    let shown = |rig: &Rig| {
        rig.client
            .transport
            .peer_clock(id)
            .expect("it was measured")
    };
    let first = shown(&rig);
    let later = Instant::now() + LONG;
    rig.step_until("a series of questions", |_, _| Instant::now() >= later);
    for clock in [first, shown(&rig)] {
        assert!(
            clock.ahead_us.unsigned_abs() <= u64::from(clock.error_us),
            "{clock:?}"
        );
    }
    if device().name() == "soft" {
        assert_eq!(first, PeerClock::SAME_HOST);
    } else {
        assert!(shown(&rig).error_us < 10_000, "{:?}", shown(&rig));
    }
}

/// Without the intent, a side answers keepalives, sends one ENQ so that it can be asked, and
/// nothing else.
#[test]
fn who_does_not_want_to_know_answers_all_the_same() {
    let mut rig = Rig::new(&intents(None), &Sizing::default());
    let (address, thread) = between(&rig, |client, server| {
        for mut stream in [client, server] {
            for _ in 0..100 {
                stream.write_all(&[ENQ]).unwrap();
                assert_eq!(read_keepalive(&mut stream).unwrap(), ACK);
            }
        }
    });
    rig.client.connect(&address);
    rig.step_until("the end of both", |server, client| {
        !server.closed.is_empty() && !client.closed.is_empty()
    });
    thread.join().unwrap();
    for side in [&rig.client, &rig.server] {
        let (_, reason) = &side.closed[0];
        assert!(matches!(reason, CloseReason::PeerGone), "{reason}");
    }
}
