//! A service whose handlers keep their poller busy for as long as each request says. Its server counts
//! the handlers by the phase of the measurement that their requests belong to.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proto::bench::bench_server::LocalBench;
use proto::bench::{Blob, Fixed, StatsReply, StatsRequest};
use rpc_core::{Request, Response, Status};

use crate::Outcome;
use crate::child::{self, Process};

/// Number of phases that the server can tell apart.
pub const MAX_PHASES: usize = 64;

/// The content of a request: what its handler does, and what the server counts it as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Phase that the call belongs to; below [`MAX_PHASES`].
    pub phase: usize,
    /// Time for which the handler spins.
    pub spin: Duration,
}

impl Work {
    /// Returns the message that carries this. Its first field is free for the caller.
    #[must_use]
    pub fn to_message(self) -> Fixed {
        Fixed {
            b: self.phase as u64,
            c: u64::try_from(self.spin.as_nanos()).unwrap_or(u64::MAX),
            ..Fixed::default()
        }
    }

    fn from_message(message: &Fixed) -> Self {
        Self {
            phase: message.b as usize,
            spin: Duration::from_nanos(message.c),
        }
    }
}

/// The service, with the number of handlers that began in each phase.
#[derive(Clone)]
pub(crate) struct Spin(Arc<[AtomicU64]>);

impl Spin {
    /// Creates the service. A thread answers the parent's questions about it: each line is the number of
    /// a phase. The thread ends with the parent.
    pub(crate) fn of_server_process() -> Self {
        let service = Self((0..MAX_PHASES).map(|_| AtomicU64::new(0)).collect());
        let begun = Arc::clone(&service.0);
        thread::spawn(move || {
            while let Ok(line) = child::read_line_from_parent() {
                let begun = line.parse().ok().and_then(|phase: usize| begun.get(phase));
                let answer = match begun {
                    Some(begun) => begun.load(Ordering::Relaxed).to_string(),
                    None => "there is no such phase".to_owned(),
                };
                if child::write_line_to_parent(&answer).is_err() {
                    return;
                }
            }
        });
        service
    }
}

impl LocalBench for Spin {
    async fn echo_fixed(&self, request: Request<Fixed>) -> Result<Response<Fixed>, Status> {
        let message = request.into_inner();
        let work = Work::from_message(&message);
        let Some(begun) = self.0.get(work.phase) else {
            return Err(Status::out_of_range("the phases have smaller numbers"));
        };
        // Relaxed, also above: the numbers are read while no handler runs, or as an estimate.
        begun.fetch_add(1, Ordering::Relaxed);
        let start = Instant::now();
        while start.elapsed() < work.spin {
            hint::spin_loop();
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

/// Returns the number of handlers of a phase that began so far, as the server's process counts them.
///
/// # Errors
///
/// Fails if the server has ended, or if it has no such phase.
pub fn handlers_begun(server: &mut Process, phase: usize) -> Outcome<u64> {
    server.write_line(&phase.to_string())?;
    let line = server.read_line()?;
    let begun = line.parse();
    begun.map_err(|_| format!("the server process answered: {line}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_carries_the_work() {
        let work = Work {
            phase: 3,
            spin: Duration::from_micros(50),
        };
        assert_eq!(Work::from_message(&work.to_message()), work);
    }
}
