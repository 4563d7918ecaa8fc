//! Helpers shared by the transport's tests: a side that the test steps, an admission that counts,
//! and another process to connect to.

// Each test binary uses a different part of this.
#![allow(dead_code)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rpc_core::Intents;
use rpc_core::transport::{
    Admission, Admitted, CloseReason, Connected, ConnectionId, ConnectionQuota, Event, Fabric,
    FetchKey, Listener, Refusal, ReserveError, Transport,
};
use rpc_transport_verbs::{Device, Sizing, VerbsTransport};

/// Time limit of a wait for an event that has to occur. It bounds failing tests only.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Opens the device under test: the one that `VERBLINE_DEVICE` names, or `soft`.
pub(crate) fn device() -> Device {
    let name = std::env::var("VERBLINE_DEVICE").unwrap_or_else(|_| "soft".to_owned());
    Device::open(&name).unwrap()
}

pub(crate) fn device_with(sizing: Sizing) -> Device {
    device().with_sizing(sizing)
}

/// Admits every client except one that says "no", to the pollers in turn.
#[derive(Debug, Default)]
pub(crate) struct AdmitAll {
    pub(crate) connections: Arc<AtomicUsize>,
    pollers: usize,
    next: AtomicUsize,
}

impl AdmitAll {
    pub(crate) fn with_pollers(pollers: usize) -> Arc<Self> {
        Arc::new(Self {
            pollers,
            ..Self::default()
        })
    }
}

impl Admission for AdmitAll {
    fn admit(&self, session: &[u8]) -> Result<Admitted, Refusal> {
        if session == b"no" {
            return Err(Refusal {
                reason: "clients that say no are not admitted".to_owned(),
            });
        }
        Ok(Admitted::new(
            self.next.fetch_add(1, Ordering::Relaxed) % self.pollers,
            session.to_vec(),
            b"welcome".to_vec(),
            ConnectionQuota::acquire(&self.connections),
        ))
    }
}

/// A transport, with everything that it has reported.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) transport: VerbsTransport,
    pub(crate) accepted: Vec<(ConnectionId, Admitted)>,
    pub(crate) received: Vec<(ConnectionId, Vec<u8>)>,
    pub(crate) closed: Vec<(ConnectionId, CloseReason)>,
    /// The segments that have arrived, with their lengths.
    pub(crate) fetched: Vec<(FetchKey, u32)>,
    pub(crate) cancelled: Vec<FetchKey>,
}

impl Side {
    pub(crate) fn open(device: &Device, intents: &Intents) -> Self {
        Self::new(Fabric::open(device, intents).expect("the transport opens"))
    }

    pub(crate) fn new(transport: VerbsTransport) -> Self {
        Self {
            transport,
            accepted: Vec::new(),
            received: Vec::new(),
            closed: Vec::new(),
            fetched: Vec::new(),
            cancelled: Vec::new(),
        }
    }

    /// Polls once and records the events. Copies the received frames and releases their slots.
    pub(crate) fn turn(&mut self) -> usize {
        let mut count = 0;
        while self.take_event() {
            count += 1;
        }
        count
    }

    /// Handles one event. Returns false if there is none.
    pub(crate) fn take_event(&mut self) -> bool {
        let Some(event) = self.transport.poll() else {
            return false;
        };
        match event {
            Event::Accepted {
                connection,
                admitted,
            } => self.accepted.push((connection, *admitted)),
            Event::Received { connection, buf } => {
                self.received.push((connection, buf.as_ref().to_vec()));
                self.transport.release(buf);
            }
            Event::Fetched { fetch, len, .. } => self.fetched.push((fetch, len)),
            Event::FetchCancelled { fetch, .. } => self.cancelled.push(fetch),
            // A server without a core has no connection to spare.
            Event::RoomWanted(wanted) => drop(wanted),
            Event::Closed { connection, reason } => self.closed.push((connection, reason)),
        }
        true
    }

