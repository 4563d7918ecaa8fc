//! [`Channel`]: a client that any thread may use, with any executor or with none.
//!
//! A channel has a poller on a thread of its own (or several), which owns the connection. A call
//! proceeds like this:
//!
//! ```text
//!  caller's thread                          poller's thread
//!  take a permit, or wait for one
//!  encode into the permit's buffer
//!  ── submission ────────────────────────▶  take a credit, or join the backlog
//!  (wait)                                   copy into a send slot; send
//!                                           …
//!                                           copy the response out of its slot
//!  ◀──────────────────────── wake ────────  settle the permit
//!  decode; release the permit
//! ```
//!
//! There are as many permits as the queue between the two has entries, so the queue is never full
//! (`tickets.rs`). A poller that spins needs no wakeup; waking a poller that sleeps costs one
//! system call (`doorbell.rs`).
//!
//! The poller maintains the connection (`poller.rs`): when it ends, the calls in flight fail, and
//! the poller reconnects with randomized exponential backoff (`backoff.rs`). The channel's
//! [`ConnectivityState`] reports the state.

mod backoff;
mod call;
mod connectivity;
mod poller;
mod tickets;

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use prost::Message;

use self::backoff::Backoff;
use self::call::SharedCall;
use self::connectivity::Connectivity;
pub use self::connectivity::{ConnectivityState, Watch};
use self::poller::OnThreads;
#[cfg(not(feature = "test-util"))]
use self::poller::SharedPoller;
#[cfg(feature = "test-util")]
pub(crate) use self::poller::{Elsewhere, SharedPoller};
use self::tickets::{Ticket, Tickets};
use crate::call_error::CallError;
use crate::client::Caller;
use crate::clock::Clock;
use crate::dispatch::Methods;
use crate::doorbell::Doorbell;
use crate::driver::Driver;
use crate::idle;
use crate::limits::{Intents, Keepalive, Limits, Waiting};
use crate::message::{Request, Response};
use crate::method::MethodSpec;
use crate::poller::CONNECT_TIMEOUT;
use crate::session::calls_told_apart;
use crate::stats::{PollerTally, Stats};
use crate::transport::{ConnectError, Fabric, FabricError, Transport};

/// Connections of a poller: one that accepts calls, and one to a server that is shutting down,
/// while its last calls finish.
const CONNECTIONS: u32 = 2;

/// Upper limit of the delay before the first reconnect attempt: short enough to find a restarted
/// server soon, long enough to spread a thousand clients over time.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);

/// Upper limit of every delay: the time that a person is willing to wait after a repair.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

/// A shared connection to a server. Cheap to clone, and usable from any thread, by futures on any
/// executor or through [`block_on`](crate::block_on()). The connection closes when the last clone
/// is dropped.
///
/// A dropped call counts towards `max_in_flight` until its response arrives or its deadline passes;
/// a leaked one ([`std::mem::forget`]) counts forever.
///
/// A channel reconnects automatically. The [module](self) describes how, and [`ChannelBuilder`] has
/// the settings.
#[derive(Clone)]
pub struct Channel(Arc<Shared>);

