//! [`Reconnect`]: keeps a poller connected to its server.
//!
//! ```text
//!            first call                 connected
//!   Idle ───────────────▶ Dialing ───────────────────▶ Connected
//!                          ▲    │ failed                   │ ended, or the server goes away
//!                          │    ▼                          │
//!                          └─ BackingOff ◀─────────────────┘
//!                    backoff
//! ```
//!
//! A link that has ended or whose server goes away is retired: it accepts no more calls, and is
//! released when the calls in flight on it have been settled and its streams have ended.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::backoff::Backoff;
use super::connectivity::{Connectivity, ConnectivityState};
use super::error::ChannelError;
use super::start::Report;
use super::submissions::PollerHealth;
use crate::call_error::Cause;
use crate::client::channel::MethodNumbers;
use crate::driver::Driver;
use crate::driver::handle::Poller;
use crate::driver::link::{LinkKey, LinkState};
use crate::transport::{CloseReason, ConnectError, Dialer, Transport};

/// The server that a poller connects to, and how.
pub(super) struct Target {
    /// The poller's index in its channel.
    pub(super) index: usize,
    pub(super) address: String,
    pub(super) connect_timeout: Duration,
    pub(super) backoff: Backoff,
    /// Where the connection's state is reported: to users, and to callers that choose a poller.
    pub(super) connectivity: Arc<Connectivity>,
    pub(super) health: Arc<PollerHealth>,
}

/// Runs handshakes, which block, outside the poller's thread.
pub(crate) trait Spawner {
    fn spawn(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

/// Runs each job on a new thread, which ends with the job. Handshakes are rare enough for this.
pub(super) struct ThreadSpawner;

impl Spawner for ThreadSpawner {
    fn spawn(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let named = thread::Builder::new().name("verbline-dial".to_owned());
        named.spawn(job).map(drop)
    }
}

/// The connection of a poller to its server, which is established again when it ends.
pub(super) struct Reconnect<T: Transport> {
    driver: Rc<Driver<T>>,
    target: Target,
    spawner: Box<dyn Spawner>,
    /// The outcome of the first attempt is reported here.
    report: Option<Report>,
    dialer: Arc<dyn Dialer<T::Dialed>>,
    dialed: (Sender<DialOutcome<T>>, Receiver<DialOutcome<T>>),
    state: ConnectionState,
    /// Links that accept no more calls and still have calls in flight.
    retiring: Vec<LinkKey>,
}

type DialOutcome<T> = Result<<T as Transport>::Dialed, ConnectError>;

/// The state of the connection to the server.
enum ConnectionState {
    /// No call has been made yet.
    Idle,
    Dialing,
    Connected {
        link: LinkKey,
        methods: MethodNumbers,
    },
    /// Waiting until the time of the next attempt. `latest` is the error of the previous attempt,
    /// if it failed.
    BackingOff {
        until: Instant,
        latest: Option<Arc<ConnectError>>,
    },
}

/// The end of an attempt to connect, which decides what happens to waiting calls.
#[must_use]
pub(super) enum Attempt {
    Connected,
    Failed,
}

impl<T: Transport> Reconnect<T> {
    pub(super) fn new(
        driver: &Rc<Driver<T>>,
        target: Target,
        spawner: impl Spawner + 'static,
        report: Report,
    ) -> Self {
        Self {
            dialer: driver.state.borrow().transport.dialer(),
            driver: Rc::clone(driver),
            target,
            spawner: Box::new(spawner),
            report: Some(report),
            dialed: unbounded(),
            state: ConnectionState::Idle,
            retiring: Vec::new(),
        }
    }

    /// Returns the link that accepts calls, with the server's method numbers.
    pub(super) fn connected(&mut self) -> Option<(LinkKey, &mut MethodNumbers)> {
        match &mut self.state {
            ConnectionState::Connected { link, methods } => Some((*link, methods)),
            _ => None,
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(self.state, ConnectionState::Connected { .. })
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, ConnectionState::Idle)
    }

    /// Returns true if an attempt has ended and awaits [`maintain`](Self::maintain).
    pub(super) fn has_dialed(&self) -> bool {
        !self.dialed.1.is_empty()
    }

    /// Returns the time of the next attempt, if one is planned.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        match self.state {
            ConnectionState::BackingOff { until, .. } => Some(until),
            _ => None,
        }
    }

    /// Returns the cause with which calls that don't wait for ready fail, if the latest attempt to
    /// connect failed.
    pub(super) fn failure(&self) -> Option<Cause> {
        match &self.state {
            ConnectionState::BackingOff {
                latest: Some(error),
                ..
            } => Some(self.not_connected(Some(Arc::clone(error)))),
            _ => None,
        }
    }

    pub(super) fn not_connected(&self, latest: Option<Arc<ConnectError>>) -> Cause {
        let address = self.target.address.clone();
        Cause::NotConnected { address, latest }
    }

    /// Adopts a connection that was dialed, retires one that has ended, and dials when it is time.
    /// Returns the end of an attempt.
    pub(super) fn maintain(&mut self) -> Option<Attempt> {
        let attempt = match &self.state {
            ConnectionState::Idle => None,
            ConnectionState::Connected { link, .. } => {
                self.retire_if_unusable(*link);
                None
            }
            ConnectionState::Dialing => match self.dialed.1.try_recv() {
                Ok(outcome) => Some(self.finish_dial(outcome)),
                Err(_) => None,
            },
            ConnectionState::BackingOff { until, .. } if *until <= self.driver.clock.now() => {
                self.dial()
            }
            ConnectionState::BackingOff { .. } => None,
        };
        self.release_retired();
        attempt
    }

