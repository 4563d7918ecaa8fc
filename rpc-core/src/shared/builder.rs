//! [`ChannelBuilder`]: the settings of a channel, and the start of its pollers.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread;
use std::time::Duration;

use crossbeam_channel::bounded;

use super::backoff::Backoff;
use super::channel::Channel;
use super::connectivity::{Connectivity, ConnectivityState};
use super::error::ChannelError;
use super::notices::{NoticeReceiver, Notices};
use super::permits::CallPermits;
use super::poller::{self, SharedPoller};
#[cfg(feature = "test-util")]
use super::reconnect::Spawner;
use super::reconnect::{Target, ThreadSpawner};
use super::start::{Report, Start};
use super::submissions::{PollerHandle, Shared};
use crate::clock::Clock;
use crate::driver::Driver;
use crate::limits::{Intents, Keepalive, Waiting};
use crate::poller::CONNECT_TIMEOUT;
use crate::poller::idle;
use crate::protocol::session::clamp_in_flight;
use crate::service::dispatch::Methods;
use crate::transport::{Fabric, Transport};

/// Connections of a poller: one that accepts calls, and one to a server that is shutting down,
/// while its last calls finish.
const CONNECTIONS: u32 = 2;

/// Upper limit of the delay before the first reconnect attempt: short enough to find a restarted
/// server soon, long enough to spread a thousand clients over time.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);

/// Upper limit of every delay: a person who has repaired the server should not wait longer for
/// clients to reconnect.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

impl Channel {
    /// Connects to a server at `host:port`, with one poller and the default [`Intents`].
    ///
    /// # Errors
    ///
    /// Returns [`ChannelError`] if the device cannot be used or the first attempt to connect fails.
    /// Nothing is left running.
    pub async fn connect<F: Fabric>(fabric: &F, address: &str) -> Result<Self, ChannelError> {
        let builder = Self::builder(fabric, address);
        builder.connect().await
    }

    /// Creates a builder for a channel to a server at `host:port`.
    pub fn builder<F: Fabric>(fabric: &F, address: &str) -> ChannelBuilder<F> {
        ChannelBuilder {
            fabric: fabric.clone(),
            address: address.to_owned(),
            intents: Intents {
                connections: CONNECTIONS,
                ..Intents::default()
            },
            pollers: 1,
            connect_timeout: CONNECT_TIMEOUT,
            waits_for_ready: false,
            backoff: (FIRST_BACKOFF, LONGEST_BACKOFF),
        }
    }
}

/// The configuration of a channel.
#[must_use = "a builder does nothing until it connects"]
pub struct ChannelBuilder<F> {
    fabric: F,
    address: String,
    intents: Intents,
    pollers: usize,
    connect_timeout: Duration,
    waits_for_ready: bool,
    backoff: (Duration, Duration),
}

impl<F> fmt::Debug for ChannelBuilder<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelBuilder")
            .field("address", &self.address)
            .field("intents", &self.intents)
            .field("pollers", &self.pollers)
            .finish_non_exhaustive()
    }
}

impl<F: Fabric> ChannelBuilder<F> {
    /// Sets the length in bytes of the longest encoded message: see [`Intents::max_message_len`].
    pub fn max_message_len(mut self, bytes: usize) -> Self {
        self.intents.max_message_len = bytes;
        self
    }

    /// Sets the length in bytes of the longest encoded message to send: see
    /// [`Intents::max_send_message_len`].
    pub fn max_send_message_len(mut self, bytes: usize) -> Self {
        self.intents.max_send_message_len = bytes;
        self
    }

    /// Limits the bytes that the process registers for long messages: see
    /// [`Intents::message_memory`].
    pub fn message_memory(mut self, bytes: u64) -> Self {
        self.intents.message_memory = bytes;
        self
    }

