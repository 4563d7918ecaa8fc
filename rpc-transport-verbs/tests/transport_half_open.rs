//! Handshakes that are never completed: thousands at a time, from the good client's host and from
//! others; clients that send a byte now and then; and a server that gets no processor time itself.

mod other_address;
mod transport_harness;

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use other_address::connect_from;
use rpc_core::Intents;
use rpc_core::transport::{ConnectError, Fabric, Transport};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use transport_harness::{
    AdmitAll, ChildProcess, PATIENCE, Side, device, forward_challenge, frame, step_until,
    write_line,
};

/// The time limit of a stage on the server.
const STAGE: Duration = Duration::from_secs(5);

fn intents() -> Intents {
    Intents {
        connections: 8,
        ..Intents::default()
    }
}

/// The other process: a server that echoes every frame. It has the accounts of its handshakes for
/// itself, so the tests do not disturb each other.
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
    let started = Instant::now();
    // Killed by the test; ends by itself if its parent was killed.
    while started.elapsed() < 6 * PATIENCE {
        if side.turn() == 0 {
            thread::yield_now();
        }
        for (connection, frame) in std::mem::take(&mut side.received) {
            let _ = side.send(connection, &frame);
        }
        side.transport.flush();
    }
}

fn start() -> (ChildProcess, SocketAddr) {
    let mut other = ChildProcess::start("other_echoes", &HashMap::new());
    let address = other.wait_for_line("ADDRESS").parse().unwrap();
    (other, address)
}

/// The beginning of a hello that never ends.
fn half_a_hello() -> Vec<u8> {
    let mut hello = b"VBLN\0\x02\0\0\x10\0\0\x02\0\x02".to_vec();
    hello.extend([0; 0xc00]);
    hello
}

fn read_to_end(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Strangers that hold half-open handshakes, send a byte on each now and then, and open new ones in
/// the place of those that the server has ended.
struct Strangers {
    hosts: &'static [u8],
    server: SocketAddr,
    sockets: Vec<(TcpStream, usize)>,
    hello: Vec<u8>,
}

impl Strangers {
    /// Opens this many handshakes.
    fn arrive(count: usize, hosts: &'static [u8], server: SocketAddr) -> Self {
        let mut strangers = Self {
            hosts,
            server,
            sockets: Vec::new(),
            hello: half_a_hello(),
        };
        for number in 0..count {
            let socket = strangers.open(number);
            strangers.sockets.push((socket, 0));
        }
        strangers
    }

    fn open(&self, number: usize) -> TcpStream {
        let host = self.hosts[number % self.hosts.len()];
        let mut socket = connect_from(host, self.server);
        // The server may have ended it already.
        let _ = socket.write_all(&self.hello[..1]);
        socket.set_nonblocking(true).unwrap();
        socket
    }

    /// Returns the number of handshakes that have not ended, and a sentence that was sent to one for
    /// which there was no room.
    fn survivors(&mut self) -> (usize, Option<String>) {
        let (mut open, mut told) = (0, None);
        for (socket, _) in &mut self.sockets {
            let mut bytes = [0; 1024];
            match socket.read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => open += 1,
                Ok(len) => {
                    let sentence = String::from_utf8_lossy(&bytes[..len]);
                    if sentence.contains("too many handshakes are in flight") {
                        told = Some(sentence.into_owned());
                    }
                }
                Err(_) => {}
            }
        }
        (open, told)
    }

    /// Sends one more byte on each socket, and replaces up to `replaced` sockets that have ended.
    fn trickle(&mut self, mut replaced: usize) {
        for number in 0..self.sockets.len() {
            let (socket, sent) = &mut self.sockets[number];
            *sent += 1;
            let byte = self.hello[*sent % self.hello.len()];
            if socket.write_all(&[byte]).is_err() && replaced > 0 {
                replaced -= 1;
                self.sockets[number] = (self.open(number), 0);
            }
        }
    }
}

/// A good client connects, is served and leaves, time after time, while strangers hold as many
/// half-open handshakes as the server permits and ask for more.
fn a_good_client_is_served_among(count: usize, hosts: &'static [u8], permitted: usize) {
    // One at a time: they would take the processor time of each other's servers.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // This process has the strangers' files.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let (_other, address) = start();
    let mut strangers = Strangers::arrive(count, hosts, address);
    // Those above the limit are told so, the oldest first. The last accept may still be due.
    let deadline = Instant::now() + PATIENCE;
    let mut told = None;
    loop {
        let (open, sentence) = strangers.survivors();
        told = sentence.or(told);
        if open <= permitted {
            break;
        }
        assert!(Instant::now() < deadline, "{open} are open");
        thread::sleep(Duration::from_millis(20));
    }
    let told = told.expect("a sentence was sent");
    assert!(told.contains("the client connected and sent "), "{told}");

    let is_over = Arc::new(AtomicBool::new(false));
    let trickling = thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            while !is_over.load(Ordering::Relaxed) {
                strangers.trickle(50);
                thread::sleep(Duration::from_millis(100));
            }
        }
    });
    let mut good = Side::open(&device(), &intents());
    for number in 0..40 {
        let id = good.connect(&address.to_string()).connection;
        good.send(id, &frame(number, 100)).unwrap();
        good.transport.flush();
        step_until(&mut [&mut good], "an echo", |sides| {
            !sides[0].received.is_empty()
        });
        assert_eq!(good.received.remove(0), (id, frame(number, 100)));
        assert!(good.closed.is_empty(), "{:?}", good.closed);
        good.transport.close(id);
        step_until(&mut [&mut good], "its end", |sides| {
            !sides[0].closed.is_empty()
        });
        good.closed.clear();
        thread::sleep(Duration::from_millis(25));
    }
    is_over.store(true, Ordering::Relaxed);
    trickling.join().unwrap();
    good.assert_quiet_pool();
}

