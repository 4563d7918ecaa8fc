//! [`Server`]: services, pollers and a listener.
//!
//! [`ServerBuilder::bind`] starts the pollers' threads, lets each open its transport, and opens the
//! listener. [`Server::run`] (or [`spawn`](Server::spawn)) then starts the pollers. From there on
//! the threads only share a stop flag.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use prost::Message;

use crate::clock::Clock;
use crate::dispatch::{Methods, Service};
use crate::doorbell::Doorbell;
use crate::driver::Driver;
use crate::idle::{self, Idle};
use crate::limits::{Intents, Keepalive, Limits, Waiting};
use crate::method::MethodSpec;
use crate::poller::LocalPoller;
use crate::session::{ClientSession, ServerSession, calls_told_apart};
use crate::shutdown::{Shutdown, ShuttingDown};
use crate::stats::{Counter, Observer, PollerTally, ServerCounts, Stats};
use crate::transport::{
    Admission, Admitted, Fabric, FabricError, Listener, Permit, Refusal, Transport,
};
use crate::watchdog::{AtWork, BlockedMethods, Watchdog};

/// Initial window of a new connection: enough for a client with a few calls at a time. The window
/// doubles as it is used up.
const INITIAL_WINDOW: u32 = 8;

/// The configuration of a server.
pub struct ServerBuilder<F> {
    fabric: F,
    services: Vec<Arc<dyn Service>>,
    intents: Intents,
    max_concurrent_calls: Option<u32>,
    max_connections: Option<usize>,
    pollers: usize,
    cores: Option<Vec<usize>>,
}

/// The reason that a server could not be started, or that it ended.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The device or the listening socket failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A poller's thread could not be started.
    #[error("cannot start a poller's thread: {0}")]
    Thread(#[from] io::Error),
    /// Two services have the same name.
    #[error("two services with the name {name} were added: a method could be either's")]
    DuplicateService {
        /// `package.Service`.
        name: &'static str,
    },
    /// A poller could not be pinned to its core.
    #[error(
        "cannot pin a poller to core {core}: {source}. Give `cores` some that this process may use, or an empty list"
    )]
    Pin {
        /// The core.
        core: usize,
        /// The system's error.
        source: io::Error,
    },
    /// A poller's thread panicked, because of a bug in this library or in the device's.
    #[error("poller {poller} panicked: {message}")]
    PollerPanicked {
        /// The poller's index.
        poller: usize,
        /// The panic's message.
        message: String,
    },
}

/// Prints the same sentence as `Display`, because a `main` that returns an error prints it with
/// `Debug`.
impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A server that is bound to its address. Its pollers wait for [`run`](Self::run).
pub struct Server {
    running: Running,
}

/// A server that runs on its own threads. Dropping the handle stops it.
pub struct ServerHandle {
    running: Running,
}

struct Running {
    local_addr: SocketAddr,
    limits: Limits,
    /// Starts the pollers, one message each. Dropping it ends pollers that still wait, so it must
    /// be dropped before they are joined.
    start: Option<Sender<()>>,
    stopping: Arc<Stopping>,
    /// The pollers' wakeups, notified when the server stops.
    bells: Vec<Arc<Doorbell>>,
    listener: Option<Box<dyn Listener>>,
    watchdog: Option<Watchdog>,
    observer: Option<Observer>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Creates a builder for a server on this device, without services.
    pub fn builder<F: Fabric>(fabric: &F) -> ServerBuilder<F> {
        ServerBuilder {
            fabric: fabric.clone(),
            services: Vec::new(),
            intents: Intents::default(),
            max_concurrent_calls: None,
            max_connections: None,
            pollers: 1,
            cores: None,
        }
    }

