//! The loop of the control thread, step by step.

use std::cmp::Reverse;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use rpc_core::transport::{Admitted, Refusal};
use rustix::event::epoll::EventFlags;

use self::other_address::connect_from;
use super::handshakes::Stage;
use super::incoming_client::{IncomingClient, NextAction};
use super::run_clock::TICK;
use super::sockets::Source;
use super::*;
use crate::connect::clock_exchange::{ClockExchange, clock_answer};
use crate::connect::handshake::Offer;
use crate::connect::handshake::client::ClientHandshake;
use crate::connect::keepalive::KeepaliveState;
use crate::connect::liveness::ClockRole;
use crate::transport::notices::{LivenessKey, Notice, NoticeReceiver, notice_queue};
use crate::transport::peer_clock::{ClockEstimate, PeerClockCell, monotonic_us};
use crate::transport::wakeup::Wakeup;

#[path = "../../../tests/other_address/mod.rs"]
mod other_address;

/// Time limit of a wait for an event that has to occur. It bounds failing tests only.
const PATIENCE: Duration = Duration::from_secs(20);

struct AdmitNone;

impl Admission for AdmitNone {
    fn admit(&self, _: &[u8]) -> Result<Admitted, Refusal> {
        Err(Refusal {
            reason: "nobody is admitted".to_owned(),
        })
    }
}

fn config() -> Arc<ListenerConfig> {
    Arc::new(ListenerConfig {
        ports: Vec::new(),
        admission: Arc::new(AdmitNone),
    })
}

/// Returns the stages of the clients in their handshakes.
fn stages(sockets: &Sockets) -> Vec<Stage> {
    let sources = sockets.sources.values();
    let stages = sources.filter_map(|source| match source {
        Source::Incoming(client) => Some(client.stage()),
        _ => None,
    });
    stages.collect()
}

#[test]
fn what_a_client_has_sent_is_read_when_it_is_accepted() {
    let (_control, mut sockets) = Control::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let Ok(token) = sockets.add(Source::Listener(listener, config())) else {
        panic!("epoll has room");
    };
    let _silent = TcpStream::connect(address).unwrap();
    sockets.accept(token);
    assert_eq!(stages(&sockets), [Stage::Incoming]);
    let mut other = TcpStream::connect(address).unwrap();
    other.write_all(b"no hello").unwrap();
    sockets.accept(token);
    assert!(stages(&sockets).contains(&Stage::Rejected));
}

/// The poller shuts the socket down as soon as it is told, on its own thread.
#[test]
fn a_welcomed_client_is_told_the_reason_before_its_poller_ends_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for _ in 0..1000 {
        let mut there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        there.set_read_timeout(Some(PATIENCE)).unwrap();
        let (here, _) = listener.accept().unwrap();
        let ended = here.try_clone().unwrap();
        let (notice_sender, notices) = notice_queue(Wakeup::new().unwrap(), Arc::default());
        let told = (LivenessKey::next(), notice_sender);
        let mut client = IncomingClient::welcomed(here, config(), told);
        let poller = thread::spawn(move || {
            while notices.take().is_none() {
                std::hint::spin_loop();
            }
            ended.shutdown(Shutdown::Both).unwrap();
        });
        client.give_up("it took too long");
        poller.join().unwrap();
        let mut bytes = [0; 256];
        // The system may deliver the bytes a little later than they are written.
        let len = there.read(&mut bytes).expect("the connection has ended");
        let told = String::from_utf8_lossy(&bytes[..len]);
        assert!(
            told.contains("it took too long: the client was welcomed"),
            "{told}"
        );
    }
}

/// A server whose connections are all taken.
struct Full;

impl Admission for Full {
    fn admit(&self, _: &[u8]) -> Result<Admitted, Refusal> {
        Err(Refusal {
            reason: "the server is full".to_owned(),
        })
    }

    fn has_room(&self) -> bool {
        false
    }
}

