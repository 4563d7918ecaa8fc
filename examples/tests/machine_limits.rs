//! The limits of the machine, for a client and a server, on `soft` and `tcp`: the table is in
//! docs/sizing.md. With each of them a program works, or its error or its log names the limit: never a
//! signal or a hang.
//!
//! Both sides are processes of their own. If this test is root's they are another user's, because some
//! limits do not bind root.

mod echo_process;
mod process_limits;

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use echo_process::CommandEcho;
use process_limits::{first_core, leave_root, set};
use proto::echo::{EchoClient, EchoRequest, EchoServer};
use rpc_core::{Caller, Channel, LocalPoller, Request, Server, Waiting, block_on};
use rpc_transport_verbs::Device;

/// A limit of the process, and the values of it that are tried.
struct Row {
    limit: &'static str,
    values: &'static [u64],
    /// What an error says, over each device: one of these. Without words, the program has to work.
    soft: &'static [&'static str],
    tcp: &'static [&'static str],
    /// With these values it has to fail, on devices that have words for it: the limit is reached.
    must_fail: &'static [u64],
    /// True if an allocation of the standard library may end the process, and say so.
    may_abort: bool,
}

const WORKS: &[&str] = &[];

/// The stack of a thread does not fit. The system does not say which of its limits it was.
const NO_STACK: &str = "its address space (`ulimit -v`) or its locked memory (`ulimit -l`";

/// A message that does not fit is the receiver's to refuse.
const SHORT_OF_ADDRESSES: &[&str] = &[
    "(RLIMIT_AS): raise the limit (ulimit -v",
    NO_STACK,
    "or the limits of its process",
];

const SHORT_OF_LOCKED_MEMORY: &[&str] = &[
    "(RLIMIT_MEMLOCK). Raise the limit (ulimit -l",
    NO_STACK,
    "or the limits of its process",
];

const SHORT_OF_TASKS: &[&str] =
    &["may start no more threads: raise the limit of its user (`ulimit -u`)"];

const ROWS: &[Row] = &[
    Row {
        limit: "files",
        values: &[8, 10, 12, 14, 15, 16, 20, 22, 28, 32, 64],
        soft: &["ulimit -n"],
        tcp: &["ulimit -n"],
        must_fail: &[8, 10, 12],
        may_abort: false,
    },
    Row {
        limit: "tasks",
        values: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        soft: SHORT_OF_TASKS,
        tcp: SHORT_OF_TASKS,
        must_fail: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        may_abort: false,
    },
    Row {
        limit: "further tasks",
        values: &[0],
        soft: WORKS,
        tcp: WORKS,
        must_fail: &[],
        may_abort: false,
    },
    Row {
        limit: "file size",
        values: &[0, 4096, 500_000, 1_000_000, 3_600_000, 12_000_000],
        soft: &["(RLIMIT_FSIZE): raise the limit (ulimit -f"],
        tcp: WORKS,
        must_fail: &[0, 4096, 500_000, 1_000_000],
        may_abort: false,
    },
    Row {
        limit: "locked memory",
        values: &[0],
        soft: WORKS,
        tcp: WORKS,
        must_fail: &[],
        may_abort: false,
    },
    Row {
        limit: "locked memory, after mlockall",
        values: &[1, 2, 4, 6, 8, 1024],
        soft: SHORT_OF_LOCKED_MEMORY,
        tcp: SHORT_OF_LOCKED_MEMORY,
        must_fail: &[1, 2, 4],
        may_abort: true,
    },
    Row {
        limit: "address space",
        values: &[0, 1, 2, 4, 6, 8, 12, 16, 32, 64, 128, 1024],
        soft: SHORT_OF_ADDRESSES,
        tcp: SHORT_OF_ADDRESSES,
        must_fail: &[0, 1, 2, 4],
        may_abort: true,
    },
    Row {
        limit: "cores",
        values: &[1],
        soft: WORKS,
        tcp: WORKS,
        must_fail: &[],
        may_abort: false,
    },
    Row {
        limit: "memfd_create",
        values: &[0],
        soft: &["refuses memfd_create"],
        tcp: WORKS,
        must_fail: &[0],
        may_abort: false,
    },
    // 1: with a core that is named.
    Row {
        limit: "sched_setaffinity",
        values: &[0, 1],
        soft: &["cannot pin a poller to core"],
        tcp: &["cannot pin a poller to core"],
        must_fail: &[1],
        may_abort: false,
    },
];