    /// Returns the address that the server listens at.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.running.local_addr
    }

    /// Returns the sizes of each poller.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.running.limits
    }

    /// Returns a snapshot of the statistics: see [`ServerHandle::stats`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.running.stats()
    }

    /// Returns a handle that takes snapshots of this server's statistics on any thread, for example
    /// on a thread that is started before [`run`](Self::run).
    #[must_use]
    pub fn observer(&self) -> Observer {
        self.running.observer()
    }

    /// Serves until the process ends. Blocks the calling thread.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError::PollerPanicked`] if a poller panicked.
    pub fn run(self) -> Result<(), ServerError> {
        self.spawn().running.join()
    }

    /// Serves on its own threads.
    #[must_use = "the server stops when its handle is dropped"]
    pub fn spawn(self) -> ServerHandle {
        for (_, start) in self
            .running
            .threads
            .iter()
            .zip(self.running.start.iter().cycle())
        {
            // Joining a poller that has already ended reports it.
            let _ = start.send(());
        }
        ServerHandle {
            running: self.running,
        }
    }
}

impl ServerHandle {
    /// Returns a snapshot of each poller's statistics; [`Stats::total`] is their sum. Does not stop
    /// the pollers.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.running.stats()
    }

    /// Returns a handle that takes snapshots of this server's statistics on any thread.
    #[must_use]
    pub fn observer(&self) -> Observer {
        self.running.observer()
    }

    /// Returns the methods whose handlers have blocked a poller's thread for long. Every other call
    /// of that poller waits for such a handler.
    #[must_use]
    pub fn blocked_methods(&self) -> BlockedMethods {
        let watchdog = self.running.watchdog.as_ref();
        watchdog.map_or_else(BlockedMethods::default, Watchdog::blocked_methods)
    }

    /// Returns the address that the server listens at.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.running.local_addr
    }

    /// Returns the sizes of each poller.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.running.limits
    }

    /// Shuts down like [`shutdown_within`](Self::shutdown_within), with the default times of
    /// [`Shutdown`]. Dropping the handle does the same.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError::PollerPanicked`] if a poller panicked.
    pub fn shutdown(self) -> Result<(), ServerError> {
        self.shutdown_within(Shutdown::default())
    }

    /// Shuts the server down and blocks until it has stopped. From now on the server accepts no
    /// clients, and notifies connected clients to start no more calls. Running handlers and
    /// requests in flight have the time [`finish`](Shutdown::finish) to complete; the others fail
    /// with `UNAVAILABLE`. Responses then have the time [`close`](Shutdown::close) to be sent,
    /// before the connections are closed. Each step ends early if there is nothing to wait for.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError::PollerPanicked`] if a poller panicked.
    pub fn shutdown_within(mut self, shutdown: Shutdown) -> Result<(), ServerError> {
        // Only set here, once, because this call consumes the handle.
        let _ = self.running.stopping.shutdown.set(shutdown);
        self.running.stop();
        self.running.join()
    }
}

impl Running {
    fn stats(&self) -> Stats {
        self.observer().stats()
    }

    fn observer(&self) -> Observer {
        // The observer exists once the server is bound.
        let none = || Observer::of(Vec::new());
        self.observer.clone().unwrap_or_else(none)
    }

    fn stop(&mut self) {
        self.listener = None;
        self.start = None;
        self.stopping.tell();
        for bell in &self.bells {
            bell.ring();
        }
    }

