//! [`SharedPoller`]: the poller of a shared channel, which takes turns for its [`Calls`] and its
//! connection ([`Reconnect`]).

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::calls::Calls;
use super::notices::{Closed, NoticeReceiver};
use super::permits::{CallPermit, CallPermits, Settled};
use super::reconnect::{Attempt, Reconnect, Spawner, Target};
use super::start::Report;
use super::streams::Streams;
use super::submissions::Submission;
use crate::call_error::{CallError, Cause, Execution};
use crate::driver::Driver;
use crate::driver::wakeup::Wakeup;
use crate::limits::{Limits, Waiting};
use crate::poller::idle::{BusyPoller, Idle};
use crate::stats::PollerCounters;
use crate::stream::core::wake_all;
use crate::stream::inbound::StreamEnd;
use crate::transport::{ConnectError, FabricError, Transport};

/// Turns between two checks of the permit queue.
const TURNS_PER_QUEUE_CHECK: u32 = 64;

/// Longest sleep while calls wait for permits, or in the backlog for a send slot. Short, because woken
/// waiters that do not retry are skipped only after some checks, and a send slot that becomes free
/// wakes nothing.
const SHORT_SLEEP: Duration = Duration::from_millis(1);

/// How long a poller that ends waits for its connection to close.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// The input of a poller.
pub(super) struct Settings {
    pub(super) target: Target,
    pub(super) permits: Arc<CallPermits>,
    pub(super) submissions: Receiver<Submission>,
    pub(super) notices: NoticeReceiver,
    pub(super) wakeup: Arc<OnceLock<Arc<Wakeup>>>,
    pub(super) is_stopped: Arc<AtomicBool>,
    pub(super) limits: Arc<OnceLock<Limits>>,
    pub(super) counters: Arc<OnceLock<Arc<PollerCounters>>>,
    pub(super) waiting: Waiting,
    /// Whether to connect only for the first call.
    pub(super) is_lazy: bool,
}

/// The poller of one lane of a channel.
pub(crate) struct SharedPoller<T: Transport> {
    driver: Rc<Driver<T>>,
    calls: Calls<T>,
    streams: Streams<T>,
    notices: NoticeReceiver,
    connection: Reconnect<T>,
    permits: Arc<CallPermits>,
    is_stopped: Arc<AtomicBool>,
    waiting: Waiting,
    turns: u32,
}

impl<T: Transport> SharedPoller<T> {
    pub(super) fn new(
        driver: Driver<T>,
        settings: Settings,
        spawner: impl Spawner + 'static,
        report: Report,
    ) -> Self {
        let _ = settings.wakeup.set(Arc::clone(&driver.wakeup));
        let _ = settings.counters.set(Arc::clone(&driver.counters));
        let driver = Rc::new(driver);
        let permits = settings.permits;
        let mut poller = Self {
            calls: Calls::new(&driver, Arc::clone(&permits), settings.submissions),
            streams: Streams::new(&driver),
            notices: settings.notices,
            connection: Reconnect::new(&driver, settings.target, spawner, report),
            driver,
            permits,
            is_stopped: settings.is_stopped,
            waiting: settings.waiting,
            turns: 0,
        };
        if !settings.is_lazy {
            let attempt = poller.connection.dial();
            poller.after_attempt(attempt);
        }
        poller
    }

    /// Runs until the channel is dropped.
    pub(super) fn run(mut self) {
        let _busy = BusyPoller::register(self.waiting);
        let mut idle = Idle::new(self.waiting);
        while !self.is_stopped() {
            if idle.after_turn(self.turn()) {
                self.driver.sleep(&|| self.max_sleep());
            }
        }
        self.driver.close_all();
        let deadline = Instant::now() + CLOSE_TIME;
        while !self.driver.is_closed() && Instant::now() < deadline {
            self.driver.turn();
        }
    }

