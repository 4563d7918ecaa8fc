//! [`Calls`]: the calls of a channel that are with its poller, from their submission until they are
//! settled.
//!
//! ```text
//!   submitted ──▶ sent ──────────▶ ended ──▶ settled
//!       │          ▲                            ▲
//!       └▶ backlog ┘                            │
//!             └── deadline, no connection ──────┘
//! ```

mod dropped;

use std::collections::VecDeque;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::permits::{CallPermit, CallPermits, Settled};
use super::pushback::Pushback;
use super::reconnect::Reconnect;
use super::submissions::Submission;
use super::wakers::Wakers;
use crate::call_error::{CallError, Cause, Execution};
use crate::client::encode::EncodedRequest;
use crate::driver::call_origin::NoCapacity;
use crate::driver::handle::{BeginOutcome, PollOutcome, Poller, RequestHead};
use crate::driver::held_permit::HeldPermit;
use crate::driver::link::LinkKey;
use crate::driver::response::{LongResponse, ResponseBody};
use crate::driver::timers::TimerKey;
use crate::driver::{Driver, TimerTarget};
use crate::protocol::frame::{CallId, HEADER_LEN, ResponseHead};
use crate::stats::PermitCounters;
use crate::transport::{CloseReason, Transport};

/// The calls of one channel that are with its poller.
pub(super) struct Calls<T: Transport> {
    driver: Rc<Driver<T>>,
    /// The channel's number at the poller.
    channel: u32,
    permits: Arc<CallPermits>,
    submissions: Receiver<Submission>,
    /// The poller's record of each permit, by number.
    records: Vec<Record>,
    /// The accounting of these calls.
    counters: PermitCounters,
    /// Requests that cannot be sent yet, oldest first.
    backlog: VecDeque<Submission>,
    pushback: Pushback,
    wakers: Wakers,
}

enum Record {
    Free,
    /// The call was dropped while its request was in the queue.
    Dropped,
    Backlogged {
        timer: Option<TimerKey>,
    },
    InFlight {
        link: LinkKey,
        call: CallId,
        deadline: Option<Instant>,
        /// The permit's buffer, for the response.
        buf: Vec<u8>,
    },
}

impl<T: Transport> Calls<T> {
    pub(super) fn new(
        driver: &Rc<Driver<T>>,
        channel: u32,
        permits: Arc<CallPermits>,
        submissions: Receiver<Submission>,
        wakers: &Wakers,
    ) -> Self {
        let count = permits.count();
        Self {
            counters: PermitCounters::new(Arc::clone(&driver.counters), count),
            driver: Rc::clone(driver),
            channel,
            permits,
            submissions,
            records: (0..count).map(|_| Record::Free).collect(),
            backlog: VecDeque::new(),
            pushback: Pushback::new(),
            wakers: wakers.clone(),
        }
    }