/// Connects from `127.0.0.2` and sends a hello.
fn hello_of_another_host(server: SocketAddr) -> TcpStream {
    let mut stream = connect_from(2, server);
    let offer = Offer {
        endpoints: Vec::new(),
        max_frame_len: 4096,
        session: Vec::new(),
    };
    let hello = ClientHandshake::default().hello(offer).unwrap();
    stream.write_all(&hello).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Adds a server with pollers, all of whose connections are taken by clients from `127.0.0.1` that were
/// welcomed. Returns the listener's token and address, and the sockets of these clients with the notices to their
/// poller.
fn full_server(
    sockets: &mut Sockets,
    clients: usize,
    pollers: usize,
) -> (Token, SocketAddr, (Vec<TcpStream>, NoticeReceiver)) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let full = Arc::new(ListenerConfig {
        ports: (0..pollers).map(|_| Port::new(Vec::new())).collect(),
        admission: Arc::new(Full),
    });
    let Ok(listening) = sockets.add(Source::Listener(listener, Arc::clone(&full))) else {
        panic!("epoll has room");
    };
    let strangers = TcpListener::bind("127.0.0.1:0").unwrap();
    let (notice_sender, notices) = notice_queue(Wakeup::new().unwrap(), Arc::default());
    let mut streams = Vec::new();
    for _ in 0..clients {
        let there = TcpStream::connect(strangers.local_addr().unwrap()).unwrap();
        let (here, from) = strangers.accept().unwrap();
        here.set_nonblocking(true).unwrap();
        let poller = (LivenessKey::next(), notice_sender.clone());
        let mut client = IncomingClient::welcomed(here, Arc::clone(&full), poller);
        client.listener = listening;
        let Ok(token) = sockets.add(Source::Incoming(Box::new(client))) else {
            panic!("epoll has room");
        };
        let now = sockets.clock.running();
        sockets.handshakes.add(token, from.into(), now);
        sockets.apply(token, NextAction::Wait);
        streams.push(there);
    }
    (listening, address, (streams, notices))
}

#[test]
fn a_client_waits_for_the_connection_of_another_host_and_is_refused_if_it_does_not_come() {
    let (_control, mut sockets) = Control::new().unwrap();
    let (listening, address, (_streams, notices)) = full_server(&mut sockets, 2, 0);
    let mut client = hello_of_another_host(address);
    sockets.accept(listening);
    let mut present = stages(&sockets);
    present.sort_by_key(|stage| *stage == Stage::Waiting);
    assert_eq!(present, [Stage::Welcomed, Stage::Waiting]);
    assert!(matches!(notices.take(), Some(Notice::Ended(..))));
    // Each host has one by now.
    let mut second = hello_of_another_host(address);
    sockets.accept(listening);
    let told = read_some(&mut second);
    assert!(told.contains("the server is full"), "{told}");
    let mut now = Instant::now();
    for _ in 0..60 {
        now += TICK;
        sockets.clock.advance(now);
        sockets.admit_waiting();
    }
    assert!(stages(&sockets).contains(&Stage::Waiting));
    sockets.end_expired_handshakes();
    let told = read_some(&mut client);
    assert!(told.contains("the server is full"), "{told}");
}

/// The connection of a handshake that ended for a client is for the next one if that client leaves.
#[test]
fn clients_that_leave_again_and_again_end_one_handshake_of_another_host() {
    let (_control, mut sockets) = Control::new().unwrap();
    let (listening, address, _strangers) = full_server(&mut sockets, 20, 0);
    let welcomed = |sockets: &Sockets| {
        let stages = stages(sockets).into_iter();
        stages.filter(|stage| *stage == Stage::Welcomed).count()
    };
    for _ in 0..10 {
        let (left, client) = wait_as_another_host(&mut sockets, listening, address);
        drop(client);
        read_until(&mut sockets, left, None);
        assert_eq!(welcomed(&sockets), 19);
    }
    // A client that stays is the next one, and another one ends the next handshake.
    let _staying = [(); 2].map(|()| wait_as_another_host(&mut sockets, listening, address));
    assert_eq!(welcomed(&sockets), 18);
}

const NONE: RoomMade = RoomMade {
    ended: 0,
    may_follow: false,
};
const SOON: RoomMade = RoomMade {
    ended: 0,
    may_follow: true,
};
const ONE: RoomMade = RoomMade {
    ended: 1,
    may_follow: false,
};

