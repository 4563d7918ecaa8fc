//! [`LocalPoller`]: a poller that runs on the application's thread.

pub(crate) mod block_on;
mod builder;
pub(crate) mod cores;
pub(crate) mod idle;

use std::cell::RefCell;
use std::fmt;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

pub use self::block_on::block_on;
pub use self::builder::LocalPollerBuilder;
use self::cores::PinnedThread;
use self::idle::{BusyPoller, Idle};
use crate::client::LocalChannel;
use crate::client::channel::ChannelCore;
use crate::client::local_turn;
use crate::clock::Clock;
use crate::codec::MessageBuf;
use crate::driver::Driver;
use crate::driver::handle::Poller;
use crate::driver::turn::TurnMark;
use crate::limits::{Limits, Waiting};
use crate::service::dispatch::Methods;
use crate::stats::{ConnectionMemory, Stats, StatsReader};
use crate::transport::{ConnectError, Fabric, FabricError, Transport};

/// Default time limit of a handshake: generous for a loaded server, short for
/// a person who waits.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Refuses a `connect_timeout` of no time.
pub(crate) fn check_connect_timeout(timeout: Duration) -> Result<(), FabricError> {
    if !timeout.is_zero() {
        return Ok(());
    }
    Err(FabricError::Intent {
        setting: "connect_timeout",
        value: 0,
        reason: format!(
            "every attempt to connect takes some time. Leave the setting out for {CONNECT_TIMEOUT:?}, or use \
             `Duration::MAX` for no limit"
        ),
    })
}

/// The client with the lowest latency: waiting for a call polls the device, on the thread that
/// waits.
///
/// One poller serves all connections of its thread. It is `!Send`, as are its connections. Clones
/// refer to the same poller.
#[derive(Clone)]
pub struct LocalPoller {
    driver: Rc<dyn Poller>,
    waiting: Waiting,
    connect_timeout: Duration,
    thread: Option<Rc<PollerThread>>,
}

/// What holds of a poller's thread for as long as the poller lives. There is none if nothing does.
struct PollerThread {
    _busy: Option<BusyPoller>,
    pinned: Option<PinnedThread>,
}

/// The error of calling [`LocalPoller::block_on`] inside a turn of the same poller, from a handler
/// or from a future that `block_on` runs. It would wait for the thread that it blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "block_on was called inside a turn of the same poller, where it would deadlock: await the call instead"
)]
pub struct BlockOnInTurn;

thread_local! {
    /// The poller that runs this thread. Set on the threads of a server.
    static CURRENT: RefCell<Option<LocalPoller>> = const { RefCell::new(None) };
}

impl LocalPoller {
    /// Creates a poller on this thread with the default [`Intents`](crate::Intents).
    ///
    /// # Errors
    ///
    /// Returns [`FabricError`] if the device cannot provide what the intents need.
    pub fn new<F: Fabric>(device: &F) -> Result<Self, FabricError> {
        Self::builder(device).build()
    }

    /// Creates a builder for a poller on this thread.
    pub fn builder<F: Fabric>(device: &F) -> LocalPollerBuilder<F> {
        LocalPollerBuilder::new(device)
    }

    /// Creates a poller over any transport and clock, for tests. It never sleeps.
    #[doc(hidden)]
    pub fn over<T: Transport>(transport: T, clock: Clock) -> Self {
        let driver = Driver::new(transport, Methods::new(), clock);
        Self::stepped(Rc::new(driver))
    }

    /// Creates the poller of this thread.
    pub(crate) fn of_thread(
        driver: Rc<dyn Poller>,
        waiting: Waiting,
        pinned: Option<PinnedThread>,
    ) -> Self {
        local_turn::register(&driver);
        let busy = BusyPoller::register(waiting);
        let thread = (busy.is_some() || pinned.is_some()).then(|| {
            Rc::new(PollerThread {
                _busy: busy,
                pinned,
            })
        });
        Self {
            driver,
            waiting,
            connect_timeout: CONNECT_TIMEOUT,
            thread,
        }
    }

    /// Creates a poller whose turns the caller takes.
    pub(crate) fn stepped(driver: Rc<dyn Poller>) -> Self {
        local_turn::register(&driver);
        Self {
            driver,
            waiting: Waiting::Busy,
            connect_timeout: CONNECT_TIMEOUT,
            thread: None,
        }
    }

    /// Returns the poller that runs the current thread. On a server's thread, a handler connects
    /// through it and awaits its calls. Returns `None` on other threads, and while the thread's
    /// variables are destroyed.
    #[must_use]
    pub fn current() -> Option<Self> {
        let current = CURRENT.try_with(|current| current.borrow().clone());
        current.ok().flatten()
    }

    #[inline]
    pub(crate) fn set_current(poller: Option<Self>) {
        let previous = CURRENT.replace(poller);
        drop(previous);
    }

