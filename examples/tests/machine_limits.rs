//! The limits of the machine, for a client and a server, on `soft` and `tcp`: the table is in
//! docs/sizing.md. With each of them a program works, or its error or its log names the limit: never a
//! signal or a hang.

mod echo_process;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io};

use echo_process::CommandEcho;
use proto::echo::{EchoClient, EchoRequest, EchoServer};
use rpc_core::{Caller, Channel, LocalPoller, Request, Server, block_on};
use rpc_transport_verbs::Device;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A limit of the process, and the values of it that are tried.
struct Row {
    limit: &'static str,
    values: &'static [u64],
    /// What an error says, over each device: one of these. Without words, the program has to work.
    soft: &'static [&'static str],
    tcp: &'static [&'static str],
    /// True if an allocation of the standard library may end the process, and say so.
    may_abort: bool,
}

const WORKS: &[&str] = &[];

/// A mapping of ours names the limit. The system names none for a thread whose stack does not fit, and
/// a message that does not fit is the receiver's to refuse.
const SHORT_OF_ADDRESSES: &[&str] = &[
    "(RLIMIT_AS): raise the limit (ulimit -v",
    "Cannot allocate memory",
    "Resource temporarily unavailable",
    "or the limits of its process",
];

const ROWS: &[Row] = &[
    Row {
        limit: "files",
        values: &[8, 10, 12, 14, 15, 16, 20, 22, 28, 32, 64],
        soft: &["ulimit -n"],
        tcp: &["ulimit -n"],
        may_abort: false,
    },
    Row {
        limit: "threads",
        values: &[0],
        soft: &["thread"],
        tcp: &["thread"],
        may_abort: false,
    },
    Row {
        limit: "further threads",
        values: &[0],
        soft: WORKS,
        tcp: WORKS,
        may_abort: false,
    },
    Row {
        limit: "file size",
        values: &[0, 4096, 500_000, 1_000_000, 3_600_000, 12_000_000],
        soft: &["(RLIMIT_FSIZE): raise the limit (ulimit -f"],
        tcp: WORKS,
        may_abort: false,
    },
    Row {
        limit: "locked memory",
        values: &[0],
        soft: WORKS,
        tcp: WORKS,
        may_abort: false,
    },
    Row {
        limit: "address space",
        values: &[0, 1, 2, 4, 6, 8, 12, 16, 32, 64, 128, 1024],
        soft: SHORT_OF_ADDRESSES,
        tcp: SHORT_OF_ADDRESSES,
        may_abort: true,
    },
    Row {
        limit: "cores",
        values: &[1],
        soft: WORKS,
        tcp: WORKS,
        may_abort: false,
    },
    Row {
        limit: "memfd_create",
        values: &[0],
        soft: &["refuses memfd_create"],
        tcp: WORKS,
        may_abort: false,
    },
    Row {
        limit: "sched_setaffinity",
        values: &[0],
        soft: WORKS,
        tcp: WORKS,
        may_abort: false,
    },
];

/// Limits this process. `value` is in MiB beyond what is used for the address space.
fn set(limit: &str, value: u64) {
    let set = |resource, value| {
        let limit = Rlimit {
            current: Some(value),
            maximum: Some(value),
        };
        setrlimit(resource, limit).unwrap();
    };
    match limit {
        "files" => set(Resource::Nofile, value),
        "file size" => set(Resource::Fsize, value),
        "locked memory" => set(Resource::Memlock, value),
        "address space" => {
            let pages = fs::read_to_string("/proc/self/statm").unwrap();
            let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
            set(Resource::As, pages * 4096 + (value << 20));
        }
        "cores" => {
            let allowed = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core));
            let mut one = CpuSet::new();
            one.set(first.unwrap());
            sched_setaffinity(None, &one).unwrap();
        }
        "threads" | "further threads" => {
            refuse(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN);
        }
        "memfd_create" => refuse(&[libc::SYS_memfd_create], libc::EPERM),
        "sched_setaffinity" => refuse(&[libc::SYS_sched_setaffinity], libc::EPERM),
        other => panic!("there is no limit {other}"),
    }
}

