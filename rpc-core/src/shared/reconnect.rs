//! [`Reconnect`]: keeps a channel connected to its server, at one poller.
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
//! A link is retired when it has ended or its server goes away. It then accepts no more calls, and
//! is released when the calls in flight on it have been settled and its streams have ended.

use std::error::Error;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};

use super::backoff::Backoff;
use super::connectivity::{Connectivity, ConnectivityState};
use super::dial_threads::{DialJob, DialProgress, Spawner};
use super::error::ChannelError;
use super::oneshot;
use super::poller_state::PollerState;
use super::submissions::PollerHealth;
use crate::call_error::Cause;
use crate::client::channel::MethodNumbers;
use crate::clock::deadline_after;
use crate::driver::Driver;
use crate::driver::handle::Poller;
use crate::driver::link::{LinkKey, LinkState};
use crate::transport::{CloseReason, ConnectError, Dialer, Transport};

/// The most connections of a channel at one poller that their servers are ending and whose calls go on. It
/// makes no further connection until one of them has ended. A poller has room for no more: see
/// [`CONNECTIONS`](super::open::CONNECTIONS).
const MOST_RETIRING: usize = 2;

/// Where the outcome of a channel's first attempt to connect at a poller is reported. Dropped, it reports
/// that the poller's thread has panicked.
pub(super) type Report = oneshot::Sender<Result<(), ChannelError>>;

/// The server that a channel connects to, and how.
pub(super) struct Target {
    /// The index of the poller in the channel's list.
    pub(super) index: usize,
    pub(super) address: String,
    pub(super) connect_timeout: Duration,
    pub(super) backoff: Backoff,
    /// Where the connection's state is reported: to users, and to callers that choose a poller.
    pub(super) connectivity: Arc<Connectivity>,
    pub(super) health: Arc<PollerHealth>,
}

impl Target {
    /// Reports the state of the connection.
    pub(super) fn report(&self, state: ConnectivityState) {
        self.health.set(state);
        self.connectivity.set(self.index, state, None);
    }

    /// Reports an attempt that has failed.
    pub(super) fn report_failure(&self, error: &Arc<ConnectError>) {
        let state = ConnectivityState::TransientFailure;
        self.health.set(state);
        let error = Some(Arc::clone(error));
        self.connectivity.set(self.index, state, error);
    }

    /// Returns the cause with which calls fail while there is no connection.
    pub(super) fn not_connected(&self, latest: Option<Arc<ConnectError>>) -> Cause {
        let address = self.address.clone();
        Cause::NotConnected { address, latest }
    }
}

/// The connection of a channel to its server, which is established again when it ends.
pub(super) struct Reconnect<T: Transport> {
    driver: Rc<Driver<T>>,
    target: Target,
    spawner: Rc<dyn Spawner>,
    /// The poller, and the channel's number there: notified when an attempt has ended.
    notifier: (Arc<PollerState>, u32),
    /// Attempts that have failed since the channel was connected, and the error of the latest one.
    failures: u64,
    latest: Option<Arc<ConnectError>>,
    /// Who waits for the outcome of the first attempt.
    report: Option<Report>,
    dialer: Arc<dyn Dialer<T::Dialed>>,
    state: ConnectionState<T>,
    /// Links that accept no more calls and still have calls in flight.
    retiring: Vec<LinkKey>,
}

type DialOutcome<T> = Result<<T as Transport>::Dialed, ConnectError>;

