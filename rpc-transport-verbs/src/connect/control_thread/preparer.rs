//! The threads that make queue pairs for clients.
//!
//! A device may take its time over it: towards an address that nobody answers, a kernel takes about a
//! second. On the control thread, nobody's handshake would go on meanwhile, and no keepalive be
//! answered.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use rpc_core::transport::Admitted;

use super::{Command, Control, MAX_HANDSHAKES, Token};
use crate::connect::handshake::Offer;
use crate::connect::server::{Invited, Port};
use crate::transport::mailbox::{LineEnd, LineKey, Notice};

/// So many clients may be waited for at a time before the others have to wait, too.
const PREPARERS: usize = 4;

/// A client whose queue pair is to be made.
pub(super) struct Job {
    pub(super) token: Token,
    pub(super) port: Port,
    pub(super) offer: Offer,
    pub(super) admitted: Admitted,
    pub(super) stream: Arc<TcpStream>,
}

/// What became of it.
pub(super) struct Prepared {
    pub(super) key: LineKey,
    /// Or what the client is to be told.
    pub(super) outcome: Result<Invited, String>,
}

impl Prepared {
    /// Nobody waits for it any more: the poller, which has been told of it, is told that.
    pub(super) fn forget(self) {
        if let Ok(invited) = self.outcome {
            let _ = invited.mailbox.put(Notice::Ended(self.key, LineEnd::Gone));
        }
    }
}

/// Starts the threads; what they have prepared goes to `control` as a command.
pub(super) fn start(control: &Control) -> io::Result<Sender<Job>> {
    // Each of the arrivals has one at most.
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
        // The arrival is gone, and with it all other owners of its socket.
        if Arc::strong_count(&job.stream) == 1 {
            continue;
        }
        let (token, key) = (job.token, LineKey::next());
        let outcome = job
            .port
            .prepare(&job.offer, job.admitted, job.stream, key)
            .map_err(|error| error.to_string());
        // If the control thread is gone, so is everything that could be told.
        let _ = control.command(Command::Prepared(token, Prepared { key, outcome }));
    }
}
