//! [`DialJob`]: an attempt to connect, as the threads that perform handshakes see it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::transport::Fabric;

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

    pub(super) fn is_given_up(&self) -> bool {
        self.progress.0.load(Ordering::Relaxed) == GIVEN_UP
    }
}

const QUEUED: u8 = 0;
const BEGUN: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Whether a handshake has begun, or was given up before: one of the two, whichever comes first.
#[derive(Debug, Default)]
pub(super) struct DialProgress(AtomicU8);

impl DialProgress {
    /// Returns false if the handshake was given up.
    fn begin(&self) -> bool {
        self.leave_queue(BEGUN)
    }

    /// Returns false if the handshake has begun.
    pub(super) fn give_up(&self) -> bool {
        self.leave_queue(GIVEN_UP)
    }

    fn leave_queue(&self, next: u8) -> bool {
        // Nothing else is passed through this value.
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        let exchanged = self.0.compare_exchange(QUEUED, next, success, failure);
        exchanged.is_ok()
    }
}

/// Runs each job on a new thread, which ends with the job: for a poller with one channel, which makes
/// one attempt at a time.
pub(super) struct ThreadSpawner<F>(pub(super) F);

impl<F: Fabric> Spawner for ThreadSpawner<F> {
    fn spawn(&self, job: DialJob) -> io::Result<()> {
        spawn_dialer(&self.0, || job.run())
    }
}

/// Starts a thread for handshakes.
pub(super) fn spawn_dialer(
    fabric: &impl Fabric,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    fabric.start_thread("verbline-dial", run).map(drop)
}