/// The state of the connection to the server.
enum ConnectionState<T: Transport> {
    /// No call has been made yet.
    Idle,
    Dialing {
        outcome: Receiver<DialOutcome<T>>,
        progress: Arc<DialProgress>,
        /// The time until which the handshake may wait for a thread. `None` once it has begun, or if
        /// there is no limit.
        begins_until: Option<Instant>,
    },
    Connected {
        link: LinkKey,
        methods: MethodNumbers,
        since: Instant,
    },
    /// Waiting until the time of the next attempt: the connection has ended, or the latest attempt has
    /// failed.
    BackingOff { until: Instant },
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
        spawner: Rc<dyn Spawner>,
        notifier: (Arc<PollerState>, u32),
        report: Option<Report>,
    ) -> Self {
        let was_protected = Arc::clone(&target.connectivity.was_protected);
        Self {
            dialer: driver
                .connections
                .state
                .borrow()
                .links
                .transport
                .dialer(was_protected),
            driver: Rc::clone(driver),
            target,
            spawner,
            notifier,
            failures: 0,
            latest: None,
            report,
            state: ConnectionState::Idle,
            retiring: Vec::new(),
        }
    }

    /// Returns the link that accepts calls, with the server's method numbers.
    pub(super) fn connected(&mut self) -> Option<(LinkKey, &mut MethodNumbers)> {
        match &mut self.state {
            ConnectionState::Connected { link, methods, .. } => Some((*link, methods)),
            _ => None,
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(self.state, ConnectionState::Connected { .. })
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, ConnectionState::Idle)
    }

    /// Returns true if the current link has ended, or if its server goes away.
    pub(super) fn is_unusable(&self) -> bool {
        match self.state {
            ConnectionState::Connected { link, .. } => {
                !matches!(self.driver.connections.link_state(link), LinkState::Up)
            }
            _ => false,
        }
    }

    /// Returns true if a link that accepts no more calls still has some.
    pub(super) fn is_retiring(&self) -> bool {
        !self.retiring.is_empty()
    }

    /// Returns the error of the latest attempt, if it has failed and the channel is not connected.
    pub(super) fn latest_error(&self) -> Option<Arc<ConnectError>> {
        self.latest.clone()
    }

    /// Returns the next time at which [`maintain`](Self::maintain) has something to do, if it is
    /// known. Then the next attempt begins, or an attempt that no thread has taken up fails.
    pub(super) fn next_time(&self) -> Option<Instant> {
        match self.state {
            ConnectionState::Dialing { begins_until, .. } => begins_until,
            ConnectionState::BackingOff { until } => Some(until),
            _ => None,
        }
    }

    /// Returns true if the latest attempt to connect failed and the next one has not begun: calls
    /// that don't wait for ready fail.
    pub(super) fn has_failed(&self) -> bool {
        matches!(self.state, ConnectionState::BackingOff { .. }) && self.latest.is_some()
    }

    /// Returns the cause with which calls fail after an attempt to connect has failed.
    pub(super) fn not_connected(&self) -> Cause {
        self.target.not_connected(self.latest_error())
    }

    /// Returns the cause with which calls fail when the channel or its poller ends.
    pub(super) fn has_ended(&self) -> Cause {
        self.target.not_connected(None)
    }

    /// Adopts a connection that was dialed, retires one that has ended, and dials when it is time.
    /// Returns the end of an attempt.
    pub(super) fn maintain(&mut self) -> Option<Attempt> {
        let clock = &self.driver.connections.clock;
        let attempt = match &mut self.state {
            ConnectionState::Idle => None,
            &mut ConnectionState::Connected { link, since, .. } => {
                self.retire_if_unusable(link, since);
                None
            }
            ConnectionState::Dialing {
                outcome,
                progress,
                begins_until,
            } => match outcome.try_recv() {
                Ok(outcome) => Some(self.finish_dial(outcome)),
                // No thread was free for the handshake in time.
                Err(_)
                    if begins_until
                        .take_if(|until| *until <= clock.now())
                        .is_some()
                        && progress.give_up() =>
                {
                    Some(self.fail_unbegun())
                }
                Err(_) => None,
            },
            ConnectionState::BackingOff { until } if *until <= clock.now() => self.dial(),
            ConnectionState::BackingOff { .. } => None,
        };
        self.release_retired();
        attempt
    }

    fn retire_if_unusable(&mut self, link: LinkKey, since: Instant) {
        // Calls in flight on a link whose server goes away finish on it, while new ones use the next
        // connection. The reference is kept until all calls have been settled, which may take some turns.
        if self.driver.connections.link_state(link) == LinkState::Up {
            return;
        }
        let reason = self
            .driver
            .connections
            .close_reason(link)
            .unwrap_or(CloseReason::Local);
        // Others are like attempts that failed: two idle channels would take the last connection of a
        // server from each other without a pause.
        let age = self
            .driver
            .connections
            .clock
            .now()
            .saturating_duration_since(since);
        if self.driver.connections.has_served(link) || age >= self.target.backoff.longest() {
            self.target.backoff.succeed();
        }
        let Target { address, index, .. } = &self.target;
        log_limited!(info, for address, address, poller = index, %reason, "disconnected from the server");
        self.retiring.push(link);
        self.back_off();
    }

    fn release_retired(&mut self) {
        if self.retiring.is_empty() {
            return;
        }
        let driver = &self.driver;
        self.retiring.retain(|&link| {
            let is_in_use = driver.connections.calls_in_flight(link) > 0
                || driver.connections.streams_open(link) > 0;
            if !is_in_use {
                driver.release_ref(link);
            }
            is_in_use
        });
    }

    /// Starts an attempt to connect. Returns its end if it could not be started.
    pub(super) fn dial(&mut self) -> Option<Attempt> {
        if self.going_away() >= MOST_RETIRING {
            return Some(self.fail(ConnectError::Refused {
                address: self.target.address.clone(),
                reason: format!(
                    "the calls of {MOST_RETIRING} earlier connections, which their servers are ending, go on: \
                     end streams sooner, or give the server's `max_connection_age` a grace below nine tenths of its age"
                ),
            }));
        }
        let progress = Arc::<DialProgress>::default();
        let now = self.driver.connections.clock.now();
        let (dialed, outcome) = bounded(1);
        self.set_state(ConnectionState::Dialing {
            outcome,
            progress: Arc::clone(&progress),
            begins_until: deadline_after(now, self.target.connect_timeout),
        });
        let dialer = Arc::clone(&self.dialer);
        let address = self.target.address.clone();
        let (session, timeout) = (
            self.driver.connections.client_session(),
            self.target.connect_timeout,
        );
        let (state, number) = (Arc::clone(&self.notifier.0), self.notifier.1);
        let handshake = Box::new(move || {
            let dial = || dialer.dial(&address, &session, timeout);
            let outcome = catch_unwind(AssertUnwindSafe(dial)).unwrap_or_else(|_| {
                Err(ConnectError::Device {
                    address: address.clone(),
                    source: "the handshake thread panicked".into(),
                })
            });
            // If the channel or its poller has ended in the meantime, the connection is closed here.
            let _ = dialed.send(outcome);
            state.notify(number);
        });
        let job = DialJob {
            address: self.target.address.clone(),
            is_retry: self.failures > 0,
            progress,
            handshake,
        };
        let error = self.spawner.spawn(job).err()?;
        Some(self.fail_locally(error))
    }

    /// Fails an attempt whose handshake no thread has begun.
    fn fail_unbegun(&mut self) -> Attempt {
        let connect_timeout = self.target.connect_timeout;
        let why = match self.spawner.in_progress() {
            0 => "raise it".to_owned(),
            others => format!(
                "{others} handshakes are in progress, with servers that are silent: close channels to such \
                 servers, or use more `Pollers`"
            ),
        };
        let source = format!(
            "no thread began the handshake within {connect_timeout:?}, the channel's `connect_timeout`: {why}"
        );
        self.fail_locally(source)
    }

    /// Fails an attempt for a reason of this side.
    fn fail_locally(&mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Attempt {
        let (address, source) = (self.target.address.clone(), source.into());
        self.fail(ConnectError::Device { address, source })
    }

    fn finish_dial(&mut self, outcome: DialOutcome<T>) -> Attempt {
        let address = &self.target.address;
        let connected = outcome.and_then(|dialed| {
            self.driver
                .connections
                .establish(address, |t| t.adopt(dialed))
        });
        let connected = match connected {
            Ok(connected) => connected,
            Err(error) => return self.fail(error),
        };
        self.driver.acquire_ref(connected.link);
        self.failures = 0;
        self.latest = None;
        let Target { address, index, .. } = &self.target;
        log_limited!(info, for address, address, poller = index, "connected to the server");
        let methods = MethodNumbers::from_session(&connected.session);
        // Before the channel is ready.
        (self.target.connectivity.methods).set(Arc::clone(methods.named()));
        self.set_state(ConnectionState::Connected {
            link: connected.link,
            methods,
            since: self.driver.connections.clock.now(),
        });
        self.report_first(Ok(()));
        Attempt::Connected
    }

    fn fail(&mut self, error: ConnectError) -> Attempt {
        let error = Arc::new(error);
        self.failures += 1;
        self.latest = Some(Arc::clone(&error));
        let (Target { address, index, .. }, failures) = (&self.target, self.failures);
        if failures.is_power_of_two() {
            let then = match self.report.is_some() {
                true => "the channel is not opened",
                false => {
                    "retrying after growing delays, and logging at powers of two of the failed attempts"
                }
            };
            log_limited!(
                warn,
                for address,
                address,
                poller = index,
                failures,
                %error,
                "cannot connect to the server; {then}"
            );
        }
        self.driver
            .connections
            .counters
            .connections
            .not_connected
            .add(1);
        self.back_off();
        self.report_first(Err(ChannelError::Connect(error)));
        Attempt::Failed
    }

    fn report_first(&mut self, outcome: Result<(), ChannelError>) {
        if let Some(report) = self.report.take() {
            report.send(outcome);
        }
    }

    fn back_off(&mut self) {
        let delay = self.target.backoff.next();
        let Target { address, index, .. } = &self.target;
        tracing::debug!(
            address,
            poller = index,
            ?delay,
            "waiting before the next attempt to connect"
        );
        let until = self.driver.connections.clock.now() + delay;
        self.set_state(ConnectionState::BackingOff { until });
    }

    fn set_state(&mut self, state: ConnectionState<T>) {
        self.state = state;
        match (&self.state, &self.latest) {
            (ConnectionState::Idle, _) => self.target.report(ConnectivityState::Idle),
            (ConnectionState::Connected { .. }, _) => self.target.report(ConnectivityState::Ready),
            (ConnectionState::BackingOff { .. }, Some(error)) => self.target.report_failure(error),
            (ConnectionState::Dialing { .. } | ConnectionState::BackingOff { .. }, _) => {
                self.target.report(ConnectivityState::Connecting);
            }
        }
    }

    /// Reports that the channel or its poller ends.
    pub(super) fn shut_down(&self) {
        self.target.report(ConnectivityState::Shutdown);
    }

    /// Closes all links, because the channel ends.
    pub(super) fn close(&mut self) {
        let mut links = mem::take(&mut self.retiring);
        if let ConnectionState::Connected { link, .. } = self.state {
            links.push(link);
            self.state = ConnectionState::Idle;
        }
        for link in links {
            self.driver.release_ref(link);
            // The link is closed even if streams that were given up await their server's responses.
            self.driver.connections.close_link(link);
        }
    }

    /// Returns the number of links that their servers are ending and that still have calls.
    fn going_away(&self) -> usize {
        let is_open =
            |link: &&LinkKey| self.driver.connections.link_state(**link) == LinkState::GoingAway;
        self.retiring.iter().filter(is_open).count()
    }

    /// Returns the number of links that still have calls in flight and accept no more.
    #[cfg(feature = "test-util")]
    pub(super) fn retiring(&self) -> usize {
        self.retiring.len()
    }
}

impl<T: Transport> Drop for Reconnect<T> {
    fn drop(&mut self) {
        if let ConnectionState::Dialing { progress, .. } = &self.state {
            // A handshake that has begun ends by itself, and closes its connection.
            let _ = progress.give_up();
        }
    }
}
