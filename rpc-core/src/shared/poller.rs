//! [`SharedPoller`]: the poller of a shared channel. It sends submitted requests, settles calls
//! that have ended, and maintains the connection.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::backoff::Backoff;
use super::connectivity::{Connectivity, ConnectivityState};
use super::error::ChannelError;
use super::permits::{Settled, Ticket, Tickets};
use super::start::Report;
use super::submissions::{Prospect, Submission};
use crate::call_error::{CallError, Cause, Execution};
use crate::client::channel::MethodNumbers;
use crate::driver::handle::{Begun, Outgoing, Polled, Poller};
use crate::driver::link::{LinkKey, LinkStanding};
use crate::driver::outgoing::{HeldPermit, NoRoom};
use crate::driver::timers::TimerKey;
use crate::driver::wakeup::Doorbell;
use crate::driver::{Driver, TimerTarget};
use crate::limits::{Limits, Waiting};
use crate::poller::idle::{BusyPoller, Idle};
use crate::protocol::frame::{CallId, FrameHeader};
use crate::stats::{PollerTally, TicketTally};
use crate::status::Code;
use crate::transport::{CloseReason, ConnectError, Dialer, FabricError, Transport};

/// Submissions accepted in one turn: as many as a few doorbells carry, so that responses are not
/// delayed by a burst of callers.
const BATCH: usize = 64;

/// Turns between two checks of the permit queue.
const TURNS_PER_LOOK: u32 = 64;

/// Longest sleep while calls wait for permits. Short, because woken waiters that do not retry are
/// skipped only after some checks.
const SHORT_SLEEP: Duration = Duration::from_millis(1);

/// How long a poller that ends waits for its connection to close.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// The input of a poller.
pub(super) struct Settings {
    pub(super) index: usize,
    pub(super) address: String,
    pub(super) tickets: Arc<Tickets>,
    pub(super) submissions: Receiver<Submission>,
    pub(super) bell: Arc<OnceLock<Arc<Doorbell>>>,
    pub(super) is_over: Arc<AtomicBool>,
    pub(super) prospect: Arc<Prospect>,
    pub(super) limits: Arc<OnceLock<Limits>>,
    pub(super) tally: Arc<OnceLock<Arc<PollerTally>>>,
    pub(super) connectivity: Arc<Connectivity>,
    pub(super) backoff: Backoff,
    pub(super) connect_timeout: Duration,
    pub(super) waiting: Waiting,
    /// Whether to connect only for the first call.
    pub(super) is_lazy: bool,
}

