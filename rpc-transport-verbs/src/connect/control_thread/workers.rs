//! [`Workers`]: threads that do for clients what takes longer than the control thread may wait.
//!
//! The hosts that clients connect from take turns, so a host with many slow clients delays the other hosts
//! by a few of them.

use std::collections::{HashMap, VecDeque};
use std::io;

use crossbeam_channel::{Receiver, Sender, bounded};
use rpc_core::transport::Host;
use verbline_verbs::for_transport::start_thread;

use super::{Command, Control, Token};

/// What is to be done for a client.
pub(super) trait Job: Send + 'static {
    /// Returns the client that it is for.
    fn token(&self) -> Token;

    /// Returns true if the client has had an answer. Then it comes before the clients of its host that have
    /// had none: those that begin without an end do not make it wait at each of its steps.
    fn has_begun(&self) -> bool {
        false
    }

    /// Does it. Returns what the control thread has to be told.
    fn run(self) -> Command;
}

/// The jobs that wait for a thread, and the way to the threads. Belongs to the control thread.
pub(super) struct Workers<J> {
    threads: Sender<J>,
    /// Maximum number of jobs that the threads have at a time.
    most_handed_over: usize,
    handed_over: usize,
    /// The waiting jobs of each host that has any.
    waiting: HashMap<Host, VecDeque<J>>,
    /// The hosts in `waiting`, in the order of their turns.
    turns: VecDeque<Host>,
}

impl<J: Job> Workers<J> {
    /// Starts `count` threads, which send their results to `control` as commands.
    pub(super) fn start(control: &Control, name: &str, count: usize) -> io::Result<Self> {
        // One more for each, so that it need not wait for the control thread between two.
        let (sender, jobs) = bounded(2 * count);
        for _ in 0..count {
            let (jobs, control) = (jobs.clone(), control.clone());
            start_thread(name, move || run(&jobs, &control))?;
        }
        Ok(Self::new(sender, 2 * count))
    }

    fn new(threads: Sender<J>, most_handed_over: usize) -> Self {
        Self {
            threads,
            most_handed_over,
            handed_over: 0,
            waiting: HashMap::new(),
            turns: VecDeque::new(),
        }
    }

    /// Adds the job of a client of this host.
    pub(super) fn add(&mut self, host: Host, job: J) {
        let jobs = self.waiting.entry(host).or_default();
        if jobs.is_empty() {
            self.turns.push_back(host);
        }
        match job.has_begun() {
            true => {
                let begun = jobs.iter().take_while(|job| job.has_begun()).count();
                jobs.insert(begun, job);
            }
            false => jobs.push_back(job),
        }
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
        jobs.retain(|job| job.token() != token);
        if jobs.is_empty() {
            self.waiting.remove(&host);
            self.turns.retain(|turn| *turn != host);
        }
    }

    fn hand_over(&mut self) {
        while self.handed_over < self.most_handed_over {
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

fn run<J: Job>(jobs: &Receiver<J>, control: &Control) {
    for job in jobs {
        // Without the control thread there is nothing to notify.
        let _ = control.command(job.run());
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;

    impl Job for Token {
        fn token(&self) -> Token {
            *self
        }

        fn has_begun(&self) -> bool {
            *self >= 1000
        }

        fn run(self) -> Command {
            Command::Claimed(self, false)
        }
    }

    fn host(number: u8) -> Host {
        SocketAddr::from((Ipv4Addr::new(192, 0, 2, number), 4000)).into()
    }

    /// A host with a hundred clients does not delay another host by more than the jobs that the
    /// threads have already, and a client that has begun by no more than these. The jobs of clients that
    /// are gone are not done.
    #[test]
    fn hosts_take_turns() {
        let (sender, threads) = bounded::<Token>(8);
        let mut workers = Workers::new(sender, 8);
        for token in 1..=100 {
            workers.add(host(1), token);
        }
        for token in 201..=203 {
            workers.add(host(2), token);
        }
        workers.add(host(1), 1000);
        workers.add(host(1), 1001);
        workers.forget(host(2), 202);
        workers.forget(host(1), 10);
        let mut done = Vec::new();
        while let Ok(job) = threads.try_recv() {
            done.push(job);
            workers.finished_one();
        }
        let of_the_first: Vec<_> = (1..=8).collect();
        assert_eq!(done[..8], of_the_first);
        assert_eq!(done[8..13], [1000, 201, 1001, 203, 9]);
        assert_eq!(done.len(), 103);
        assert!(workers.waiting.is_empty() && workers.turns.is_empty());
    }
}
