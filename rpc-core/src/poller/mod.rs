//! [`LocalPoller`]: the application's thread as a poller.

mod block_on;
pub(crate) mod idle;

use std::cell::RefCell;
use std::fmt;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

pub use self::block_on::block_on;
use self::idle::{BusyPoller, Idle};
use crate::client::LocalChannel;
use crate::client::channel::ChannelCore;
use crate::clock::Clock;
use crate::driver::Driver;
use crate::driver::handle::Poller;
use crate::limits::{Intents, Limits, Waiting};
use crate::service::dispatch::Methods;
use crate::stats::{Observer, Stats};
use crate::transport::{ConnectError, Counters, Fabric, FabricError, Transport};

/// How long [`LocalPoller::connect`] waits for a handshake: generous for a loaded server, short
/// for a person.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A poller that runs on the thread which owns it: whoever waits for a call polls the device.
///
/// One poller serves all connections of its thread, and is `!Send` as they are. Its clones are the
/// same poller.
#[derive(Clone)]
pub struct LocalPoller {
    driver: Rc<dyn Poller>,
    waiting: Waiting,
    _busy: Option<Rc<BusyPoller>>,
}

/// [`LocalPoller::block_on`] was called inside a turn of the same poller, from a handler or from a
/// future that `block_on` runs: it would wait for the very thread that it blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "block_on was called inside a turn of its own poller, which would wait for itself: await the call instead"
)]
pub struct BlockOnInTurn;

thread_local! {
    /// The poller whose thread this is, on the threads of a server.
    static CURRENT: RefCell<Option<LocalPoller>> = const { RefCell::new(None) };
}

impl LocalPoller {
    /// A poller on this thread with the default [`Intents`].
    ///
    /// # Errors
    ///
    /// [`FabricError`] if the device cannot provide what the intents need.
    pub fn new<F: Fabric>(fabric: &F) -> Result<Self, FabricError> {
        Self::with_intents(fabric, &Intents::default())
    }

    /// A poller on this thread.
    ///
    /// # Errors
    ///
    /// [`FabricError`] if the device cannot provide what the intents need.
    pub fn with_intents<F: Fabric>(fabric: &F, intents: &Intents) -> Result<Self, FabricError> {
        // Before anything is pinned.
        idle::cores();
        let driver = Driver::new(fabric.open(intents)?, Methods::new(), Clock::system());
        Ok(Self::from_driver(Rc::new(driver), intents.waiting))
    }

    /// A poller over any transport, with any clock: what tests use. It never sleeps.
    pub fn over<T: Transport>(transport: T, clock: Clock) -> Self {
        let driver = Driver::new(transport, Methods::new(), clock);
        Self::stepped(Rc::new(driver))
    }

    pub(crate) fn from_driver(driver: Rc<dyn Poller>, waiting: Waiting) -> Self {
        Self {
            driver,
            waiting,
            _busy: BusyPoller::announce(waiting).map(Rc::new),
        }
    }

    /// A poller whose turns somebody else takes.
    pub(crate) fn stepped(driver: Rc<dyn Poller>) -> Self {
        Self {
            driver,
            waiting: Waiting::Busy,
            _busy: None,
        }
    }

    /// The poller whose thread this is, for handlers that make calls: on a server's thread they
    /// connect through it, and await. `None` on other threads.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    pub(crate) fn set_current(poller: Option<Self>) {
        let previous = CURRENT.replace(poller);
        drop(previous);
    }

    /// Connects to a server at `host:port`. Blocks for the length of a handshake.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; nothing has been sent.
    pub fn connect(&self, address: &str) -> Result<LocalChannel, ConnectError> {
        self.connect_within(address, CONNECT_TIMEOUT)
    }

    /// The same, with another limit to the handshake's time.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; nothing has been sent.
    pub fn connect_within(
        &self,
        address: &str,
        timeout: Duration,
    ) -> Result<LocalChannel, ConnectError> {
        let joined = self.driver.connect(address, timeout)?;
        Ok(LocalChannel(Rc::new(ChannelCore::new(
            Rc::clone(&self.driver),
            address,
            joined,
        ))))
    }

    /// Runs a future on this thread to its end, polling the device as long as it waits.
    ///
    /// # Panics
    ///
    /// Inside a turn of this poller, where it would wait for itself: see [`BlockOnInTurn`], which
    /// [`try_block_on`](Self::try_block_on) returns instead.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match self.try_block_on(future) {
            Ok(output) => output,
            Err(error) => panic!("{error}"),
        }
    }

    /// The same, with an error inside a turn.
    ///
    /// # Errors
    ///
    /// [`BlockOnInTurn`]; the future has not been polled.
    pub fn try_block_on<F: Future>(&self, future: F) -> Result<F::Output, BlockOnInTurn> {
        if self.driver.is_turning() {
            return Err(BlockOnInTurn);
        }
        let own = self.driver.own_waker();
        own.wake();
        let mut cx = Context::from_waker(own.waker());
        let mut future = pin!(future);
        let mut idle = Idle::new(self.waiting);
        loop {
            if own.take() {
                let mut polled = Poll::Pending;
                // Calls that are polled here only register, so that many started together share
                // a doorbell.
                self.driver
                    .inside_turn(&mut || polled = future.as_mut().poll(&mut cx));
                if let Poll::Ready(output) = polled {
                    return Ok(output);
                }
            }
            if idle.after_turn(self.driver.turn()) {
                self.driver
                    .sleep(&|| (!own.is_woken()).then_some(Duration::MAX));
            }
        }
    }

    /// Takes one turn: what has arrived is handled, what was sent leaves. For a thread that has
    /// other things to do; `block_on` and awaited calls take their own. Returns whether there was
    /// anything to do.
    pub fn turn(&self) -> bool {
        self.driver.turn()
    }

    /// What this poller was sized to.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.driver.limits()
    }

    /// What its transport has counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.driver.counters()
    }

    /// What this poller has counted.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.driver.publish();
        self.observer().stats()
    }

    /// What takes snapshots of this poller's counters on other threads. Its levels are as the poller has
    /// last said them: see [`crate::stats`].
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer::of(vec![Arc::clone(self.driver.tally())])
    }
}

impl fmt::Debug for LocalPoller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalPoller")
    }
}