/// Returns the poller that has been asked for connections. The pollers of these tests have ended, so
/// each answers at once; the tests answer in their place.
fn asked(sockets: &Sockets) -> Option<usize> {
    match sockets.commands.try_recv() {
        Ok(Command::RoomMade(_, port, _)) => Some(port),
        _ => None,
    }
}

/// Waits until a poller is asked, in the next round or when another one has not answered.
fn await_question(sockets: &mut Sockets) -> usize {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(port) = asked(sockets) {
            return port;
        }
        assert!(Instant::now() < deadline, "nobody is asked");
        sockets.admit_waiting();
    }
}

/// Answers in the place of the poller that is asked next.
fn answer(sockets: &mut Sockets, listening: Token, made: RoomMade) {
    let port = await_question(sockets);
    sockets.room_made(listening, port, made);
}

#[test]
fn each_poller_is_asked_in_each_round_and_a_client_is_refused_when_none_has_a_connection() {
    let (_control, mut sockets) = Control::new().unwrap();
    let (listening, address, _) = full_server(&mut sockets, 0, 3);
    let (_, mut client) = wait_as_another_host(&mut sockets, listening, address);
    // One always says that it may have one soon, and the others are asked all the same.
    for round in 0..3 {
        for made in [SOON, NONE, NONE] {
            answer(&mut sockets, listening, made);
        }
        assert_eq!(
            asked(&sockets),
            None,
            "there is a pause after round {round}"
        );
    }
    for _ in 0..2 {
        answer(&mut sockets, listening, NONE);
    }
    // Another client has come meanwhile. The first pollers have not been asked for it.
    let (_, mut other) = wait_as_another_host(&mut sockets, listening, address);
    answer(&mut sockets, listening, NONE);
    let told = read_some(&mut client);
    assert!(told.contains("the server is full"), "{told}");
    assert_eq!(
        stages(&sockets)
            .iter()
            .filter(|it| **it == Stage::Waiting)
            .count(),
        1
    );
    for _ in 0..3 {
        answer(&mut sockets, listening, NONE);
    }
    let told = read_some(&mut other);
    assert!(told.contains("the server is full"), "{told}");
}

/// It is in a long handler, for example.
#[test]
fn the_others_do_not_wait_for_a_poller_that_does_not_answer() {
    let (_control, mut sockets) = Control::new().unwrap();
    let (listening, address, _) = full_server(&mut sockets, 0, 3);
    let (_, _client) = wait_as_another_host(&mut sockets, listening, address);
    let silent = await_question(&mut sockets);
    for round in 0..3 {
        for _ in 0..2 {
            let port = await_question(&mut sockets);
            assert_ne!(port, silent, "it is asked again in round {round}");
            sockets.room_made(listening, port, NONE);
        }
    }
    assert_eq!(stages(&sockets), [Stage::Waiting], "it may have one");
    // The connection that it ends in the end counts.
    sockets.room_made(listening, silent, ONE);
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        sockets.admit_waiting();
        assert_eq!(asked(&sockets), None);
    }
}

#[test]
fn pollers_are_not_asked_again_for_a_connection_that_is_on_its_way() {
    let (_control, mut sockets) = Control::new().unwrap();
    let (listening, address, _) = full_server(&mut sockets, 0, 2);
    let (_, mut client) = wait_as_another_host(&mut sockets, listening, address);
    answer(&mut sockets, listening, ONE);
    let until = Instant::now() + Duration::from_millis(100);
    while Instant::now() < until {
        sockets.admit_waiting();
        assert_eq!(asked(&sockets), None);
    }
    // It never comes. The client is refused at the time limit of its handshake, and the next one does
    // not wait for it.
    let mut now = Instant::now();
    for _ in 0..60 {
        now += TICK;
        sockets.clock.advance(now);
        sockets.admit_waiting();
    }
    sockets.end_expired_handshakes();
    let told = read_some(&mut client);
    assert!(told.contains("the server is full"), "{told}");
    let _next = wait_as_another_host(&mut sockets, listening, address);
    await_question(&mut sockets);
}

