//! An echo server in a separate process, and the client's side of it, for tests of process
//! failures. The process is another instance of the test program that runs the ignored test
//! `server_process`.

// Each test program uses only parts of this module.
#![allow(dead_code)]

use std::future::{Future, pending, poll_fn};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::task::Poll;
use std::time::Duration;

use proto::echo::echo_server::LocalEcho;
use proto::echo::{EchoClient, EchoReply, EchoRequest, EchoServer};
use rpc_core::{CallError, LocalChannel, LocalPoller, Request, Response, Server, Status};
use rpc_transport_verbs::{Device, DeviceError};

/// Echoes requests, or follows the command in the payload.
pub(crate) struct CommandEcho;

pub(crate) const BLOCK: &[u8] = b"block the poller";
pub(crate) const NEVER: &[u8] = b"never answer";
pub(crate) const COUNTERS: &[u8] = b"counters";

impl LocalEcho for CommandEcho {
    async fn echo(&self, request: Request<EchoRequest>) -> Result<Response<EchoReply>, Status> {
        let mut payload = request.into_inner().payload;
        match &payload[..] {
            BLOCK => std::thread::sleep(blocking()),
            NEVER => pending().await,
            COUNTERS => {
                let poller =
                    LocalPoller::current().ok_or_else(|| Status::internal("not on a poller"))?;
                let counters = poller.stats().total().transport;
                payload = format!(
                    "{} {} {}",
                    counters.srq_limit_events, counters.reserve_posted, counters.rnr
                )
                .into();
            }
            _ => {}
        }
        Ok(Response::new(EchoReply { payload }))
    }
}

/// Opens the device under test: the one that `VERBLINE_DEVICE` names, or `soft`.
pub(crate) fn device() -> Device {
    open_device().unwrap()
}

pub(crate) fn open_device() -> Result<Device, DeviceError> {
    let name = std::env::var("VERBLINE_DEVICE").unwrap_or_else(|_| "soft".to_owned());
    Device::open(&name)
}

pub(crate) fn server() -> Server {
    Server::builder(&device())
        .add_service(EchoServer::per_poller(|| CommandEcho))
        .bind("127.0.0.1:0")
        .expect("a server on this machine")
}

/// Returns how long a blocked poller stays blocked: longer than its clients need to spend all their
/// credits, even on an emulated processor.
fn blocking() -> Duration {
    if device().name() == "soft" {
        Duration::from_millis(200)
    } else {
        Duration::from_secs(4)
    }
}

/// Runs the server; the body of the test `server_process`.
pub(crate) fn serve() {
    run(server);
}

/// Starts a server and runs it.
#[allow(clippy::print_stdout, reason = "its parent reads the address")]
pub(crate) fn run(start: impl FnOnce() -> Server) {
    // `RUST_LOG=debug` shows the server's log when a test fails.
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let server = start();
    println!("\nlistening at {}", server.local_addr());
    server.run().unwrap();
}

/// A process of this test binary, killed on drop.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    /// Starts an ignored test as a process, and waits for a line that begins with `word`.
    pub(crate) fn start(test: &str, server: &str, word: &str) -> (Self, String) {
        Self::start_with(test, &[("VERBLINE_TEST_SERVER", server)], word)
    }

    /// Same as `start`, with environment variables.
    pub(crate) fn start_with(
        test: &str,
        environment: &[(&str, &str)],
        word: &str,
    ) -> (Self, String) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                test,
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let line = stdout
            .lines()
            .map_while(Result::ok)
            .find(|line| line.starts_with(word));
        (
            Self(child),
            line.unwrap_or_else(|| panic!("{test} ended without saying '{word}'")),
        )
    }

    pub(crate) fn server() -> (Self, String) {
        Self::listening(&[])
    }

    /// Starts a server on these devices.
    pub(crate) fn server_on(device: &str) -> (Self, String) {
        Self::listening(&[("VERBLINE_DEVICE", device)])
    }

    /// Starts a server with environment variables.
    pub(crate) fn listening(environment: &[(&str, &str)]) -> (Self, String) {
        let (process, line) = Self::start_with("server_process", environment, "listening at ");
        (process, line["listening at ".len()..].to_owned())
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Stops the process, and returns once it has stopped.
    pub(crate) fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
        let stat = format!("/proc/{}/stat", self.0.id());
        // The format is "pid (name) T ...": see proc(5).
        while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
            std::thread::yield_now();
        }
    }

    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn connect(address: &str) -> (LocalPoller, EchoClient<LocalChannel>) {
    let poller = LocalPoller::new(&device()).unwrap();
    let channel = poller
        .connect(address)
        .unwrap_or_else(|error| panic!("{error}"));
    (poller, EchoClient::new(channel))
}

pub(crate) async fn call(
    echo: &EchoClient<LocalChannel>,
    payload: &[u8],
) -> Result<Vec<u8>, CallError> {
    let request = EchoRequest {
        payload: payload.to_vec(),
    };
    echo.echo(request)
        .await
        .map(|response| response.into_inner().payload)
}

/// Polls all futures until they are ready. Ready ones are not polled again.
pub(crate) async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures
        .into_iter()
        .map(|future| (Box::pin(future), None))
        .collect();
    poll_fn(|cx| {
        for (future, output) in futures.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(cx) {
                *output = Some(ready);
            }
        }
        if futures.iter().all(|(_, output)| output.is_some()) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    futures
        .into_iter()
        .filter_map(|(_, output)| output)
        .collect()
}
