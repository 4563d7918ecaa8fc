//! [`Server`]: services, pollers and a listener.
//!
//! [`ServerBuilder::bind`] starts the pollers' threads, lets each open its transport, and opens the
//! listener. [`Server::run`] (or [`spawn`](Server::spawn)) then starts the pollers. From there on
//! the threads only share a stop flag.

pub(crate) mod admission;
mod builder;
mod ended;
pub(crate) mod shutdown;
mod start;
mod stop_signal;
mod thread;
mod thread_time;
mod threads;
mod watchdog;

use std::error::Error;
use std::fmt;
use std::future::{pending, poll_fn};
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

pub use self::builder::ServerBuilder;
pub use self::shutdown::Shutdown;
use self::threads::PollerThreads;
use self::watchdog::Watchdog;
use crate::deadline::DeadlinePolicy;
use crate::driver::wakeup::Wakeup;
use crate::limits::{Intents, Limits};
use crate::peer::TrustForwarded;
use crate::poller::block_on;
use crate::service::dispatch::Service;
use crate::stats::{BlockedMethods, Stats, StatsReader};
use crate::transport::{Attempt, FORKED, Fabric, FabricError, Remedy};

/// The reason that a server could not be started, or that it ended. It prints as one sentence, with the
/// reason of the layer below.
#[non_exhaustive]
pub enum ServerError {
    /// The device or the listening socket failed.
    Fabric(FabricError),
    /// A poller's thread could not be started.
    Thread(io::Error),
    /// Two services have the same name.
    DuplicateService {
        /// The services' name, `package.Service`.
        name: &'static str,
    },
    /// The process was forked after the device was opened, or after the server was bound. It serves in
    /// the parent only.
    Forked,
    /// A poller's thread panicked, because of a bug in this library or in the device's.
    PollerPanicked {
        /// The poller's index.
        poller: usize,
        /// The panic's message.
        message: String,
    },
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fabric(error) => error.fmt(f),
            Self::Thread(error) => write!(
                f,
                "cannot start a poller thread: {error}{}",
                Remedy(Attempt::Local, error)
            ),
            Self::DuplicateService { name } => write!(
                f,
                "two services named {name} were added: give each service a different name, or add it once"
            ),
            Self::Forked => f.write_str(FORKED),
            Self::PollerPanicked { poller, message } => {
                write!(f, "poller {poller} panicked: {message}")
            }
        }
    }
}

impl Error for ServerError {
    /// Returns what lies below the error that the sentence already contains.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Fabric(error) => error.source(),
            Self::Thread(error) => error.source(),
            Self::DuplicateService { .. } | Self::Forked | Self::PollerPanicked { .. } => None,
        }
    }
}

impl From<FabricError> for ServerError {
    fn from(error: FabricError) -> Self {
        Self::Fabric(error)
    }
}

impl From<io::Error> for ServerError {
    fn from(error: io::Error) -> Self {
        Self::Thread(error)
    }
}

/// Prints the same sentence as `Display`, because a `main` that returns an error prints it with
/// `Debug`.
impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A server that is bound to its address.
///
/// [`builder`](Self::builder) creates one. It accepts calls once it [`run`](Self::run)s or is
/// [`spawn`](Self::spawn)ed.
pub struct Server {
    running: Running,
}

/// A server that runs on its own threads.
///
/// Dropping the handle stops the server, and blocks until it has stopped: for as long as the time
/// limits of [`ServerBuilder::shutdown`] permit. In asynchronous code, use
/// [`shutdown_async`](Self::shutdown_async).
///
/// A handler may stop its own server. On a poller's thread, neither the drop nor a shutdown waits for
/// that poller: it shuts down when the handler returns. A handler that awaits `shutdown_async` is
/// dropped when its time ([`Shutdown::finish`]) is up.
#[must_use = "the server stops when its handle is dropped"]
pub struct ServerHandle {
    running: Running,
}

struct Running {
    local_addr: SocketAddr,
    limits: Limits,
    services: Vec<Arc<dyn Service>>,
    /// The pollers have been started, and nothing has stopped them.
    is_serving: bool,
    /// The pollers' wakeups, notified when the server stops.
    wakeups: Vec<Arc<Wakeup>>,
    threads: PollerThreads,
    watchdog: Watchdog,
    stats_reader: StatsReader,
}

