//! The cores of Verbline's threads, and of the threads that handlers start. In a program of its own, which
//! looks at its threads, and starts processes of itself that claim cores.

mod echo_process;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::{fs, io};

use echo_process::device;
use proto::echo::echo_server::LocalEcho;
use proto::echo::{EchoClient, EchoReply, EchoRequest, EchoServer};
use rpc_core::{
    Channel, LocalPoller, Request, Response, Server, ServerBuilder, Status, Waiting, block_on,
};
use rpc_transport_verbs::{Device, unpinned};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Answers with the number of cores of a thread that it starts, and of one that it starts unpinned.
struct Starts;

impl LocalEcho for Starts {
    async fn echo(&self, _: Request<EchoRequest>) -> Result<Response<EchoReply>, Status> {
        let inherits = thread::spawn(own_cores);
        let threads = [inherits, unpinned(|| thread::spawn(own_cores))];
        let cores = threads.map(|thread| thread.join().unwrap().count() as u8);
        let payload = cores.to_vec();
        Ok(Response::new(EchoReply { payload }))
    }
}

fn server() -> ServerBuilder<Device> {
    Server::builder(&device()).add_service(EchoServer::per_poller(|| Starts))
}

fn own_cores() -> CpuSet {
    sched_getaffinity(None).unwrap()
}

/// Asserts that the threads with these names have one core, and that all others have `all` cores.
fn assert_only_pinned(pinned: &[&str], all: u32) {
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        // A thread may have ended since.
        let Ok(name) = fs::read_to_string(path.join("comm")) else {
            continue;
        };
        let Ok(status) = fs::read_to_string(path.join("status")) else {
            continue;
        };
        let mut lines = status.lines();
        let mask = lines.find_map(|line| line.strip_prefix("Cpus_allowed:"));
        let ones = |digit: char| digit.to_digit(16).map_or(0, u32::count_ones);
        let cores: u32 = mask.unwrap().chars().map(ones).sum();
        let is_pinned = pinned.contains(&name.trim());
        assert_eq!(cores, if is_pinned { 1 } else { all }, "{name}");
    }
}

/// Returns the number of cores of the threads that the handler starts.
fn call(poller: &LocalPoller, address: &str, len: usize) -> Vec<u8> {
    let echo = EchoClient::new(poller.connect(address).unwrap());
    let request = EchoRequest {
        payload: vec![0; len],
    };
    let reply = poller.block_on(echo.echo(request)).unwrap();
    reply.into_inner().payload
}

/// A message of this length starts the threads that register memory.
const LONG: usize = 1 << 20;

/// One test, because it looks at all threads.
#[test]
fn only_pollers_are_pinned_and_only_if_that_was_asked_for() {
    let all = own_cores().count();
    assert!(all > 1, "allow this process a second core");
    let last = (0..CpuSet::MAX_CPU).rfind(|&core| own_cores().is_set(core));
    let last = last.unwrap();

    // A server that sleeps when it is idle.
    let default = server().bind("127.0.0.1:0").unwrap().spawn();
    assert_eq!(default.limits().cores, [None]);
    let address = default.local_addr().to_string();
    let poller = LocalPoller::new(&device()).unwrap();
    assert_eq!(call(&poller, &address, LONG), [all as u8; 2]);
    assert_only_pinned(&[], all);
    drop((poller, default));

    // Named cores.
    let named = server().cores([last]).bind("127.0.0.1:0").unwrap().spawn();
    assert_eq!(named.limits().cores, [Some(last)]);
    let address = named.local_addr().to_string();
    let channel = Channel::builder(&device(), &address).cores([last]);
    let channel = block_on(channel.connect()).unwrap();
    assert_eq!(channel.limits().unwrap().cores, [Some(last)]);
    let echo = EchoClient::new(channel.clone());
    let reply = block_on(echo.echo(EchoRequest::default())).unwrap();
    assert_eq!(reply.into_inner().payload, [1, all as u8]);
    // The system keeps 15 characters of a name.
    let pinned = ["verbline-poller", "verbline-client", "application"];
    let local = move || {
        let poller = LocalPoller::builder(&device()).cores([last]);
        let poller = poller.build().unwrap();
        assert_eq!(poller.limits().cores, [Some(last)]);
        assert_eq!(call(&poller, &address, LONG), [1, all as u8]);
        assert_only_pinned(&pinned, all);
        // A server that is started on a pinned thread.
        let other = server().bind("127.0.0.1:0").unwrap().spawn();
        let address = other.local_addr().to_string();
        assert_eq!(call(&poller, &address, 0), [all as u8; 2]);
        drop((other, poller));
        own_cores().count()
    };
    let local = thread::Builder::new()
        .name("application".to_owned())
        .spawn(local);
    let left = local.unwrap().join().unwrap();
    assert_eq!(left, all, "the thread is pinned while its poller lives");
}

