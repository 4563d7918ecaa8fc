//! [`Channel`]: a client that any thread may use, on any executor or on none.
//!
//! Behind it is a poller on a thread of its own (or several), which has the connection. A call runs
//! like this:
//!
//! ```text
//!  caller's thread                          poller's thread
//!  a ticket, or wait for one
//!  encode into the ticket's buffer
//!  ── submission ────────────────────────▶  a credit, or the backlog
//!  (wait)                                   copy into a send slot; send
//!                                           …
//!                                           copy the answer out of its slot
//!  ◀──────────────────────── wake ────────  settle the ticket
//!  decode; the ticket goes back
//! ```
//!
//! There are as many tickets as there are places in the queue between the two, so the queue is never
//! full (`tickets.rs`). A poller that spins is not woken; one that sleeps is, for one system call
//! (`doorbell.rs`).
//!
//! The connection is the poller's to keep (`poller.rs`): when it ends, calls on their way end with it,
//! and the poller connects again, with waits that grow and are never alike (`backoff.rs`). How things
//! stand is the channel's [`ConnectivityState`].

mod backoff;
mod call;
mod connectivity;
mod permits;
mod poller;

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
use self::permits::{Ticket, Tickets};
use self::poller::OnThreads;
#[cfg(not(feature = "test-util"))]
use self::poller::SharedPoller;
#[cfg(feature = "test-util")]
pub(crate) use self::poller::{Elsewhere, SharedPoller};
use crate::call_error::CallError;
use crate::client::Caller;
use crate::clock::Clock;
use crate::driver::Driver;
use crate::driver::wakeup::Doorbell;
use crate::limits::{Intents, Keepalive, Limits, Waiting};
use crate::message::{Request, Response};
use crate::method::MethodSpec;
use crate::poller::CONNECT_TIMEOUT;
use crate::poller::idle;
use crate::protocol::session::calls_told_apart;
use crate::service::dispatch::Methods;
use crate::stats::{PollerTally, Stats};
use crate::transport::{ConnectError, Fabric, FabricError, Transport};

/// Connections of a poller: the one that takes calls, and one to a server that shuts down while calls on
/// it finish.
const CONNECTIONS: u32 = 2;

/// The upper limit of the wait before the first attempt to connect again: a server that restarts is
/// found soon, and a thousand clients do not all come in one millisecond.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);

/// The upper limit of every wait: what a person is ready to wait for after a repair.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

/// A connection to a server that is shared: cheap to clone, used from any thread, by futures on any
/// executor or through [`block_on`](crate::block_on()). The connection ends when the last clone is gone.
///
/// A call that is dropped leaves its place to others when its answer has come or its time is up; one that
/// is forgotten ([`std::mem::forget`]) keeps its place among those that may be under way.
///
/// It keeps itself connected. See the [module](self) for how, and [`ChannelBuilder`] for what can be
/// set.
#[derive(Clone)]
pub struct Channel(Arc<Shared>);

