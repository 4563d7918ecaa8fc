//! [`DialThreads`]: the threads that perform the handshakes of a poller, or of a set of pollers.
//!
//! A server that accepts connections and stays silent keeps a thread for as long as a handshake may
//! take. Three rules leave threads to the others: few handshakes go to one address, few are those of
//! channels whose previous attempt has failed, and first attempts and retries take turns.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::transport::Fabric;

/// Handshakes at a time. A handshake waits for its server most of the time, so the number bounds
/// threads rather than load: a hundred channels that are opened at once, to servers that answer,
/// connect within some ten milliseconds.
const MOST: usize = 16;

/// Of these, handshakes of channels whose previous attempt has failed: what remains is for channels
/// that have just been opened or have lost their connection.
const MOST_RETRIES: usize = MOST / 2;

/// Of these, handshakes with one address. An application that gives up soon and tries again with a new
/// channel makes a first attempt each time.
const MOST_TO_ONE: usize = MOST / 4;

/// Runs handshakes, which block, outside the poller's thread.
pub(crate) trait Spawner {
    /// Runs a job, possibly later.
    fn spawn(&self, job: DialJob) -> io::Result<()>;

    /// Returns the number of handshakes of other channels that are in progress, which a job may wait
    /// for.
    fn in_progress(&self) -> usize {
        0
    }
}

/// An attempt to connect.
pub(crate) struct DialJob {
    /// The server's address.
    pub(super) address: String,
    /// True if the previous attempt of the same channel has failed.
    pub(super) is_retry: bool,
    pub(super) progress: Arc<DialProgress>,
    pub(super) handshake: Box<dyn FnOnce() + Send>,
}

impl DialJob {
    /// Performs the handshake, unless the channel has given it up.
    pub(crate) fn run(self) {
        if self.progress.begin() {
            (self.handshake)();
        }
    }

    /// Returns true if the job, which waits for a thread, was given up.
    fn is_given_up(&self) -> bool {
        self.progress.0.load(Ordering::Relaxed)
    }
}

/// Whether a handshake has begun, or was given up before: one of the two, whichever comes first.
#[derive(Debug, Default)]
pub(super) struct DialProgress(AtomicBool);

impl DialProgress {
    /// Returns false if the handshake was given up.
    fn begin(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }

    /// Returns false if the handshake has begun.
    pub(super) fn give_up(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }
}

/// Threads for handshakes, which end when there are none.
pub(super) struct DialThreads {
    state: Mutex<State>,
    /// Starts a thread of the device.
    start: Box<dyn Fn(Run) -> io::Result<()> + Send + Sync>,
}

type Run = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    /// Threads that run.
    running: usize,
    /// The handshakes that they perform: the address of each, and whether it is a retry.
    current: Vec<(String, bool)>,
    /// Handshakes that wait for a thread, the oldest first.
    waiting: VecDeque<DialJob>,
    /// True if a retry is next, if there are retries and first attempts.
    is_turn_of_retries: bool,
    /// The length of the queue at which those that were given up are removed.
    purge_at: usize,
}

impl State {
    fn push(&mut self, job: DialJob) {
        if self.waiting.len() >= self.purge_at {
            self.waiting.retain(|job| !job.is_given_up());
            // So far apart that a job is looked at only a few times.
            self.purge_at = 2 * self.waiting.len() + MOST;
        }
        self.waiting.push_back(job);
    }

    /// Returns the index of the next handshake that may begin.
    fn next(&self) -> Option<usize> {
        let is_full = |job: &DialJob| {
            let to_same = self.current.iter();
            to_same.filter(|(to, _)| *to == job.address).count() >= MOST_TO_ONE
        };
        let next = |is_retry| {
            let mut waiting = self.waiting.iter();
            waiting.position(|job| job.is_retry == is_retry && (job.is_given_up() || !is_full(job)))
        };
        let retrying = self.current.iter().filter(|(_, is_retry)| *is_retry);
        let may_retry = retrying.count() < MOST_RETRIES;
        let retry = || may_retry.then(|| next(true)).flatten();
        match self.is_turn_of_retries {
            true => retry().or_else(|| next(false)),
            false => next(false).or_else(retry),
        }
    }

    /// Takes the next handshake that may begin.
    fn take(&mut self) -> Option<DialJob> {
        let index = self.next()?;
        let job = self.waiting.remove(index)?;
        self.is_turn_of_retries = !job.is_retry;
        self.current.push((job.address.clone(), job.is_retry));
        Some(job)
    }

    fn end(&mut self, address: &str, is_retry: bool) {
        let is_it = |(to, retries): &(String, bool)| to == address && *retries == is_retry;
        if let Some(index) = self.current.iter().position(is_it) {
            self.current.swap_remove(index);
        }
    }
}

