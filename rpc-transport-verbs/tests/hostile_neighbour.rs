//! A hostile process of the same user, as a neighbour of good clients: whatever it does to the
//! memory and to the files that a server shares with it, the calls of the other clients go on
//! without an error, and the server's threads never block.
//!
//! The attacker is a client like the others. It finds what it shares with the server in its own
//! `/proc/self`, as an intruder in a client's process would.

mod transport_harness;

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rpc_core::{
    CallError, Caller, Idempotency, LocalChannel, LocalPoller, MethodKind, MethodSpec, Methods,
    Request, Response, Server, Service, Status, Waiting,
};
use rpc_transport_verbs::Device;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::mm::{MprotectFlags, mprotect};
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketType, send, shutdown, sockopt};
use transport_harness::{ChildProcess, PATIENCE, write_line};

const ECHO: MethodSpec = MethodSpec::new(
    "test.Echo/Echo",
    MethodKind::Unary,
    Idempotency::Unknown,
    "uint64",
    "uint64",
);

struct Echo;

impl Service for Echo {
    fn name(&self) -> &'static str {
        "test.Echo"
    }

    fn register(&self, methods: &mut Methods) {
        methods.unary(&ECHO, |request: Request<u64>| async move {
            Ok::<_, Status>(Response::new(request.into_inner()))
        });
    }
}

/// Makes a call that only a blocked server leaves unanswered.
fn call(poller: &LocalPoller, channel: &LocalChannel, number: u64) -> Result<u64, CallError> {
    let request = Request::new(number).with_timeout(PATIENCE);
    let reply = poller.block_on(channel.unary::<u64, u64>(&ECHO, request));
    reply.map(Response::into_inner)
}

fn variable(name: &str) -> String {
    std::env::var(name).expect("the test sets it")
}

fn connect() -> (LocalPoller, LocalChannel) {
    let poller = LocalPoller::new(&Device::open("soft").unwrap()).unwrap();
    let channel = poller.connect(&variable("SERVER")).unwrap();
    (poller, channel)
}

// ---- the other processes ----

/// A client that calls, with pauses of `PAUSE` milliseconds, until its parent says that it is to
/// end. Panics at the first error.
#[test]
#[ignore = "run by the other tests, as another process"]
fn other_calls() {
    let (poller, channel) = connect();
    let pause = Duration::from_millis(variable("PAUSE").parse().unwrap());
    write_line("CONNECTED", "");
    let (ended, end) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let _ = std::io::stdin().read_line(&mut line);
        let _ = ended.send(());
    });
    let mut calls = 0;
    while end.try_recv().is_err() {
        assert_eq!(
            call(&poller, &channel, calls).expect("a good client's call"),
            calls
        );
        calls += 1;
        thread::sleep(pause);
    }
    write_line("CALLS", &calls.to_string());
}

/// The attacker: connects, calls, and meanwhile attacks in the way that `ATTACK` names.
#[test]
#[ignore = "run by the other tests, as another process"]
fn other_attacks() {
    let (connected, is_connected) = std::sync::mpsc::channel();
    // The calls go on until the attack breaks their connection.
    thread::spawn(move || {
        let (poller, channel) = connect();
        let mut number = 0;
        while call(&poller, &channel, number).is_ok() {
            number += 1;
            if number == 1 {
                let _ = connected.send(());
            }
        }
        // The connection stays open.
        loop {
            thread::park();
        }
    });
    is_connected.recv().expect("the first call");
    let attack = variable("ATTACK");
    let time = Duration::from_millis(variable("TIME").parse().unwrap());
    let start = Instant::now();
    let mut rounds = 0_u64;
    while start.elapsed() < time {
        attack_once(&attack);
        rounds += 1;
    }
    write_line("ATTACKED", &rounds.to_string());
    std::process::exit(0);
}

