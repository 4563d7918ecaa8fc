//! Injects failures into processes for a configurable time: a server that is killed, stopped and
//! starved, clients that are killed and stopped, connections whose sockets are closed.
//!
//! ```sh
//! make soak                                # ten minutes
//! SOAK_SECONDS=60 SOAK_SEED=17 make soak   # another time, and the same sequence of misfortunes
//! make soak HOSTS=2                        # between two hosts with a bad network: .ci/soak-hosts
//! ```
//!
//! Clients call through shared channels and check every response. Requirements: every call ends,
//! with the right response or an error that fits; clients reconnect to their server whenever they
//! can; and processes that survive all of it have no more open files and no significantly more
//! memory than before.

mod echo_process;

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use echo_process::{CommandEcho, open_device};
use proto::echo::{EchoClient, EchoRequest, EchoServer};
use rpc_core::{Channel, Code, Request, Server, block_on};
use rpc_core_testing::Random;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

/// The address that a process listens on or calls.
const ADDRESS: &str = "VERBLINE_TEST_ADDRESS";

const CLIENTS: usize = 3;

/// Callers per client, each with one call at a time.
const CALLERS: u64 = 4;

/// Timeout of each call. A call that takes longer than `NEVER` counts as hung.
const CALL_TIME: Duration = Duration::from_secs(2);
const NEVER: Duration = Duration::from_secs(60);

/// How long clients may take to reconnect without failures: far more than backoff and handshake
/// need.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
#[ignore = "the soak runs it, as the server's process"]
fn server_process() {
    let address = std::env::var(ADDRESS).unwrap();
    // The port of the previous server may take a moment to become free.
    let server = retry(|| {
        let builder =
            Server::builder(&open_device()?).add_service(EchoServer::per_poller(|| CommandEcho));
        Ok(builder.bind(&address)?)
    });
    write_line("\nup 0 0");
    server.run().unwrap();
}