    /// Connects to a server at `host:port`. Blocks until the handshake completes, at most for the
    /// time of [`LocalPollerBuilder::connect_timeout`].
    ///
    /// # Errors
    ///
    /// Returns [`ConnectError`] if the handshake fails or times out. No request has been sent.
    pub fn connect(&self, address: &str) -> Result<LocalChannel, ConnectError> {
        let connected = self.driver.connect(address, self.connect_timeout)?;
        let core = ChannelCore::new(Rc::clone(&self.driver), address, connected);
        Ok(LocalChannel::new(core))
    }

    /// Allocates memory for a message of this poller, which goes out without a copy when it is a field
    /// of type `Bytes`: see [`MessageBuf`].
    ///
    /// If no registered memory of this length is free, the memory is the heap's. Nothing waits.
    #[must_use]
    pub fn allocate(&self, len: usize) -> MessageBuf {
        self.driver.allocate(len)
    }

    /// Runs a future to completion on this thread. Polls the device while the future is pending.
    ///
    /// # Panics
    ///
    /// Panics inside a turn of this poller, where it would deadlock.
    /// [`try_block_on`](Self::try_block_on) returns [`BlockOnInTurn`] instead.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match self.try_block_on(future) {
            Ok(output) => output,
            Err(error) => panic!("{error}"),
        }
    }

    /// Like [`block_on`](Self::block_on), but returns an error instead of panicking.
    ///
    /// # Errors
    ///
    /// Returns [`BlockOnInTurn`] inside a turn of this poller. The future has not been polled.
    pub fn try_block_on<F: Future>(&self, future: F) -> Result<F::Output, BlockOnInTurn> {
        self.block_on_between_turns(future, || {})
    }

    /// Like [`try_block_on`](Self::try_block_on), and calls `between` after each turn.
    #[inline]
    pub(crate) fn block_on_between_turns<F: Future>(
        &self,
        future: F,
        mut between: impl FnMut(),
    ) -> Result<F::Output, BlockOnInTurn> {
        let turning = self.driver.turning();
        if turning.get() {
            return Err(BlockOnInTurn);
        }
        let block_on_waker = self.driver.block_on_waker();
        block_on_waker.wake();
        let mut cx = Context::from_waker(block_on_waker.waker());
        let mut future = pin!(future);
        let mut idle = Idle::new(self.waiting);
        loop {
            if block_on_waker.take() {
                // Calls polled here only register, so that many calls started together share a
                // doorbell.
                let mark = TurnMark::set(turning);
                let polled = future.as_mut().poll(&mut cx);
                drop(mark);
                if let Poll::Ready(output) = polled {
                    // The thread may take no turn for long. A peer whose message is not released
                    // meanwhile closes the connection.
                    if block_on_waker.take_long() {
                        self.driver.send_releases();
                    }
                    return Ok(output);
                }
            }
            if idle.after_turn(self.driver.turn()) {
                self.driver
                    .sleep(&|| (!block_on_waker.is_woken()).then_some(Duration::MAX));
            }
            between();
        }
    }

    /// Takes one turn: handles the events that have arrived and sends the frames that are queued.
    /// For a thread that has other work; `block_on` and awaited calls take their own turns. Returns
    /// true if any event had arrived.
    pub fn turn(&self) -> bool {
        self.driver.turn()
    }

    /// Returns the sizes of this poller.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let pinned = self
            .thread
            .as_ref()
            .and_then(|thread| thread.pinned.as_ref());
        Limits {
            cores: vec![pinned.map(|pinned| pinned.core)],
            ..self.driver.limits()
        }
    }

    /// Updates this poller's gauges and returns a snapshot of its statistics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.driver.update_gauges();
        self.stats_reader().stats()
    }

    /// Returns the memory of the long messages of each connection that has any: of the servers that this
    /// poller calls, and of the clients that it serves ([`LocalPoller::current`]).
    #[must_use]
    pub fn memory_by_connection(&self) -> Vec<ConnectionMemory> {
        self.driver.memory_by_connection()
    }

    /// Returns a handle that reads the counters from any thread. Its gauges have the values of the
    /// poller's last update: see [`crate::stats`].
    #[must_use]
    pub fn stats_reader(&self) -> StatsReader {
        StatsReader::new(vec![Arc::clone(self.driver.poller_counters())])
    }
}

/// Allocates memory for a message of the poller that runs the current thread
/// ([`LocalPoller::current`]): in a handler, for its response. Elsewhere, as on an executor's thread,
/// the memory is the heap's, which [`MessageBuf::is_registered`] tells.
///
/// ```
/// use bytes::Bytes;
/// use rpc_core::{Request, Response, Status, allocate};
///
/// async fn get(request: Request<u32>) -> Result<Response<Bytes>, Status> {
///     let mut body = allocate(request.into_inner() as usize);
///     body.resize(body.capacity(), 7);
///     Ok(Response::new(body.freeze()))
/// }
/// # let _ = get;
/// ```
#[must_use]
pub fn allocate(len: usize) -> MessageBuf {
    match LocalPoller::current() {
        Some(poller) => poller.allocate(len),
        None => MessageBuf::heap(len),
    }
}

impl fmt::Debug for LocalPoller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalPoller")
    }
}