    fn retire_if_unusable(&mut self, link: LinkKey) {
        let reason = match self.driver.link_state(link) {
            LinkState::Up => return,
            // Calls in flight finish on this link, while new ones use the next connection.
            LinkState::GoingAway => CloseReason::GoingAway,
            // The reference is kept until all of its calls have been settled, which may take some
            // turns.
            LinkState::Ended => self.driver.close_reason(link).unwrap_or(CloseReason::Local),
        };
        let Target { address, index, .. } = &self.target;
        tracing::info!(address, poller = index, %reason, "disconnected from the server");
        self.retiring.push(link);
        self.back_off(None);
    }

    fn release_retired(&mut self) {
        if self.retiring.is_empty() {
            return;
        }
        let driver = &self.driver;
        self.retiring.retain(|&link| {
            let is_in_use = driver.calls_in_flight(link) > 0 || driver.streams_open(link) > 0;
            if !is_in_use {
                driver.release_ref(link);
            }
            is_in_use
        });
    }

    /// Starts an attempt to connect. Returns its end if it could not be started.
    pub(super) fn dial(&mut self) -> Option<Attempt> {
        self.set_state(ConnectionState::Dialing);
        let dialer = Arc::clone(&self.dialer);
        let address = self.target.address.clone();
        let (session, timeout) = (self.driver.client_session(), self.target.connect_timeout);
        let (outcomes, wakeup) = (self.dialed.0.clone(), Arc::clone(&self.driver.wakeup));
        let job = Box::new(move || {
            let dial = || dialer.dial(&address, &session, timeout);
            let outcome = catch_unwind(AssertUnwindSafe(dial)).unwrap_or_else(|_| {
                Err(ConnectError::Device {
                    address: address.clone(),
                    source: "the handshake thread panicked".into(),
                })
            });
            // If the poller has ended in the meantime, the connection is closed here.
            let _ = outcomes.send(outcome);
            wakeup.notify();
        });
        let source = self.spawner.spawn(job).err()?;
        let address = self.target.address.clone();
        Some(self.fail(ConnectError::Device {
            address,
            source: source.into(),
        }))
    }

    fn finish_dial(&mut self, outcome: DialOutcome<T>) -> Attempt {
        let address = &self.target.address;
        let connected =
            outcome.and_then(|dialed| self.driver.establish(address, |t| t.adopt(dialed)));
        let connected = match connected {
            Ok(connected) => connected,
            Err(error) => return self.fail(error),
        };
        self.driver.acquire_ref(connected.link);
        self.target.backoff.succeed();
        let Target { address, index, .. } = &self.target;
        tracing::info!(address, poller = index, "connected to the server");
        self.set_state(ConnectionState::Connected {
            link: connected.link,
            methods: MethodNumbers::from_session(&connected.session),
        });
        self.report_first(Ok(()));
        Attempt::Connected
    }

    fn fail(&mut self, error: ConnectError) -> Attempt {
        let error = Arc::new(error);
        let Target { address, index, .. } = &self.target;
        tracing::warn!(address, poller = index, %error, "cannot connect to the server; retrying after a delay");
        self.driver.counters.connections.not_connected.add(1);
        self.back_off(Some(Arc::clone(&error)));
        self.report_first(Err(ChannelError::Connect(error)));
        Attempt::Failed
    }

    fn report_first(&mut self, outcome: Result<(), ChannelError>) {
        if let Some(report) = self.report.take() {
            report.send(outcome);
        }
    }

    fn back_off(&mut self, latest: Option<Arc<ConnectError>>) {
        let delay = self.target.backoff.next();
        let Target { address, index, .. } = &self.target;
        tracing::debug!(
            address,
            poller = index,
            ?delay,
            "waiting before the next attempt to connect"
        );
        let until = self.driver.clock.now() + delay;
        self.set_state(ConnectionState::BackingOff { until, latest });
    }

    fn set_state(&mut self, state: ConnectionState) {
        self.state = state;
        let Target {
            index,
            connectivity,
            health,
            ..
        } = &self.target;
        health.set(match &self.state {
            ConnectionState::Idle | ConnectionState::Connected { .. } => PollerHealth::GOOD,
            ConnectionState::Dialing | ConnectionState::BackingOff { latest: None, .. } => {
                PollerHealth::FAIR
            }
            ConnectionState::BackingOff { .. } => PollerHealth::POOR,
        });
        match &self.state {
            ConnectionState::Idle => connectivity.set(*index, ConnectivityState::Idle),
            ConnectionState::Connected { .. } => connectivity.set(*index, ConnectivityState::Ready),
            ConnectionState::BackingOff {
                latest: Some(error),
                ..
            } => connectivity.fail(*index, Arc::clone(error)),
            ConnectionState::Dialing | ConnectionState::BackingOff { latest: None, .. } => {
                connectivity.set(*index, ConnectivityState::Connecting);
            }
        }
    }

    /// Reports that the poller ends.
    pub(super) fn shut_down(&self) {
        self.target.health.set(PollerHealth::POOR);
        let Target {
            index,
            connectivity,
            ..
        } = &self.target;
        connectivity.set(*index, ConnectivityState::Shutdown);
    }

    /// Returns the number of links that still have calls in flight and accept no more.
    #[cfg(feature = "test-util")]
    pub(super) fn retiring(&self) -> usize {
        self.retiring.len()
    }
}