/// Has the kernel refuse system calls of all threads of this process, as the filter of a container
/// does.
fn refuse(calls: &[libc::c_long], error: i32) {
    let statement = |code: u32, k: u32, jt: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf: 0,
        k,
    };
    // Loads the number of the call, and compares it with each.
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let mut program = vec![statement(load, 0, 0)];
    for (index, call) in calls.iter().enumerate() {
        let compare = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        program.push(statement(
            compare,
            *call as u32,
            (calls.len() - index) as u8,
        ));
    }
    program.push(statement(libc::BPF_RET, libc::SECCOMP_RET_ALLOW, 0));
    program.push(statement(
        libc::BPF_RET,
        libc::SECCOMP_RET_ERRNO | error as u32,
        0,
    ));
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the first call has no pointer; the second one reads the program, which lives until it
    // has returned.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const program,
        )
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

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

fn client(device: &Device, address: &str) -> Result<(), String> {
    let poller = LocalPoller::new(device).map_err(|error| error.to_string())?;
    let channel = poller.connect(address).map_err(|error| error.to_string())?;
    poller.block_on(calls(&EchoClient::new(channel)))?;
    let channel = block_on(Channel::connect(device, address)).map_err(|error| error.to_string())?;
    block_on(calls(&EchoClient::new(channel)))
}

fn server(device: &Device) -> Result<Server, String> {
    let service = EchoServer::per_poller(|| CommandEcho);
    let server = Server::builder(device).add_service(service);
    server
        .bind("127.0.0.1:0")
        .map_err(|error| error.to_string())
}

/// What the other process does. Prints `worked` or `failed: ` with the error, or the server's address.
#[test]
#[ignore = "the other test runs it, as a process with a limit"]
#[allow(clippy::print_stdout, reason = "its parent reads what happened")]
fn limited() {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let variable = |name: &str| std::env::var(name).unwrap();
    let (limit, value) = (variable("LIMIT"), variable("VALUE").parse().unwrap());
    let address = variable("SERVER");
    let opened = || Device::open(&variable("VERBLINE_DEVICE")).map_err(|error| error.to_string());
    let outcome = if limit == "further threads" {
        // Threads run already, and no other one can be started.
        let device = opened().unwrap();
        if address.is_empty() {
            let server = server(&device).unwrap();
            set(&limit, value);
            serve(server)
        } else {
            let poller = LocalPoller::new(&device).unwrap();
            let local = EchoClient::new(poller.connect(&address).unwrap());
            let shared = EchoClient::new(block_on(Channel::connect(&device, &address)).unwrap());
            set(&limit, value);
            let local = poller.block_on(calls(&local));
            local.and_then(|()| block_on(calls(&shared)))
        }
    } else {
        set(&limit, value);
        match address.is_empty() {
            true => opened().and_then(|device| server(&device)).and_then(serve),
            false => opened().and_then(|device| client(&device, &address)),
        }
    };
    match outcome {
        Ok(()) => println!("\nworked"),
        Err(error) => println!("\nfailed: {error}"),
    }
}

#[allow(clippy::print_stdout, reason = "its parent reads the address")]
fn serve(server: Server) -> Result<(), String> {
    println!("\nlistening at {}", server.local_addr());
    server.run().map_err(|error| error.to_string())
}

/// A process with a limit, and what it prints.
struct Limited {
    child: Child,
}

impl Limited {
    fn start(row: &Row, value: u64, device: &str, server: &str) -> Self {
        let arguments = [
            "--exact",
            "limited",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ];
        let child = Command::new(std::env::current_exe().unwrap())
            .args(arguments)
            .envs([
                ("LIMIT", row.limit),
                ("VERBLINE_DEVICE", device),
                ("SERVER", server),
            ])
            .env("VALUE", value.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child }
    }