    pub(crate) fn connect(&mut self, address: &str) -> Connected {
        self.transport
            .connect(address, b"hello", PATIENCE)
            .expect("the server lets it in")
    }

    /// Sends one frame, without flushing.
    pub(crate) fn send(
        &mut self,
        connection: ConnectionId,
        frame: &[u8],
    ) -> Result<(), ReserveError> {
        let mut buf = self.transport.reserve(connection, frame.len())?;
        assert_eq!(buf.as_mut().len(), frame.len());
        buf.as_mut().copy_from_slice(frame);
        self.transport
            .send(connection, buf)
            .expect("the connection was open a moment ago");
        Ok(())
    }

    /// Checks that every slot that is neither posted nor in the reserve is free, on each device,
    /// once the sent frames have been acknowledged.
    pub(crate) fn assert_quiet_pool(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.transport.slots_by_state().sends_in_flight > 0 && Instant::now() < deadline {
            self.turn();
        }
        let slots = self.transport.slots_by_state();
        let limits = self.transport.limits();
        let devices = 1 + limits.others.len() as u32;
        assert_eq!(slots.total(), limits.slots() * devices, "{slots}");
        assert_eq!(slots.receives_held, 0, "{slots}");
        assert_eq!(slots.sends_reserved, 0, "{slots}");
        assert_eq!(slots.sends_in_flight, 0, "{slots}");
        assert_eq!(slots.sends_free, limits.send_slots * devices, "{slots}");
    }
}

/// Steps `sides` until `done` returns true. Panics with `what` if that takes too long.
pub(crate) fn step_until(
    sides: &mut [&mut Side],
    what: &str,
    mut done: impl FnMut(&mut [&mut Side]) -> bool,
) {
    let deadline = Instant::now() + PATIENCE;
    while !done(sides) {
        let mut events = 0;
        for side in sides.iter_mut() {
            events += side.turn();
        }
        if events == 0 {
            // Other threads and processes of the test may need this core.
            std::thread::yield_now();
        }
        if Instant::now() >= deadline {
            for side in sides.iter() {
                eprintln_state(side);
            }
            panic!("waited {PATIENCE:?} for: {what}");
        }
    }
}

fn eprintln_state(side: &Side) {
    let state = format!(
        "{}\n{:?}\naccepted {}, received {}, closed {:?}\n",
        side.transport.slots_by_state(),
        side.transport.counters(),
        side.accepted.len(),
        side.received.len(),
        side.closed
    );
    std::io::stderr()
        .write_all(state.as_bytes())
        .expect("standard error can be written");
}

/// A server and a client in this process, stepped by the test.
pub(crate) struct Rig {
    pub(crate) server: Side,
    pub(crate) client: Side,
    pub(crate) admission: Arc<AdmitAll>,
    pub(crate) listener: Box<dyn Listener>,
}

impl Rig {
    pub(crate) fn new(intents: &Intents, sizing: &Sizing) -> Self {
        Self::with(
            &device_with(sizing.clone()),
            &device_with(sizing.clone()),
            intents,
        )
    }

    pub(crate) fn with(server: &Device, client: &Device, intents: &Intents) -> Self {
        let admission = AdmitAll::with_pollers(1);
        let side = Side::open(server, intents);
        let ports = vec![server.port(&side.transport)];
        let listener = server
            .listen(
                TcpListener::bind("127.0.0.1:0").unwrap(),
                ports,
                admission.clone(),
            )
            .expect("it listens");
        Self {
            server: side,
            client: Side::open(client, intents),
            admission,
            listener,
        }
    }

    pub(crate) fn address(&self) -> String {
        self.listener.local_addr().to_string()
    }