/// Connects from `127.0.0.2` to a full server, and reads the hello. Returns the client's token and
/// socket.
fn wait_as_another_host(
    sockets: &mut Sockets,
    listening: Token,
    address: SocketAddr,
) -> (Token, TcpStream) {
    let (before, client) = (sockets.last_token, hello_of_another_host(address));
    // The system may deliver the connection and its bytes a little later.
    let deadline = Instant::now() + PATIENCE;
    while sockets.last_token == before {
        assert!(Instant::now() < deadline, "nobody has connected");
        sockets.accept(listening);
    }
    let token = sockets.last_token;
    read_until(sockets, token, Some(Stage::Waiting));
    (token, client)
}

/// Reads what a client sends until its handshake is in this stage, or has ended.
fn read_until(sockets: &mut Sockets, token: Token, wanted: Option<Stage>) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let stage = match sockets.sources.get(&token) {
            Some(Source::Incoming(client)) => Some(client.stage()),
            _ => None,
        };
        if stage == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{stage:?}, not {wanted:?}");
        sockets.handle_event(token, EventFlags::IN);
    }
}

fn read_some(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 256];
    let len = stream.read(&mut bytes).expect("it was told something");
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

/// Connects to a server whose clock is measured; returns its socket.
fn watch_a_server(sockets: &mut Sockets) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    configure_socket(&here).unwrap();
    let (notice_sender, _) = notice_queue(Wakeup::new().unwrap(), Arc::default());
    let estimate = ClockEstimate::new(0, 0, 1);
    let role = ClockRole::Asks {
        exchange: Box::new(ClockExchange::new(estimate)),
        estimate: Arc::new(PeerClockCell::new(estimate)),
    };
    let keepalive = KeepaliveState::with_server(None, Instant::now());
    let stream = Arc::new(here);
    let key = LivenessKey::next();
    let liveness = LivenessConnection::new(stream, key, notice_sender, keepalive, role);
    sockets.watch(liveness, &[]);
    server
}

/// A keepalive of ages was more than `epoll_wait` takes, and the wait that failed ended the thread, and
/// with it every `connect` and `bind` of the process.
#[test]
fn a_deadline_of_ages_makes_a_wait_that_the_kernel_takes() {
    for ages in [
        Duration::from_millis(1 << 31),
        Duration::from_secs(30 * 24 * 3600),
        Duration::from_millis(u64::MAX),
        Duration::from_secs(i64::MAX as u64 / 2),
    ] {
        let (_control, mut sockets) = Control::new().unwrap();
        let deadline = Instant::now().checked_add(ages).unwrap();
        sockets.deadlines.push(Reverse((deadline, WAKEUP)));
        let wait = sockets.until_deadline().expect("it waits for a while");
        assert!((1..=3600).contains(&wait.tv_sec), "{ages:?}: {wait:?}");
    }
}

/// The thread goes on, and does what it is told, as well as it can.
#[test]
fn waits_that_fail_do_not_end_the_thread() {
    let (control, mut sockets) = Control::new().unwrap();
    // No epoll file, so that every wait fails.
    sockets.epoll = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    // Runs as long as the process, as the control thread does.
    thread::spawn(move || sockets.run());
    // The first ones may be told before it waits.
    for _ in 0..5 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let config = ListenerConfig {
            ports: Vec::new(),
            admission: Arc::new(AdmitNone),
        };
        let error = control.listen(listener, address, config).unwrap_err();
        let errno = error.raw_os_error();
        // The reason is the system's, and not that the thread has ended.
        assert_eq!(
            errno,
            Some(rustix::io::Errno::INVAL.raw_os_error()),
            "{error}"
        );
    }
}

/// The next series would begin four seconds after the last one.
#[test]
fn the_clocks_are_measured_again_when_the_thread_ran_late() {
    let (_control, mut sockets) = Control::new().unwrap();
    let mut server = watch_a_server(&mut sockets);
    let token = sockets.last_token;
    let mut question = [0];
    // Answers until there are no more questions.
    server
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    while server.read_exact(&mut question).is_ok() {
        server.write_all(&clock_answer(monotonic_us())).unwrap();
        sockets.handle_event(token, EventFlags::IN);
    }
    sockets.handle_deadlines();
    assert!(server.read_exact(&mut question).is_err(), "it is too early");
    let late = Instant::now() - Duration::from_secs(2);
    sockets.deadlines.push(Reverse((late, WAKEUP)));
    sockets.handle_deadlines();
    server.read_exact(&mut question).expect("it asks again");
}
