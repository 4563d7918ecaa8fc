//! What a program does with its process, as the table of docs/guarantees.md has it: `fork`, programs that
//! it starts, signals. In a program of its own, because its processes fork.

mod echo_process;

use std::future::Future;
use std::io::{Read, Write, pipe};
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::pin;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use echo_process::{NEVER, Process, call};
use proto::echo::{EchoClient, EchoRequest, EchoServer};
use proto::routeguide::{Rectangle, RouteGuideClient};
use rpc_core::transport::{ConnectError, FabricError};
use rpc_core::{
    CallError, Cause, Channel, ChannelError, Execution, LocalPoller, Pollers, Request, Server,
    ServerError, ServerHandle, block_on,
};
use rpc_transport_verbs::Device;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

const DEVICES: [&str; 2] = ["soft", "tcp"];

/// Far longer than a process needs to notice an end, and shorter than the limits of silence (20 s).
const SOON: Duration = Duration::from_secs(10);

/// The tests change what their process has: its signals, its children and the files that these inherit.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(device: &Device) -> ServerHandle {
    Server::builder(device)
        .add_service(EchoServer::per_poller(|| echo_process::CommandEcho))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn()
}

/// Forks. The child runs `run` and ends, whatever happens: its parent's test does not go on in it.
fn fork(run: impl FnOnce()) -> Pid {
    // SAFETY: the child ends below without returning to code that other threads were to go on with. It
    // allocates: the C library leaves its allocator usable in the child.
    match unsafe { libc::fork() } {
        0 => {
            let outcome = catch_unwind(AssertUnwindSafe(run));
            // SAFETY: it ends the process, without the destructors of the parent's objects.
            unsafe { libc::_exit(i32::from(outcome.is_err())) }
        }
        pid => Pid::from_raw(pid).expect("a process can be forked"),
    }
}

/// Runs `run` in a child and returns what it has said.
fn said_in_child(run: impl FnOnce() -> String) -> String {
    let (mut reads, writes) = pipe().unwrap();
    let child = fork(|| {
        // A child that hangs is ended by this signal.
        // SAFETY: it only sets a timer.
        unsafe { libc::alarm(30) };
        let said = run();
        (&writes).write_all(said.as_bytes()).unwrap();
    });
    drop(writes);
    let mut said = String::new();
    reads.read_to_string(&mut said).unwrap();
    let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
    assert!(status.exit_status() == Some(0), "{status:?} after: {said}");
    said
}

#[test]
#[ignore = "the other tests run it, as a server's process that has forked"]
fn server_process() {
    echo_process::run(|| {
        let server = echo_process::server();
        report_child();
        server
    });
}

#[test]
#[ignore = "the other tests run it, as a client's process that has forked"]
#[allow(clippy::print_stdout, reason = "its parent waits for the line")]
fn client_process() {
    let (poller, echo) = echo_process::connect(&std::env::var("VERBLINE_TEST_SERVER").unwrap());
    let mut waits = pin!(call(&echo, NEVER));
    let _ = waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    // It is answered, and was sent after the other one.
    poller.block_on(call(&echo, b"here")).unwrap();
    report_child();
    println!("\nconnected");
    thread::sleep(Duration::from_secs(600));
}

/// Forks a child that sleeps, some time after this process has connections.
#[allow(clippy::print_stdout, reason = "its parent reads the number")]
fn report_child() {
    let file = std::env::var("VERBLINE_TEST_CHILD").unwrap();
    thread::spawn(move || {
        // The clients connect first.
        while !std::fs::exists(format!("{file}.go")).unwrap() {
            thread::sleep(Duration::from_millis(5));
        }
        let child = fork(|| thread::sleep(Duration::from_secs(120)));
        std::fs::write(format!("{file}.new"), child.as_raw_pid().to_string()).unwrap();
        std::fs::rename(format!("{file}.new"), &file).unwrap();
    });
}

/// A process that forks when it is told to.
struct Forking {
    process: Process,
    folder: tempfile::TempDir,
}