/// Why a channel could not be made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The device.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A poller's thread could not be started.
    #[error("cannot start a poller's thread: {0}")]
    Thread(#[from] io::Error),
    /// The first attempt to connect failed.
    #[error("{0}")]
    Connect(#[source] Arc<ConnectError>),
    /// A poller's thread panicked, which is a bug of this library or of the device's.
    #[error("a poller's thread panicked while it was started")]
    PollerPanicked,
}

/// The sentence: a `main` that returns an error prints it with `Debug`.
impl fmt::Debug for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What all clones share.
struct Shared {
    address: String,
    lanes: Box<[Lane]>,
    /// Of the lane that the next call tries first.
    turn: AtomicUsize,
    connectivity: Arc<Connectivity>,
    waits_for_ready: bool,
    clock: Clock,
}

/// One poller, as callers see it.
struct Lane {
    address: String,
    tickets: Arc<Tickets>,
    submissions: Sender<Submission>,
    bell: Arc<OnceLock<Arc<Doorbell>>>,
    /// Set when the channel is gone, for the poller to end.
    is_over: Arc<AtomicBool>,
    prospect: Arc<Prospect>,
    limits: Arc<OnceLock<Limits>>,
    /// What the poller counts, when it has opened its device.
    tally: Arc<OnceLock<Arc<PollerTally>>>,
}

/// A request on its way to the poller.
#[derive(Debug)]
struct Submission {
    ticket: Ticket,
    method: &'static MethodSpec,
    deadline: Option<Instant>,
    /// The first bytes of the ticket's buffer; the rest is the message.
    metadata_len: usize,
    waits_for_ready: bool,
    /// When its call began, if that is one of those that are timed.
    began: Option<Instant>,
}

impl Channel {
    /// Connects to a server at `host:port`, with one poller and the default [`Intents`].
    ///
    /// # Errors
    ///
    /// [`ChannelError`], with nothing left running.
    pub async fn connect<F: Fabric>(fabric: &F, address: &str) -> Result<Self, ChannelError> {
        let builder = Self::builder(fabric, address);
        builder.connect().await
    }

    /// A channel to a server at `host:port`, with settings.
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

    /// How it stands with its server.
    #[must_use]
    pub fn state(&self) -> ConnectivityState {
        self.0.connectivity.state()
    }

    /// Why the latest attempt to connect failed, if one has.
    #[must_use]
    pub fn latest_error(&self) -> Option<Arc<ConnectError>> {
        self.0.connectivity.latest_error()
    }

    /// Tells of changes of [`state`](Self::state) from now on.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch::of(&self.0.connectivity)
    }

    /// What each of its pollers was sized to; `None` until the first of them has opened its device.
    #[must_use]
    pub fn limits(&self) -> Option<&Limits> {
        self.0.lanes.iter().find_map(|lane| lane.limits.get())
    }

    /// What its pollers have counted, those that have opened their device.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let pollers = self.0.lanes.iter().map(|lane| {
            // One that has not begun has counted nothing, and has its place all the same.
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

    /// Of the server, as it was given.
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
    /// The lane for a new call: each in turn, of those with the best prospect.
    fn next_lane(&self) -> &Lane {
        let [only] = &*self.lanes else {
            let first = self.turn.fetch_add(1, Ordering::Relaxed);
            let count = self.lanes.len();
            let in_turn = (0..count).map(|next| &self.lanes[first.wrapping_add(next) % count]);
            // The first of those that are alike.
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

/// What a call may hope for from a poller: a hint for the choice of a lane. Less is better.
#[derive(Debug, Default)]
struct Prospect(AtomicU8);

impl Prospect {
    /// It is connected, or connects for the first call.
    const GOOD: u8 = 0;
    /// It is connecting.
    const FAIR: u8 = 1;
    /// Its latest attempt has failed.
    const POOR: u8 = 2;

    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, prospect: u8) {
        self.0.store(prospect, Ordering::Relaxed);
    }
}

/// What a channel is made of.
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
    /// The longest encoded message, in bytes: see [`Intents::max_message_len`].
    pub fn max_message_len(mut self, bytes: usize) -> Self {
        self.intents.max_message_len = bytes;
        self
    }

    /// Calls that may be under way at a time over each poller: see [`Intents::max_in_flight`]. Those
    /// beyond it wait.
    pub fn max_in_flight(mut self, calls: u32) -> Self {
        self.intents.max_in_flight = calls;
        self
    }

    /// What the pollers do while there is nothing to do: see [`Waiting`].
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        self.intents.waiting = waiting;
        self
    }

    /// Bytes that each poller may register: see [`Intents::max_memory`].
    pub fn max_memory(mut self, bytes: u64) -> Self {
        self.intents.max_memory = Some(bytes);
        self
    }

    /// Asks a silent server whether it still runs, and gives it up when it does not answer: see
    /// [`Intents::keepalive`].
    pub fn keepalive(mut self, keepalive: Keepalive) -> Self {
        self.intents.keepalive = Some(keepalive);
        self
    }

    /// How many pollers, each with a connection of its own, the calls are spread over. Default: 1, and
    /// the least.
    pub fn pollers(mut self, pollers: usize) -> Self {
        self.pollers = pollers.max(1);
        self
    }

    /// How long an attempt to connect may take, but for the time that the name of a host takes to be
    /// resolved. Default: 5 seconds.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// What goes for requests that do not say whether they
    /// [wait for ready](Request::wait_for_ready). Default: `false`.
    pub fn wait_for_ready(mut self, waits: bool) -> Self {
        self.waits_for_ready = waits;
        self
    }

    /// The upper limits of the waits between attempts to connect: that of the first, and that of all.
    /// Default: 50 ms and 5 s.
    pub fn reconnect_backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.backoff = (first, longest.max(first));
        self
    }

    /// Starts the pollers, and connects each.
    ///
    /// # Errors
    ///
    /// [`ChannelError`] of the first attempt that fails, with nothing left running.
    pub async fn connect(self) -> Result<Channel, ChannelError> {
        let start = Start::new(self.pollers);
        let channel = self.spawn(Some(Arc::clone(&start)))?;
        poll_fn(|cx| start.poll(cx.waker())).await?;
        Ok(channel)
    }

    /// Starts the pollers, and lets the first call connect. A server that cannot be reached is found
    /// by calls, as [`CallError`]s; a device that cannot be used as well.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Thread`].
    pub fn connect_lazy(self) -> Result<Channel, ChannelError> {
        self.spawn(None)
    }

    fn spawn(self, start: Option<Arc<Start>>) -> Result<Channel, ChannelError> {
        // Before any thread is pinned.
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
    /// A channel with one poller whose turns somebody else takes, connected by the first call.
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

/// A poller's thread.
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
                // A lazy channel's calls find out.
                None => poller::refuse_all(&settings, error),
            };
        }
    };
    let _ = settings.limits.set(transport.limits().clone());
    let driver = Driver::new(transport, Methods::new(), Clock::system());
    SharedPoller::new(driver, settings, OnThreads, report).run();
}

/// Whether the pollers of a channel that is being connected have connected.
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

/// One poller's word to [`Start`], given once: also by a thread that panics.
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
