//! [`PolledChannel`]: a channel as its poller sees it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, SendError, Sender};

use super::calls::Calls;
use super::dial_job::Spawner;
use super::notices::{NoticeReceiver, StreamSubmission};
use super::permits::{CallPermit, CallPermits, Settled};
use super::poller_state::PollerState;
use super::reconnect::{Attempt, Reconnect, Target};
use super::start::Report;
use super::streams::Streams;
use super::submissions::Submission;
use super::wakers::Wakers;
use crate::call_error::{CallError, Cause, Execution};
use crate::driver::Driver;
use crate::driver::timers::TimerKey;
use crate::stream::inbound::StreamEnd;
use crate::stream::wakers::wake_all;
use crate::transport::{ConnectError, Transport};

/// How long a stream may wait to be failed while the device cannot be opened: only calls without
/// streams wake the thread then.
const STREAMS_PERIOD: Duration = Duration::from_millis(10);

/// A channel that is handed over to a poller.
pub(super) struct NewChannel {
    /// The channel's number at the poller.
    pub(super) number: u32,
    pub(super) target: Target,
    pub(super) permits: Arc<CallPermits>,
    pub(super) submissions: Receiver<Submission>,
    pub(super) notices: NoticeReceiver,
    /// Whether to connect only for the first call.
    pub(super) is_lazy: bool,
    pub(super) report: Report,
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
        self.target.shut_down();
        self.fail_streams(self.notices.close().streams, None);
        for submission in self.submissions.try_iter() {
            self.fail(submission, None);
        }
    }

    /// Fails every call for so long, because the poller's device cannot be opened. Returns false
    /// once the channel has been dropped.
    pub(super) fn fail_all(&self, error: &Arc<ConnectError>, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            self.fail_streams(self.notices.take_streams(&self.permits), Some(error));
            let now = Instant::now();
            if now >= until {
                return true;
            }
            let look_at_streams = now + STREAMS_PERIOD;
            match self.submissions.recv_deadline(until.min(look_at_streams)) {
                Ok(submission) => self.fail(submission, Some(error)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    fn fail_streams(
        &self,
        streams: BTreeMap<u64, StreamSubmission>,
        latest: Option<&Arc<ConnectError>>,
    ) {
        for submission in streams.into_values() {
            let error = CallError::new(self.not_connected(latest), Execution::NeverSent);
            submission.core.end(StreamEnd::Failed(error));
        }
    }

    fn not_connected(&self, latest: Option<&Arc<ConnectError>>) -> Cause {
        Cause::NotConnected {
            address: self.target.address.clone(),
            latest: latest.cloned(),
        }
    }

    fn fail(&self, submission: Submission, latest: Option<&Arc<ConnectError>>) {
        let CallPermit { number, buf } = submission.permit;
        let error = CallError::new(self.not_connected(latest), Execution::NeverSent);
        let settled = Settled {
            buf,
            long: None,
            outcome: Err(error),
        };
        wake_all(self.permits.settle(number, settled));
    }
}

/// A channel as its poller sees it: its calls, its streams and its connection.
pub(super) struct PolledChannel<T: Transport> {
    pub(super) calls: Calls<T>,
    pub(super) streams: Streams<T>,
    pub(super) notices: NoticeReceiver,
    pub(super) connection: Reconnect<T>,
    pub(super) permits: Arc<CallPermits>,
    /// True if the channel is in the poller's list of channels that need further turns.
    pub(super) is_listed: bool,
    /// True if the channel is in the poller's list of channels whose callers wait for permits.
    pub(super) has_queue: bool,
    /// The time of the next attempt to connect, with the poller's timer for it.
    pub(super) attempt: Option<(Instant, TimerKey)>,
}

/// How long a poller may sleep, as far as one channel is concerned.
pub(super) struct Sleep {
    /// The next time at which the channel has something to do.
    pub(super) until: Option<Instant>,
    /// True if the channel waits for a send slot, which becomes free without an event.
    pub(super) is_short: bool,
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
            permits,
            submissions,
            notices,
            is_lazy,
            report,
        } = new;
        let calls = Calls::new(driver, number, Arc::clone(&permits), submissions, wakers);
        let notifier = (Arc::clone(state), number);
        let connection = Reconnect::new(driver, target, Rc::clone(spawner), notifier, report);
        let mut channel = Self {
            calls,
            streams: Streams::new(driver, wakers),
            notices,
            connection,
            permits,
            is_listed: false,
            has_queue: false,
            attempt: None,
        };
        if !is_lazy {
            let attempt = channel.connection.dial();
            channel.after_attempt(attempt);
        }
        channel
    }

    /// Returns true if calls or streams wait to be sent.
    #[inline]
    pub(super) fn any_waiting(&self) -> bool {
        self.calls.any_waiting() || self.streams.any_waiting()
    }

    /// Returns true if events or the time may let the channel go on, so that further turns have to
    /// look at it.
    pub(super) fn needs_turns(&self) -> bool {
        (self.connection.is_connected() && self.calls.any_waiting())
            || self.streams.any_waiting()
            || self.connection.is_retiring()
    }

    /// Connects, and sends what waits, as far as that is possible now.
    pub(super) fn advance(&mut self) {
        if self.any_waiting() && self.connection.is_idle() {
            let attempt = self.connection.dial();
            self.after_attempt(attempt);
        }
        if self.streams.any_waiting() {
            self.open_streams();
        }
        if self.calls.any_waiting() {
            self.calls.send_backlog(&mut self.connection);
        }
        let attempt = self.connection.maintain();
        self.after_attempt(attempt);
    }

    pub(super) fn open_streams(&mut self) {
        let held_until = self.calls.streams_held_until();
        let calls_wait = self.calls.any_waiting();
        let connection = &mut self.connection;
        self.streams
            .open_waiting(connection, held_until, calls_wait);
    }

    /// Sends or fails the waiting calls after an attempt to connect has ended.
    fn after_attempt(&mut self, attempt: Option<Attempt>) {
        match attempt {
            Some(Attempt::Connected) => {
                self.calls.connected();
                if self.streams.any_waiting() {
                    self.open_streams();
                }
                self.calls.send_backlog(&mut self.connection);
            }
            Some(Attempt::Failed) => {
                self.calls.fail_unready(&self.connection);
                self.streams.fail_unready(&self.connection);
            }
            None => {}
        }
    }

    /// Returns how long the poller may sleep.
    pub(super) fn sleep(&self) -> Sleep {
        let held = self.calls.held_until();
        let any_streams = self.streams.any_waiting();
        let streams_held = any_streams
            .then(|| self.calls.pushed_back_until())
            .flatten();
        let times = [self.streams.next_deadline(), held, streams_held];
        // A freed send slot causes no event.
        let any_to_send =
            (self.calls.any_waiting() && held.is_none()) || (any_streams && streams_held.is_none());
        Sleep {
            until: times.into_iter().flatten().min(),
            is_short: self.connection.is_connected() && any_to_send,
        }
    }

    /// Ends all calls and streams, so that no caller waits for the poller.
    pub(super) fn end(&mut self) {
        self.connection.shut_down();
        self.calls.end_all(&self.connection);
        let notices = self.notices.close();
        self.streams.end_all(notices.streams, &self.connection);
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
        let others = [
            (self.connection.retiring(), "retiring links"),
            (self.streams.waiting(), "streams that wait"),
        ];
        self.calls.leftovers().into_iter().chain(others)
    }
}

/// Longest sleep while calls wait for permits, or in the backlog for a send slot. Short, because woken
/// waiters that do not retry are skipped only after some checks, and a send slot that becomes free
/// wakes nothing.
pub(super) const SHORT_SLEEP: Duration = Duration::from_millis(1);