#[test]
fn strangers_of_another_host_cannot_hold_the_door_shut() {
    a_good_client_is_served_among(2000, &[2], 1024);
}

#[test]
fn strangers_of_the_same_host_cannot_hold_the_door_shut() {
    a_good_client_is_served_among(2000, &[1], 1024);
}

#[test]
fn strangers_of_many_hosts_cannot_hold_the_door_shut() {
    a_good_client_is_served_among(2600, &[2, 3, 4, 5], 2048);
}

#[test]
fn a_byte_now_and_then_is_no_progress() {
    let (_other, address) = start();
    let mut stream = connect_from(1, address);
    let started = Instant::now();
    let mut bytes = half_a_hello().into_iter();
    stream.set_nonblocking(true).unwrap();
    let refused = loop {
        // The server may have ended it already.
        let _ = stream.write_all(&[bytes.next().unwrap()]);
        let mut answer = [0; 1024];
        match stream.read(&mut answer) {
            Ok(len) => break String::from_utf8_lossy(&answer[..len]).into_owned(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        assert!(started.elapsed() < PATIENCE, "it is never ended");
        thread::sleep(Duration::from_millis(100));
    };
    assert!(started.elapsed() >= STAGE, "{:?}", started.elapsed());
    assert!(
        refused.contains("waited for its client for 5s"),
        "{refused}"
    );
    assert!(refused.contains(" of 4110 bytes of its hello"), "{refused}");
}

/// Sends a client's hello to a server by way of `send`, which gets the server's socket, and has the
/// client prove its GID. Returns the server's socket and its welcome. The client gets no welcome.
fn welcome_of(
    client: &mut Side,
    server: SocketAddr,
    send: impl FnOnce(&mut TcpStream, &[u8]) + Send,
) -> (TcpStream, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let between = move || {
        let (mut to_client, _) = listener.accept().unwrap();
        let mut hello = vec![0; 4096];
        let len = to_client.read(&mut hello).unwrap();
        let mut stream = connect_from(1, server);
        send(&mut stream, &hello[..len]);
        forward_challenge(&mut stream, &mut to_client);
        let mut welcome = [0; 4096];
        let len = stream.read(&mut welcome).unwrap();
        (
            stream,
            String::from_utf8_lossy(&welcome[..len]).into_owned(),
        )
    };
    thread::scope(|scope| {
        let between = scope.spawn(between);
        let error = client
            .transport
            .connect(&address, b"hello", PATIENCE)
            .unwrap_err();
        assert!(matches!(error, ConnectError::NotVerbline { .. }), "{error}");
        between.join().unwrap()
    })
}

/// The time until `Ready` begins with the welcome.
#[test]
fn a_client_that_was_welcomed_has_the_time_of_a_stage_of_its_own() {
    let (_other, address) = start();
    let mut client = Side::open(&device(), &intents());
    let (mut stream, welcome) = welcome_of(&mut client, address, |stream, hello| {
        // Most of the time of the first stage.
        thread::sleep(STAGE * 3 / 5);
        stream.write_all(hello).unwrap();
    });
    let welcomed = Instant::now();
    assert!(welcome.len() > 14, "the server had let it in");
    let refused = read_to_end(&mut stream);
    assert!(
        welcomed.elapsed() >= STAGE * 9 / 10,
        "{:?}",
        welcomed.elapsed()
    );
    assert!(
        refused.contains("waited for its client for 5s"),
        "{refused}"
    );
    assert!(
        refused.contains("the client was welcomed, but its Ready did not come"),
        "{refused}"
    );
}

/// The server's own absence is not held against its clients.
#[test]
fn a_server_that_was_stopped_refuses_nobody_for_it() {
    let (other, address) = start();
    let mut client = Side::open(&device(), &intents());
    let (_, welcome) = welcome_of(&mut client, address, |stream, hello| {
        stream.write_all(&hello[..20]).unwrap();
        thread::sleep(Duration::from_millis(200));
        other.stop();
        thread::sleep(STAGE * 13 / 10);
        other.signal(Signal::CONT);
        // The server's own deadlines are handled first.
        thread::sleep(Duration::from_millis(500));
        stream.write_all(&hello[20..]).unwrap();
    });
    assert!(
        welcome.contains("welcome") && !welcome.contains("waited"),
        "{welcome}"
    );
}

/// A client whose time is over says how far it had come.
#[test]
fn a_client_that_gives_up_names_the_stage() {
    let (other, address) = start();
    let mut client = Side::open(&device(), &intents());
    other.stop();
    let error = client
        .transport
        .connect(&address.to_string(), b"hello", Duration::from_millis(100))
        .unwrap_err();
    other.signal(Signal::CONT);
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
    let sentence = "within 100ms, the `connect_timeout`: this side's hello was sent, and nothing of the response arrived";
    assert!(error.to_string().contains(sentence), "{error}");
}
