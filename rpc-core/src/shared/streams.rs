//! [`Streams`]: the streams of a channel that wait to be opened by its poller.
//!
//! Streams take no call permits. A stream is opened at once if the channel is connected, the server
//! takes calls, and the connection has a credit; otherwise it waits here, as calls wait in the
//! backlog. When it is open, the driver has it (`driver/streams/`).

use std::collections::BTreeMap;
use std::mem;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::notices::StreamSubmission;
use super::reconnect::Reconnect;
use super::wakers::Wakers;
use crate::call_error::{CallError, Cause, Execution};
use crate::driver::Driver;
use crate::driver::handle::StreamRequest;
use crate::driver::streams::StreamCapacity;
use crate::driver::timers::{TimerKey, Timers};
use crate::method::MethodSpec;
use crate::stats::{CalledStream, MethodCounters};
use crate::stream::inbound::StreamEnd;
use crate::transport::Transport;

/// Maximum number of streams that are opened in one turn.
const BATCH: usize = 64;

/// Turns for which the oldest stream waits here for a credit. If the connection ends meanwhile, the
/// next one opens the stream.
const TURNS_WITHOUT_CREDIT: u32 = 16;

/// The streams that wait for a channel's connection.
pub(super) struct Streams<T: Transport> {
    driver: Rc<Driver<T>>,
    /// By number: the oldest first.
    waiting: BTreeMap<u64, WaitingStream>,
    deadlines: Timers<u64>,
    /// The time until which the server wanted no calls when the waiting streams were last compared
    /// with it.
    held_until: Option<Instant>,
    /// Turns since there was a credit for the oldest stream.
    turns_without_credit: u32,
    /// Keyed by the address of the method's constant.
    called: Vec<(*const MethodSpec, Arc<MethodCounters>)>,
    wakers: Wakers,
}

struct WaitingStream {
    submission: StreamSubmission,
    timer: Option<TimerKey>,
}

impl<T: Transport> Streams<T> {
    pub(super) fn new(driver: &Rc<Driver<T>>, wakers: &Wakers) -> Self {
        Self {
            driver: Rc::clone(driver),
            waiting: BTreeMap::new(),
            deadlines: Timers::default(),
            held_until: None,
            turns_without_credit: 0,
            called: Vec::new(),
            wakers: wakers.clone(),
        }
    }

