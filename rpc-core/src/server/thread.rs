//! The thread of a server's poller: opens the device, serves, and shuts down.

use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use super::ServerError;
use super::shutdown::{self, ShuttingDown};
use super::stop_signal::StopSignal;
use super::thread_time::ThreadTime;
use super::watchdog::WatchedThread;
use crate::clock::Clock;
use crate::deadline::DeadlinePolicy;
use crate::driver::Driver;
use crate::driver::age::ConnectionAge;
use crate::driver::wakeup::Wakeup;
use crate::intercept::Interceptor;
use crate::limits::{Intents, Limits, Waiting};
use crate::method::MethodSpec;
use crate::poller::LocalPoller;
use crate::poller::cores::{self, PinnedThread, PollerCore};
use crate::poller::idle::Idle;
use crate::service::dispatch::{Methods, ServedService, Service};
use crate::service::executor::Executor;
use crate::stats::PollerCounters;
use crate::transport::{Fabric, Transport};

/// The input of a poller's thread.
pub(super) struct PollerSetup<F: Fabric> {
    pub(super) index: usize,
    pub(super) core: Option<PollerCore>,
    pub(super) fabric: F,
    pub(super) services: Vec<Arc<dyn Service>>,
    pub(super) executor: Option<Arc<dyn Executor>>,
    pub(super) interceptors: Vec<Arc<dyn Interceptor>>,
    pub(super) intents: Intents,
    pub(super) max_concurrent_calls: Option<u32>,
    pub(super) deadlines: DeadlinePolicy,
    pub(super) connection_age: Option<ConnectionAge>,
    pub(super) ready: Sender<Result<Opened<F::Port>, ServerError>>,
    pub(super) started: Receiver<()>,
    pub(super) stop_signal: Arc<StopSignal>,
}

/// The report of a poller's thread when its transport is open.
pub(super) struct Opened<P> {
    pub(super) index: usize,
    pub(super) port: P,
    pub(super) limits: Limits,
    /// The core that the thread is pinned to.
    pub(super) core: Option<usize>,
    pub(super) wakeup: Arc<Wakeup>,
    pub(super) watched: WatchedThread,
    pub(super) counters: Arc<PollerCounters>,
    pub(super) methods: Vec<(u16, &'static MethodSpec)>,
}

/// A poller that has opened its transport, and its report.
type OpenPoller<F> = (
    Rc<Driver<<F as Fabric>::Transport>>,
    Opened<<F as Fabric>::Port>,
    Option<PinnedThread>,
);

impl<F: Fabric> PollerSetup<F> {
    pub(super) fn run(mut self) {
        let _stop_all = StopAllOnPanic(Arc::clone(&self.stop_signal));
        match self.open() {
            Ok((driver, opened, pinned)) => {
                let _ = self.ready.send(Ok(opened));
                drop(self.ready);
                if self.started.recv().is_err() {
                    // The server was dropped before it was started. Clients may have connected: they
                    // are told, as by every server that stops.
                    self.stop_signal.set();
                }
                let poller = Rc::clone(&driver) as Rc<_>;
                let poller = LocalPoller::of_thread(poller, self.intents.waiting, pinned);
                LocalPoller::set_current(Some(poller));
                serve(
                    &driver,
                    self.intents.waiting,
                    &self.stop_signal,
                    &self.services,
                );
                LocalPoller::set_current(None);
            }
            Err(error) => {
                let _ = self.ready.send(Err(error));
            }
        }
    }

    fn open(&mut self) -> Result<OpenPoller<F>, ServerError> {
        let core = self.core.take();
        let (transport, pinned) = cores::open_on(&self.fabric, core, &self.intents)?;
        let port = self.fabric.port(&transport);
        let limits = transport.limits().clone();
        let mut methods = Methods::new();
        if let Some(executor) = &self.executor {
            methods.set_executor(Arc::clone(executor));
        }
        methods.set_interceptors(&self.interceptors);
        let served = self.services.iter();
        methods.set_services(
            served
                .map(|service| ServedService::of(&**service))
                .collect(),
        );
        for service in &self.services {
            service.register(&mut methods);
        }
        if let Some(calls) = self.max_concurrent_calls {
            methods.limit_concurrent_calls(calls);
        }
        methods.set_deadline_policy(self.deadlines);
        let numbered = methods.numbered().collect();
        let on_executor = methods.on_executor().to_vec();
        let driver = Rc::new(Driver::new(transport, methods, Clock::system()));
        if let Some(age) = self.connection_age {
            driver.connections.limit_connection_age(age);
        }
        let wakeup = Arc::clone(&driver.connections.wakeup);
        let watched = WatchedThread {
            running_handler: Arc::clone(&driver.serving.handlers.running_handler),
            time: ThreadTime::of_this_thread(),
            on_executor,
        };
        let counters = Arc::clone(&driver.connections.counters);
        Ok((
            driver,
            Opened {
                wakeup,
                watched,
                counters,
                index: self.index,
                port,
                limits,
                core: pinned.as_ref().map(|pinned| pinned.core),
                methods: numbered,
            },
            pinned,
        ))
    }
}

/// Stops all pollers if one panics. A server that accepts clients that no poller serves is worse
/// than one that ends and reports the error.
struct StopAllOnPanic(Arc<StopSignal>);

impl Drop for StopAllOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.set_at_once();
        }
    }
}

/// How long a poller that shuts down sleeps when it finds nothing to do. Short, because the
/// shutdown has deadlines.
const SHUTDOWN_SLEEP: Duration = Duration::from_millis(5);

fn serve<T: Transport>(
    driver: &Rc<Driver<T>>,
    waiting: Waiting,
    stop_signal: &StopSignal,
    services: &[Arc<dyn Service>],
) {
    let mut idle = Idle::new(waiting);
    while stop_signal.time_left().is_some() {
        if idle.after_turn(driver.turn()) {
            driver.sleep(&|| stop_signal.time_left());
        }
    }
    stop_signal.close_listener();
    shutdown::tell(services, Service::finishing);
    let mut shutting_down = ShuttingDown::begin(driver, stop_signal.shutdown());
    let mut found_any = driver.turn();
    while !shutting_down.after_turn(driver, found_any) {
        found_any = if idle.after_turn(found_any) {
            driver.sleep(&|| Some(SHUTDOWN_SLEEP))
        } else {
            driver.turn()
        };
    }
}
