//! The keepalive detects a stopped peer, does not mistake a busy peer for a stopped one, and closes
//! the connection of a peer that violates the protocol.

mod transport_harness;

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rpc_core::transport::{CloseReason, Fabric, Transport};
use rpc_core::{Intents, Keepalive};
use rpc_transport_verbs::Sizing;
use rustix::process::Signal;
use transport_harness::{
    AdmitAll, ChildProcess, PATIENCE, Rig, Side, device, step_until, write_line,
};

const ENQ: u8 = 0x05;
const ACK: u8 = 0x06;

const KEEPALIVE: Keepalive = Keepalive {
    every: Duration::from_millis(50),
    gone_after: Duration::from_millis(300),
};

/// Much longer than the keepalive waits.
const LONG: Duration = Duration::from_millis(1500);

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
    let listener = device.listen("127.0.0.1:0", ports, admission).unwrap();
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
    let mut other = ChildProcess::start("other_echoes_and_sleeps", &HashMap::new());
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
    let mut other = ChildProcess::start("other_connects_and_floods", &environment);
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
    transport_harness::connect_and_flood(&intents(None));
}

/// Which messages announce keepalive support. With `ClientOnly`, the server's hello is changed to
/// deny it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Knows {
    Both,
    ClientOnly,
}

/// Forwards the handshake between a client and the rig's server, and then passes both sockets to
/// `then`: the client's and the server's.
fn between(
    rig: &Rig,
    knows: Knows,
    then: impl FnOnce(TcpStream, TcpStream) + Send + 'static,
) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let upstream = rig.address();
    let thread = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(upstream).unwrap();
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        let mut bytes = [0; 4096];
        let len = client.read(&mut bytes).unwrap();
        // The last field of the hello.
        assert_eq!(bytes[len - 2..len], [0x20, 1], "the client knows it");
        server.write_all(&bytes[..len]).unwrap();
        let len = server.read(&mut bytes).unwrap();
        assert_eq!(bytes[len - 2..len], [0x28, 1], "the server knows it");
        if knows == Knows::ClientOnly {
            bytes[len - 1] = 0;
        }
        client.write_all(&bytes[..len]).unwrap();
        // Magic, version, length, range of versions, and an empty message of field 3.
        let mut ready = [0; 16];
        client.read_exact(&mut ready).unwrap();
        assert_eq!(ready[14..], [0x1a, 0]);
        if knows == Knows::ClientOnly {
            server.write_all(&ready).unwrap();
        } else {
            // Forward `Ready` together with the client's first ENQ, as a busy server would read
            // them.
            let mut first = [0];
            client.read_exact(&mut first).unwrap();
            assert_eq!(first, [ENQ]);
            server.write_all(&[&ready[..], &first].concat()).unwrap();
            let mut answer = [0];
            server.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [ACK]);
            client.write_all(&answer).unwrap();
        }
        then(client, server);
    });
    (address, thread)
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
    let (address, thread) = between(&rig, Knows::Both, |client, _server| {
        assert_eq!(read_to_end(client), [ENQ]);
    });
    let reason = end_of_a_client(&mut rig, &address, thread);
    assert!(reason.contains("has been silent for"), "{reason}");
}

#[test]
fn a_peer_that_does_not_know_the_keepalive_is_not_asked_and_may_not_ask() {
    let mut rig = rig_asking_by_the_client();
    let (address, thread) = between(&rig, Knows::ClientOnly, |mut client, _server| {
        client.set_read_timeout(Some(LONG)).unwrap();
        let error = client.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
        client.write_all(&[ENQ]).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(read_to_end(client), []);
    });
    let reason = end_of_a_client(&mut rig, &address, thread);
    assert!(reason.contains("bytes other than keepalives"), "{reason}");
}

#[test]
fn bytes_that_are_no_keepalive_and_answers_to_no_question_end_the_connection() {
    for bytes in [&b"!"[..], &[ACK, ACK], &[ENQ, 0], &[ENQ; 1000]] {
        let mut rig = Rig::new(&intents(None), &Sizing::default());
        let (address, thread) = between(&rig, Knows::Both, |mut client, _server| {
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

/// Without the intent, a side answers keepalives, sends one ENQ so that it can be asked, and
/// nothing else.
#[test]
fn who_does_not_want_to_know_answers_all_the_same() {
    let mut rig = Rig::new(&intents(None), &Sizing::default());
    let (address, thread) = between(&rig, Knows::Both, |client, server| {
        for mut stream in [client, server] {
            for _ in 0..100 {
                stream.write_all(&[ENQ]).unwrap();
                let mut answer = [0];
                stream.read_exact(&mut answer).unwrap();
                assert_eq!(answer, [ACK]);
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