    fn join(&mut self) -> Result<(), ServerError> {
        let mut outcome = Ok(());
        for (poller, thread) in self.threads.drain(..).enumerate() {
            if let Err(payload) = thread.join() {
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

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        if let Err(error) = self.join() {
            tracing::error!(%error, "while the server stopped");
        }
    }
}

impl<F: Fabric> ServerBuilder<F> {
    /// Adds a service: a generated `…Server`.
    #[must_use]
    pub fn add_service(mut self, service: impl Service) -> Self {
        self.services.push(Arc::new(service));
        self
    }

    /// Sets the length in bytes of the longest encoded message: see [`Intents::max_message_len`].
    #[must_use]
    pub fn max_message_len(mut self, bytes: usize) -> Self {
        self.intents.max_message_len = bytes;
        self
    }

    /// Sets the number of calls that a connection may have in flight: see
    /// [`Intents::max_in_flight`].
    #[must_use]
    pub fn max_in_flight(mut self, calls: u32) -> Self {
        self.intents.max_in_flight = calls;
        self
    }

    /// Sets the number of connections that each poller supports: see [`Intents::connections`].
    #[must_use]
    pub fn connections(mut self, connections: u32) -> Self {
        self.intents.connections = connections;
        self
    }

    /// Limits the connections of the whole server. Further clients are rejected, with a reason that
    /// names this setting. Default: the number that its pollers were sized for, which this setting
    /// cannot raise.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = Some(connections);
        self
    }

    /// Limits the bytes that each poller may register: see [`Intents::max_memory`].
    #[must_use]
    pub fn max_memory(mut self, bytes: u64) -> Self {
        self.intents.max_memory = Some(bytes);
        self
    }

    /// Limits the calls whose handlers are pending at a time on each poller. A call beyond the
    /// limit fails with `RESOURCE_EXHAUSTED` before its message is decoded, and its client may try
    /// another server. It is rejected rather than queued: queueing nested calls could deadlock.
    /// Default: no limit other than [`max_in_flight`](Self::max_in_flight) per connection.
    #[must_use]
    pub fn max_concurrent_calls(mut self, calls: u32) -> Self {
        self.max_concurrent_calls = Some(calls);
        self
    }

    /// Sets how idle pollers wait: see [`Waiting`].
    #[must_use]
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        self.intents.waiting = waiting;
        self
    }

    /// Probes silent clients to check that they still run, and closes the connections of those that
    /// do not answer: see [`Intents::keepalive`].
    #[must_use]
    pub fn keepalive(mut self, keepalive: Keepalive) -> Self {
        self.intents.keepalive = Some(keepalive);
        self
    }

    /// Sets the number of pollers, each on a thread of its own. It should not exceed the number of
    /// available cores. Default and minimum: 1.
    #[must_use]
    pub fn pollers(mut self, pollers: usize) -> Self {
        self.pollers = pollers.max(1);
        self
    }

    /// Sets the cores to which the pollers are pinned, one each, cyclically. Without this setting,
    /// pollers are pinned to the highest cores that the process may use, if it may use more cores
    /// than there are pollers. An empty list disables pinning.
    #[must_use]
    pub fn cores(mut self, cores: impl IntoIterator<Item = usize>) -> Self {
        self.cores = Some(cores.into_iter().collect());
        self
    }

    /// Starts the pollers' threads and listens at `host:port`. With port 0 the system chooses the
    /// port.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError`] if any part cannot be started. Nothing is left running.
    pub fn bind(self, address: &str) -> Result<Server, ServerError> {
        // Count the cores before any thread is pinned.
        idle::cores();
        for (index, service) in self.services.iter().enumerate() {
            if self.services[..index]
                .iter()
                .any(|other| other.name() == service.name())
            {
                return Err(ServerError::DuplicateService {
                    name: service.name(),
                });
            }
        }
        let stopping = Arc::<Stopping>::default();
        let (start, started) = bounded(self.pollers);
        let mut running = Running {
            // Replaced below by the listener's address.
            local_addr: SocketAddr::from(([0, 0, 0, 0], 0)),
            limits: Limits::default(),
            start: Some(start),
            stopping,
            bells: Vec::new(),
            listener: None,
            watchdog: None,
            observer: None,
            threads: Vec::new(),
        };
        let cores = self.cores_of_pollers();
        let (ready, readied) = bounded(self.pollers);
        for index in 0..self.pollers {
            let setup = PollerSetup {
                index,
                core: (!cores.is_empty()).then(|| cores[index % cores.len()]),
                fabric: self.fabric.clone(),
                services: self.services.clone(),
                intents: self.intents.clone(),
                max_concurrent_calls: self.max_concurrent_calls,
                ready: ready.clone(),
                started: started.clone(),
                stopping: Arc::clone(&running.stopping),
            };
            let name = format!("verbline-poller-{index}");
            running
                .threads
                .push(thread::Builder::new().name(name).spawn(|| setup.run())?);
        }
        drop(ready);

        let mut ports: Vec<Option<F::Port>> = (0..self.pollers).map(|_| None).collect();
        let mut methods = Vec::new();
        let mut at_work = Vec::new();
        let mut tallies = Vec::new();
        for opened in readied.iter().take(self.pollers) {
            let opened: Opened<F::Port> = opened?;
            ports[opened.index] = Some(opened.port);
            running.limits = opened.limits;
            running.bells.push(opened.bell);
            at_work.push(opened.at_work);
            tallies.push((opened.index, opened.tally));
            methods = opened.methods;
        }
        let ports: Vec<F::Port> = ports.into_iter().flatten().collect();
        if ports.len() < self.pollers {
            // A thread ended without a report: it panicked.
            running.stop();
            running.join()?;
        }
        let watchdog = Watchdog::start(at_work, &methods)?;
        let mut admission = ServerAdmission::new(&running.limits, methods, self.pollers);
        admission.limit_connections(self.max_connections);
        tallies.sort_by_key(|(index, _)| *index);
        running.observer = Some(Observer::of_server(
            tallies.into_iter().map(|(_, tally)| tally).collect(),
            ServerCounts {
                refused: Arc::clone(&admission.refused),
                blocked: watchdog.counts(),
            },
        ));
        running.watchdog = Some(watchdog);
        let admission = Arc::new(admission);
        let listener = self.fabric.listen(address, ports, admission)?;
        running.local_addr = listener.local_addr();
        running.listener = Some(listener);
        Ok(Server { running })
    }

