//! [`Interrupt`]: Ctrl-C, and other reasons to end with what there is.

use std::future::Future;
use std::process;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};

use crate::failure::Failure;

/// The exit code of a program that a second Ctrl-C has ended: 128 and the number of the signal.
const INTERRUPTED: i32 = 130;

/// Says whether the run is to end early. Clones say the same.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<watch::Sender<bool>>);

impl Interrupt {
    /// Registers for Ctrl-C. The first one counts from now on, even if the runtime has not run the waiting
    /// task yet; the second one ends the process.
    pub(crate) fn on_ctrl_c(runtime: &Handle) -> Result<Self, Failure> {
        let inside = runtime.enter();
        let mut signals = signal(SignalKind::interrupt()).map_err(Failure::Runtime)?;
        drop(inside);
        let interrupt = Self(Arc::new(watch::Sender::new(false)));
        let signalled = interrupt.clone();
        runtime.spawn(async move {
            while signals.recv().await.is_some() {
                if signalled.0.send_replace(true) {
                    process::exit(INTERRUPTED);
                }
            }
        });
        Ok(interrupt)
    }

    /// Ends the run.
    pub(crate) fn set(&self) {
        self.0.send_replace(true);
    }

    pub(crate) fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Fails if the run is to end: between the steps of what takes long before anything is measured.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.is_set() {
            true => Err(Failure::Interrupted),
            false => Ok(()),
        }
    }

    /// Waits until the run is to end.
    pub(crate) fn wait(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut is_set = self.0.subscribe();
        async move {
            // The sender lives as long as the task that waits for Ctrl-C.
            let _ = is_set.wait_for(|is_set| *is_set).await;
        }
    }

    /// Returns a future that ends at an interrupt, or after this time. It costs little to poll: a loop does
    /// that in each turn.
    pub(crate) fn or_after(&self, time: Duration, runtime: &Handle) -> oneshot::Receiver<()> {
        let (ended, end) = oneshot::channel();
        let interrupt = self.wait();
        runtime.spawn(async move {
            tokio::select! {
                () = interrupt => {}
                () = tokio::time::sleep(time) => {}
            }
            // The loop may have ended before.
            let _ = ended.send(());
        });
        end
    }
}
