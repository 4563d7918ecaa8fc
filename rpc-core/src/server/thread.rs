//! The thread of a server's poller: opens the device, serves, and shuts down.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use super::ServerError;
use super::shutdown::{Shutdown, ShuttingDown};
use crate::clock::Clock;
use crate::driver::Driver;
use crate::driver::at_work::AtWork;
use crate::driver::wakeup::Doorbell;
use crate::limits::{Intents, Limits, Waiting};
use crate::method::MethodSpec;
use crate::poller::LocalPoller;
use crate::poller::idle::Idle;
use crate::service::dispatch::{Methods, Service};
use crate::stats::PollerTally;
use crate::transport::{Fabric, Transport};

/// The input of a poller's thread.
pub(super) struct PollerSetup<F: Fabric> {
    pub(super) index: usize,
    pub(super) core: Option<usize>,
    pub(super) fabric: F,
    pub(super) services: Vec<Arc<dyn Service>>,
    pub(super) intents: Intents,
    pub(super) max_concurrent_calls: Option<u32>,
    pub(super) ready: Sender<Result<Opened<F::Port>, ServerError>>,
    pub(super) started: Receiver<()>,
    pub(super) stopping: Arc<Stopping>,
}

/// The report of a poller's thread when its transport is open.
pub(super) struct Opened<P> {
    pub(super) index: usize,
    pub(super) port: P,
    pub(super) limits: Limits,
    pub(super) bell: Arc<Doorbell>,
    pub(super) at_work: Arc<AtWork>,
    pub(super) tally: Arc<PollerTally>,
    pub(super) methods: Vec<(u16, &'static MethodSpec)>,
}

impl<F: Fabric> PollerSetup<F> {
    pub(super) fn run(self) {
        let _stop_all = StopAllOnPanic(Arc::clone(&self.stopping));
        match self.open() {
            Ok((driver, opened)) => {
                let _ = self.ready.send(Ok(opened));
                drop(self.ready);
                // An error means that the server was dropped before it was started.
                if self.started.recv().is_ok() {
                    serve(driver, self.intents.waiting, &self.stopping);
                }
            }
            Err(error) => {
                let _ = self.ready.send(Err(error));
            }
        }
    }

    #[allow(clippy::type_complexity)]
    fn open(&self) -> Result<(Rc<Driver<F::Transport>>, Opened<F::Port>), ServerError> {
        // Before any memory is touched, so that it is allocated on the core's own NUMA node.
        if let Some(core) = self.core {
            self.fabric
                .pin_current_thread(core)
                .map_err(|source| ServerError::Pin { core, source })?;
        }
        let transport = self.fabric.open(&self.intents)?;
        let port = self.fabric.port(&transport);
        let limits = transport.limits().clone();
        let mut methods = Methods::new();
        for service in &self.services {
            service.register(&mut methods);
        }
        if let Some(calls) = self.max_concurrent_calls {
            methods.limit_concurrent_calls(calls);
        }
        let numbered = methods.numbered().collect();
        let driver = Rc::new(Driver::new(transport, methods, Clock::system()));
        let (bell, at_work) = (Arc::clone(&driver.bell), Arc::clone(&driver.at_work));
        let tally = Arc::clone(&driver.tally);
        Ok((
            driver,
            Opened {
                bell,
                at_work,
                tally,
                index: self.index,
                port,
                limits,
                methods: numbered,
            },
        ))
    }
}

/// Stops all pollers if one panics. A server that accepts clients that no poller serves is worse
/// than one that ends and reports the error.
struct StopAllOnPanic(Arc<Stopping>);

impl Drop for StopAllOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.tell();
        }
    }
}

/// The signal for the pollers to stop.
#[derive(Debug, Default)]
pub(super) struct Stopping {
    is_told: AtomicBool,
    /// The time limits of the shutdown. Set before `is_told`.
    pub(super) shutdown: OnceLock<Shutdown>,
}

impl Stopping {
    pub(super) fn tell(&self) {
        self.is_told.store(true, Ordering::Release);
    }

    fn is_told(&self) -> bool {
        self.is_told.load(Ordering::Acquire)
    }

    fn shutdown(&self) -> Shutdown {
        self.shutdown.get().copied().unwrap_or_default()
    }
}

/// How long a poller that shuts down sleeps when it finds nothing to do. Short, because the
/// shutdown has deadlines.
const SHORT_REST: Duration = Duration::from_millis(5);

fn serve<T: Transport>(driver: Rc<Driver<T>>, waiting: Waiting, stopping: &Stopping) {
    LocalPoller::set_current(Some(LocalPoller::from_driver(
        Rc::clone(&driver) as Rc<_>,
        waiting,
    )));
    let mut idle = Idle::new(waiting);
    while !stopping.is_told() {
        if idle.after_turn(driver.turn()) {
            driver.sleep(&|| (!stopping.is_told()).then_some(Duration::MAX));
        }
    }
    let mut shutting_down = ShuttingDown::begin(&driver, stopping.shutdown());
    let mut found_any = driver.turn();
    while !shutting_down.after_turn(&driver, found_any) {
        found_any = if idle.after_turn(found_any) {
            driver.sleep(&|| Some(SHORT_REST))
        } else {
            driver.turn()
        };
    }
    LocalPoller::set_current(None);
}