fn attack_once(attack: &str) {
    match attack {
        // The server answers into a ring that looks cold, of a context that looks asleep and
        // whose sockets nobody empties. None of these files has O_NONBLOCK.
        "deaf" => {
            clear_flags();
            let (rings, notes) = (
                mappings("verbline-ring", "rw"),
                mappings("verbline-note", "rw"),
            );
            assert!(!rings.is_empty() && !notes.is_empty());
            for _ in 0..2000 {
                for ring in &rings {
                    ring.store32(MARK_OFFSET, 1);
                }
                for note in &notes {
                    note.store32(0, 1);
                    note.store32(4, 1);
                }
            }
        }
        "full" => {
            clear_flags();
            for (fd, kind) in unix_sockets() {
                if kind == SocketType::STREAM {
                    fill(fd, &[1; 64]);
                }
            }
            // Written while it blocks, and emptied again before the server's threads look.
            for fd in files("anon_inode:[eventfd]") {
                let file = borrow(fd);
                let _ = rustix::io::write(file, &1_u64.to_ne_bytes());
                let _ = fcntl_setfl(file, OFlags::NONBLOCK);
                let _ = rustix::io::read(file, &mut [0; 8]);
                let _ = fcntl_setfl(file, OFlags::empty());
            }
            thread::sleep(Duration::from_micros(200));
        }
        "shut" => {
            clear_flags();
            for (fd, kind) in unix_sockets() {
                if kind == SocketType::STREAM {
                    let _ = send(borrow(fd), &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                    let _ = shutdown(borrow(fd), Shutdown::Both);
                }
            }
        }
        // Calls of the server's engine, as fast as they go.
        "calls" => {
            for (fd, kind) in unix_sockets() {
                if kind == SocketType::SEQPACKET {
                    for _ in 0..100 {
                        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                        let _ = send(borrow(fd), &WAKE_MESSAGE.to_le_bytes(), flags);
                    }
                }
            }
        }
        "clear" | "storm" => {
            let value = if attack == "clear" { 0 } else { u64::MAX };
            let pages = mappings("verbline-announcements", "rw");
            assert!(!pages.is_empty());
            for _ in 0..200 {
                for page in &pages {
                    page.store_all(value);
                }
            }
        }
        "notes" => {
            let notes = mappings("verbline-note", "r-");
            assert!(!notes.is_empty(), "the server's note is mapped read-only");
            for note in notes {
                note.assert_read_only();
            }
        }
        _ => panic!("there is no attack {attack}"),
    }
}

/// Offset of a ring's mark, and the number of the link message that calls an engine.
const MARK_OFFSET: usize = 132;
const WAKE_MESSAGE: u32 = 8;

fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the number was just read from /proc/self/fd. If the file has been closed since, the
    // calls below fail, or concern another file of this process, which is only there to attack.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Returns the numbers of this process's open files of a kind.
fn files(kind: &str) -> Vec<RawFd> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let target = std::fs::read_link(entry.path()).ok()?;
            let is_kind = target.to_string_lossy().starts_with(kind);
            let number = entry.file_name().to_string_lossy().parse().ok()?;
            is_kind.then_some(number)
        })
        .collect()
}

fn unix_sockets() -> Vec<(RawFd, SocketType)> {
    let of_socket = |fd| {
        let is_unix = sockopt::socket_domain(borrow(fd)) == Ok(AddressFamily::UNIX);
        let kind = sockopt::socket_type(borrow(fd)).ok()?;
        is_unix.then_some((fd, kind))
    };
    files("socket:").into_iter().filter_map(of_socket).collect()
}

/// Makes all sockets and eventfds of this process blocking.
fn clear_flags() {
    for fd in files("socket:")
        .into_iter()
        .chain(files("anon_inode:[eventfd]"))
    {
        let _ = fcntl_setfl(borrow(fd), OFlags::empty());
    }
}

fn fill(fd: RawFd, bytes: &[u8]) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    while send(borrow(fd), bytes, flags).is_ok() {}
}

/// Memory that this process has mapped.
struct Mapped {
    start: usize,
    len: usize,
}

/// Returns the mappings of memfds with this name and with these access rights.
fn mappings(name: &str, access: &str) -> Vec<Mapped> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap();
    text.lines()
        .filter(|line| line.contains(&format!("memfd:{name} ")))
        .filter_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let start = usize::from_str_radix(start, 16).ok()?;
            let len = usize::from_str_radix(end, 16).ok()? - start;
            rest.starts_with(access).then_some(Mapped { start, len })
        })
        .collect()
}