impl Forking {
    fn start(test: &str, device: &str, server: &str, word: &str) -> (Self, String) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("child");
        let environment = [
            ("VERBLINE_DEVICE", device),
            ("VERBLINE_TEST_SERVER", server),
            ("VERBLINE_TEST_CHILD", file.to_str().unwrap()),
        ];
        let (process, line) = Process::start_with(test, &environment, word);
        let rest = line[word.len()..].trim().to_owned();
        (Self { process, folder }, rest)
    }

    /// Has the process fork, and kills it. Returns its child, which lives on.
    fn fork_and_die(self) -> LivingChild {
        let file = self.folder.path().join("child");
        std::fs::write(self.folder.path().join("child.go"), "").unwrap();
        let patience = Instant::now() + Duration::from_secs(60);
        while !file.exists() {
            assert!(Instant::now() < patience, "it does not fork");
            thread::sleep(Duration::from_millis(5));
        }
        let child = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        self.process.kill();
        LivingChild(Pid::from_raw(child).unwrap())
    }
}

/// A child whose parent has ended. It is killed on drop.
struct LivingChild(Pid);

impl Drop for LivingChild {
    fn drop(&mut self) {
        // It lived until now, so whatever was noticed was not its end.
        kill_process(self.0, Signal::KILL).unwrap();
    }
}

#[test]
fn the_end_of_a_server_is_noticed_at_once_although_a_forked_child_lives_on() {
    let _alone = alone();
    for name in DEVICES {
        let (server, address) = Forking::start("server_process", name, "", "listening at ");
        let device = Device::open(name).unwrap();
        let poller = LocalPoller::new(&device).unwrap();
        let local = EchoClient::new(poller.connect(&address).unwrap());
        let shared = EchoClient::new(block_on(Channel::connect(&device, &address)).unwrap());
        let mut waits = pin!(call(&local, NEVER));
        let _ = waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let never = EchoRequest {
            payload: NEVER.to_vec(),
        };
        let mut in_flight = pin!(shared.echo(never));
        let _ = in_flight
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        // Calls of a channel are sent in their order: these are answered, and were sent after the others.
        poller.block_on(call(&local, b"here")).unwrap();
        block_on(shared.echo(EchoRequest::default())).unwrap();
        let child = server.fork_and_die();
        let killed = Instant::now();
        let is_disconnected = |error: CallError| {
            assert!(
                matches!(error.cause(), Cause::Disconnected(_)),
                "{name}: {error}"
            );
            assert_ne!(error.execution(), Execution::NeverSent, "{name}: {error}");
        };
        is_disconnected(poller.block_on(waits).unwrap_err());
        is_disconnected(block_on(in_flight).unwrap_err());
        let error = poller.connect(&address).unwrap_err();
        assert!(
            matches!(error, ConnectError::Unreachable { .. }),
            "{name}: {error}"
        );
        drop(TcpListener::bind(&address).unwrap());
        assert!(killed.elapsed() < SOON, "{name}: {:?}", killed.elapsed());
        drop(child);
    }
}

#[test]
fn the_end_of_a_client_is_noticed_at_once_although_a_forked_child_lives_on() {
    let _alone = alone();
    for name in DEVICES {
        let device = Device::open(name).unwrap();
        let server = serve(&device);
        let address = server.local_addr().to_string();
        let (client, _) = Forking::start("client_process", name, &address, "connected");
        let connections = || {
            let counts = server.stats().total().connections;
            counts.accepted - counts.closed()
        };
        assert_eq!(connections(), 1, "{name}");
        let child = client.fork_and_die();
        let killed = Instant::now();
        while connections() > 0 {
            assert!(killed.elapsed() < SOON, "{name}");
            thread::sleep(Duration::from_millis(5));
        }
        drop(child);
    }
}

