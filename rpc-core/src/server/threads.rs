//! [`PollerThreads`]: owns the threads of a server's pollers.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::ServerError;
use super::ended::{Ended, join};
use super::shutdown::Shutdown;
use super::stop_signal::StopSignal;
use super::thread::{Opened, PollerSetup};
use crate::transport::Fabric;

/// The threads of a server's pollers. Dropping it stops them and waits until they have ended.
pub(super) struct PollerThreads {
    /// Starts the pollers: each receives one message. Dropping the sender ends the pollers that
    /// still wait for their message, so it must be dropped before their threads are joined.
    start: Option<Sender<()>>,
    started: Receiver<()>,
    pub(super) stop_signal: Arc<StopSignal>,
    pub(super) ended: Arc<Ended>,
    threads: Vec<JoinHandle<()>>,
    is_forked: fn() -> bool,
}

impl PollerThreads {
    /// Creates the owner of up to `pollers` threads. `shutdown` has the time limits of their end,
    /// `is_forked` is that of the device.
    pub(super) fn new(pollers: usize, shutdown: Shutdown, is_forked: fn() -> bool) -> Self {
        let (start, started) = bounded(pollers);
        Self {
            start: Some(start),
            started,
            stop_signal: Arc::new(StopSignal::new(shutdown)),
            ended: Arc::default(),
            threads: Vec::new(),
            is_forked,
        }
    }

    /// Returns the receiver of the message that starts a poller.
    pub(super) fn started(&self) -> Receiver<()> {
        self.started.clone()
    }

    /// Spawns the thread of the next poller. It opens its transport and waits to be started.
    pub(super) fn spawn<F: Fabric>(&mut self, setup: PollerSetup<F>) -> io::Result<()> {
        let name = format!("verbline-poller-{}", self.threads.len());
        let running = Ended::one_more(&self.ended);
        let fabric = setup.fabric.clone();
        let run = || {
            // Dropped last, however the poller ends.
            let _running = running;
            setup.run();
        };
        let thread = fabric.start_thread(&name, run)?;
        self.threads.push(thread);
        Ok(())
    }

    /// Waits until every poller has opened its transport, and returns their reports by index.
    pub(super) fn wait_until_open<P>(
        &mut self,
        reports: &Receiver<Result<Opened<P>, ServerError>>,
    ) -> Result<Vec<Opened<P>>, ServerError> {
        let reports = reports.iter().take(self.threads.len());
        let mut opened = reports.collect::<Result<Vec<_>, _>>()?;
        if opened.len() < self.threads.len() {
            // A thread ended without a report: it panicked.
            self.stop();
            self.join()?;
        }
        opened.sort_by_key(|poller| poller.index);
        Ok(opened)
    }

    /// Starts serving on all pollers.
    pub(super) fn start(&self) {
        for (_, start) in self.threads.iter().zip(self.start.iter().cycle()) {
            // Joining a poller that has already ended reports it.
            let _ = start.send(());
        }
    }

    /// Signals the pollers to stop. The caller must also wake sleeping pollers.
    pub(super) fn stop(&mut self) {
        self.start = None;
        self.stop_signal.set();
    }

    /// Fails in the child of a fork, where nothing is served.
    pub(super) fn check(&self) -> Result<(), ServerError> {
        match (self.is_forked)() {
            true => Err(ServerError::Forked),
            false => Ok(()),
        }
    }

    /// Waits until all threads have ended, except for the calling one, and returns the panic of one if
    /// any panicked.
    pub(super) fn join(&mut self) -> Result<(), ServerError> {
        let mut outcome = self.check();
        for (poller, thread) in self.threads.drain(..).enumerate() {
            if let Err(payload) = join(thread, self.is_forked) {
                let message = payload
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| {
                        payload
                            .downcast_ref::<&str>()
                            .map(|&message| message.to_owned())
                    })
                    .unwrap_or_default();
                outcome = Err(ServerError::PollerPanicked { poller, message });
            }
        }
        outcome
    }
}

impl Drop for PollerThreads {
    fn drop(&mut self) {
        self.stop();
        if let Err(error) = self.join() {
            tracing::error!(%error, "the server stopped with an error");
        }
    }
}