impl DialThreads {
    pub(super) fn new<F: Fabric>(fabric: &F) -> Self {
        let fabric = fabric.clone();
        Self {
            state: Mutex::default(),
            start: Box::new(move |run| fabric.start_thread("verbline-dial", run).map(drop)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Under this lock only the allocator can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Performs handshakes until none may begin.
    fn run(self: &Arc<Self>) {
        let mut state = self.lock();
        while let Some(job) = state.take() {
            // The end of a handshake may let two begin.
            let _ = self.start_thread(&mut state);
            drop(state);
            let (address, is_retry) = (job.address.clone(), job.is_retry);
            // The handshake catches the panics of the device. Nothing else may stop the queue either.
            if catch_unwind(AssertUnwindSafe(|| job.run())).is_err() {
                tracing::error!(address, "the end of a handshake panicked");
            }
            state = self.lock();
            state.end(&address, is_retry);
        }
        state.running -= 1;
    }

    /// Starts a thread if a handshake may begin. It may find that another thread has taken it.
    fn start_thread(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        if state.running < MOST && state.next().is_some() {
            let threads = Arc::clone(self);
            // Under the lock, so that a thread that runs cannot end meanwhile.
            (self.start)(Box::new(move || threads.run()))?;
            state.running += 1;
        }
        Ok(())
    }
}

impl Spawner for Arc<DialThreads> {
    fn spawn(&self, job: DialJob) -> io::Result<()> {
        let mut state = self.lock();
        state.push(job);
        let started = self.start_thread(&mut state);
        if started.is_err() && state.running == 0 {
            // No other job waits: threads that run would have taken it.
            let jobs = mem::take(&mut state.waiting);
            drop(state);
            drop(jobs);
            return started;
        }
        // A thread that runs takes it.
        Ok(())
    }

    fn in_progress(&self) -> usize {
        self.lock().current.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    /// Handshakes that last until the gate opens.
    #[derive(Default)]
    struct Gate(Mutex<bool>, Condvar);

    impl Gate {
        fn wait(&self) {
            let mut open = self.0.lock().unwrap();
            while !*open {
                open = self.1.wait(open).unwrap();
            }
        }

        fn open(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_all();
        }
    }

    fn threads() -> Arc<DialThreads> {
        Arc::new(DialThreads {
            state: Mutex::default(),
            start: Box::new(|run| thread::Builder::new().spawn(run).map(drop)),
        })
    }

    fn job(address: &str, is_retry: bool, handshake: impl FnOnce() + Send + 'static) -> DialJob {
        DialJob {
            address: address.to_owned(),
            is_retry,
            progress: Arc::default(),
            handshake: Box::new(handshake),
        }
    }

    fn until(threads: &DialThreads, condition: impl Fn(&State) -> bool) {
        let patience = Instant::now() + Duration::from_secs(30);
        while !condition(&threads.lock()) {
            assert!(Instant::now() < patience, "the threads are stuck");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs a hundred handshakes with servers that answer.
    fn dial_others(threads: &Arc<DialThreads>, is_retry: bool) {
        let (sender, receiver) = mpsc::channel();
        for number in 0..100 {
            let sender = sender.clone();
            let send = move || sender.send(number).unwrap();
            threads.spawn(job("answers", is_retry, send)).unwrap();
        }
        drop(sender);
        let patience = Duration::from_secs(30);
        let mut done: Vec<i32> = (0..100)
            .map(|_| receiver.recv_timeout(patience).expect("all get their turn"))
            .collect();
        done.sort_unstable();
        assert_eq!(done, (0..100).collect::<Vec<_>>());
        assert!(threads.lock().running <= MOST);
    }

    fn hang(threads: &Arc<DialThreads>, gate: &Arc<Gate>, address: &str, is_retry: bool) {
        let gate = Arc::clone(gate);
        let hangs = job(address, is_retry, move || gate.wait());
        threads.spawn(hangs).unwrap();
    }

    #[test]
    fn silent_servers_leave_threads_for_others_and_all_get_their_turn() {
        let threads = threads();
        let gate = Arc::<Gate>::default();
        // Retries with many servers, and first attempts with one.
        for number in 0..3 * MOST {
            hang(&threads, &gate, &format!("silent{number}"), true);
            hang(&threads, &gate, "silent", false);
        }
        until(&threads, |state| {
            state.current.len() == MOST_RETRIES + MOST_TO_ONE
        });
        assert_eq!(threads.in_progress(), MOST_RETRIES + MOST_TO_ONE);
        dial_others(&threads, false);
        gate.open();
        until(&threads, |state| state.running == 0);
        let state = threads.lock();
        assert!(state.waiting.is_empty() && state.current.is_empty());
    }

    #[test]
    fn first_attempts_without_end_do_not_hold_up_retries() {
        fn again(threads: &Arc<DialThreads>, gate: &Arc<Gate>, number: usize) {
            let (more, open) = (Arc::clone(threads), Arc::clone(gate));
            let address = format!("closes{number}");
            let next = move || {
                if !*open.0.lock().unwrap() {
                    again(&more, &open, number);
                }
            };
            threads.spawn(job(&address, false, next)).unwrap();
        }
        let threads = threads();
        let gate = Arc::<Gate>::default();
        (0..3 * MOST).for_each(|number| again(&threads, &gate, number));
        dial_others(&threads, true);
        gate.open();
        until(&threads, |state| state.running == 0);
    }

    #[test]
    fn handshakes_that_were_given_up_do_not_run_and_do_not_accumulate() {
        let threads = threads();
        let gate = Arc::<Gate>::default();
        (0..MOST_TO_ONE).for_each(|_| hang(&threads, &gate, "silent", false));
        until(&threads, |state| state.current.len() == MOST_TO_ONE);
        for _ in 0..100 * MOST {
            let given_up = job("silent", false, || panic!("it was given up"));
            let progress: Arc<DialProgress> = Arc::clone(&given_up.progress);
            threads.spawn(given_up).unwrap();
            assert!(progress.give_up());
        }
        assert!(threads.lock().waiting.len() <= 2 * MOST);
        gate.open();
        until(&threads, |state| state.running == 0);
    }

    #[test]
    fn a_handshake_that_panics_stops_nothing() {
        let threads = threads();
        for _ in 0..2 * MOST {
            let panics = job("panics", false, || panic!("a bug"));
            threads.spawn(panics).unwrap();
        }
        dial_others(&threads, false);
        until(&threads, |state| state.running == 0);
    }
}