    /// Takes one turn. Returns true if it found anything to do.
    pub(crate) fn turn(&mut self) -> bool {
        if self.notices.any() {
            self.take_notices();
        }
        let any_submitted = self.calls.take_submissions(&mut self.connection);
        let any_waiting = self.calls.any_waiting() || self.streams.any_waiting();
        if any_waiting && self.connection.is_idle() {
            let attempt = self.connection.dial();
            self.after_attempt(attempt);
        }
        let found_any = self.driver.turn() | any_submitted;
        let any_settled = self.calls.settle();
        if self.streams.any_waiting() {
            self.open_streams();
        }
        if self.calls.any_waiting() {
            self.calls.send_backlog(&mut self.connection);
        }
        let attempt = self.connection.maintain();
        self.after_attempt(attempt);
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_QUEUE_CHECK) {
            self.permits.maintain_queue(self.driver.clock.now());
        }
        self.wake_callers();
        found_any | any_settled
    }

    /// Takes the streams that callers have submitted, and cancels the calls that they have dropped.
    #[cold]
    #[inline(never)]
    fn take_notices(&mut self) {
        let notices = self.notices.take();
        self.calls.abandon(notices.abandoned);
        self.calls.hold_back(notices.pushback);
        for allocation in notices.allocations {
            let buf = self.driver.allocate_message(allocation.len);
            wake_all(allocation.answer(Some(buf)));
        }
        if !notices.streams.is_empty() {
            let held_until = self.calls.streams_held_until();
            let connection = &self.connection;
            self.streams.submit(notices.streams, connection, held_until);
            self.open_streams();
        }
        if notices.any_given_up {
            self.streams.drop_given_up();
        }
    }

    #[cold]
    #[inline(never)]
    fn open_streams(&mut self) {
        let held_until = self.calls.streams_held_until();
        let calls_wait = self.calls.any_waiting();
        let connection = &mut self.connection;
        self.streams
            .open_waiting(connection, held_until, calls_wait);
    }

    fn wake_callers(&mut self) {
        self.calls.wake_callers();
        wake_all(self.streams.wakers.drain(..));
    }

    /// Sends or fails the waiting calls after an attempt to connect has ended.
    fn after_attempt(&mut self, attempt: Option<Attempt>) {
        match attempt {
            Some(Attempt::Connected) => {
                self.calls.connected();
                self.calls.send_backlog(&mut self.connection);
            }
            Some(Attempt::Failed) => {
                self.calls.fail_unready(&self.connection);
                self.streams.fail_unready(&self.connection);
            }
            None => {}
        }
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn has_more(&self) -> bool {
        self.calls.any_submitted()
            || self.notices.any()
            || self.connection.has_dialed()
            || self.is_stopped()
    }

    /// Returns how long the poller may sleep if no event occurs, or `None` if there is something to
    /// do.
    fn max_sleep(&self) -> Option<Duration> {
        if self.has_more() {
            return None;
        }
        let now = self.driver.clock.now();
        let until = |moment: Instant| moment.saturating_duration_since(now);
        let queue = self.permits.maintain_queue(now);
        let held = self.calls.held_until();
        let any_streams = self.streams.any_waiting();
        let streams_held = any_streams
            .then(|| self.calls.pushed_back_until())
            .flatten();
        let times = [
            queue.next_deadline,
            self.streams.next_deadline(),
            self.connection.next_attempt(),
            held,
            streams_held,
        ];
        let longest = times.into_iter().flatten().map(until).min();
        let longest = longest.unwrap_or(Duration::MAX);
        // A freed send slot causes no event.
        let any_to_send =
            (self.calls.any_waiting() && held.is_none()) || (any_streams && streams_held.is_none());
        let awaits_slot = self.connection.is_connected() && any_to_send;
        Some(if queue.is_waiting || awaits_slot {
            longest.min(SHORT_SLEEP)
        } else {
            longest
        })
    }
}

#[cfg(feature = "test-util")]
impl<T: Transport> SharedPoller<T> {
    /// Expires deadlines, and detects whether the connection is idle.
    pub(crate) fn check_timers(&mut self) {
        let now = self.driver.clock.now();
        self.driver.run_in_turn(|| self.driver.expire_deadlines());
        self.driver.wake_collected();
        self.driver.on_idle(now);
        self.permits.maintain_queue(now);
        self.calls.settle();
        self.streams.expire();
        self.wake_callers();
    }

    /// Describes everything that is in flight: empty when all calls have ended.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let mut left = self.driver.leftovers();
        let others = [
            (self.connection.retiring(), "retiring links"),
            (self.streams.waiting(), "streams that wait"),
        ];
        for (count, what) in self.calls.leftovers().into_iter().chain(others) {
            if count > 0 {
                left.push(format!("{count} {what}"));
            }
        }
        left
    }

    pub(crate) fn with_transport<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut self.driver.state.borrow_mut().transport)
    }
}

impl<T: Transport> Drop for SharedPoller<T> {
    /// Settles all calls, so that no caller waits for this thread, however it ends.
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // Before the queue is drained below: see `PollerHandle::submit`.
        fence(Ordering::SeqCst);
        self.connection.shut_down();
        self.calls.end_all(&self.connection);
        let notices = self.notices.close(Closed { latest: None });
        self.streams.end_all(notices.streams, &self.connection);
        self.wake_callers();
    }
}

/// Fails every call of a poller whose device cannot be opened, until the channel is dropped.
pub(super) fn fail_all(settings: &Settings, error: FabricError) {
    let target = &settings.target;
    let error = Arc::new(ConnectError::Device {
        address: target.address.clone(),
        source: error.into(),
    });
    target.connectivity.fail(target.index, Arc::clone(&error));
    let closed = Closed {
        latest: Some(Arc::clone(&error)),
    };
    let not_connected = || Cause::NotConnected {
        address: target.address.clone(),
        latest: Some(Arc::clone(&error)),
    };
    for submission in settings.notices.close(closed).streams.into_values() {
        let error = CallError::new(not_connected(), Execution::NeverSent);
        submission.core.end(StreamEnd::Failed(error));
    }
    for submission in &settings.submissions {
        let CallPermit { number, buf } = submission.permit;
        let outcome = Err(CallError::new(not_connected(), Execution::NeverSent));
        let settled = Settled {
            buf,
            long: None,
            outcome,
        };
        if let Some(waker) = settings.permits.settle(number, settled) {
            waker.wake();
        }
    }
}