    fn cores_of_pollers(&self) -> Vec<usize> {
        let allowed = self.fabric.allowed_cores();
        match &self.cores {
            Some(cores) => cores.clone(),
            None if allowed.len() > self.pollers => {
                allowed.into_iter().rev().take(self.pollers).collect()
            }
            None => Vec::new(),
        }
    }
}

/// The input of a poller's thread.
struct PollerSetup<F: Fabric> {
    index: usize,
    core: Option<usize>,
    fabric: F,
    services: Vec<Arc<dyn Service>>,
    intents: Intents,
    max_concurrent_calls: Option<u32>,
    ready: Sender<Result<Opened<F::Port>, ServerError>>,
    started: Receiver<()>,
    stopping: Arc<Stopping>,
}

/// The report of a poller's thread when its transport is open.
struct Opened<P> {
    index: usize,
    port: P,
    limits: Limits,
    bell: Arc<Doorbell>,
    at_work: Arc<AtWork>,
    tally: Arc<PollerTally>,
    methods: Vec<(u16, &'static MethodSpec)>,
}

impl<F: Fabric> PollerSetup<F> {
    fn run(self) {
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
struct Stopping {
    is_told: AtomicBool,
    /// The time limits of the shutdown. Set before `is_told`.
    shutdown: OnceLock<Shutdown>,
}

impl Stopping {
    fn tell(&self) {
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

/// The distribution of a poller's receives among the clients that it accepts.
pub(crate) struct Shares {
    /// Number of clients accepted.
    pub(crate) connections: u32,
    /// Initial window of each client, in addition to one receive for its credit frame.
    pub(crate) initial_window: u32,
}

impl Shares {
    pub(crate) fn of(limits: &Limits) -> Self {
        let receives = limits.promisable_receives();
        // Each connection needs one receive for a call and one for its credit frame.
        let connections = limits.max_connections.min(receives / 2).max(1);
        // Half of all receives are for initial windows; the other half is for the windows of busy
        // clients.
        let initial_window = (receives / 2 / connections)
            .saturating_sub(1)
            .clamp(1, INITIAL_WINDOW);
        Self {
            connections,
            initial_window,
        }
    }
}

/// Accepts clients as long as a poller has receives for them, on the poller with the fewest
/// connections.
pub(crate) struct ServerAdmission {
    methods: Vec<(u16, &'static MethodSpec)>,
    max_in_flight: u32,
    window: u32,
    max_connections: usize,
    /// Limit over all pollers.
    max_total: Option<usize>,
    connections: Vec<Arc<AtomicUsize>>,
    /// Number of clients rejected. Written only by the listener's thread.
    refused: Arc<Counter>,
}

impl ServerAdmission {
    pub(crate) fn new(
        limits: &Limits,
        methods: Vec<(u16, &'static MethodSpec)>,
        pollers: usize,
    ) -> Self {
        let shares = Shares::of(limits);
        Self {
            methods,
            max_in_flight: calls_told_apart(limits.max_in_flight),
            window: shares.initial_window,
            max_connections: shares.connections as usize,
            max_total: None,
            connections: (0..pollers).map(|_| Arc::default()).collect(),
            refused: Arc::default(),
        }
    }

    pub(crate) fn limit_connections(&mut self, total: Option<usize>) {
        self.max_total = total;
    }
}

impl Admission for ServerAdmission {
    fn admit(&self, session: &[u8]) -> Result<Admitted, Refusal> {
        self.look_for_a_place(session).inspect_err(|_| {
            self.refused.add(1);
        })
    }
}

impl ServerAdmission {
    fn look_for_a_place(&self, session: &[u8]) -> Result<Admitted, Refusal> {
        let client = ClientSession::accept(session)?;
        let counts = self.connections.iter();
        let total: usize = counts.map(|count| count.load(Ordering::Relaxed)).sum();
        if let Some(limit) = self.max_total
            && total >= limit
        {
            return Err(Refusal {
                reason: format!(
                    "the server holds all the {limit} connections that it was told to hold at most: raise \
                     `max_connections` on the server"
                ),
            });
        }
        let emptiest = (0..)
            .zip(&self.connections)
            .min_by_key(|(_, count)| count.load(Ordering::Relaxed));
        let Some((poller, count)) = emptiest else {
            return Err(Refusal {
                reason: "the server has no pollers".to_owned(),
            });
        };
        // Only the listener's thread admits, so the count does not grow between this check and the
        // increment.
        if count.load(Ordering::Relaxed) >= self.max_connections {
            return Err(Refusal {
                reason: format!(
                    "the server holds all the {} connections that each of its pollers was sized for: \
                     raise `connections` on the server",
                    self.max_connections
                ),
            });
        }
        let permit = Permit::of(count);
        let max_in_flight = client.max_in_flight.clamp(1, self.max_in_flight);
        let offer =
            ServerSession::offer(&self.methods, max_in_flight, self.window.min(max_in_flight));
        Ok(Admitted {
            poller,
            client_session: session.to_vec(),
            server_session: offer.encode_to_vec(),
            permit,
        })
    }
}

impl<F> fmt::Debug for ServerBuilder<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let services: Vec<_> = self.services.iter().map(|service| service.name()).collect();
        f.debug_struct("ServerBuilder")
            .field("services", &services)
            .field("intents", &self.intents)
            .finish()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.running.local_addr)
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerHandle({})", self.running.local_addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::VERSION;

    #[test]
    fn connections_beyond_the_hard_limit_are_refused_until_one_goes_whichever_poller_has_it() {
        let limits = Limits {
            receives_posted: 256,
            max_connections: 8,
            max_in_flight: 8,
            ..Limits::default()
        };
        let mut admission = ServerAdmission::new(&limits, Vec::new(), 2);
        admission.limit_connections(Some(3));
        let hello = ClientSession {
            version: VERSION,
            max_in_flight: 8,
        }
        .encode_to_vec();
        let mut admitted: Vec<_> = (0..3)
            .map(|_| admission.admit(&hello).expect("there is a place"))
            .collect();
        let pollers: Vec<_> = admitted.iter().map(|client| client.poller).collect();
        assert_eq!(pollers, [0, 1, 0]);
        let refusal = admission.admit(&hello).unwrap_err();
        assert!(
            refusal.reason.contains("all the 3 connections"),
            "{refusal}"
        );
        assert!(refusal.reason.contains("`max_connections`"), "{refusal}");
        admitted.remove(1);
        assert_eq!(admission.admit(&hello).unwrap().poller, 1);
    }
}
