//! [`PolledChannel`]: a channel as its poller sees it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, SendError, Sender};

use super::calls::Calls;
use super::connectivity::ConnectivityState;
use super::dial_threads::Spawner;
use super::notices::Inbox;
use super::poller_state::PollerState;
use super::reconnect::{Attempt, Reconnect, Report, Target};
use super::unsent::Unsent;
use super::wakers::Wakers;
use crate::driver::Driver;
use crate::driver::timers::TimerKey;
use crate::transport::{ConnectError, Transport};

/// How long a stream may wait to be failed while the device cannot be opened: only calls without
/// streams wake the thread then.
const STREAMS_PERIOD: Duration = Duration::from_millis(10);

/// A channel that is handed over to a poller.
pub(super) struct NewChannel {
    /// The channel's number at the poller.
    pub(super) number: u32,
    pub(super) target: Target,
    pub(super) inbox: Inbox,
    /// Who waits for the first connection. If nobody does, the first call connects.
    pub(super) report: Option<Report>,
}

impl NewChannel {
    /// Hands the channel over to its poller, which has the other end of `new_channels`.
    pub(super) fn hand_over(self, new_channels: &Sender<Self>, poller: &PollerState) {
        let number = self.number;
        match new_channels.send(self) {
            Ok(()) => poller.notify(number),
            Err(SendError(new)) => {
                poller.release(number);
                new.refuse();
            }
        }
    }

    /// Fails the calls of a channel whose poller has ended.
    pub(super) fn refuse(self) {
        self.target.report(ConnectivityState::Shutdown);
        self.fail(self.inbox.close(), None);
    }

    /// Fails every call for so long, because the poller's device cannot be opened. Returns false
    /// once the channel has been dropped.
    pub(super) fn fail_all(&self, error: &Arc<ConnectError>, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            self.fail(self.inbox.take_streams(), Some(error));
            let now = Instant::now();
            if now >= until {
                return true;
            }
            let look_at_streams = now + STREAMS_PERIOD;
            let submissions = &self.inbox.submissions;
            match submissions.recv_deadline(until.min(look_at_streams)) {
                Ok(request) => self.fail([Unsent::Unary(request)], Some(error)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    fn fail(&self, requests: impl IntoIterator<Item = Unsent>, latest: Option<&Arc<ConnectError>>) {
        for request in requests {
            let cause = self.target.not_connected(latest.cloned());
            request.refuse(&self.inbox.permits, cause);
        }
    }
}

/// A channel as its poller sees it: its calls, and its connection.
pub(super) struct PolledChannel<T: Transport> {
    pub(super) calls: Calls<T>,
    pub(super) connection: Reconnect<T>,
    /// True if the channel is in the poller's list of channels that need further turns.
    pub(super) is_listed: bool,
    /// True if the channel is in the poller's list of channels whose callers wait for permits.
    pub(super) has_queue: bool,
    /// The next time at which the channel has something to do, with the poller's timer for it.
    pub(super) timer: Option<(Instant, TimerKey)>,
}

impl<T: Transport> PolledChannel<T> {
    pub(super) fn new(
        driver: &Rc<Driver<T>>,
        new: NewChannel,
        state: &Arc<PollerState>,
        spawner: &Rc<dyn Spawner>,
        wakers: &Wakers,
    ) -> Self {
        let NewChannel {
            number,
            target,
            inbox,
            report,
        } = new;
        let is_lazy = report.is_none();
        let notifier = (Arc::clone(state), number);
        let mut channel = Self {
            calls: Calls::new(driver, number, inbox, wakers),
            connection: Reconnect::new(driver, target, Rc::clone(spawner), notifier, report),
            is_listed: false,
            has_queue: false,
            timer: None,
        };
        if !is_lazy {
            let attempt = channel.connection.dial();
            channel.after_attempt(attempt);
        }
        channel
    }

    /// Returns true if events may let the channel go on, so that further turns have to look at it.
    pub(super) fn needs_turns(&self) -> bool {
        (self.connection.is_connected() && self.calls.any_waiting())
            || self.connection.is_retiring()
    }

    /// Returns the next time at which the channel has something to do, if it is known.
    pub(super) fn next_time(&self) -> Option<Instant> {
        let times = [self.connection.next_time(), self.calls.next_time()];
        times.into_iter().flatten().min()
    }

    /// Returns true if the channel may wait for a send slot, which becomes free without an event.
    pub(super) fn awaits_slot(&self) -> bool {
        self.connection.is_connected() && self.calls.any_awaits_capacity()
    }

    /// Connects, and sends what waits, as far as that is possible now.
    pub(super) fn advance(&mut self) {
        if self.calls.any_waiting() && self.connection.is_idle() {
            let attempt = self.connection.dial();
            self.after_attempt(attempt);
        }
        self.send_waiting();
        let attempt = self.connection.maintain();
        self.after_attempt(attempt);
    }

    pub(super) fn send_waiting(&mut self) {
        if self.calls.any_waiting() {
            self.calls.send_waiting(&mut self.connection);
        }
    }

    /// Sends or fails the waiting calls after an attempt to connect has ended.
    fn after_attempt(&mut self, attempt: Option<Attempt>) {
        match attempt {
            Some(Attempt::Connected) => {
                self.calls.connected();
                self.send_waiting();
            }
            Some(Attempt::Failed) => self.calls.fail_unready(&self.connection),
            None => {}
        }
    }

    /// Ends all calls and streams, so that no caller waits for the poller.
    pub(super) fn end(&mut self) {
        self.connection.shut_down();
        self.calls.end(&self.connection);
    }

    /// Ends the channel and closes its connections, while the poller goes on.
    pub(super) fn close(&mut self) {
        self.calls.abandon_all();
        self.end();
        self.connection.close();
    }

    /// Describes what has not ended.
    #[cfg(feature = "test-util")]
    pub(super) fn leftovers(&self) -> impl Iterator<Item = (usize, &'static str)> {
        let retiring = (self.connection.retiring(), "retiring links");
        self.calls.leftovers().into_iter().chain([retiring])
    }
}

/// Longest sleep while calls wait for permits, or in the backlog for a send slot. Short, because woken
/// waiters that do not retry are skipped only after some checks, and a send slot that becomes free
/// wakes nothing.
pub(super) const SHORT_SLEEP: Duration = Duration::from_millis(1);
