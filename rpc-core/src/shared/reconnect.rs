//! [`Reconnect`]: keeps a poller connected to its server.
//!
//! ```text
//!            first call                 connected
//!   Idle ───────────────▶ Dialing ───────────────────▶ Connected
//!                          ▲    │ failed                   │ ended, or the server goes away
//!                          │    ▼                          │
//!                          └─ Resting ◀────────────────────┘
//!                    backoff
//! ```
//!
//! A link that has ended or whose server goes away is retired: it accepts no more calls, and is
//! released when the calls in flight on it have been settled.

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
use super::submissions::Prospect;
use crate::call_error::Cause;
use crate::client::channel::MethodNumbers;
use crate::driver::Driver;
use crate::driver::handle::Poller;
use crate::driver::link::{LinkKey, LinkStanding};
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
    pub(super) prospect: Arc<Prospect>,
}

/// Runs handshakes, which block, outside the poller's thread.
pub(crate) trait Elsewhere {
    fn run(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

/// Runs each job on a new thread, which ends with the job. Handshakes are rare enough for this.
pub(super) struct OnThreads;

impl Elsewhere for OnThreads {
    fn run(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let named = thread::Builder::new().name("verbline-dial".to_owned());
        named.spawn(job).map(drop)
    }
}

/// The connection of a poller to its server, which is established again when it ends.
pub(super) struct Reconnect<T: Transport> {
    driver: Rc<Driver<T>>,
    target: Target,
    elsewhere: Box<dyn Elsewhere>,
    /// The outcome of the first attempt is reported here.
    report: Option<Report>,
    dialer: Arc<dyn Dialer<T::Dialed>>,
    dialed: (Sender<DialOutcome<T>>, Receiver<DialOutcome<T>>),
    standing: Standing,
    /// Links that accept no more calls and still have calls in flight.
    retiring: Vec<LinkKey>,
}

type DialOutcome<T> = Result<<T as Transport>::Dialed, ConnectError>;

/// The state of the connection to the server.
enum Standing {
    /// No call has been made yet.
    Idle,
    Dialing,
    Connected {
        link: LinkKey,
        methods: MethodNumbers,
    },
    /// Waiting until the time of the next attempt. `latest` is the error of the previous attempt,
    /// if it failed.
    Resting {
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
        elsewhere: impl Elsewhere + 'static,
        report: Report,
    ) -> Self {
        Self {
            dialer: driver.state.borrow().transport.dialer(),
            driver: Rc::clone(driver),
            target,
            elsewhere: Box::new(elsewhere),
            report: Some(report),
            dialed: unbounded(),
            standing: Standing::Idle,
            retiring: Vec::new(),
        }
    }

    /// Returns the link that accepts calls, with the server's method numbers.
    pub(super) fn connected(&mut self) -> Option<(LinkKey, &mut MethodNumbers)> {
        match &mut self.standing {
            Standing::Connected { link, methods } => Some((*link, methods)),
            _ => None,
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(self.standing, Standing::Connected { .. })
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.standing, Standing::Idle)
    }

    /// Returns true if an attempt has ended and awaits [`maintain`](Self::maintain).
    pub(super) fn has_dialed(&self) -> bool {
        !self.dialed.1.is_empty()
    }

    /// Returns the time of the next attempt, if one is planned.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        match self.standing {
            Standing::Resting { until, .. } => Some(until),
            _ => None,
        }
    }