/// The reason that a channel could not be created.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The device failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A poller's thread could not be started.
    #[error("cannot start a poller's thread: {0}")]
    Thread(#[from] io::Error),
    /// The first attempt to connect failed.
    #[error("{0}")]
    Connect(#[source] Arc<ConnectError>),
    /// A poller's thread panicked, because of a bug in this library or in the device's.
    #[error("a poller's thread panicked while it was started")]
    PollerPanicked,
}

/// Prints the same sentence as `Display`, because a `main` that returns an error prints it with
/// `Debug`.
impl fmt::Debug for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The state shared by all clones.
struct Shared {
    address: String,
    lanes: Box<[Lane]>,
    /// Counter that selects the lane that the next call tries first.
    turn: AtomicUsize,
    connectivity: Arc<Connectivity>,
    waits_for_ready: bool,
    clock: Clock,
}

/// One poller, as seen by callers.
struct Lane {
    address: String,
    tickets: Arc<Tickets>,
    submissions: Sender<Submission>,
    bell: Arc<OnceLock<Arc<Doorbell>>>,
    /// Set when the channel is dropped, so that the poller ends.
    is_over: Arc<AtomicBool>,
    prospect: Arc<Prospect>,
    limits: Arc<OnceLock<Limits>>,
    /// The poller's counters, once it has opened its device.
    tally: Arc<OnceLock<Arc<PollerTally>>>,
}

/// A request submitted to the poller.
#[derive(Debug)]
struct Submission {
    ticket: Ticket,
    method: &'static MethodSpec,
    deadline: Option<Instant>,
    /// Length of the metadata at the start of the permit's buffer. The rest is the message.
    metadata_len: usize,
    waits_for_ready: bool,
    /// Start time, if this call is sampled for latency.
    began: Option<Instant>,
}

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

    /// Returns the state of the connection.
    #[must_use]
    pub fn state(&self) -> ConnectivityState {
        self.0.connectivity.state()
    }

    /// Returns the error of the latest failed attempt to connect, if any attempt has failed.
    #[must_use]
    pub fn latest_error(&self) -> Option<Arc<ConnectError>> {
        self.0.connectivity.latest_error()
    }

    /// Returns a watch that reports changes of [`state`](Self::state) from now on.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch::of(&self.0.connectivity)
    }

    /// Returns the sizes of each poller, or `None` until a poller has opened its device.
    #[must_use]
    pub fn limits(&self) -> Option<&Limits> {
        self.0.lanes.iter().find_map(|lane| lane.limits.get())
    }

    /// Returns a snapshot of the pollers' statistics. A poller that has not opened its device yet
    /// has zeros.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let pollers = self.0.lanes.iter().map(|lane| {
            // A poller that has not started has zeros, and keeps its index in the list.
            let mut poller = lane
                .tally
                .get()
                .map(|tally| tally.read())
                .unwrap_or_default();
            poller.stalls.no_ticket = lane.tickets.waited.get();
            poller.stalls.gave_up = lane.tickets.gave_up.get();
            poller
        });
        Stats {
            pollers: pollers.collect(),
            server: None,
        }
    }

    /// Returns the server's address, as the application specified it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.0.address
    }
}

impl Caller for Channel {
    async fn unary<Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
    ) -> Result<Response<Res>, CallError>
    where
        Req: Message,
        Res: Message + Default,
    {
        SharedCall::new(&self.0, method, request).await
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel({}, {})", self.0.address, self.state())
    }
}

impl Shared {
    /// Returns the lane for a new call: round robin among the lanes with the best health.
    fn next_lane(&self) -> &Lane {
        let [only] = &*self.lanes else {
            let first = self.turn.fetch_add(1, Ordering::Relaxed);
            let count = self.lanes.len();
            let in_turn = (0..count).map(|next| &self.lanes[first.wrapping_add(next) % count]);
            // `min_by_key` returns the first of equal lanes.
            return in_turn
                .min_by_key(|lane| lane.prospect.get())
                .unwrap_or(&self.lanes[first % count]);
        };
        only
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.ring();
    }
}

/// The health of a poller: a hint for the choice of a lane. Lower is better.
#[derive(Debug, Default)]
struct Prospect(AtomicU8);