/// What the child of a fork makes of what its parent has opened.
#[test]
fn in_a_child_everything_fails_at_once_and_the_parent_goes_on() {
    let _alone = alone();
    for name in DEVICES {
        let device = Device::open(name).unwrap();
        let service = || EchoServer::per_poller(|| echo_process::CommandEcho);
        let builder = || Server::builder(&device).add_service(service());
        let server = builder().bind("127.0.0.1:0").unwrap().spawn();
        let [bound, spawned] = [(); 2].map(|()| builder().bind("127.0.0.1:0").unwrap());
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().to_string();
        let poller = LocalPoller::new(&device).unwrap();
        let local = EchoClient::new(poller.connect(&address).unwrap());
        let pollers = Pollers::new(&device).unwrap();
        let channel = block_on(Channel::connect(&pollers, &address)).unwrap();
        let shared = EchoClient::new(channel.clone());
        let local_call = |poller: &LocalPoller, local: &EchoClient<_>, payload: &[u8]| {
            let request = EchoRequest {
                payload: payload.to_vec(),
            };
            let request = Request::new(request).with_timeout(Duration::from_secs(3));
            poller.block_on(local.echo(request))
        };
        let shared_call = |shared: &EchoClient<_>| block_on(shared.echo(EchoRequest::default()));
        local_call(&poller, &local, b"here").unwrap();
        shared_call(&shared).unwrap();

        let is_forked = |error: CallError| {
            assert!(matches!(error.cause(), Cause::Forked), "{error}");
            assert_eq!(error.execution(), Execution::NeverSent);
            assert!(!error.is_retryable());
            error.to_string()
        };
        let mut opened = Some((
            server, bound, spawned, poller, local, pollers, channel, shared,
        ));
        let said = said_in_child(|| {
            let began = Instant::now();
            let (server, bound, spawned, poller, local, pollers, channel, shared) =
                opened.take().unwrap();
            let said = is_forked(shared_call(&shared).unwrap_err());
            let guide = RouteGuideClient::new(channel.clone());
            let stream = block_on(guide.list_features(Rectangle::default()));
            is_forked(stream.err().unwrap());
            drop(block_on(channel.allocate(1 << 20)));
            let error = block_on(Channel::connect(&pollers, &address)).unwrap_err();
            assert!(matches!(error, ChannelError::Forked), "{error}");
            let error = block_on(Channel::connect(&device, &address)).unwrap_err();
            assert!(matches!(error, ChannelError::Forked), "{error}");
            let error = Channel::builder(&device, &address)
                .connect_lazy()
                .unwrap_err();
            assert!(matches!(error, ChannelError::Forked), "{error}");
            let error = Pollers::builder(&device).start().unwrap_err();
            assert!(matches!(error, ChannelError::Forked), "{error}");
            let error = builder().bind("127.0.0.1:0").unwrap_err();
            assert!(matches!(error, ServerError::Forked), "{error}");
            let error = builder().listen_on(socket).unwrap_err();
            assert!(matches!(error, ServerError::Forked), "{error}");
            let error = spawned.spawn().shutdown().unwrap_err();
            assert!(matches!(error, ServerError::Forked), "{error}");
            let error = bound.run().unwrap_err();
            assert!(matches!(error, ServerError::Forked), "{error}");
            let error = server.shutdown().unwrap_err();
            assert!(matches!(error, ServerError::Forked), "{error}");
            let error = LocalPoller::new(&device).unwrap_err();
            assert!(matches!(error, FabricError::Forked), "{error}");
            let cores = LocalPoller::builder(&device).cores(vec![0]);
            let error = cores.build().unwrap_err();
            assert!(matches!(error, FabricError::Forked), "{error}");
            assert!(Device::survey().best().is_none());
            // Nothing answers there, at once or at all.
            let elsewhere = "192.0.2.1:7";
            for error in [
                local_call(&poller, &local, b"short")
                    .unwrap_err()
                    .to_string(),
                local_call(&poller, &local, &[1; 100_000])
                    .unwrap_err()
                    .to_string(),
                poller.connect(&address).unwrap_err().to_string(),
                poller.connect(elsewhere).unwrap_err().to_string(),
                Device::best().unwrap_err().to_string(),
                Device::open(name).unwrap_err().to_string(),
            ] {
                assert!(error.contains("fork"), "{error}");
            }
            drop((local, poller, shared, channel, pollers));
            assert!(
                began.elapsed() < Duration::from_secs(3),
                "{:?}",
                began.elapsed()
            );
            said
        });
        assert!(said.contains("exec"), "{said}");

        // Nothing of the parent was closed.
        let (server, bound, _spawned, poller, local, _pollers, _channel, shared) = opened.unwrap();
        local_call(&poller, &local, b"still here").unwrap();
        shared_call(&shared).unwrap();
        let other = poller.connect(&bound.local_addr().to_string());
        drop(other.unwrap());
        drop((local, poller, shared));
        server.shutdown().unwrap();
    }
}

