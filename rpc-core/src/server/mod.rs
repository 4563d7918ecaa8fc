//! [`Server`]: services, pollers and a listener.
//!
//! [`ServerBuilder::bind`] starts the pollers' threads, lets each open its transport, and opens the
//! listener; [`Server::run`] (or [`spawn`](Server::spawn)) lets the pollers go. From then on the
//! threads share nothing but a flag to stop.

pub(crate) mod admission;
mod builder;
pub(crate) mod shutdown;
mod start;
mod thread;
mod watchdog;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::Sender;

pub use self::builder::ServerBuilder;
pub use self::shutdown::Shutdown;
use self::thread::Stopping;
use self::watchdog::Watchdog;
use crate::driver::wakeup::Doorbell;
use crate::limits::{Intents, Limits};
use crate::stats::{BlockedMethods, Observer, Stats};
use crate::transport::{Fabric, FabricError, Listener};

/// Why a server could not be started, or ended.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The device or the listening socket.
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
    /// A poller could not be pinned.
    #[error(
        "cannot pin a poller to core {core}: {source}. Give `cores` some that this process may use, or an empty list"
    )]
    Pin {
        /// The core.
        core: usize,
        /// What the system said.
        source: io::Error,
    },
    /// A poller's thread panicked, which is a bug of this library or of the device's.
    #[error("poller {poller} panicked: {message}")]
    PollerPanicked {
        /// Its index.
        poller: usize,
        /// What it said.
        message: String,
    },
}

/// The sentence: a `main` that returns an error prints it with `Debug`.
impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A server that is bound to its address. Its pollers wait for [`run`](Self::run).
pub struct Server {
    running: Running,
}

/// A server that runs on its own threads. It stops when this is dropped.
pub struct ServerHandle {
    running: Running,
}

struct Running {
    local_addr: SocketAddr,
    limits: Limits,
    /// Lets the pollers go, one message each. Those that still wait end when it is dropped, so it is
    /// before they are joined.
    start: Option<Sender<()>>,
    stopping: Arc<Stopping>,
    /// The pollers', to ring when there is something about stopping.
    bells: Vec<Arc<Doorbell>>,
    listener: Option<Box<dyn Listener>>,
    watchdog: Option<Watchdog>,
    observer: Option<Observer>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// A server on this device, with no services yet.
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

    /// The address that it listens at.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.running.local_addr
    }

    /// What each of its pollers was sized to.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.running.limits
    }

    /// What has been counted: see [`ServerHandle::stats`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.running.stats()
    }

    /// What takes snapshots of this server's counters, on any thread: for a thread of yours that is
    /// started before [`run`](Self::run).
    #[must_use]
    pub fn observer(&self) -> Observer {
        self.running.observer()
    }

    /// Serves until the process ends.
    ///
    /// # Errors
    ///
    /// [`ServerError::PollerPanicked`] if a poller did.
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
            // A poller that is gone already is found by joining it.
            let _ = start.send(());
        }
        ServerHandle {
            running: self.running,
        }
    }
}

impl ServerHandle {
    /// What the pollers have counted, each by itself; [`Stats::total`] is their sum. Stops none of them.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.running.stats()
    }

    /// What takes snapshots of this server's counters, on any thread.
    #[must_use]
    pub fn observer(&self) -> Observer {
        self.running.observer()
    }

    /// Methods whose handlers have kept a poller's thread for long, which every other call of that
    /// poller waits for.
    #[must_use]
    pub fn blocked_methods(&self) -> BlockedMethods {
        let watchdog = self.running.watchdog.as_ref();
        watchdog.map_or_else(BlockedMethods::default, Watchdog::blocked_methods)
    }

    /// The address that it listens at.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.running.local_addr
    }

    /// What each of its pollers was sized to.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.running.limits
    }

    /// [`shutdown_within`](Self::shutdown_within) the times that [`Shutdown`] has by default, which is
    /// also what happens when this is dropped.
    ///
    /// # Errors
    ///
    /// [`ServerError::PollerPanicked`] if a poller did.
    pub fn shutdown(self) -> Result<(), ServerError> {
        self.shutdown_within(Shutdown::default())
    }

    /// Stops, and blocks until it has. At once nobody is let in any more, and clients are told to begin
    /// no more calls on their connections. Handlers at work, and calls that were on their way, have
    /// until `finish` to be done; those that are not are answered `UNAVAILABLE`. Answers may take until
    /// `close` to leave; then connections are closed. Each step ends sooner if there is nothing to wait
    /// for.
    ///
    /// # Errors
    ///
    /// [`ServerError::PollerPanicked`] if a poller did.
    pub fn shutdown_within(mut self, shutdown: Shutdown) -> Result<(), ServerError> {
        // Nobody else sets it: it is there once, and this handle goes.
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
        // It is there as soon as the server is bound.
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