    /// Connects `count` times. Returns pairs of the client's and the server's ids.
    pub(crate) fn connect(&mut self, count: usize) -> Vec<(ConnectionId, ConnectionId)> {
        let address = self.address();
        let mut pairs = Vec::with_capacity(count);
        for _ in 0..count {
            let before = self.server.accepted.len();
            let id = self.client.connect(&address).connection;
            step_until(
                &mut [&mut self.server],
                "the connection is accepted",
                |sides| sides[0].accepted.len() > before,
            );
            pairs.push((id, self.server.accepted[before].0));
        }
        pairs
    }

    pub(crate) fn step_until(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Side, &mut Side) -> bool,
    ) {
        step_until(&mut [&mut self.server, &mut self.client], what, |sides| {
            let [server, client] = sides else {
                unreachable!("two sides were given");
            };
            done(server, client)
        });
    }
}

/// Returns a frame in which every byte depends on the number, so a wrong or torn frame is detected.
pub(crate) fn frame(number: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (number.wrapping_mul(31) + at * 7 + (at >> 8)) as u8)
        .collect()
}

/// Forwards the challenge of a server to its client, which answers it by another way than this
/// socket.
pub(crate) fn forward_challenge(server: &mut TcpStream, client: &mut TcpStream) {
    // Only the software device asks for a proof.
    if std::env::var("VERBLINE_DEVICE").is_ok_and(|device| device != "soft") {
        return;
    }
    // Magic, version, length, range of versions.
    let mut prologue = [0; 14];
    server.read_exact(&mut prologue).unwrap();
    let len = u32::from_be_bytes(prologue[6..10].try_into().unwrap());
    let mut message = vec![0; len as usize];
    server.read_exact(&mut message).unwrap();
    // A message of field 5.
    assert_eq!(message[0], 0x2a, "it is a challenge");
    client
        .write_all(&[&prologue[..], &message].concat())
        .unwrap();
}

/// Another process: this test binary, running one ignored test.
pub(crate) struct ChildProcess {
    pub(crate) child: Child,
    stdout: BufReader<ChildStdout>,
}

impl ChildProcess {
    pub(crate) fn start(test: &str, environment: &HashMap<&str, String>) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a test has a file"))
            .args(["--ignored", "--exact", test, "--nocapture"])
            .envs(environment)
            .stdout(Stdio::piped())
            .stdin(Stdio::piped())
            .spawn()
            .expect("this binary can be run again");
        let stdout = BufReader::new(child.stdout.take().expect("it was piped"));
        Self { child, stdout }
    }

    /// Waits for the next line that contains `word`, and returns the rest of it.
    pub(crate) fn wait_for_line(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let len = self.stdout.read_line(&mut line).expect("it can be read");
            assert!(len > 0, "the other process ended before it said {word}");
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the child is there");
    }

    /// Stops the process and waits until it has stopped: a signal takes effect only some time after
    /// it was sent.
    pub(crate) fn stop(&self) {
        use rustix::process::{Pid, Signal, WaitOptions, waitpid};
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.child);
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED)
            .expect("it is a child of this process")
            .expect("it was waited for");
        assert!(status.stopped(), "{status:?}");
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // It may have ended, or been killed by the test.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a line to the test that started this process.
pub(crate) fn write_line(word: &str, rest: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{word} {rest}").expect("the test listens");
    out.flush().expect("the test listens");
}

/// The body of a process that the test kills: connects to the address in the environment variable
/// `SERVER`, sends 32 frames, inline and not, reports it, and polls until it is killed.
pub(crate) fn connect_and_flood(intents: &Intents) {
    let address = std::env::var("SERVER").unwrap();
    let mut side = Side::open(&device(), intents);
    let id = side.connect(&address).connection;
    for number in 0..32 {
        let len = if number % 2 == 0 { 64 } else { 4000 };
        side.send(id, &frame(number, len)).unwrap();
    }
    side.transport.flush();
    write_line("CONNECTED", "");
    let started = Instant::now();
    while started.elapsed() < 3 * PATIENCE {
        side.turn();
        std::thread::yield_now();
    }
}
