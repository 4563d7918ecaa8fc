//! The threads that create queue pairs for clients.
//!
//! A device may be slow to connect one: for an address that does not answer, a kernel takes about a
//! second. On the control thread, that would stop all other handshakes and keepalives. So four
//! threads create the queue pairs. The hosts that clients connect from take turns, so a host with
//! many slow clients delays the other hosts by a few of them.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use rpc_core::transport::{Admitted, Host};
use verbline_verbs::for_transport::start_thread;

use super::{Command, Control, Token};
use crate::connect::handshake::Offer;
use crate::connect::server::{ClientInRts, Port};
use crate::transport::notices::{LivenessEnd, LivenessKey, Notice};
use crate::transport::queue_pairs::AwaitedClaim;

/// Number of threads: this many slow clients can be handled at a time before other clients have to
/// wait.
const PREPARERS: usize = 4;

/// Maximum number of jobs that the threads have at a time: one more for each, so that it need not
/// wait for the control thread between two.
const MAX_HANDED_OVER: usize = 2 * PREPARERS;

/// A client that needs a queue pair.
pub(super) struct Job {
    pub(super) token: Token,
    pub(super) port: Port,
    pub(super) offer: Offer,
    pub(super) admitted: Admitted,
    /// Keeps the device from dialing the client's process, which might not answer.
    pub(super) claim: Option<AwaitedClaim>,
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

/// The jobs that wait for a thread, and the way to the threads. Belongs to the control thread.
pub(super) struct Preparers {
    threads: Sender<Job>,
    handed_over: usize,
    /// The waiting jobs of each host that has any.
    waiting: HashMap<Host, VecDeque<Job>>,
    /// The hosts in `waiting`, in the order of their turns.
    turns: VecDeque<Host>,
}

impl Preparers {
    /// Starts the threads, which send their results to `control` as commands.
    pub(super) fn start(control: &Control) -> io::Result<Self> {
        let (sender, jobs) = bounded(MAX_HANDED_OVER);
        for _ in 0..PREPARERS {
            let (jobs, control) = (jobs.clone(), control.clone());
            start_thread("verbline-prepare", move || run(&jobs, &control))?;
        }
        Ok(Self::new(sender))
    }

    fn new(threads: Sender<Job>) -> Self {
        Self {
            threads,
            handed_over: 0,
            waiting: HashMap::new(),
            turns: VecDeque::new(),
        }
    }

    /// Adds the job of a client of this host.
    pub(super) fn add(&mut self, host: Host, job: Job) {
        let jobs = self.waiting.entry(host).or_default();
        if jobs.is_empty() {
            self.turns.push_back(host);
        }
        jobs.push_back(job);
        self.hand_over();
    }

    /// Records that a thread has finished a job.
    pub(super) fn finished_one(&mut self) {
        self.handed_over -= 1;
        self.hand_over();
    }

    /// Drops the job of a client that is gone, if it still waits.
    pub(super) fn forget(&mut self, host: Host, token: Token) {
        let Some(jobs) = self.waiting.get_mut(&host) else {
            return;
        };
        jobs.retain(|job| job.token != token);
        if jobs.is_empty() {
            self.waiting.remove(&host);
            self.turns.retain(|turn| *turn != host);
        }
    }

    fn hand_over(&mut self) {
        while self.handed_over < MAX_HANDED_OVER {
            let Some(host) = self.turns.pop_front() else {
                return;
            };
            let Some(jobs) = self.waiting.get_mut(&host) else {
                continue;
            };
            let job = jobs.pop_front();
            if jobs.is_empty() {
                self.waiting.remove(&host);
            } else {
                self.turns.push_back(host);
            }
            if let Some(job) = job {
                // The channel has room for all jobs that the threads have. Its other end lives as
                // long as the threads, which end with the process.
                let is_sent = self.threads.try_send(job).is_ok();
                debug_assert!(is_sent, "the threads live, and the channel has room");
                self.handed_over += 1;
            }
        }
    }
}

fn run(jobs: &Receiver<Job>, control: &Control) {
    for job in jobs {
        let (token, key) = (job.token, LivenessKey::next());
        let address = job.stream.peer_addr().ok();
        // The only reference to a socket is that of the job if its client is gone.
        let outcome = if Arc::strong_count(&job.stream) == 1 {
            Err("the client is gone".to_owned())
        } else {
            job.port
                .create_queue_pair(&job.offer, address, job.admitted, job.stream, key)
                .map_err(|error| error.to_string())
        };
        drop(job.claim);
        // Without the control thread there is nothing to notify.
        let _ = control.command(Command::JobDone(token, JobResult { key, outcome }));
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};
    use std::sync::atomic::AtomicUsize;

    use rpc_core::transport::ConnectionQuota;

    use super::*;

    fn host(number: u8) -> Host {
        SocketAddr::from((Ipv4Addr::new(192, 0, 2, number), 4000)).into()
    }

    fn job(token: Token, stream: &Arc<TcpStream>) -> Job {
        Job {
            token,
            port: Port::new(Vec::new()),
            offer: Offer {
                endpoints: Vec::new(),
                max_frame_len: 4096,
                session: Vec::new(),
            },
            admitted: Admitted::new(
                0,
                Vec::new(),
                Vec::new(),
                ConnectionQuota::acquire(&Arc::new(AtomicUsize::new(0))),
            ),
            claim: None,
            stream: Arc::clone(stream),
        }
    }

    /// A host with a hundred clients does not delay another host by more than the jobs that the
    /// threads have already, and the jobs of clients that are gone are not done.
    #[test]
    fn hosts_take_turns() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = Arc::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let (sender, threads) = bounded(MAX_HANDED_OVER);
        let mut preparers = Preparers::new(sender);
        for token in 1..=100 {
            preparers.add(host(1), job(token, &stream));
        }
        for token in 201..=203 {
            preparers.add(host(2), job(token, &stream));
        }
        preparers.forget(host(2), 202);
        preparers.forget(host(1), 10);
        let mut done = Vec::new();
        while let Ok(job) = threads.try_recv() {
            done.push(job.token);
            preparers.finished_one();
        }
        let of_the_first: Vec<_> = (1..=8).collect();
        assert_eq!(done[..8], of_the_first);
        assert_eq!(done[8..13], [9, 201, 11, 203, 12]);
        assert_eq!(done.len(), 101);
        assert!(preparers.waiting.is_empty() && preparers.turns.is_empty());
        assert_eq!(Arc::strong_count(&stream), 1);
    }
}
