//! The threads that create queue pairs for clients.
//!
//! A device may be slow to connect one: for an address that does not answer, a kernel takes about a
//! second. On the control thread, that would stop all other handshakes and keepalives. So four
//! threads create the queue pairs.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use rpc_core::transport::Admitted;

use super::{Command, Control, MAX_HANDSHAKES, Token};
use crate::connect::handshake::Offer;
use crate::connect::server::{ClientInRts, Port};
use crate::transport::notices::{LivenessEnd, LivenessKey, Notice};

/// Number of threads: this many slow clients can be handled at a time before other clients have to
/// wait.
const PREPARERS: usize = 4;

/// A client that needs a queue pair.
pub(super) struct Job {
    pub(super) token: Token,
    pub(super) port: Port,
    pub(super) offer: Offer,
    pub(super) admitted: Admitted,
    pub(super) stream: Arc<TcpStream>,
}

/// The result of a job.
pub(super) struct JobResult {
    pub(super) key: LivenessKey,
    /// The connection in RTS, or the reason to send to the client.
    pub(super) outcome: Result<ClientInRts, String>,
}

impl JobResult {
    /// Discards the result because its client is gone. The poller already knows the connection, so
    /// it is notified of the end.
    pub(super) fn discard(self) {
        if let Ok(client_in_rts) = self.outcome {
            let _ = client_in_rts
                .notice_sender
                .send(Notice::Ended(self.key, LivenessEnd::Gone));
        }
    }
}

/// Starts the threads, which send their results to `control` as commands.
pub(super) fn start(control: &Control) -> io::Result<Sender<Job>> {
    // Never full: each client has at most one job.
    let (sender, jobs) = bounded(MAX_HANDSHAKES);
    for _ in 0..PREPARERS {
        let (jobs, control) = (jobs.clone(), control.clone());
        thread::Builder::new()
            .name("verbline-prepare".to_owned())
            .spawn(move || run(&jobs, &control))?;
    }
    Ok(sender)
}

fn run(jobs: &Receiver<Job>, control: &Control) {
    for job in jobs {
        // Skip a job whose client is gone: this is the only reference to its socket.
        if Arc::strong_count(&job.stream) == 1 {
            continue;
        }
        let (token, key) = (job.token, LivenessKey::next());
        let outcome = job
            .port
            .create_queue_pair(&job.offer, job.admitted, job.stream, key)
            .map_err(|error| error.to_string());
        // Without the control thread there is nothing to notify.
        let _ = control.command(Command::JobDone(token, JobResult { key, outcome }));
    }
}