    /// Returns true if requests wait to be sent.
    pub(super) fn any_waiting(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Takes up to `most` of the requests that callers have submitted, and sends those that can be
    /// sent. Returns their number.
    pub(super) fn take_submissions(&mut self, connection: &mut Reconnect<T>, most: usize) -> usize {
        for taken in 0..most {
            let Ok(submission) = self.submissions.try_recv() else {
                return taken;
            };
            self.counters.begin(
                submission.permit.number,
                submission.method,
                submission.began,
            );
            if let Record::Dropped = self.records[submission.permit.number as usize] {
                self.fail_dropped(submission.permit);
                continue;
            }
            let unsent = if self.pushback.is_holding() {
                self.begin_held_back(submission, connection)
            } else if self.backlog.is_empty() {
                self.begin(submission, connection)
            } else {
                // First come, first served.
                Some(submission)
            };
            if let Some(submission) = unsent {
                self.enqueue(submission, connection);
            }
        }
        most
    }

    /// Sends a request of a channel whose server wants no calls, as a probe, or fails it if its
    /// deadline comes too early. Returns it if it has to wait.
    #[cold]
    fn begin_held_back(
        &mut self,
        submission: Submission,
        connection: &mut Reconnect<T>,
    ) -> Option<Submission> {
        let now = self.driver.clock.now();
        let number = submission.permit.number;
        if self.pushback.has_ended(now) {
            // The backlog comes first: this turn sends it.
            return Some(submission);
        }
        // The oldest call that waits is the probe.
        if self.pushback.wants_probe() && self.backlog.is_empty() {
            let unsent = self.begin(submission, connection);
            if matches!(self.records[number as usize], Record::InFlight { .. }) {
                self.pushback.probe_sent(number);
            }
            return unsent;
        }
        self.fail_if_too_late(submission, now)
    }

    /// Fails a request whose deadline comes before the server wants calls again.
    fn fail_if_too_late(&mut self, submission: Submission, now: Instant) -> Option<Submission> {
        let until = self.pushback.until()?;
        if submission.deadline.is_none_or(|deadline| deadline >= until) {
            return Some(submission);
        }
        let wait = until.saturating_duration_since(now);
        self.fail_unsent(submission.permit, Cause::PushedBack { wait });
        None
    }

    /// Holds calls back after a refusal.
    #[cold]
    pub(super) fn hold_back(&mut self, pushback: Duration) {
        let now = self.driver.clock.now();
        if pushback.is_zero() || !self.pushback.refused(now, pushback) {
            return;
        }
        for submission in mem::take(&mut self.backlog) {
            let kept = self.fail_if_too_late(submission, now);
            self.backlog.extend(kept);
        }
    }

    /// Forgets the pushback of an earlier connection, which may have led to another server.
    pub(super) fn connected(&mut self) {
        self.pushback.forget();
    }

    /// Returns the time at which calls that are held back may be sent.
    pub(super) fn held_until(&self) -> Option<Instant> {
        let is_held = !self.backlog.is_empty() && !self.pushback.wants_probe();
        self.pushback.until().filter(|_| is_held)
    }

    /// Returns the time until which the server wants no calls, which may have passed.
    pub(super) fn pushed_back_until(&self) -> Option<Instant> {
        self.pushback.until()
    }

    /// Returns the time until which streams are held back, if they are.
    pub(super) fn streams_held_until(&mut self) -> Option<Instant> {
        if self.pushback.is_holding() {
            self.pushback.has_ended(self.driver.clock.now());
        }
        self.pushback.until()
    }

    /// Sends a request. Returns it if it has to wait.
    fn begin(
        &mut self,
        mut submission: Submission,
        connection: &mut Reconnect<T>,
    ) -> Option<Submission> {
        let Some((link, methods)) = connection.connected() else {
            return Some(submission);
        };
        let Some(method) = methods.number_of(submission.method) else {
            let path = submission.method.path;
            self.fail_unsent(submission.permit, Cause::Unimplemented { path });
            return None;
        };
        let request = RequestHead {
            method,
            deadline: submission.deadline,
            metadata_len: submission.lengths.metadata,
            message_len: submission.lengths.message,
        };
        let limits = self.driver.send_limits(link);
        let longest = limits.message_of(submission.method);
        if request.message_len > longest.bytes() {
            let cause = Cause::request_too_long(request.message_len, longest);
            self.fail_unsent(submission.permit, cause);
            return None;
        }
        if request.frame_len() > limits.frame {
            submission.divide();
        }
        let frame = &mut *submission.permit.buf;
        let origin = self.origin(submission.permit.number);
        let begun = if let Some(long) = &mut submission.long {
            let EncodedRequest { metadata, message } = &mut **long;
            self.driver
                .begin_chunks_from(link, &request, metadata, message, origin)
        } else if frame.len() <= self.driver.longest_inline() {
            self.driver.begin_inline_from(link, &request, frame, origin)
        } else {
            let write = &mut |out: &mut [u8]| out.copy_from_slice(&frame[HEADER_LEN..]);
            self.driver.begin_long_from(link, &request, write, origin)
        };
        match begun {
            BeginOutcome::Sent(call) => {
                self.counters.sent(submission.permit.number);
                self.records[submission.permit.number as usize] = Record::InFlight {
                    link,
                    call,
                    deadline: submission.deadline,
                    buf: mem::take(&mut submission.permit.buf),
                };
                None
            }
            BeginOutcome::Waiting(NoCapacity) => Some(submission),
            // The next connection will send it.
            BeginOutcome::Failed(error) if matches!(error.cause(), Cause::Disconnected(_)) => {
                Some(submission)
            }
            BeginOutcome::Failed(error) => {
                self.settle_one(submission.permit, Err(error));
                None
            }
        }
    }

    /// Adds a request to the backlog, or fails it if the latest attempt to connect failed and the
    /// request does not wait for ready.
    fn enqueue(&mut self, submission: Submission, connection: &Reconnect<T>) {
        if !submission.waits_for_ready
            && let Some(cause) = connection.failure()
        {
            return self.fail_unsent(submission.permit, cause);
        }
        self.driver.counters.stalls.backlogged.add(1);
        let number = submission.permit.number;
        let origin = self.origin(number);
        let timer = submission.deadline.map(|deadline| {
            let timers = &mut self.driver.state.borrow_mut().links.timers;
            timers.insert(deadline, TimerTarget::Permit(origin))
        });
        self.records[number as usize] = Record::Backlogged { timer };
        self.backlog.push_back(submission);
    }

    /// Sends the requests that waited, as far as they can be sent.
    pub(super) fn send_backlog(&mut self, connection: &mut Reconnect<T>) {
        let is_holding =
            self.pushback.is_holding() && !self.pushback.has_ended(self.driver.clock.now());
        if is_holding && !self.pushback.wants_probe() {
            return;
        }
        while let Some(submission) = self.backlog.pop_front() {
            let number = submission.permit.number;
            let unsent = if self.permits.is_abandoned(number) {
                self.fail_dropped(submission.permit);
                None
            } else {
                let record = mem::replace(&mut self.records[number as usize], Record::Free);
                let unsent = self.begin(submission, connection);
                if unsent.is_some() {
                    self.records[number as usize] = record;
                } else {
                    self.cancel(record);
                }
                unsent
            };
            if let Some(submission) = unsent {
                self.backlog.push_front(submission);
                return;
            }
            if is_holding && matches!(self.records[number as usize], Record::InFlight { .. }) {
                return self.pushback.probe_sent(number);
            }
        }
    }

    /// Names a permit of this channel to the driver.
    fn origin(&self, number: u32) -> HeldPermit {
        let channel = self.channel;
        HeldPermit { channel, number }
    }

    /// Settles a call that has ended: by a response, a deadline, or the end of its connection.
    pub(super) fn settle(&mut self, number: u32, connection: &Reconnect<T>) {
        match mem::replace(&mut self.records[number as usize], Record::Free) {
            Record::Free => {}
            // An earlier call with this permit has ended.
            Record::Dropped => self.records[number as usize] = Record::Dropped,
            record @ Record::Backlogged { .. } => {
                self.records[number as usize] = record;
                self.expire_backlogged(number, connection);
            }
            Record::InFlight {
                link,
                call,
                deadline,
                mut buf,
            } => {
                let origin = self.origin(number);
                let driver = &*self.driver;
                let mut long = None;
                let polled = driver.read_response_from(link, call, deadline, origin, |_, body| {
                    buf.clear();
                    match body {
                        ResponseBody::Frame(body) => buf.extend_from_slice(body),
                        ResponseBody::Long(response) => long = Some(Box::new(response.clone())),
                    }
                });
                let outcome = match polled {
                    PollOutcome::Pending | PollOutcome::Long => {
                        self.records[number as usize] = Record::InFlight {
                            link,
                            call,
                            deadline,
                            buf,
                        };
                        return;
                    }
                    PollOutcome::Received { head, .. } => Ok(head),
                    PollOutcome::Failed(error) => Err(error),
                };
                self.settle_long(CallPermit { number, buf }, outcome, long);
            }
        }
    }

    /// Fails a call whose deadline has passed while it waited to be sent. The timer that has fired may
    /// be that of an earlier call with this permit.
    #[cold]
    fn expire_backlogged(&mut self, number: u32, connection: &Reconnect<T>) {
        let now = self.driver.clock.now();
        let has_passed =
            |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        let is_expired = |submission: &Submission| {
            submission.permit.number == number && has_passed(submission.deadline)
        };
        let index = self.backlog.iter().position(is_expired);
        if let Some(submission) = index.and_then(|index| self.backlog.remove(index)) {
            let latest = connection.latest_error();
            self.fail_unsent(submission.permit, Cause::DeadlineExceeded { latest });
        }
    }

    fn settle_one(&mut self, permit: CallPermit, outcome: Result<ResponseHead, CallError>) {
        self.settle_long(permit, outcome, None);
    }

    /// Settles a call. `long` is the response if its message did not fit a frame.
    fn settle_long(
        &mut self,
        permit: CallPermit,
        outcome: Result<ResponseHead, CallError>,
        long: Option<Box<LongResponse>>,
    ) {
        let CallPermit { number, buf } = permit;
        let (code, pushback_us) = match &outcome {
            Ok(head) => (head.code, head.pushback_us),
            Err(error) => (error.code().number(), 0),
        };
        if pushback_us != 0 {
            self.hold_back(Duration::from_micros(u64::from(pushback_us) - 1));
        }
        let was_served = outcome.is_ok() && pushback_us == 0;
        self.pushback.ended(number, was_served);
        let settled = Settled { buf, long, outcome };
        // Before the caller can have the outcome, so that it never measures less.
        let took = self.counters.time(number);
        let waker = self.permits.settle(number, settled);
        self.counters.end(number, code, waker.is_some(), took);
        self.wakers.add(waker);
    }

    /// Fails a call that was never sent.
    fn fail_unsent(&mut self, permit: CallPermit, cause: Cause) {
        let record = mem::replace(&mut self.records[permit.number as usize], Record::Free);
        self.cancel(record);
        let error = CallError::new(cause, Execution::NeverSent);
        self.settle_one(permit, Err(error));
    }

    /// Fails the requests that wait for a connection, other than those that wait for ready, after
    /// an attempt to connect has failed.
    pub(super) fn fail_unready(&mut self, connection: &Reconnect<T>) {
        let (kept, failed): (VecDeque<_>, _) = mem::take(&mut self.backlog)
            .into_iter()
            .partition(|submission| submission.waits_for_ready);
        self.backlog = kept;
        for submission in failed {
            let cause = connection.failure();
            let cause = cause.unwrap_or_else(|| connection.not_connected(None));
            self.fail_unsent(submission.permit, cause);
        }
    }

    /// Settles all calls, because the channel or its poller ends.
    pub(super) fn end_all(&mut self, connection: &Reconnect<T>) {
        for number in 0..self.records.len() {
            match mem::replace(&mut self.records[number], Record::Free) {
                Record::InFlight { buf, .. } => {
                    let cause = Cause::Disconnected(CloseReason::Local);
                    let error = CallError::new(cause, Execution::MayHaveRun);
                    let number = number as u32;
                    self.settle_one(CallPermit { number, buf }, Err(error));
                }
                // Its timer would name a call of a later channel.
                record => self.cancel(record),
            }
        }
        let backlog = mem::take(&mut self.backlog);
        let submitted: Vec<_> = self.submissions.try_iter().collect();
        for submission in backlog.into_iter().chain(submitted) {
            self.fail_unsent(submission.permit, connection.not_connected(None));
        }
    }

    fn cancel(&mut self, record: Record) {
        if let Record::Backlogged { timer: Some(timer) } = record {
            self.driver.state.borrow_mut().links.timers.cancel(timer);
        }
    }

    /// Describes the calls that have not ended.
    #[cfg(feature = "test-util")]
    pub(super) fn leftovers(&self) -> [(usize, &'static str); 3] {
        let records = self.records.iter();
        let with_poller = records.filter(|record| !matches!(record, Record::Free));
        [
            (self.permits.in_use(), "permits"),
            (with_poller.count(), "permits held by the poller"),
            (self.backlog.len(), "requests in the backlog"),
        ]
    }
}