/// The process of a program that pins the thread on which it uses Verbline.
#[test]
#[ignore = "the process of another test"]
fn pinning_process() {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let all = own_cores().count();
    let pinned = move || {
        let first = (0..CpuSet::MAX_CPU).find(|&core| own_cores().is_set(core));
        let mut one = CpuSet::new();
        one.set(first.unwrap());
        sched_setaffinity(None, &one).unwrap();
        let builder = LocalPoller::builder(&device()).waiting(Waiting::Busy);
        let poller = builder.build().unwrap();
        let busy = server()
            .waiting(Waiting::Busy)
            .bind("127.0.0.1:0")
            .unwrap()
            .spawn();
        let address = busy.local_addr().to_string();
        // The handler's thread may be pinned, but only by its poller.
        assert_eq!(call(&poller, &address, LONG)[1], all as u8);
        let channel = block_on(Channel::connect(&device(), &address)).unwrap();
        block_on(EchoClient::new(channel).echo(EchoRequest::default())).unwrap();
        let mut pinned = vec!["application"];
        if busy.limits().cores != [None] {
            pinned.push("verbline-poller");
        }
        assert_only_pinned(&pinned, all);
    };
    let application = thread::Builder::new().name("application".to_owned());
    application.spawn(pinned).unwrap().join().unwrap();
}

#[test]
fn a_thread_that_the_application_has_pinned_is_not_the_measure_of_its_process() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "pinning_process", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    // One busy poller on one core would be one too many, and a process with one core pins none.
    assert!(!log.contains("more busy pollers than cores"), "{log}");
    assert!(!log.contains("one core at least is left"), "{log}");
}

/// A process with a server whose poller never sleeps: the cores that it has, and its log.
struct Busy {
    process: Child,
    cores: String,
}

impl Busy {
    fn start() -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "busy_process", "--ignored", "--nocapture"])
            .env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let mut lines = stdout.lines().map_while(Result::ok);
        let cores = lines.find_map(|line| line.strip_prefix("cores ").map(str::to_owned));
        Self {
            process,
            cores: cores.expect("the process says its cores"),
        }
    }

    fn end(mut self) -> String {
        self.process.kill().unwrap();
        let mut log = String::new();
        let stderr = self.process.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        log
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "the process of another test"]
#[allow(clippy::print_stdout, reason = "its parent reads the cores")]
fn busy_process() {
    echo_process::run(|| {
        let server = server().waiting(Waiting::Busy).bind("127.0.0.1:0").unwrap();
        println!("\ncores {:?}", server.limits().cores);
        server
    });
}

#[test]
fn no_two_processes_have_a_busy_poller_on_one_core_and_who_has_none_is_told_by_whom() {
    // One more than there are cores. Other programs of this host may have claimed some.
    let count = own_cores().count() + 1;
    let processes: Vec<_> = (0..count).map(|_| Busy::start()).collect();
    let mut cores: Vec<_> = processes.iter().map(|busy| busy.cores.clone()).collect();
    cores.retain(|cores| cores != "[None]");
    let pinned = cores.len();
    cores.sort();
    cores.dedup();
    assert_eq!(cores.len(), pinned, "{cores:?}");
    for busy in processes {
        let (had, log) = (busy.cores.clone(), busy.end());
        assert_eq!(
            had == "[None]",
            log.contains("no core is free for busy pollers") && log.contains("by process "),
            "{had}: {log}"
        );
    }
}