impl Mapped {
    fn store32(&self, offset: usize, value: u32) {
        assert!(offset + 4 <= self.len);
        let word = (self.start + offset) as *const AtomicU32;
        // SAFETY: the word was mapped for writing a moment ago, and the attacker's connection keeps
        // it mapped. The offset is a multiple of four.
        unsafe { &*word }.store(value, Ordering::Relaxed);
    }

    fn store_all(&self, value: u64) {
        for offset in (0..self.len).step_by(8) {
            let word = (self.start + offset) as *const AtomicU64;
            // SAFETY: as in `store32`; the offset is a multiple of eight.
            unsafe { &*word }.store(value, Ordering::Relaxed);
        }
    }

    fn assert_read_only(&self) {
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the range is a mapping of this process, which stays mapped. To add a right to it
        // invalidates no reference; the kernel may refuse.
        let added = unsafe { mprotect(self.start as *mut _, self.len, access) };
        assert!(
            added.is_err(),
            "the server's sleep note can be made writable"
        );
        let path = format!(
            "/proc/self/map_files/{:x}-{:x}",
            self.start,
            self.start + self.len
        );
        // Only a privileged process can open it at all.
        if let Ok(file) = std::fs::File::options().read(true).write(true).open(path) {
            let written = rustix::io::pwrite(&file, &[1; 8], 0);
            assert!(written.is_err(), "the server's sleep note can be written");
        }
    }
}

// ---- the tests ----

/// Attacks a server, twice one after the other, beside two good clients: one whose ring is always
/// in use, and one whose ring is cold and whose context sleeps between its calls.
fn attack(name: &str, waiting: Waiting) {
    let server = Server::builder(&Device::open("soft").unwrap())
        .add_service(Echo)
        .waiting(waiting)
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let environment = |pause: &str| {
        HashMap::from([
            ("SERVER", server.local_addr().to_string()),
            ("ATTACK", name.to_owned()),
            ("TIME", "300".to_owned()),
            ("PAUSE", pause.to_owned()),
        ])
    };
    let mut good = ["0", "10"].map(|pause| {
        let mut client = ChildProcess::start("other_calls", &environment(pause));
        client.wait_for_line("CONNECTED");
        client
    });
    for _ in 0..2 {
        let mut attacker = ChildProcess::start("other_attacks", &environment("0"));
        let rounds: u64 = attacker.wait_for_line("ATTACKED").parse().unwrap();
        assert!(rounds > 0);
        // The engine and the poller are there for a new client.
        let poller = LocalPoller::new(&Device::open("soft").unwrap()).unwrap();
        let channel = poller.connect(&server.local_addr().to_string()).unwrap();
        assert_eq!(call(&poller, &channel, 7).unwrap(), 7, "{name}, {waiting}");
    }
    for client in &mut good {
        drop(client.child.stdin.take());
        let calls: u64 = client.wait_for_line("CALLS").parse().unwrap();
        assert!(calls > 0, "{name}, {waiting}");
        assert!(client.child.wait().unwrap().success(), "{name}, {waiting}");
    }
    server.shutdown().unwrap();
}

/// Attacks servers that wait in each way.
fn attack_each(name: &str) {
    for waiting in [Waiting::Busy, Waiting::Event] {
        attack(name, waiting);
    }
}

#[test]
fn a_peer_that_sleeps_deeply_blocks_no_sender() {
    attack_each("deaf");
}

#[test]
fn full_and_blocking_files_block_nobody() {
    attack_each("full");
}

#[test]
fn sockets_that_are_shut_down_wake_nobody_else_and_do_not_spin() {
    attack_each("shut");
}

#[test]
fn a_storm_of_calls_of_the_engine_ends_with_its_sender() {
    attack_each("calls");
}

#[test]
fn cleared_announcements_silence_nobody_else() {
    attack_each("clear");
}

#[test]
fn a_storm_of_announcements_stops_nobody() {
    attack_each("storm");
}

#[test]
fn the_sleep_note_of_another_process_cannot_be_written() {
    attack_each("notes");
}