    /// Returns the line that begins with one of these words.
    fn line(&mut self, words: &[&str]) -> Option<String> {
        let stdout = self.child.stdout.as_mut().unwrap();
        let mut line = Vec::new();
        let mut byte = [0];
        while stdout.read(&mut byte).unwrap() > 0 {
            if byte != *b"\n" {
                line.push(byte[0]);
                continue;
            }
            let text = String::from_utf8(std::mem::take(&mut line)).unwrap();
            if words.iter().any(|word| text.starts_with(word)) {
                return Some(text);
            }
        }
        None
    }

    /// Judges a line. What the process finds after a connection was made is in its log.
    fn judge_with_log(mut self, row: &Row, device: &str, line: &str) -> Result<String, String> {
        self.child.kill().unwrap();
        let mut log = String::new();
        let stderr = self.child.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        judge(row, device, format!("{line}\n{log}"))
    }

    /// Judges a process that has ended without a word: it may only have had no memory, and said so.
    fn judge_end(mut self, row: &Row) -> Result<String, String> {
        let mut said = String::new();
        let stderr = self.child.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        let status = self.child.wait().unwrap();
        let is_out_of_memory =
            status.signal() == Some(libc::SIGABRT) && said.contains("memory allocation of");
        match row.may_abort && is_out_of_memory {
            true => Ok("aborted".to_owned()),
            false => Err(format!("{status}\n{said}")),
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

/// Checks the words of an error.
fn judge(row: &Row, device: &str, line: String) -> Result<String, String> {
    let words = if device == "soft" { row.soft } else { row.tcp };
    let names_it = words.iter().any(|word| line.contains(word));
    match line.starts_with("failed: ") && !names_it {
        true => Err(line),
        false => Ok(line),
    }
}

fn client_row(row: &Row, value: u64, device: &str, address: &str) -> Result<String, String> {
    let mut limited = Limited::start(row, value, device, address);
    match limited.line(&["worked", "failed: "]) {
        Some(line) => limited.judge_with_log(row, device, &line),
        None => limited.judge_end(row),
    }
}

fn server_row(row: &Row, value: u64, device: &str) -> Result<String, String> {
    let mut limited = Limited::start(row, value, device, "");
    let Some(line) = limited.line(&["listening at ", "failed: "]) else {
        return limited.judge_end(row);
    };
    let Some(address) = line.strip_prefix("listening at ") else {
        return judge(row, device, line);
    };
    let outcome = client(&Device::open(device).unwrap(), address);
    let Err(error) = outcome else {
        return Ok("worked".to_owned());
    };
    // The kernel closes the files of a process before it says that it has ended.
    std::thread::sleep(Duration::from_millis(200));
    if limited.child.try_wait().unwrap().is_some() {
        return limited.judge_end(row);
    }
    limited.judge_with_log(row, device, &format!("failed: {error}"))
}

#[test]
fn with_each_limit_of_the_machine_a_program_works_or_says_which_limit_it_was() {
    let mut wrong = Vec::new();
    for device in ["soft", "tcp"] {
        let opened = Device::open(device).unwrap();
        let server = server(&opened).unwrap().spawn();
        let address = server.local_addr().to_string();
        for row in ROWS {
            for &value in row.values {
                let began = Instant::now();
                for (side, outcome) in [
                    ("client", client_row(row, value, device, &address)),
                    ("server", server_row(row, value, device)),
                ] {
                    let took = began.elapsed();
                    let described =
                        format!("{} {value}, {side} over {device}: {took:.1?}", row.limit);
                    let in_time = (took < 2 * DEADLINE).then_some(());
                    if let Err(error) = outcome.and_then(|_| in_time.ok_or("late".to_owned())) {
                        wrong.push(format!("{described}: {error}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