#[test]
#[ignore = "the soak runs it, as a client's process"]
fn client_process() {
    let address = std::env::var(ADDRESS).unwrap();
    let is_other_host = !address.parse::<SocketAddr>().unwrap().ip().is_loopback();
    let channel = retry(|| {
        let builder = Channel::builder(&open_device()?, &address)
            .reconnect_backoff(Duration::from_millis(10), Duration::from_millis(200));
        Ok(builder.connect_lazy()?)
    });
    let (answered, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let busy_since: Arc<Mutex<HashMap<u64, Instant>>> = Arc::default();
    for caller in 0..CALLERS {
        let echo = EchoClient::new(channel.clone());
        let (answered, failed) = (Arc::clone(&answered), Arc::clone(&failed));
        let busy_since = Arc::clone(&busy_since);
        thread::spawn(move || {
            for number in 0u64.. {
                let length = 16 + (number * 97 % 3000) as usize;
                let mut payload = vec![caller as u8; length];
                payload[..8].copy_from_slice(&number.to_le_bytes());
                let request = EchoRequest {
                    payload: payload.clone(),
                };
                let request = Request::new(request)
                    .with_timeout(CALL_TIME)
                    .wait_for_ready(number % 2 == 0);
                busy_since.lock().unwrap().insert(caller, Instant::now());
                match block_on(echo.echo(request)) {
                    Ok(reply) => {
                        if reply.into_inner().payload != payload {
                            give_up(&format!("caller {caller}, call {number}: wrong response"));
                        }
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => {
                        // A restart, a lost connection or a long stop may cause these errors.
                        let may_be = [Code::Unavailable, Code::DeadlineExceeded];
                        // After an outage of the network, the calls that waited come together: the
                        // server may refuse some for a while, and says so.
                        let is_shed = is_other_host && error.pushback().is_some();
                        if !may_be.contains(&error.code()) && !is_shed {
                            give_up(&format!("caller {caller}, call {number}: {error}"));
                        }
                        failed.fetch_add(1, Ordering::Relaxed);
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            }
        });
    }
    loop {
        let (answered, failed) = (
            answered.load(Ordering::Relaxed),
            failed.load(Ordering::Relaxed),
        );
        write_line(&format!("\nup {answered} {failed}"));
        for (caller, since) in &*busy_since.lock().unwrap() {
            if since.elapsed() > NEVER {
                give_up(&format!("a call of caller {caller} has not ended"));
            }
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Repeats what fails for a moment, such as the use of a device whose link is down.
fn retry<T>(attempt: impl Fn() -> Result<T, Box<dyn Error>>) -> T {
    let started = Instant::now();
    loop {
        match attempt() {
            Ok(outcome) => return outcome,
            Err(error) if started.elapsed() > RECOVERY_TIMEOUT => panic!("{error}"),
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[allow(clippy::print_stdout, reason = "its parent reads it")]
fn write_line(line: &str) {
    println!("{line}");
    let _ = io::stdout().flush();
}

#[allow(clippy::print_stderr, reason = "for the user")]
fn give_up(why: &str) -> ! {
    eprintln!("!! {why}");
    std::process::exit(3);
}

/// A process of the soak, killed on drop.
struct Member {
    process: Child,
    /// The last numbers that it printed: calls answered, calls failed.
    call_counts: Arc<(AtomicU64, AtomicU64)>,
}

impl Member {
    fn start(test: &str, address: SocketAddr) -> Self {
        Self::run(
            Command::new(std::env::current_exe().unwrap()),
            test,
            address,
        )
    }

    /// Starts `program`, which is this one, perhaps in a network namespace.
    fn run(mut program: Command, test: &str, address: SocketAddr) -> Self {
        let mut process = program
            .args([
                "--exact",
                test,
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ADDRESS, address.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let call_counts = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let (lines, reported) = (
            BufReader::new(process.stdout.take().unwrap()),
            Arc::clone(&call_counts),
        );
        let (up, is_up) = std::sync::mpsc::channel();
        thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                let numbers = line
                    .strip_prefix("up ")
                    .and_then(|rest| rest.split_once(' '));
                if let Some((answered, failed)) = numbers {
                    reported
                        .0
                        .store(answered.parse().unwrap_or(0), Ordering::Relaxed);
                    reported
                        .1
                        .store(failed.parse().unwrap_or(0), Ordering::Relaxed);
                    let _ = up.send(());
                }
            }
        });
        is_up
            .recv_timeout(RECOVERY_TIMEOUT)
            .unwrap_or_else(|_| panic!("{test} did not start"));
        Self {
            process,
            call_counts,
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    fn answered(&self) -> u64 {
        self.call_counts.0.load(Ordering::Relaxed)
    }

    fn failed(&self) -> u64 {
        self.call_counts.1.load(Ordering::Relaxed)
    }

    /// Returns true if the process has ended by itself. Panics if it ended with the status of
    /// [`give_up`], because then the soak has failed.
    fn has_ended(&mut self) -> bool {
        let Some(status) = self.process.try_wait().unwrap() else {
            return false;
        };
        assert_ne!(status.code(), Some(3), "a client found an error: see above");
        true
    }

    fn open_files(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.process.id()));
        files.map_or(0, Iterator::count)
    }

    /// Returns a size in KiB: see proc_pid_status(5).
    fn size_kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
            .unwrap_or(0)
    }

    fn resident_kib(&self) -> u64 {
        self.size_kib("VmRSS:")
    }

    /// Limits a resource to its present use, for a while.
    fn starve(&self, resource: Resource, present: u64, time: Duration) {
        let before = getrlimit(resource);
        let starved = Rlimit {
            current: Some(present),
            maximum: before.maximum,
        };
        // The process may end at any moment, because of this or of something else.
        let _ = prlimit(Some(self.pid()), resource, starved);
        thread::sleep(time);
        let _ = prlimit(Some(self.pid()), resource, before);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A proxy between clients and server that can close their sockets: the liveness socket, and with
/// it handshakes in flight; over TCP, also the connection for calls. RDMA messages and shared memory
/// do not pass through it.
struct Wire {
    address: SocketAddr,
    open: Arc<Mutex<Vec<(TcpStream, TcpStream)>>>,
}

impl Wire {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let open: Arc<Mutex<Vec<(TcpStream, TcpStream)>>> = Arc::default();
        let pairs = Arc::clone(&open);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                // Without a server, dropping `near` closes the client's connection.
                let Ok(far) = TcpStream::connect(server) else {
                    continue;
                };
                // Calls over TCP pass through here.
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                        let _ = from.shutdown(Shutdown::Both);
                    });
                }
                let mut pairs = pairs.lock().unwrap();
                // Remove connections that have ended.
                pairs.retain(|(near, _)| near.peer_addr().is_ok());
                pairs.push((near, far));
            }
        });
        Self { address, open }
    }

    fn cut_one(&self, random: &Random) {
        let mut open = self.open.lock().unwrap();
        if !open.is_empty() {
            let index = random.below(open.len() as u64) as usize;
            let (near, far) = open.swap_remove(index);
            let half = random.happens(500);
            let _ = near.shutdown(if half {
                Shutdown::Write
            } else {
                Shutdown::Both
            });
            let _ = far.shutdown(Shutdown::Both);
        }
    }
}

/// Counts of the injected failures, printed at the end.
type FailureCounts = std::collections::BTreeMap<&'static str, u32>;

/// Where the server runs. By default, on this host.
struct ServerHost {
    address: SocketAddr,
    /// A name for `ip netns`.
    network_namespace: Option<String>,
    /// The server's device, if it is another one than the clients'.
    device: Option<String>,
}

impl ServerHost {
    fn from_environment() -> Self {
        let variable = |name| std::env::var(name).ok();
        let ip = variable("SOAK_SERVER_IP").map_or(Ipv4Addr::LOCALHOST.into(), |text| {
            text.parse::<IpAddr>().unwrap()
        });
        let port = match variable("SOAK_SERVER_PORT") {
            Some(text) => text.parse().unwrap(),
            // Below those that the kernel gives to connections: one of them could take the port while the
            // server is down.
            None => (20_000..32_000)
                .find(|&port| TcpListener::bind((ip, port)).is_ok())
                .expect("a free port"),
        };
        Self {
            address: SocketAddr::new(ip, port),
            network_namespace: variable("SOAK_SERVER_NETNS"),
            device: variable("SOAK_SERVER_DEVICE"),
        }
    }

    fn is_this_host(&self) -> bool {
        self.address.ip().is_loopback()
    }

    fn start(&self) -> Member {
        let this = std::env::current_exe().unwrap();
        let mut program = match &self.network_namespace {
            // It executes the program in its own process, which signals therefore reach.
            Some(name) => {
                let mut ip = Command::new("ip");
                ip.args(["netns", "exec", name]).arg(this);
                ip
            }
            None => Command::new(this),
        };
        if let Some(device) = &self.device {
            program.env("VERBLINE_DEVICE", device);
        }
        Member::run(program, "server_process", self.address)
    }
}

struct Soak {
    random: Random,
    server_host: ServerHost,
    /// None between two hosts: the clients themselves notice there that a connection is dead.
    wire: Option<Wire>,
    server: Member,
    clients: Vec<Member>,
    failure_counts: FailureCounts,
}

impl Soak {
    fn begin(seed: u64) -> Self {
        let server_host = ServerHost::from_environment();
        let wire = server_host
            .is_this_host()
            .then(|| Wire::to(server_host.address));
        let server = server_host.start();
        let mut soak = Self {
            random: Random::new(seed),
            server_host,
            wire,
            server,
            clients: Vec::new(),
            failure_counts: FailureCounts::new(),
        };
        soak.clients = (0..CLIENTS).map(|_| soak.start_client()).collect();
        soak
    }

    fn start_client(&self) -> Member {
        let wire = self.wire.as_ref().map(|wire| wire.address);
        Member::start("client_process", wire.unwrap_or(self.server_host.address))
    }

    fn short_while(&self, most_ms: u64) -> Duration {
        Duration::from_micros(self.random.below(most_ms * 1000))
    }

    fn inject_failure(&mut self) {
        let client = self.random.below(self.clients.len() as u64) as usize;
        let what = match self.random.below(9) {
            0 => {
                self.server.signal(Signal::KILL);
                self.server = self.server_host.start();
                "server killed"
            }
            1 => {
                // The first client survives everything, so that leaks can be seen.
                let index = client.max(1);
                self.clients[index] = self.start_client();
                "client killed"
            }
            2 | 3 => {
                let on_server = self.random.happens(500);
                let stopped = if on_server {
                    &self.server
                } else {
                    &self.clients[client]
                };
                stopped.signal(Signal::STOP);
                thread::sleep(self.short_while(1500));
                stopped.signal(Signal::CONT);
                "process stopped"
            }
            4 | 5 => match &self.wire {
                Some(wire) => {
                    wire.cut_one(&self.random);
                    "socket closed"
                }
                None => "nothing but the network's faults",
            },
            6 => {
                let garbage: Vec<u8> = (0..self.random.below(200)).map(|n| n as u8).collect();
                // Between two hosts, the link may be down.
                let address = &self.server_host.address;
                if let Ok(mut stream) = TcpStream::connect_timeout(address, CALL_TIME) {
                    let _ = stream.write_all(&garbage);
                }
                "garbage at the handshake's port"
            }
            7 => {
                let time = self.short_while(300);
                let files = self.server.open_files() as u64;
                self.server.starve(Resource::Nofile, files, time);
                "server without files"
            }
            _ => {
                let time = self.short_while(300);
                let address_space = self.server.size_kib("VmSize:") * 1024;
                self.server.starve(Resource::As, address_space, time);
                "server without memory"
            }
        };
        *self.failure_counts.entry(what).or_default() += 1;
        // A process whose allocator gets no memory aborts. The soak treats this like any other
        // death.
        if self.server.has_ended() {
            self.server = self.server_host.start();
            *self
                .failure_counts
                .entry("server died of a shortage")
                .or_default() += 1;
        }
        for client in &mut self.clients {
            assert!(!client.has_ended(), "a client has ended by itself");
        }
    }

    /// Says how the calls of each client have ended since these numbers were taken.
    fn progress(&self, answered: &[u64], failed: &[u64]) -> String {
        let since = answered.iter().zip(failed);
        let clients = self.clients.iter().zip(since).enumerate();
        let lines = clients.map(|(index, (client, (answered, failed)))| {
            let (answered, failed) = (client.answered() - answered, client.failed() - failed);
            format!("client {index} had {answered} calls answered and {failed} failed")
        });
        lines.collect::<Vec<_>>().join(", ")
    }

    /// Checks that every client gets responses when no failures are injected.
    fn recover(&mut self) {
        let before: Vec<_> = self.clients.iter().map(Member::answered).collect();
        let failed: Vec<_> = self.clients.iter().map(Member::failed).collect();
        let started = Instant::now();
        while self
            .clients
            .iter()
            .zip(&before)
            .any(|(client, before)| client.answered() < before + 100)
        {
            assert!(
                started.elapsed() < RECOVERY_TIMEOUT,
                "a client gets no responses although no failures are injected: {}, after {:?}",
                self.progress(&before, &failed),
                self.failure_counts
            );
            for client in &mut self.clients {
                assert!(!client.has_ended(), "a client has ended by itself");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "progress for the user")]
fn whatever_happens_to_processes_calls_end_and_clients_find_their_server_again() {
    let setting = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let time = Duration::from_secs(setting("SOAK_SECONDS", 10));
    let seed = setting("SOAK_SEED", u64::from(std::process::id()));
    println!("SOAK_SEED={seed}, {time:?}");
    let mut soak = Soak::begin(seed);
    soak.recover();
    let (files, memory) = (soak.clients[0].open_files(), soak.clients[0].resident_kib());
    let started = Instant::now();
    while started.elapsed() < time {
        for _ in 0..=soak.random.below(6) {
            soak.inject_failure();
            thread::sleep(soak.short_while(300));
        }
        soak.recover();
    }
    println!("{:?}", soak.failure_counts);
    for (index, client) in soak.clients.iter().enumerate() {
        println!(
            "client {index}: {} calls answered, {} failed",
            client.answered(),
            client.failed()
        );
    }
    // A connection in setup or teardown temporarily uses additional files.
    let settled = Instant::now();
    while soak.clients[0].open_files() > files && settled.elapsed() < RECOVERY_TIMEOUT {
        thread::sleep(Duration::from_millis(50));
    }
    let survivor = &soak.clients[0];
    println!(
        "client 0: {files} files and {memory} KiB at first, {} and {} at the end",
        survivor.open_files(),
        survivor.resident_kib()
    );
    assert!(survivor.open_files() <= files, "files are leaked");
    // Allocators keep some memory. A leak per connection would show in a long run.
    assert!(
        survivor.resident_kib() < memory + 32 * 1024,
        "memory is leaked"
    );
}