    /// Sets whether long messages wait for memory, or are refused: see
    /// [`Intents::waits_for_memory`].
    pub fn waits_for_memory(mut self, waits: bool) -> Self {
        self.intents.waits_for_memory = waits;
        self
    }

    /// Sets the number of calls that each poller may have in flight at a time: see
    /// [`Intents::max_in_flight`]. Further calls wait.
    pub fn max_in_flight(mut self, calls: u32) -> Self {
        self.intents.max_in_flight = calls;
        self
    }

    /// Sets how many streams one connection may have open: see
    /// [`Intents::max_streams`](crate::Intents::max_streams). Default: 256.
    pub fn max_streams(mut self, streams: u32) -> Self {
        self.intents.max_streams = streams;
        self
    }

    /// Sets how idle pollers wait: see [`Waiting`].
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        self.intents.waiting = waiting;
        self
    }

    /// Limits the bytes that each poller may register: see [`Intents::max_memory`].
    pub fn max_memory(mut self, bytes: u64) -> Self {
        self.intents.max_memory = Some(bytes);
        self
    }

    /// Probes a silent server to check that it still runs, and closes the connection if it does not
    /// answer: see [`Intents::keepalive`].
    pub fn keepalive(mut self, keepalive: Keepalive) -> Self {
        self.intents.keepalive = Some(keepalive);
        self
    }

    /// Sets the number of pollers over which calls are spread, each with its own connection.
    /// Default and minimum: 1.
    pub fn pollers(mut self, pollers: usize) -> Self {
        self.pollers = pollers.max(1);
        self
    }

    /// Limits the time of an attempt to connect, excluding the resolution of the host name.
    /// Default: 5 seconds.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets whether requests [wait for ready](crate::Request::wait_for_ready) if they do not
    /// specify it themselves. Default: `false`.
    pub fn wait_for_ready(mut self, waits: bool) -> Self {
        self.waits_for_ready = waits;
        self
    }

    /// Sets the upper limits of the delays between attempts to connect: `first` limits the first
    /// delay, and `longest` limits every delay. Default: 50 ms and 5 s.
    pub fn reconnect_backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.backoff = (first, longest.max(first));
        self
    }

    /// Starts the pollers and connects each of them.
    ///
    /// # Errors
    ///
    /// Returns the [`ChannelError`] of the first attempt that fails. Nothing is left running.
    pub async fn connect(self) -> Result<Channel, ChannelError> {
        let start = Start::new(self.pollers);
        let channel = self.spawn(Some(Arc::clone(&start)))?;
        poll_fn(|cx| start.poll(cx.waker())).await?;
        Ok(channel)
    }

    /// Starts the pollers, and lets the first call connect. If the server cannot be reached, or the
    /// device cannot be used, calls fail with [`CallError`](crate::CallError).
    ///
    /// # Errors
    ///
    /// Returns [`ChannelError::Thread`] if a poller's thread cannot be started.
    pub fn connect_lazy(self) -> Result<Channel, ChannelError> {
        self.spawn(None)
    }

    fn spawn(self, start: Option<Arc<Start>>) -> Result<Channel, ChannelError> {
        // Count the cores before any thread is pinned.
        idle::cores();
        self.intents.warn_of_little_memory();
        let state = match start {
            Some(_) => ConnectivityState::Connecting,
            None => ConnectivityState::Idle,
        };
        let connectivity = Arc::new(Connectivity::new(self.pollers, state));
        let mut pollers = Vec::new();
        for index in 0..self.pollers {
            let count = clamp_in_flight(self.intents.max_in_flight);
            let (handle, mut settings) =
                PollerHandle::new(&self.address, count, &self.backoff, &connectivity, index);
            settings.target.connect_timeout = self.connect_timeout;
            settings.waiting = self.intents.waiting;
            settings.is_lazy = start.is_none();
            let (fabric, intents, start) =
                (self.fabric.clone(), self.intents.clone(), start.clone());
            pollers.push(handle);
            thread::Builder::new()
                .name(format!("verbline-client-{index}"))
                .spawn(move || run(&fabric, &intents, settings, start))?;
        }
        Ok(Channel(Arc::new(Shared {
            address: self.address,
            pollers: pollers.into(),
            next: AtomicUsize::new(0),
            connectivity,
            waits_for_ready: self.waits_for_ready,
            clock: Clock::system(),
        })))
    }
}