/// Whatever a program starts has none of the files: not even those of a server whose port it would keep.
#[test]
fn a_program_that_is_started_inherits_no_file() {
    let _alone = alone();
    for name in DEVICES {
        let device = Device::open(name).unwrap();
        let server = serve(&device);
        let shared = block_on(Channel::connect(&device, &server.local_addr().to_string())).unwrap();
        block_on(EchoClient::new(shared.clone()).echo(EchoRequest::default())).unwrap();
        let links = "for file in /proc/self/fd/*; do readlink $file; done";
        let output = Command::new("sh").args(["-c", links]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let is_ours = |link: &&str| {
            ["socket:", "memfd", "eventpoll", "eventfd"]
                .iter()
                .any(|kind| link.contains(kind))
        };
        // Its own standard input may be a socket.
        assert!(said.lines().filter(is_ours).count() <= 1, "{name}: {said}");
    }
}

/// A handler of the program runs on any thread, and interrupts whichever system call waits there.
#[test]
fn signals_a_thousand_times_a_second_disturb_no_call() {
    let _alone = alone();
    extern "C" fn ignore(_: i32) {}
    let every_millisecond = libc::itimerval {
        it_interval: libc::timeval {
            tv_sec: 0,
            tv_usec: 1000,
        },
        it_value: libc::timeval {
            tv_sec: 0,
            tv_usec: 1000,
        },
    };
    let never = libc::itimerval {
        it_interval: libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        },
        it_value: libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        },
    };
    let set = |timer: &libc::itimerval| {
        // SAFETY: the kernel reads the timer, which lives until the call has returned.
        let result = unsafe { libc::setitimer(libc::ITIMER_REAL, timer, std::ptr::null_mut()) };
        assert_eq!(result, 0);
    };
    let handle = |handler: usize| {
        // SAFETY: all zeros is a valid action, without SA_RESTART; the handler does nothing, or is the
        // default.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler;
            let result = libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
            assert_eq!(result, 0);
        }
    };
    handle(ignore as extern "C" fn(i32) as usize);
    set(&every_millisecond);
    for name in DEVICES {
        let device = Device::open(name).unwrap();
        let server = serve(&device);
        let address = server.local_addr().to_string();
        let poller = LocalPoller::new(&device).unwrap();
        let local = EchoClient::new(poller.connect(&address).unwrap());
        let shared = EchoClient::new(block_on(Channel::connect(&device, &address)).unwrap());
        for len in [10, 100_000, 3_000_000].repeat(20) {
            let payload = vec![7; len];
            assert_eq!(poller.block_on(call(&local, &payload)).unwrap(), payload);
            let reply = block_on(shared.echo(EchoRequest { payload })).unwrap();
            assert_eq!(reply.into_inner().payload.len(), len);
        }
    }
    set(&never);
    // The latest signal may still be on its way to a thread: this drops it.
    handle(libc::SIG_IGN);
    // A child of another test is ended by it.
    handle(libc::SIG_DFL);
}

/// Deadlines and timers are measured on the monotonic clock, which steps of the clock do not change.
#[test]
fn no_product_code_reads_the_clock_that_can_be_set() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders: Vec<_> = ["src", "rpc-core/src", "rpc-transport-verbs/src"]
        .map(|folder| root.join(folder))
        .into();
    folders.push(root.join("rpc-transport-verbs/verbs/src"));
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            files += 1;
            let source = std::fs::read_to_string(&path).unwrap();
            for clock in ["SystemTime::now", "ClockId::Realtime", "CLOCK_REALTIME"] {
                assert!(!source.contains(clock), "{}: {clock}", path.display());
            }
        }
    }
    assert!(files > 300, "{files} files");
}