impl Prospect {
    /// The poller is connected, or connects for the first call.
    const GOOD: u8 = 0;
    /// The poller is connecting.
    const FAIR: u8 = 1;
    /// The poller's latest attempt has failed.
    const POOR: u8 = 2;

    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, prospect: u8) {
        self.0.store(prospect, Ordering::Relaxed);
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

    /// Sets the number of calls that each poller may have in flight at a time: see
    /// [`Intents::max_in_flight`]. Further calls wait.
    pub fn max_in_flight(mut self, calls: u32) -> Self {
        self.intents.max_in_flight = calls;
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

    /// Sets the default for requests that do not specify whether they [wait for
    /// ready](Request::wait_for_ready). Default: `false`.
    pub fn wait_for_ready(mut self, waits: bool) -> Self {
        self.waits_for_ready = waits;
        self
    }

    /// Sets the upper limits of the delays between attempts to connect: the limit of the first
    /// delay, and the limit of all. Default: 50 ms and 5 s.
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

    /// Starts the pollers. The first call connects. If the server is unreachable or the device
    /// cannot be used, calls fail with a [`CallError`].
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
        let state = match start {
            Some(_) => ConnectivityState::Connecting,
            None => ConnectivityState::Idle,
        };
        let connectivity = Arc::new(Connectivity::new(self.pollers, state));
        let mut lanes = Vec::new();
        for index in 0..self.pollers {
            let count = calls_told_apart(self.intents.max_in_flight);
            let (lane, inner) =
                Lane::new(&self.address, count, &self.backoff, &connectivity, index);
            let inner = poller::Settings {
                connect_timeout: self.connect_timeout,
                waiting: self.intents.waiting,
                is_lazy: start.is_none(),
                ..inner
            };
            let (fabric, intents, start) =
                (self.fabric.clone(), self.intents.clone(), start.clone());
            lanes.push(lane);
            thread::Builder::new()
                .name(format!("verbline-client-{index}"))
                .spawn(move || run(&fabric, &intents, inner, start))?;
        }
        Ok(Channel(Arc::new(Shared {
            address: self.address,
            lanes: lanes.into(),
            turn: AtomicUsize::new(0),
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
        elsewhere: impl Elsewhere + 'static,
    ) -> (Self, SharedPoller<T>) {
        let connectivity = Arc::new(Connectivity::new(1, ConnectivityState::Idle));
        let count = calls_told_apart(transport.limits().max_in_flight);
        let backoff = (FIRST_BACKOFF, LONGEST_BACKOFF);
        let (lane, settings) = Lane::new(address, count, &backoff, &connectivity, 0);
        let settings = poller::Settings {
            backoff: Backoff::seeded(backoff.0, backoff.1, seed),
            is_lazy: true,
            ..settings
        };
        let _ = lane.limits.set(transport.limits().clone());
        let driver = Driver::new(transport, Methods::new(), clock.clone());
        let poller = SharedPoller::new(driver, settings, elsewhere, Report(None));
        let shared = Shared {
            address: address.to_owned(),
            lanes: [lane].into(),
            turn: AtomicUsize::new(0),
            connectivity,
            waits_for_ready: false,
            clock: clock.clone(),
        };
        (Self(Arc::new(shared)), poller)
    }
}

impl Lane {
    fn new(
        address: &str,
        count: u32,
        backoff: &(Duration, Duration),
        connectivity: &Arc<Connectivity>,
        index: usize,
    ) -> (Self, poller::Settings) {
        let (submissions, receiver) = bounded(count as usize);
        let lane = Self {
            address: address.to_owned(),
            tickets: Arc::new(Tickets::new(count)),
            submissions,
            bell: Arc::default(),
            is_over: Arc::default(),
            prospect: Arc::default(),
            limits: Arc::default(),
            tally: Arc::default(),
        };
        let settings = poller::Settings {
            index,
            address: address.to_owned(),
            tickets: Arc::clone(&lane.tickets),
            submissions: receiver,
            bell: Arc::clone(&lane.bell),
            is_over: Arc::clone(&lane.is_over),
            prospect: Arc::clone(&lane.prospect),
            limits: Arc::clone(&lane.limits),
            tally: Arc::clone(&lane.tally),
            connectivity: Arc::clone(connectivity),
            backoff: Backoff::new(backoff.0, backoff.1),
            connect_timeout: CONNECT_TIMEOUT,
            waiting: Waiting::default(),
            is_lazy: false,
        };
        (lane, settings)
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
            tracing::error!(%error, "a channel's poller cannot open its device");
            return match start {
                Some(_) => report.tell(Err(error.into())),
                // The calls of a lazy channel report the error.
                None => poller::refuse_all(&settings, error),
            };
        }
    };
    let _ = settings.limits.set(transport.limits().clone());
    let driver = Driver::new(transport, Methods::new(), Clock::system());
    SharedPoller::new(driver, settings, OnThreads, report).run();
}

/// The progress of a channel's initial connection, over all pollers.
#[derive(Debug)]
struct Start(Mutex<StartState>);

#[derive(Debug)]
struct StartState {
    outstanding: usize,
    error: Option<ChannelError>,
    waker: Option<Waker>,
}

impl Start {
    fn new(pollers: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(StartState {
            outstanding: pollers,
            error: None,
            waker: None,
        })))
    }

    fn tell(&self, outcome: Result<(), ChannelError>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.outstanding = state.outstanding.saturating_sub(1);
        if let Err(error) = outcome {
            state.error.get_or_insert(error);
        }
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll(&self, waker: &Waker) -> Poll<Result<(), ChannelError>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = state.error.take() {
            return Poll::Ready(Err(error));
        }
        if state.outstanding == 0 {
            return Poll::Ready(Ok(()));
        }
        state.waker = Some(waker.clone());
        Poll::Pending
    }
}

/// Reports one poller's outcome to [`Start`] exactly once, even if the poller's thread panics.
#[derive(Debug)]
struct Report(Option<Arc<Start>>);

impl Report {
    fn tell(mut self, outcome: Result<(), ChannelError>) {
        if let Some(start) = self.0.take() {
            start.tell(outcome);
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if let Some(start) = self.0.take() {
            start.tell(Err(ChannelError::PollerPanicked));
        }
    }
}