/// Long enough for a loaded machine, and shorter than the patience of the test.
const DEADLINE: Duration = Duration::from_secs(20);

/// A short call, and a long one, which needs memory beyond that of the slots.
async fn calls<C: Caller>(client: &EchoClient<C>) -> Result<(), String> {
    for len in [10, 3_000_000] {
        let request = EchoRequest {
            payload: vec![1; len],
        };
        let request = Request::new(request).with_timeout(DEADLINE);
        let reply = client.echo(request).await;
        let reply = reply.map_err(|error| format!("a call of {len} bytes: {error}"))?;
        assert_eq!(reply.into_inner().payload.len(), len);
    }
    Ok(())
}

/// One side of the calls. It is limited when it has opened nothing, or once its pollers run.
struct Side {
    limit: String,
    value: u64,
}

impl Side {
    fn is_limited_later(&self) -> bool {
        self.limit.starts_with("further")
    }

    /// The core that is named, of a process that may not have it.
    fn cores(&self) -> Option<Vec<usize>> {
        (self.limit == "sched_setaffinity" && self.value == 1).then(|| vec![first_core()])
    }

    fn run(&self, address: &str) -> Result<(), String> {
        if !self.is_limited_later() {
            set(&self.limit, self.value);
        }
        let name = std::env::var("VERBLINE_DEVICE").unwrap();
        let device = Device::open(&name).map_err(|error| error.to_string())?;
        match address.is_empty() {
            true => self.serve(&device),
            false => self.call(&device, address),
        }
    }

    fn call(&self, device: &Device, address: &str) -> Result<(), String> {
        let mut poller = LocalPoller::builder(device);
        let mut channel = Channel::builder(device, address);
        if let Some(cores) = self.cores() {
            poller = poller.cores(cores.clone());
            channel = channel.cores(cores);
        }
        let poller = poller.build().map_err(|error| error.to_string())?;
        let local = poller.connect(address).map_err(|error| error.to_string())?;
        let local = EchoClient::new(local);
        if !self.is_limited_later() {
            poller.block_on(calls(&local))?;
        }
        let channel = block_on(channel.connect()).map_err(|error| error.to_string())?;
        if self.is_limited_later() {
            set(&self.limit, self.value);
            poller.block_on(calls(&local))?;
        }
        block_on(calls(&EchoClient::new(channel)))
    }

    #[allow(clippy::print_stdout, reason = "its parent reads the address")]
    fn serve(&self, device: &Device) -> Result<(), String> {
        let service = EchoServer::per_poller(|| CommandEcho);
        let mut server = Server::builder(device).add_service(service);
        if self.limit == "sched_setaffinity" {
            // It would be pinned.
            server = server.waiting(Waiting::Busy);
        }
        if let Some(cores) = self.cores() {
            server = server.cores(cores);
        }
        let server = server
            .bind("127.0.0.1:0")
            .map_err(|error| error.to_string())?;
        if self.is_limited_later() {
            set(&self.limit, self.value);
        }
        println!("\nlistening at {}", server.local_addr());
        server.run().map_err(|error| error.to_string())
    }
}

/// What the processes do. Prints `worked` or `failed: ` with the error, or the server's address.
#[test]
#[ignore = "the other test runs it, as a process with a limit"]
#[allow(clippy::print_stdout, reason = "its parent reads what happened")]
fn limited() {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    leave_root();
    let variable = |name: &str| std::env::var(name).unwrap();
    let side = Side {
        limit: variable("LIMIT"),
        value: variable("VALUE").parse().unwrap(),
    };
    match side.run(&variable("SERVER")) {
        Ok(()) => println!("\nworked"),
        Err(error) => println!("\nfailed: {error}"),
    }
}

/// A process with a limit.
struct Limited {
    child: Child,
    lines: Receiver<String>,
    /// Read by a thread, because a pipe that nobody reads would stop the process. In a file, it would
    /// have a limit.
    log: Arc<Mutex<Vec<u8>>>,
}

/// What a process has said.
enum Said {
    Worked,
    Listening(String),
    Failed(String),
    /// It has ended without a word.
    Nothing,
    Late,
}