    /// Returns true if streams wait to be opened.
    #[inline]
    pub(super) fn any_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the next deadline of a stream that waits.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next_deadline()
    }

    /// Adds streams that callers have submitted. Those that don't wait for ready fail if the latest
    /// attempt to connect failed.
    pub(super) fn submit(
        &mut self,
        streams: BTreeMap<u64, StreamSubmission>,
        connection: &Reconnect<T>,
        held_until: Option<Instant>,
    ) {
        for (number, submission) in streams {
            if !submission.waits_for_ready
                && let Some(cause) = connection.failure()
            {
                self.fail(submission, cause);
            } else if let Some(submission) = self.fail_if_too_late(submission, held_until) {
                let insert = |deadline| self.deadlines.insert(deadline, number);
                let timer = submission.deadline.map(insert);
                self.waiting
                    .insert(number, WaitingStream { submission, timer });
            }
        }
    }

    /// Opens streams as far as they can be opened now, and ends those whose time has passed.
    /// `held_until` is the time before which the server wants no calls. Opens only one stream if calls
    /// wait too, because both need credits.
    pub(super) fn open_waiting(
        &mut self,
        connection: &mut Reconnect<T>,
        held_until: Option<Instant>,
        calls_wait: bool,
    ) {
        self.expire(connection);
        if held_until.is_some() {
            return self.hold_back(held_until);
        }
        let Some((link, methods)) = connection.connected() else {
            return;
        };
        let most = if calls_wait { 1 } else { BATCH };
        for _ in 0..most {
            if self.waiting.is_empty() {
                return;
            }
            let may_open = match self.driver.stream_capacity(link) {
                StreamCapacity::Free => true,
                StreamCapacity::NoCredit => self.has_waited_long(),
                StreamCapacity::None => false,
            };
            if !may_open {
                return;
            }
            self.turns_without_credit = 0;
            let Some((_, stream)) = self.waiting.pop_first() else {
                return;
            };
            let submission = self.cancel_timer(stream);
            let counters = self.counters_of(submission.method);
            if submission.core.lock().is_cancelled() {
                self.count_given_up(&counters);
                continue;
            }
            let Some(method) = methods.number_of(submission.method) else {
                let path = submission.method.path;
                self.fail(submission, Cause::Unimplemented { path });
                continue;
            };
            let request = StreamRequest {
                method,
                spec: submission.method,
                counters: CalledStream::begun(counters, submission.began),
                deadline: submission.deadline,
                sends_messages: submission.sends_messages,
                metadata_len: submission.metadata_len,
                frame: submission.frame,
                message: submission.message,
            };
            self.driver.open_stream(link, submission.core, request);
        }
    }

    /// Returns true if the oldest stream should wait in the driver from now on: streams that are open
    /// may use every credit as soon as it arrives, and there it gets one in its turn.
    fn has_waited_long(&mut self) -> bool {
        self.turns_without_credit += 1;
        self.turns_without_credit > TURNS_WITHOUT_CREDIT
    }

    /// Fails the streams whose deadline comes before the server wants calls again.
    fn hold_back(&mut self, held_until: Option<Instant>) {
        if self.held_until == held_until {
            return;
        }
        self.held_until = held_until;
        for (number, stream) in mem::take(&mut self.waiting) {
            let WaitingStream { submission, timer } = stream;
            match self.fail_if_too_late(submission, held_until) {
                Some(submission) => {
                    self.waiting
                        .insert(number, WaitingStream { submission, timer });
                }
                None => timer
                    .into_iter()
                    .for_each(|timer| self.deadlines.cancel(timer)),
            }
        }
    }

    fn fail_if_too_late(
        &mut self,
        submission: StreamSubmission,
        held_until: Option<Instant>,
    ) -> Option<StreamSubmission> {
        let (Some(until), Some(deadline)) = (held_until, submission.deadline) else {
            return Some(submission);
        };
        if deadline >= until {
            return Some(submission);
        }
        let wait = until.saturating_duration_since(self.driver.clock.now());
        self.fail(submission, Cause::PushedBack { wait });
        None
    }

    /// Ends the waiting streams whose deadline has passed.
    pub(super) fn expire(&mut self, connection: &Reconnect<T>) {
        if self.deadlines.is_empty() {
            return;
        }
        let now = self.driver.clock.now();
        while let Some(number) = self.deadlines.pop_expired(now) {
            if let Some(stream) = self.waiting.remove(&number) {
                let latest = connection.latest_error();
                self.fail(stream.submission, Cause::DeadlineExceeded { latest });
            }
        }
    }

    /// Removes waiting streams that their callers have given up. The others of `given_up` are open, or
    /// have ended.
    pub(super) fn drop_given_up(&mut self, given_up: Vec<u64>) {
        for number in given_up {
            if let Some(stream) = self.waiting.remove(&number) {
                let submission = self.cancel_timer(stream);
                let counters = self.counters_of(submission.method);
                self.count_given_up(&counters);
            }
        }
    }

    /// Counts a stream that was given up before it was sent.
    fn count_given_up(&self, counters: &MethodCounters) {
        counters.begin();
        counters.drop_one();
        self.driver.counters.cancels.never_sent.add(1);
    }

    /// Fails the streams that wait for a connection, other than those that wait for ready, after an
    /// attempt to connect has failed.
    pub(super) fn fail_unready(&mut self, connection: &Reconnect<T>) {
        for (number, stream) in mem::take(&mut self.waiting) {
            if stream.submission.waits_for_ready {
                self.waiting.insert(number, stream);
                continue;
            }
            let cause = connection.failure();
            let cause = cause.unwrap_or_else(|| connection.not_connected(None));
            let submission = self.cancel_timer(stream);
            self.fail(submission, cause);
        }
    }

    /// Ends all waiting streams and those in `submitted`, because the channel or its poller ends.
    pub(super) fn end_all(
        &mut self,
        submitted: BTreeMap<u64, StreamSubmission>,
        connection: &Reconnect<T>,
    ) {
        let waiting = mem::take(&mut self.waiting).into_values();
        let waiting = waiting.map(|stream| stream.submission);
        for submission in waiting.chain(submitted.into_values()) {
            self.fail(submission, connection.not_connected(None));
        }
    }

    /// Ends a stream that was never sent.
    fn fail(&mut self, submission: StreamSubmission, cause: Cause) {
        let error = CallError::new(cause, Execution::NeverSent);
        let method = self.counters_of(submission.method);
        let counters = CalledStream::begun(method, submission.began);
        counters.end(&self.driver.counters, error.code().number());
        let wakers = submission.core.lock().end(StreamEnd::Failed(error));
        self.wakers.add(wakers.into_iter().flatten());
    }

    fn cancel_timer(&mut self, stream: WaitingStream) -> StreamSubmission {
        if let Some(timer) = stream.timer {
            self.deadlines.cancel(timer);
        }
        stream.submission
    }

    fn counters_of(&mut self, method: &'static MethodSpec) -> Arc<MethodCounters> {
        let mut called = self.called.iter();
        if let Some((_, counters)) = called.find(|(spec, _)| ptr::eq(*spec, method)) {
            return Arc::clone(counters);
        }
        let counters = self.driver.counters.called(method);
        self.called.push((method, Arc::clone(&counters)));
        counters
    }

    /// Returns the number of streams that wait to be opened.
    #[cfg(feature = "test-util")]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
