//! The loop of the control thread, step by step.

use std::cmp::Reverse;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rpc_core::transport::{Admitted, Refusal};
use rustix::event::epoll::EventFlags;
use verbline_verbs::for_transport::strangers::TICK;

use self::other_address::connect_from;
use super::handshakes::Stage;
use super::incoming_client::{IncomingClient, NextAction};
use super::sockets::Source;
use super::*;
use crate::connect::clock_exchange::{ClockExchange, clock_answer};
use crate::connect::control_stream::ControlStream;
use crate::connect::handshake::Offer;
use crate::connect::handshake::client::ClientHandshake;
use crate::connect::keepalive::KeepaliveState;
use crate::connect::liveness::ClockRole;
use crate::transport::notices::{LivenessKey, Notice, NoticeReceiver, notice_queue};
use crate::transport::peer_clock::{ClockEstimate, PeerClockCell, monotonic_us};
use crate::transport::wakeup::Wakeup;

#[path = "../../../tests/other_address/mod.rs"]
mod other_address;
mod room;
mod securing;

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
        security: None,
        takes_plain: true,
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

/// The process had no file left for the client that waits.
#[test]
fn a_listener_that_has_paused_accepts_again() {
    let (_control, mut sockets) = Control::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.write_all(b"no hello").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let Ok(token) = sockets.add(Source::Listener(listener, config())) else {
        panic!("epoll has room");
    };
    let Some(Source::Listener(listener, _)) = sockets.sources.get(&token) else {
        panic!("it was added");
    };
    sockets.handshakes.pause(&sockets.epoll, listener, token);
    // Runs as long as the process, as the control thread does.
    thread::spawn(move || sockets.run());
    let told = client.read(&mut [0; 256]).expect("it is accepted");
    assert!(told > 0, "it is told why it is rejected");
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
    let stream = ControlStream::plain(here);
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
            security: None,
            takes_plain: true,
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