    /// Returns the cause with which calls that don't wait for ready fail, if the latest attempt to
    /// connect failed.
    pub(super) fn failure(&self) -> Option<Cause> {
        match &self.standing {
            Standing::Resting {
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
        let attempt = match &self.standing {
            Standing::Idle => None,
            Standing::Connected { link, .. } => {
                self.retire_if_unusable(*link);
                None
            }
            Standing::Dialing => match self.dialed.1.try_recv() {
                Ok(outcome) => Some(self.arrive(outcome)),
                Err(_) => None,
            },
            Standing::Resting { until, .. } if *until <= self.driver.clock.now() => self.dial(),
            Standing::Resting { .. } => None,
        };
        self.release_retired();
        attempt
    }

    fn retire_if_unusable(&mut self, link: LinkKey) {
        let reason = match self.driver.standing_of(link) {
            LinkStanding::Up => return,
            // Calls in flight finish on this link, while new ones use the next connection.
            LinkStanding::GoingAway => CloseReason::GoingAway,
            // The reference is kept until all of its calls have been settled, which may take some
            // turns.
            LinkStanding::Ended => self.driver.end_of(link).unwrap_or(CloseReason::Local),
        };
        let Target { address, index, .. } = &self.target;
        tracing::info!(address, poller = index, %reason, "disconnected from the server");
        self.retiring.push(link);
        self.rest(None);
    }

    fn release_retired(&mut self) {
        if self.retiring.is_empty() {
            return;
        }
        let driver = &self.driver;
        self.retiring.retain(|&link| {
            let is_in_use = driver.calls_under_way(link) > 0;
            if !is_in_use {
                driver.let_go(link);
            }
            is_in_use
        });
    }

    /// Starts an attempt to connect. Returns its end if it could not be started.
    pub(super) fn dial(&mut self) -> Option<Attempt> {
        self.set_standing(Standing::Dialing);
        let dialer = Arc::clone(&self.dialer);
        let address = self.target.address.clone();
        let (hello, timeout) = (self.driver.hello(), self.target.connect_timeout);
        let (answers, bell) = (self.dialed.0.clone(), Arc::clone(&self.driver.bell));
        let job = Box::new(move || {
            let dial = || dialer.dial(&address, &hello, timeout);
            let outcome = catch_unwind(AssertUnwindSafe(dial)).unwrap_or_else(|_| {
                Err(ConnectError::Device {
                    address: address.clone(),
                    source: "the thread of its handshake panicked".into(),
                })
            });
            // If the poller has ended in the meantime, the connection is closed here.
            let _ = answers.send(outcome);
            bell.ring();
        });
        let source = self.elsewhere.run(job).err()?;
        let address = self.target.address.clone();
        Some(self.fail(ConnectError::Device {
            address,
            source: source.into(),
        }))
    }

    fn arrive(&mut self, outcome: DialOutcome<T>) -> Attempt {
        let address = &self.target.address;
        let joined = outcome.and_then(|dialed| self.driver.join(address, |t| t.adopt(dialed)));
        let joined = match joined {
            Ok(joined) => joined,
            Err(error) => return self.fail(error),
        };
        self.driver.hold(joined.link);
        self.target.backoff.succeed();
        let Target { address, index, .. } = &self.target;
        tracing::info!(address, poller = index, "connected to the server");
        self.set_standing(Standing::Connected {
            link: joined.link,
            methods: MethodNumbers::of(&joined.session),
        });
        self.report_first(Ok(()));
        Attempt::Connected
    }

    fn fail(&mut self, error: ConnectError) -> Attempt {
        let error = Arc::new(error);
        let Target { address, index, .. } = &self.target;
        tracing::warn!(address, poller = index, %error, "not connected");
        self.driver.tally.connections.not_connected.add(1);
        self.rest(Some(Arc::clone(&error)));
        self.report_first(Err(ChannelError::Connect(error)));
        Attempt::Failed
    }

    fn report_first(&mut self, outcome: Result<(), ChannelError>) {
        if let Some(report) = self.report.take() {
            report.tell(outcome);
        }
    }

    fn rest(&mut self, latest: Option<Arc<ConnectError>>) {
        let rest = self.target.backoff.next();
        let Target { address, index, .. } = &self.target;
        tracing::debug!(
            address,
            poller = index,
            ?rest,
            "connecting again after a rest"
        );
        let until = self.driver.clock.now() + rest;
        self.set_standing(Standing::Resting { until, latest });
    }

    fn set_standing(&mut self, standing: Standing) {
        self.standing = standing;
        let Target {
            index,
            connectivity,
            prospect,
            ..
        } = &self.target;
        prospect.set(match &self.standing {
            Standing::Idle | Standing::Connected { .. } => Prospect::GOOD,
            Standing::Dialing | Standing::Resting { latest: None, .. } => Prospect::FAIR,
            Standing::Resting { .. } => Prospect::POOR,
        });
        match &self.standing {
            Standing::Idle => connectivity.set(*index, ConnectivityState::Idle),
            Standing::Connected { .. } => connectivity.set(*index, ConnectivityState::Ready),
            Standing::Resting {
                latest: Some(error),
                ..
            } => connectivity.fail(*index, Arc::clone(error)),
            Standing::Dialing | Standing::Resting { latest: None, .. } => {
                connectivity.set(*index, ConnectivityState::Connecting);
            }
        }
    }

    /// Reports that the poller ends.
    pub(super) fn shut_down(&self) {
        self.target.prospect.set(Prospect::POOR);
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
