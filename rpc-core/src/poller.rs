//! [`LocalPoller`]: the application's thread as a poller.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::call::Waiting;
use crate::channel::ChannelCore;
use crate::client::LocalChannel;
use crate::clock::Clock;
use crate::dispatch::Methods;
use crate::driver::Driver;
use crate::idle::Idle;
use crate::limits::{Intents, Limits};
use crate::outgoing::Poller;
use crate::transport::{ConnectError, Counters, Fabric, FabricError, Transport};

/// How long [`LocalPoller::connect`] waits for a handshake: generous for a loaded server, short
/// for a person.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A poller that runs on the thread which owns it: whoever waits for a call polls the device.
///
/// One poller serves all connections of its thread, and is `!Send` as they are. Its clones are the
/// same poller.
#[derive(Clone)]
pub struct LocalPoller(Rc<dyn Poller>);

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
        Ok(Self::over(fabric.open(intents)?, Clock::system()))
    }

    /// A poller over any transport, with any clock: what tests use.
    pub fn over<T: Transport>(transport: T, clock: Clock) -> Self {
        Self(Rc::new(Driver::new(transport, Methods::new(), clock)))
    }

    pub(crate) fn from_driver(driver: Rc<dyn Poller>) -> Self {
        Self(driver)
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
        let joined = self.0.connect(address, timeout)?;
        Ok(LocalChannel(Rc::new(ChannelCore::new(
            Rc::clone(&self.0),
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
        if self.0.is_turning() {
            return Err(BlockOnInTurn);
        }
        let own = self.0.own_waker();
        own.wake();
        let mut cx = Context::from_waker(own.waker());
        let mut future = pin!(future);
        let mut idle = Idle::default();
        loop {
            if own.take() {
                let mut polled = Poll::Pending;
                // Calls that are polled here only register, so that many started together share
                // a doorbell.
                self.0
                    .inside_turn(&mut || polled = future.as_mut().poll(&mut cx));
                if let Poll::Ready(output) = polled {
                    return Ok(output);
                }
            }
            idle.after_turn(self.0.turn());
        }
    }

    /// Takes one turn: what has arrived is handled, what was sent leaves. For a thread that has
    /// other things to do; `block_on` and awaited calls take their own. Returns whether there was
    /// anything to do.
    pub fn turn(&self) -> bool {
        self.0.turn()
    }

    /// What this poller was sized to.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.0.limits()
    }

    /// What its transport has counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }
}

impl fmt::Debug for LocalPoller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalPoller")
    }
}

/// What a poller's `block_on` waits with, whichever future it runs: a wake that is left over from
/// the one before costs a poll for nothing.
pub(crate) struct OwnWaker {
    /// Woken by this poller's own turns, which is what nearly every call waits for.
    here: Cell<bool>,
    /// Woken through the waker, by any thread.
    anywhere: Arc<Woken>,
    waker: Waker,
}

impl Default for OwnWaker {
    fn default() -> Self {
        let anywhere = Arc::new(Woken(AtomicBool::new(false)));
        Self {
            here: Cell::new(false),
            waker: Waker::from(Arc::clone(&anywhere)),
            anywhere,
        }
    }
}

impl OwnWaker {
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// What a call notes down that is polled with this waker.
    pub(crate) fn waiting(&self, waker: &Waker) -> Waiting {
        if waker.will_wake(&self.waker) {
            Waiting::BlockOn
        } else {
            Waiting::Task(waker.clone())
        }
    }

    pub(crate) fn wake(&self) {
        self.here.set(true);
    }

    /// Whether the future should be polled (again).
    fn take(&self) -> bool {
        // The look before the swap keeps a locked instruction out of empty turns.
        self.here.take()
            || (self.anywhere.0.load(Ordering::Relaxed)
                && self.anywhere.0.swap(false, Ordering::Acquire))
    }
}

/// Whether the future that `block_on` runs was woken. The flag may be set by any thread; the release
/// of `wake` makes what it did before visible to the poll that follows.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}