#[cfg(feature = "test-util")]
impl Channel {
    /// Creates a channel with one poller whose turns the caller takes. The first call connects.
    pub(crate) fn stepped<T: Transport>(
        transport: T,
        clock: &Clock,
        address: &str,
        seed: u64,
        spawner: impl Spawner + 'static,
    ) -> (Self, SharedPoller<T>) {
        let connectivity = Arc::new(Connectivity::new(1, ConnectivityState::Idle));
        let count = clamp_in_flight(transport.limits().max_in_flight);
        let backoff = (FIRST_BACKOFF, LONGEST_BACKOFF);
        let (handle, mut settings) = PollerHandle::new(address, count, &backoff, &connectivity, 0);
        settings.target.backoff = Backoff::seeded(backoff.0, backoff.1, seed);
        settings.is_lazy = true;
        let _ = handle.limits.set(transport.limits().clone());
        let driver = Driver::new(transport, Methods::new(), clock.clone());
        let poller = SharedPoller::new(driver, settings, spawner, Report(None));
        let shared = Shared {
            address: address.to_owned(),
            pollers: [handle].into(),
            next: AtomicUsize::new(0),
            connectivity,
            waits_for_ready: false,
            clock: clock.clone(),
        };
        (Self(Arc::new(shared)), poller)
    }
}

impl PollerHandle {
    fn new(
        address: &str,
        count: u32,
        backoff: &(Duration, Duration),
        connectivity: &Arc<Connectivity>,
        index: usize,
    ) -> (Self, poller::Settings) {
        let (submissions, receiver) = bounded(count as usize);
        let handle = Self {
            address: address.to_owned(),
            permits: Arc::new(CallPermits::new(count)),
            submissions,
            notices: Arc::new(Notices::default()),
            wakeup: Arc::default(),
            is_stopped: Arc::default(),
            health: Arc::default(),
            limits: Arc::default(),
            counters: Arc::default(),
        };
        let settings = poller::Settings {
            target: Target {
                index,
                address: address.to_owned(),
                connect_timeout: CONNECT_TIMEOUT,
                backoff: Backoff::new(backoff.0, backoff.1),
                connectivity: Arc::clone(connectivity),
                health: Arc::clone(&handle.health),
            },
            permits: Arc::clone(&handle.permits),
            submissions: receiver,
            notices: NoticeReceiver::new(&handle.notices),
            wakeup: Arc::clone(&handle.wakeup),
            is_stopped: Arc::clone(&handle.is_stopped),
            limits: Arc::clone(&handle.limits),
            counters: Arc::clone(&handle.counters),
            waiting: Waiting::default(),
            is_lazy: false,
        };
        (handle, settings)
    }
}

/// Runs a poller's thread.
fn run<F: Fabric>(
    fabric: &F,
    intents: &Intents,
    settings: poller::Settings,
    start: Option<Arc<Start>>,
) {
    let report = Report(start.clone());
    let transport = match fabric.open(intents) {
        Ok(transport) => transport,
        Err(error) => {
            tracing::error!(%error, "cannot open the device of a channel's poller");
            return match start {
                Some(_) => report.send(Err(error.into())),
                // With a lazy channel, the calls report the error.
                None => poller::fail_all(&settings, error),
            };
        }
    };
    let _ = settings.limits.set(transport.limits().clone());
    let driver = Driver::new(transport, Methods::new(), Clock::system());
    SharedPoller::new(driver, settings, ThreadSpawner, report).run();
}
