//! [`DialThreads`]: the threads that perform the handshakes of a set of pollers.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::reconnect::{Job, Spawner, spawn_dialer};

/// Handshakes at a time. A handshake waits for its server most of the time, so the number bounds
/// threads rather than load: a hundred channels that are opened at once, to servers that answer,
/// connect within some ten milliseconds.
const MOST: usize = 16;

/// Of these, handshakes of channels whose previous attempt has failed. Servers that accept connections
/// and stay silent keep a thread for as long as a handshake may take, so they get half of the threads
/// at most: what remains is for channels that have just been opened or have lost their connection.
const MOST_RETRIES: usize = MOST / 2;

/// Threads for handshakes, which end when there are none.
#[derive(Default)]
pub(super) struct DialThreads(Mutex<State>);

#[derive(Default)]
struct State {
    /// Threads that run.
    running: usize,
    /// Those that perform the handshake of a channel whose previous attempt has failed.
    retrying: usize,
    /// Handshakes that wait for a thread: first attempts, and retries.
    first: VecDeque<Job>,
    retries: VecDeque<Job>,
}

impl State {
    /// Returns the next handshake that may begin, and whether it is a retry.
    fn next(&mut self) -> Option<(Job, bool)> {
        if let Some(job) = self.first.pop_front() {
            return Some((job, false));
        }
        if self.retrying >= MOST_RETRIES {
            return None;
        }
        let job = self.retries.pop_front()?;
        self.retrying += 1;
        Some((job, true))
    }
}

impl DialThreads {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Under this lock only the allocator can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Performs handshakes until none may begin.
    fn run(&self) {
        let mut was_retry = false;
        loop {
            let mut state = self.lock();
            state.retrying -= usize::from(was_retry);
            let Some((job, is_retry)) = state.next() else {
                state.running -= 1;
                return;
            };
            drop(state);
            // It does not panic: it catches the panics of the device.
            job();
            was_retry = is_retry;
        }
    }
}

impl Spawner for Arc<DialThreads> {
    fn spawn(&self, job: Job, is_retry: bool) -> io::Result<()> {
        let mut state = self.lock();
        let queue = match is_retry {
            true => &mut state.retries,
            false => &mut state.first,
        };
        queue.push_back(job);
        // A thread that runs takes it.
        if state.running >= MOST || (is_retry && state.retrying >= MOST_RETRIES) {
            return Ok(());
        }
        let threads = Self::clone(self);
        // Under the lock, so that a thread that runs cannot end meanwhile.
        let spawned = spawn_dialer(move || threads.run());
        if spawned.is_ok() {
            state.running += 1;
        } else if state.running == 0 {
            // No other job is in the queues, for the same reason.
            state.first.clear();
            state.retries.clear();
            return spawned;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;
    use std::sync::mpsc;
    use std::time::Duration;

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

    #[test]
    fn silent_servers_leave_threads_for_others_and_all_get_their_turn() {
        let threads = Arc::<DialThreads>::default();
        let gate = Arc::<Gate>::default();
        for _ in 0..3 * MOST {
            let gate = Arc::clone(&gate);
            threads.spawn(Box::new(move || gate.wait()), true).unwrap();
        }
        let (sender, receiver) = mpsc::channel();
        for number in 0..100 {
            let sender = sender.clone();
            let job = Box::new(move || sender.send(number).unwrap());
            threads.spawn(job, false).unwrap();
        }
        drop(sender);
        let mut done: Vec<i32> = receiver.iter().collect();
        done.sort_unstable();
        assert_eq!(done, (0..100).collect::<Vec<_>>());
        assert!(threads.lock().running <= MOST);
        // The threads of the first attempts end or find no retry that may begin.
        while threads.lock().running != MOST_RETRIES || threads.lock().retrying != MOST_RETRIES {
            std::thread::sleep(Duration::from_millis(1));
        }
        gate.open();
        while threads.lock().running > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let state = threads.lock();
        assert!(state.retries.is_empty() && state.retrying == 0);
    }
}