impl Limited {
    fn start(limit: &str, value: u64, device: &str, server: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "limited", "--ignored"])
            .args(["--nocapture", "--test-threads=1"])
            .envs([("LIMIT", limit), ("VERBLINE_DEVICE", device)])
            .envs([("SERVER", server), ("VALUE", &value.to_string())])
            // A user of its own for each run over a device, so that no other process counts.
            .env(
                "LIMITED_USER",
                (20_000 + std::process::id() % 10_000 * 2 + u32::from(device == "tcp")).to_string(),
            )
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut stderr = child.stderr.take().unwrap();
        let log: Arc<Mutex<Vec<u8>>> = Arc::default();
        let said = Arc::clone(&log);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = stderr.read(&mut bytes) {
                said.lock().unwrap().extend_from_slice(&bytes[..len]);
            }
        });
        Self { child, lines, log }
    }

    /// Waits for what the process says next. It makes four calls at most.
    fn said(&self) -> Said {
        loop {
            let line = match self.lines.recv_timeout(DEADLINE * 5) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => return Said::Late,
                Err(RecvTimeoutError::Disconnected) => return Said::Nothing,
            };
            if line == "worked" {
                return Said::Worked;
            }
            if let Some(address) = line.strip_prefix("listening at ") {
                return Said::Listening(address.to_owned());
            }
            if let Some(error) = line.strip_prefix("failed: ") {
                return Said::Failed(error.to_owned());
            }
        }
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&self.log.lock().unwrap()).into_owned()
    }

    /// Returns true if an allocation has ended the process, which it may only do if `may_abort`.
    fn has_aborted(&mut self, may_abort: bool) -> Result<bool, String> {
        let Some(status) = self.child.try_wait().unwrap() else {
            return Ok(false);
        };
        let log = self.log();
        let is_out_of_memory =
            status.signal() == Some(libc::SIGABRT) && log.contains("memory allocation of");
        match may_abort && is_out_of_memory {
            true => Ok(true),
            // It has said its error, and ended.
            false if status.success() => Ok(false),
            false => Err(format!("{status}\n{log}")),
        }
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Row {
    fn words(&self, device: &str) -> &'static [&'static str] {
        match device {
            "soft" => self.soft,
            _ => self.tcp,
        }
    }

    /// Runs a client and a server, one of which has the limit.
    fn run(&self, value: u64, device: &str, limits_server: bool) -> Result<(), String> {
        let (of_server, of_client) = match limits_server {
            true => (self.limit, "nothing"),
            false => ("nothing", self.limit),
        };
        let mut server = Limited::start(of_server, value, device, "");
        let address = match server.said() {
            Said::Listening(address) => address,
            other => return self.judge(value, device, &mut server, other),
        };
        let mut client = Limited::start(of_client, value, device, &address);
        let said = client.said();
        // What a server finds after a connection was made is in its log.
        let limited = match limits_server {
            true => &mut server,
            false => &mut client,
        };
        self.judge(value, device, limited, said)
    }

    /// Judges what was said, and the log of the process with the limit.
    fn judge(
        &self,
        value: u64,
        device: &str,
        limited: &mut Limited,
        said: Said,
    ) -> Result<(), String> {
        let words = self.words(device);
        let has_to_fail = self.must_fail.contains(&value) && !words.is_empty();
        let error = match said {
            Said::Worked if has_to_fail => {
                return Err("it works, and no limit was reached".to_owned());
            }
            Said::Worked => return Ok(()),
            Said::Late => return Err(format!("it hangs: {}", limited.log())),
            Said::Nothing => "it ended without a word".to_owned(),
            Said::Listening(_) => unreachable!("a client does not listen"),
            Said::Failed(error) => error,
        };
        // The kernel closes the files of a process before it says that it has ended.
        thread::sleep(Duration::from_millis(200));
        if limited.has_aborted(self.may_abort)? {
            return Ok(());
        }
        let all = format!("{error}\n{}", limited.log());
        let names_it = words.iter().any(|word| all.contains(word));
        // A call that waits for its deadline hangs.
        match names_it && !error.to_lowercase().contains("deadline") {
            true => Ok(()),
            false => Err(all),
        }
    }
}

/// Returns what is wrong over a device.
fn wrong_over(device: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for row in ROWS {
        for &value in row.values {
            for (side, limits_server) in [("client", false), ("server", true)] {
                if let Err(error) = row.run(value, device, limits_server) {
                    wrong.push(format!(
                        "{} {value}, {side} over {device}: {error}",
                        row.limit
                    ));
                }
            }
        }
    }
    wrong
}

#[test]
fn with_each_limit_of_the_machine_a_program_works_or_says_which_limit_it_was() {
    let wrong = thread::scope(|scope| {
        let devices = ["soft", "tcp"].map(|device| scope.spawn(move || wrong_over(device)));
        devices.map(|wrong| wrong.join().unwrap()).concat()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