impl Server {
    /// Creates a builder for a server on this device, without services.
    pub fn builder<F: Fabric>(device: &F) -> ServerBuilder<F> {
        ServerBuilder {
            fabric: device.clone(),
            services: Vec::new(),
            executor: None,
            interceptors: Vec::new(),
            intents: Intents::default(),
            max_concurrent_calls: None,
            deadlines: DeadlinePolicy::default(),
            max_connections: None,
            trust_forwarded: TrustForwarded::default(),
            admit: None,
            connection_age: None,
            pollers: 1,
            shutdown: Shutdown::default(),
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
        self.running.stats_reader.stats()
    }

    /// Returns a handle that takes snapshots of this server's statistics on any thread, for example
    /// on a thread that is started before [`run`](Self::run).
    #[must_use]
    pub fn stats_reader(&self) -> StatsReader {
        self.running.stats_reader.clone()
    }

    /// Serves until the process ends, like [`serve`](Self::serve). Blocks the calling thread.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError::PollerPanicked`] if a poller panicked.
    pub fn run(self) -> Result<(), ServerError> {
        block_on(self.serve())
    }

    /// Serves until the process ends, or until the future is dropped, which stops the server like
    /// dropping a [`ServerHandle`]. Nothing is served before the future is polled.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError::PollerPanicked`] if a poller panicked.
    pub async fn serve(self) -> Result<(), ServerError> {
        self.serve_with_shutdown(pending::<()>()).await
    }

    /// Serves until `signal` completes, then shuts down, within the time limits of
    /// [`ServerBuilder::shutdown`]. Completes when the server has stopped. Its pollers run on threads
    /// of their own, so any executor may poll the future.
    ///
    /// Dropping the future stops the server like dropping a [`ServerHandle`]. Nothing is served
    /// before the future is polled.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError::PollerPanicked`] if a poller panicked.
    pub async fn serve_with_shutdown(self, signal: impl Future) -> Result<(), ServerError> {
        self.running.threads.check()?;
        let handle = self.spawn();
        let ended = Arc::clone(&handle.running.threads.ended);
        let mut signal = pin!(signal);
        poll_fn(|cx| {
            // A poller that ends by itself has panicked.
            let any_ended = ended.poll_any(cx).is_ready();
            match any_ended || signal.as_mut().poll(cx).is_ready() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        handle.shutdown_async().await
    }

    /// Serves on its own threads.
    pub fn spawn(mut self) -> ServerHandle {
        self.running.is_serving = true;
        self.running.threads.start();
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
        self.running.stats_reader.stats()
    }

    /// Returns a handle that takes snapshots of this server's statistics on any thread.
    #[must_use]
    pub fn stats_reader(&self) -> StatsReader {
        self.running.stats_reader.clone()
    }

    /// Returns the methods whose handlers have blocked a poller's thread for long. Every other call
    /// of that poller waits for such a handler.
    #[must_use]
    pub fn blocked_methods(&self) -> BlockedMethods {
        self.running.watchdog.blocked_methods()
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

    /// Shuts down like [`shutdown_within`](Self::shutdown_within), within the time limits of
    /// [`ServerBuilder::shutdown`]. Dropping the handle does the same.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError::PollerPanicked`] if a poller panicked.
    pub fn shutdown(mut self) -> Result<(), ServerError> {
        self.running.stop();
        self.running.threads.join()
    }

    /// Shuts down like [`shutdown`](Self::shutdown), without waiting on the calling thread. The
    /// shutdown begins when the future is first polled. If the future is dropped before it completes,
    /// the drop blocks until the server has stopped.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError::PollerPanicked`] if a poller panicked.
    pub async fn shutdown_async(mut self) -> Result<(), ServerError> {
        self.running.stop();
        self.running.threads.check()?;
        let ended = Arc::clone(&self.running.threads.ended);
        poll_fn(|cx| ended.poll_all(cx)).await;
        self.running.threads.join()
    }

    /// Shuts the server down and blocks until it has stopped. First its health service says
    /// NOT_SERVING, and the server goes on for the time [`lame_duck`](Shutdown::lame_duck). From then
    /// on it accepts no clients, and notifies connected clients to start no more calls. Running handlers and
    /// requests in flight have the time [`finish`](Shutdown::finish) to complete; the others fail
    /// with `UNAVAILABLE`. Responses then have the time [`close`](Shutdown::close) to be sent,
    /// before the connections are closed. Each step ends early if there is nothing to wait for.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError::PollerPanicked`] if a poller panicked.
    pub fn shutdown_within(mut self, shutdown: Shutdown) -> Result<(), ServerError> {
        // Cannot fail: nothing else sets the value, and this method consumes the handle.
        let _ = self.running.threads.stop_signal.shutdown.set(shutdown);
        self.running.stop();
        self.running.threads.join()
    }
}

impl Running {
    /// Tells the services, signals the pollers to stop, and wakes them. Closes the listener, unless
    /// a lame-duck time comes first.
    fn stop(&mut self) {
        let stop_signal = &self.threads.stop_signal;
        // In the child of a fork, a service's locks may never be free.
        if mem::take(&mut self.is_serving) && self.threads.check().is_ok() {
            shutdown::tell(&self.services, Service::stopping);
            stop_signal.set_later();
        }
        if !stop_signal.is_lame_duck() {
            stop_signal.close_listener();
        }
        self.threads.stop();
        for wakeup in &self.wakeups {
            wakeup.notify();
        }
    }
}

impl Drop for Running {
    /// Stops the pollers. Dropping the field `threads` then waits until they have ended.
    fn drop(&mut self) {
        self.stop();
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
