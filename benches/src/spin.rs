//! A server whose handlers keep its poller busy for as long as each request says, and that counts
//! the handlers by the phase of the measurement that their requests belong to.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proto::bench::bench_server::LocalBench;
use proto::bench::{BenchServer, Blob, Fixed, StatsReply, StatsRequest};
use rpc_core::{Intents, Request, Response, Server, Status};
use rpc_transport_verbs::Device;
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::clock::host_time;
use crate::role::{self, Role};
use crate::{Outcome, child};

/// Number of phases that the server can tell apart.
pub const MAX_PHASES: usize = 64;

/// The content of a request: what its handler does, and what the server counts it as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Phase that the call belongs to; below [`MAX_PHASES`].
    pub phase: usize,
    /// Time for which the handler spins.
    pub spin: Duration,
    /// The time at which the caller gives up, by [`host_time`].
    pub give_up: Option<Duration>,
}

impl Work {
    /// Returns the message that carries this.
    #[must_use]
    pub fn to_message(self) -> Fixed {
        Fixed {
            a: self.phase as u64,
            b: nanos(self.spin),
            c: self.give_up.map_or(0, nanos),
            ..Fixed::default()
        }
    }

    fn from_message(message: &Fixed) -> Self {
        Self {
            phase: message.a as usize,
            spin: Duration::from_nanos(message.b),
            give_up: (message.c > 0).then(|| Duration::from_nanos(message.c)),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The handlers of one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handlers {
    /// Handlers that began.
    pub begun: u64,
    /// Of these, handlers that ended after their caller had given up.
    pub too_late: u64,
}

#[derive(Debug, Default)]
struct Counts {
    begun: AtomicU64,
    too_late: AtomicU64,
}

/// The service.
struct Spin {
    phases: Arc<[Counts]>,
}

impl LocalBench for Spin {
    async fn echo_fixed(&self, request: Request<Fixed>) -> Result<Response<Fixed>, Status> {
        let message = request.into_inner();
        let work = Work::from_message(&message);
        let Some(counts) = self.phases.get(work.phase) else {
            return Err(Status::out_of_range("the phases have smaller numbers"));
        };
        // Relaxed, also below: the numbers are read while no handler runs, or as an estimate.
        counts.begun.fetch_add(1, Ordering::Relaxed);
        let start = Instant::now();
        while start.elapsed() < work.spin {
            hint::spin_loop();
        }
        if work.give_up.is_some_and(|give_up| host_time() > give_up) {
            counts.too_late.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Response::new(message))
    }

    async fn echo_blob(&self, _: Request<Blob>) -> Result<Response<Blob>, Status> {
        Err(Status::unimplemented("this server only spins"))
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<StatsReply>, Status> {
        Err(Status::unimplemented("this server only spins"))
    }
}

/// What a server process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SpinArgs {
    /// Device name.
    pub device: String,
    /// Core to pin the poller to.
    pub core: usize,
    /// Number of connections to prepare for.
    pub connections: u32,
    /// Number of calls in flight per connection to prepare for.
    pub max_in_flight: u32,
    /// Number of files that the process may open, if not as many as its parent.
    pub max_files: Option<u64>,
}

impl SpinArgs {
    /// Runs the server process: prints its address, answers its parent's questions about a phase,
    /// and serves until it is killed.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be started.
    pub fn serve(&self) -> Outcome<()> {
        child::end_with_parent()?;
        if let Some(files) = self.max_files {
            let limit = Rlimit {
                current: Some(files),
                maximum: Some(files),
            };
            setrlimit(Resource::Nofile, limit)?;
        }
        let phases: Arc<[Counts]> = (0..MAX_PHASES).map(|_| Counts::default()).collect();
        let for_service = Arc::clone(&phases);
        let service = move || Spin {
            phases: Arc::clone(&for_service),
        };
        let server = Server::builder(&Device::open(&self.device)?)
            .add_service(BenchServer::per_poller(service))
            .cores([self.core])
            .connections(self.connections)
            .max_in_flight(self.max_in_flight)
            .bind("127.0.0.1:0")?;
        child::write_line_to_parent(&server.local_addr().to_string())?;
        thread::spawn(move || answer_questions(&phases));
        Ok(server.run()?)
    }
}

/// Answers each line, the number of a phase, with the phase's counts. Ends with the parent.
fn answer_questions(phases: &[Counts]) {
    while let Ok(line) = child::read_line_from_parent() {
        let counts = line.parse().ok().and_then(|phase: usize| phases.get(phase));
        let answer = match counts {
            Some(counts) => format!(
                "{} {}",
                counts.begun.load(Ordering::Relaxed),
                counts.too_late.load(Ordering::Relaxed)
            ),
            None => "there is no such phase".to_owned(),
        };
        if child::write_line_to_parent(&answer).is_err() {
            return;
        }
    }
}

/// A server process, from its parent's side.
#[derive(Debug)]
pub struct SpinServer {
    process: child::Process,
    address: String,
}

impl SpinServer {
    /// Starts the server process, with its poller pinned to `core`.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be started.
    pub fn start(device: &str, core: usize, intents: &Intents) -> Outcome<Self> {
        let args = SpinArgs {
            device: device.to_owned(),
            core,
            connections: intents.connections,
            max_in_flight: intents.max_in_flight,
            max_files: None,
        };
        Self::start_as(None, args)
    }

    /// Starts the server process for another user, or for this one.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be started.
    pub fn start_as(user: Option<u32>, args: SpinArgs) -> Outcome<Self> {
        let mut process = child::Process::start_as(user, &role::to_args(&Role::Spins(args))?)?;
        let address = process.read_line()?;
        Ok(Self { process, address })
    }

    /// Returns the id of the server's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        // Process ids are positive.
        self.process.pid().as_raw_nonzero().get().unsigned_abs()
    }

    /// Returns the server's address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns a handle that reads the server's CPU time.
    #[must_use]
    pub fn cpu_time(&self) -> child::CpuTime {
        self.process.cpu_time()
    }

    /// Returns the handlers of a phase so far.
    ///
    /// # Errors
    ///
    /// Fails if the server has ended.
    pub fn handlers(&mut self, phase: usize) -> Outcome<Handlers> {
        self.process.write_line(&phase.to_string())?;
        let line = self.process.read_line()?;
        let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[begun, too_late]) => Ok(Handlers { begun, too_late }),
            _ => Err(format!("the server process answered: {line}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_carries_the_work() {
        for give_up in [None, Some(Duration::from_secs(77))] {
            let work = Work {
                phase: 3,
                spin: Duration::from_micros(50),
                give_up,
            };
            assert_eq!(Work::from_message(&work.to_message()), work);
        }
    }
}