/// Runs handshakes, which block, outside the poller's thread.
pub(crate) trait Elsewhere {
    fn run(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

/// Runs each job on a new thread that ends with it. Handshakes are rare enough for this.
pub(super) struct OnThreads;

impl Elsewhere for OnThreads {
    fn run(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let named = thread::Builder::new().name("verbline-dial".to_owned());
        named.spawn(job).map(drop)
    }
}

/// The poller of one lane of a channel.
pub(crate) struct SharedPoller<T: Transport> {
    driver: Rc<Driver<T>>,
    settings: Settings,
    elsewhere: Box<dyn Elsewhere>,
    report: Option<Report>,
    dialer: Arc<dyn Dialer<T::Dialed>>,
    dialed: (Sender<DialOutcome<T>>, Receiver<DialOutcome<T>>),
    standing: Standing,
    /// Links that accept no more calls and still have calls in flight.
    retiring: Vec<LinkKey>,
    /// The poller's record of each permit, by number.
    records: Vec<Record>,
    /// The accounting of the calls that are with this poller.
    tally: TicketTally,
    /// Requests that cannot be sent yet, oldest first.
    backlog: VecDeque<Submission>,
    /// Wakers of the callers whose calls have ended in this turn. All are woken at the end of the
    /// turn: a woken caller may preempt this thread at once, and then finds all responses that are
    /// available.
    wakers: Vec<Waker>,
    turns: u32,
}

type DialOutcome<T> = Result<<T as Transport>::Dialed, ConnectError>;

/// The state of the connection to the server.
enum Standing {
    /// No call has been made yet.
    Idle,
    Dialing,
    Connected {
        link: LinkKey,
        methods: MethodNumbers,
    },
    /// Waiting until the time of the next attempt. `latest` is the error of the previous attempt,
    /// if it failed.
    Resting {
        until: Instant,
        latest: Option<Arc<ConnectError>>,
    },
}

enum Record {
    Free,
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

impl<T: Transport> SharedPoller<T> {
    pub(super) fn new(
        driver: Driver<T>,
        settings: Settings,
        elsewhere: impl Elsewhere + 'static,
        report: Report,
    ) -> Self {
        let _ = settings.bell.set(Arc::clone(&driver.bell));
        let _ = settings.tally.set(Arc::clone(&driver.tally));
        let dialer = driver.state.borrow().transport.dialer();
        let count = settings.tickets.count();
        let mut poller = Self {
            tally: TicketTally::new(Arc::clone(&driver.tally), count),
            driver: Rc::new(driver),
            elsewhere: Box::new(elsewhere),
            report: Some(report),
            dialer,
            dialed: unbounded(),
            standing: Standing::Idle,
            retiring: Vec::new(),
            records: (0..count).map(|_| Record::Free).collect(),
            backlog: VecDeque::new(),
            wakers: Vec::new(),
            turns: 0,
            settings,
        };
        if !poller.settings.is_lazy {
            poller.dial();
        }
        poller
    }

    /// Runs until the channel is dropped.
    pub(super) fn run(mut self) {
        let _busy = BusyPoller::announce(self.settings.waiting);
        let mut idle = Idle::new(self.settings.waiting);
        while !self.is_over() {
            if idle.after_turn(self.turn()) {
                self.drop_abandoned();
                self.driver.sleep(&|| self.rests());
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
        let any_submitted = self.take_submissions();
        let found_any = self.driver.turn() | any_submitted;
        let any_settled = self.settle();
        if !self.backlog.is_empty() {
            self.send_backlog();
        }
        self.look_after_connection();
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_LOOK) {
            self.drop_abandoned();
            self.settings
                .tickets
                .look_after_queue(self.driver.clock.now());
        }
        self.wake_callers();
        found_any | any_settled
    }

    fn wake_callers(&mut self) {
        for waker in self.wakers.drain(..) {
            // This is an executor's code: if it panics, the other callers must still be woken.
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                tracing::error!("a caller's waker panicked");
            }
        }
    }

    /// Frees the permits of cancelled calls that are stuck in the backlog.
    fn drop_abandoned(&mut self) {
        let mut index = 0;
        while let Some(submission) = self.backlog.get(index) {
            let is_abandoned = self.settings.tickets.is_abandoned(submission.ticket.number);
            match is_abandoned.then(|| self.backlog.remove(index)).flatten() {
                Some(submission) => self.refuse(submission.ticket, Cause::DeadlineExceeded),
                None => index += 1,
            }
        }
    }

    fn is_over(&self) -> bool {
        self.settings.is_over.load(Ordering::Relaxed)
    }

    fn has_more(&self) -> bool {
        !self.settings.submissions.is_empty() || !self.dialed.1.is_empty() || self.is_over()
    }

    /// Returns how long the poller may sleep if no event occurs, or `None` if there is something to
    /// do.
    fn rests(&self) -> Option<Duration> {
        if self.has_more() {
            return None;
        }
        let now = self.driver.clock.now();
        let until = |moment: Instant| moment.saturating_duration_since(now);
        let queue = self.settings.tickets.look_after_queue(now);
        let mut longest = if queue.is_waiting {
            SHORT_SLEEP
        } else {
            Duration::MAX
        };
        longest = queue
            .next_deadline
            .map_or(longest, |at| longest.min(until(at)));
        Some(match self.standing {
            Standing::Resting { until: at, .. } => longest.min(until(at)),
            // A freed send slot causes no event.
            Standing::Connected { .. } if !self.backlog.is_empty() => longest.min(SHORT_SLEEP),
            _ => longest,
        })
    }

    // ---- calls ----

    fn take_submissions(&mut self) -> bool {
        for taken in 0..BATCH {
            let Ok(submission) = self.settings.submissions.try_recv() else {
                return taken > 0;
            };
            self.tally.begin(
                submission.ticket.number,
                submission.method,
                submission.began,
            );
            let unsent = if self.backlog.is_empty() {
                self.begin(submission)
            } else {
                // First come, first served.
                Some(submission)
            };
            if let Some(submission) = unsent {
                self.keep(submission);
            }
        }
        true
    }

    /// Sends a request. Returns it if it has to wait.
    fn begin(&mut self, mut submission: Submission) -> Option<Submission> {
        let Standing::Connected { link, methods } = &mut self.standing else {
            return Some(submission);
        };
        let link = *link;
        let Some(method) = methods.number_of(submission.method) else {
            let path = submission.method.path;
            self.refuse(submission.ticket, Cause::Unimplemented { path });
            return None;
        };
        let body = &submission.ticket.buf;
        let outgoing = Outgoing {
            method,
            deadline: submission.deadline,
            metadata_len: submission.metadata_len,
            message_len: body.len() - submission.metadata_len,
            write: &mut |out| out.copy_from_slice(body),
        };
        let asker = HeldPermit(submission.ticket.number);
        match self.driver.begin_from(link, outgoing, asker) {
            Begun::Sent(call) => {
                self.tally.sent(submission.ticket.number);
                self.records[submission.ticket.number as usize] = Record::InFlight {
                    link,
                    call,
                    deadline: submission.deadline,
                    buf: mem::take(&mut submission.ticket.buf),
                };
                None
            }
            Begun::Waiting(NoRoom) => Some(submission),
            // The next connection will send it.
            Begun::Failed(error) if matches!(error.cause(), Cause::Disconnected(_)) => {
                Some(submission)
            }
            Begun::Failed(error) => {
                self.settle_one(submission.ticket, Err(error));
                None
            }
        }
    }

    /// Adds a request to the backlog, or fails it if the latest attempt to connect failed and the
    /// request does not wait for ready.
    fn keep(&mut self, submission: Submission) {
        match &self.standing {
            Standing::Resting {
                latest: Some(error),
                ..
            } if !submission.waits_for_ready => {
                let latest = Some(Arc::clone(error));
                return self.refuse_unconnected(submission.ticket, latest);
            }
            Standing::Idle => self.dial(),
            _ => {}
        }
        self.driver.tally.stalls.backlogged.add(1);
        let number = submission.ticket.number;
        let timer = submission.deadline.map(|deadline| {
            let timers = &mut self.driver.state.borrow_mut().timers;
            timers.insert(deadline, TimerTarget::Ticket(number))
        });
        self.records[number as usize] = Record::Backlogged { timer };
        self.backlog.push_back(submission);
    }

    fn send_backlog(&mut self) {
        while let Some(submission) = self.backlog.pop_front() {
            let number = submission.ticket.number;
            let unsent = if self.settings.tickets.is_abandoned(number) {
                // Settling the call releases its permit.
                self.refuse(submission.ticket, Cause::DeadlineExceeded);
                None
            } else {
                let record = mem::replace(&mut self.records[number as usize], Record::Free);
                let unsent = self.begin(submission);
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
        }
    }

    /// Settles the calls that have ended: by a response, a deadline, or the end of their
    /// connection.
    fn settle(&mut self) -> bool {
        let mut settled = mem::take(&mut self.driver.state.borrow_mut().settled);
        let any = !settled.is_empty();
        for number in settled.drain(..) {
            match mem::replace(&mut self.records[number as usize], Record::Free) {
                Record::Free => {}
                Record::Backlogged { .. } => {
                    let place = self
                        .backlog
                        .iter()
                        .position(|submission| submission.ticket.number == number);
                    if let Some(submission) = place.and_then(|place| self.backlog.remove(place)) {
                        // The timer has fired.
                        self.refuse(submission.ticket, Cause::DeadlineExceeded);
                    }
                }
                Record::InFlight {
                    link,
                    call,
                    deadline,
                    mut buf,
                } => {
                    let asker = HeldPermit(number);
                    let polled =
                        self.driver
                            .poll_answer_from(link, call, deadline, asker, &mut |frame| {
                                buf.clear();
                                buf.extend_from_slice(frame);
                            });
                    let outcome = match polled {
                        Polled::Pending => {
                            self.records[number as usize] = Record::InFlight {
                                link,
                                call,
                                deadline,
                                buf,
                            };
                            continue;
                        }
                        Polled::Received => Ok(()),
                        Polled::Failed(error) => Err(error),
                    };
                    self.settle_one(Ticket { number, buf }, outcome);
                }
            }
        }
        let state = &mut *self.driver.state.borrow_mut();
        if state.settled.is_empty() {
            state.settled = settled;
        }
        any
    }

    fn settle_one(&mut self, ticket: Ticket, outcome: Result<(), CallError>) {
        let Ticket { number, buf } = ticket;
        let code = match &outcome {
            Ok(()) => code_of_answer(&buf),
            Err(error) => error.code().number(),
        };
        let settled = Settled { buf, outcome };
        let waker = self.settings.tickets.settle(number, settled);
        self.tally.end(number, code, waker.is_some());
        self.wakers.extend(waker);
    }

    /// Fails a call that was never sent.
    fn refuse(&mut self, ticket: Ticket, cause: Cause) {
        let record = mem::replace(&mut self.records[ticket.number as usize], Record::Free);
        self.cancel(record);
        let error = CallError::new(cause, Execution::NeverSent);
        self.settle_one(ticket, Err(error));
    }

    fn refuse_unconnected(&mut self, ticket: Ticket, latest: Option<Arc<ConnectError>>) {
        let address = self.settings.address.clone();
        self.refuse(ticket, Cause::NotConnected { address, latest });
    }

    fn cancel(&mut self, record: Record) {
        if let Record::Backlogged { timer: Some(timer) } = record {
            self.driver.state.borrow_mut().timers.cancel(timer);
        }
    }

    // ---- the connection ----

    fn look_after_connection(&mut self) {
        match &self.standing {
            Standing::Idle => {}
            Standing::Connected { link, .. } => {
                let link = *link;
                match self.driver.standing_of(link) {
                    LinkStanding::Up => {}
                    LinkStanding::GoingAway => {
                        self.say_disconnected(&CloseReason::GoingAway);
                        // Calls in flight finish on this link, while new ones use the next
                        // connection.
                        self.retiring.push(link);
                        self.rest(None);
                    }
                    LinkStanding::Ended => {
                        let reason = self.driver.end_of(link);
                        self.say_disconnected(&reason.unwrap_or(CloseReason::Local));
                        // The reference is kept until all of its calls have been settled, which may
                        // take some turns.
                        self.retiring.push(link);
                        self.rest(None);
                    }
                }
            }
            Standing::Dialing => {
                if let Ok(outcome) = self.dialed.1.try_recv() {
                    self.arrive(outcome);
                }
            }
            Standing::Resting { until, .. } => {
                if *until <= self.driver.clock.now() {
                    self.dial();
                }
            }
        }
        if !self.retiring.is_empty() {
            let driver = &self.driver;
            self.retiring.retain(|&link| {
                let is_in_use = driver.calls_under_way(link) > 0;
                if !is_in_use {
                    driver.let_go(link);
                }
                is_in_use
            });
        }
    }

    fn dial(&mut self) {
        self.set_standing(Standing::Dialing);
        let dialer = Arc::clone(&self.dialer);
        let address = self.settings.address.clone();
        let (hello, timeout) = (self.driver.hello(), self.settings.connect_timeout);
        let (answers, bell) = (self.dialed.0.clone(), Arc::clone(&self.driver.bell));
        let job = Box::new(move || {
            let dial = || dialer.dial(&address, &hello, timeout);
            let outcome = catch_unwind(AssertUnwindSafe(dial)).unwrap_or_else(|_| {
                Err(ConnectError::Device {
                    address: address.clone(),
                    source: "the thread of its handshake panicked".into(),
                })
            });
            // If the poller has ended in the meantime, the connection is closed here.
            let _ = answers.send(outcome);
            bell.ring();
        });
        if let Err(source) = self.elsewhere.run(job) {
            let address = self.settings.address.clone();
            self.fail(ConnectError::Device {
                address,
                source: source.into(),
            });
        }
    }

    fn arrive(&mut self, outcome: DialOutcome<T>) {
        let address = &self.settings.address;
        let joined = outcome.and_then(|dialed| self.driver.join(address, |t| t.adopt(dialed)));
        match joined {
            Ok(joined) => {
                self.driver.hold(joined.link);
                self.settings.backoff.succeed();
                let Settings { address, index, .. } = &self.settings;
                tracing::info!(address, poller = index, "connected to the server");
                let methods = MethodNumbers::of(&joined.session);
                self.set_standing(Standing::Connected {
                    link: joined.link,
                    methods,
                });
                if let Some(report) = self.report.take() {
                    report.tell(Ok(()));
                }
                self.send_backlog();
            }
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: ConnectError) {
        let error = Arc::new(error);
        let Settings { address, index, .. } = &self.settings;
        tracing::warn!(address, poller = index, %error, "not connected");
        self.driver.tally.connections.not_connected.add(1);
        self.rest(Some(Arc::clone(&error)));
        let (kept, refused): (VecDeque<_>, _) = mem::take(&mut self.backlog)
            .into_iter()
            .partition(|submission| submission.waits_for_ready);
        self.backlog = kept;
        for submission in refused {
            self.refuse_unconnected(submission.ticket, Some(Arc::clone(&error)));
        }
        if let Some(report) = self.report.take() {
            report.tell(Err(ChannelError::Connect(error)));
        }
    }

    fn say_disconnected(&self, reason: &CloseReason) {
        let Settings { address, index, .. } = &self.settings;
        tracing::info!(address, poller = index, %reason, "disconnected from the server");
    }

    fn rest(&mut self, latest: Option<Arc<ConnectError>>) {
        let rest = self.settings.backoff.next();
        let Settings { address, index, .. } = &self.settings;
        tracing::debug!(
            address,
            poller = index,
            ?rest,
            "connecting again after a rest"
        );
        let until = self.driver.clock.now() + rest;
        self.set_standing(Standing::Resting { until, latest });
    }

    fn set_standing(&mut self, standing: Standing) {
        self.standing = standing;
        let (index, connectivity) = (self.settings.index, &self.settings.connectivity);
        let prospect = match &self.standing {
            Standing::Idle | Standing::Connected { .. } => Prospect::GOOD,
            Standing::Dialing | Standing::Resting { latest: None, .. } => Prospect::FAIR,
            Standing::Resting { .. } => Prospect::POOR,
        };
        self.settings.prospect.set(prospect);
        match &self.standing {
            Standing::Idle => connectivity.set(index, ConnectivityState::Idle),
            Standing::Connected { .. } => connectivity.set(index, ConnectivityState::Ready),
            Standing::Resting {
                latest: Some(error),
                ..
            } => connectivity.fail(index, Arc::clone(error)),
            Standing::Dialing | Standing::Resting { latest: None, .. } => {
                connectivity.set(index, ConnectivityState::Connecting);
            }
        }
    }
}

#[cfg(feature = "test-util")]
impl<T: Transport> SharedPoller<T> {
    /// Expires deadlines, and detects whether the connection is idle.
    pub(crate) fn look_at_the_clock(&mut self) {
        let now = self.driver.clock.now();
        self.driver
            .as_part_of_a_turn(|| self.driver.expire_deadlines());
        self.driver.wake_collected();
        self.driver.on_idle(now);
        self.settings.tickets.look_after_queue(now);
        self.settle();
        self.wake_callers();
    }

    /// Describes everything that is in flight: empty when all calls have ended.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let mut left = self.driver.leftovers();
        let records = self.records.iter();
        let with_poller = records.filter(|record| !matches!(record, Record::Free));
        for (count, what) in [
            (self.settings.tickets.in_use(), "tickets"),
            (with_poller.count(), "tickets with their poller"),
            (self.backlog.len(), "requests in the backlog"),
            (self.retiring.len(), "retiring links"),
        ] {
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
        self.settings.prospect.set(Prospect::POOR);
        self.settings.is_over.store(true, Ordering::Relaxed);
        // Before the queue is drained below: see `Lane::submit`.
        fence(Ordering::SeqCst);
        let index = self.settings.index;
        self.settings
            .connectivity
            .set(index, ConnectivityState::Shutdown);
        for number in 0..self.records.len() {
            let record = mem::replace(&mut self.records[number], Record::Free);
            if let Record::InFlight { buf, .. } = record {
                let cause = Cause::Disconnected(CloseReason::Local);
                let error = CallError::new(cause, Execution::MayHaveRun);
                let number = number as u32;
                self.settle_one(Ticket { number, buf }, Err(error));
            }
        }
        let backlog = mem::take(&mut self.backlog);
        let submitted: Vec<_> = self.settings.submissions.try_iter().collect();
        for submission in backlog.into_iter().chain(submitted) {
            self.refuse_unconnected(submission.ticket, None);
        }
        self.wake_callers();
    }
}

/// Returns the code in the header of a response that has been validated.
fn code_of_answer(frame: &[u8]) -> u16 {
    FrameHeader::parse(frame).map_or(Code::Unknown.number(), |(header, ..)| header.selector)
}

/// Fails every call of a poller whose device cannot be opened, until the channel is dropped.
pub(super) fn refuse_all(settings: &Settings, error: FabricError) {
    let error = Arc::new(ConnectError::Device {
        address: settings.address.clone(),
        source: error.into(),
    });
    settings
        .connectivity
        .fail(settings.index, Arc::clone(&error));
    for submission in &settings.submissions {
        let Ticket { number, buf } = submission.ticket;
        let cause = Cause::NotConnected {
            address: settings.address.clone(),
            latest: Some(Arc::clone(&error)),
        };
        let outcome = Err(CallError::new(cause, Execution::NeverSent));
        if let Some(waker) = settings.tickets.settle(number, Settled { buf, outcome }) {
            waker.wake();
        }
    }
}
