//! [`Calls`]: the calls of a channel that are with its poller, from their submission until they are
//! settled, and the streams until they are open.
//!
//! ```text
//!   submitted ──▶ sent ──────────▶ ended ──▶ settled
//!       │          ▲                            ▲
//!       └▶ backlog ┘                            │
//!             └── deadline, no connection ──────┘
//! ```
//!
//! A request is sent at once if the channel is connected, the server takes calls, and the connection
//! has a credit; otherwise it waits in the backlog. Streams take no call permits. When one is open, the
//! driver has it (`driver/streams/`).

mod send;
mod settle;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backlog::Backlog;
use super::notices::Inbox;
use super::pushback::Pushback;
use super::reconnect::Reconnect;
use super::unsent::{LANES, Lane, Unsent};
use super::wakers::Wakers;
use crate::call_error::{CallError, Cause, Execution};
use crate::driver::Driver;
use crate::driver::link::LinkKey;
use crate::protocol::frame::CallId;
use crate::stats::PermitCounters;
use crate::stream::end::StreamEnd;
use crate::transport::Transport;

/// The calls of one channel that are with its poller.
pub(super) struct Calls<T: Transport> {
    driver: Rc<Driver<T>>,
    /// The channel's number at the poller.
    channel: u32,
    pub(super) inbox: Inbox,
    /// The poller's record of each permit, by number.
    records: Vec<Record>,
    counters: PermitCounters,
    backlog: Backlog,
    /// The number of the next unary request in the backlog.
    next: u64,
    /// Turns since there was a credit for the oldest stream in the backlog.
    turns_without_credit: u32,
    pushback: Pushback,
    wakers: Wakers,
}

enum Record {
    Free,
    /// The call was dropped while its request was in the queue.
    Dropped,
    /// Its request has this number in the backlog.
    Backlogged(u64),
    InFlight {
        link: LinkKey,
        call: CallId,
        deadline: Option<Instant>,
        /// The permit's buffer, for the response.
        buf: Vec<u8>,
    },
}

impl<T: Transport> Calls<T> {
    pub(super) fn new(driver: &Rc<Driver<T>>, channel: u32, inbox: Inbox, wakers: &Wakers) -> Self {
        let count = inbox.permits.count();
        Self {
            counters: PermitCounters::new(Arc::clone(&driver.connections.counters), count),
            driver: Rc::clone(driver),
            channel,
            inbox,
            records: (0..count).map(|_| Record::Free).collect(),
            backlog: Backlog::default(),
            next: 0,
            turns_without_credit: 0,
            pushback: Pushback::new(),
            wakers: wakers.clone(),
        }
    }

    /// Returns true if requests wait to be sent.
    #[inline]
    pub(super) fn any_waiting(&self) -> bool {
        LANES.iter().any(|&lane| !self.backlog.is_empty(lane))
    }

    /// Returns true if a request waits for nothing but capacity of the connection.
    pub(super) fn any_awaits_capacity(&self) -> bool {
        let awaits = |&lane| !self.backlog.is_empty(lane) && self.held_until(lane).is_none();
        LANES.iter().any(awaits)
    }

    /// Returns the next time at which a request has to be failed, or may be sent.
    pub(super) fn next_time(&self) -> Option<Instant> {
        let waiting = LANES.iter().filter(|&&lane| !self.backlog.is_empty(lane));
        let held = waiting.filter_map(|&lane| self.held_until(lane));
        held.chain(self.backlog.next_deadline()).min()
    }

    /// Returns the time until which the requests of a lane are held back. One call goes out as a probe.
    fn held_until(&self, lane: Lane) -> Option<Instant> {
        match lane {
            Lane::Unary if self.pushback.wants_probe() => None,
            Lane::Unary | Lane::Streams => self.pushback.until(),
        }
    }

    /// Holds requests back after a refusal.
    #[cold]
    pub(super) fn hold_back(&mut self, pushback: Duration) {
        let now = self.driver.connections.clock.now();
        if pushback.is_zero() || !self.pushback.refused(now, pushback) {
            return;
        }
        let pushback = &self.pushback;
        let too_late = self
            .backlog
            .remove_if(|request| pushback.outlasts(request.deadline()));
        for request in too_late {
            self.fail_too_late(request);
        }
    }

    /// Fails a request whose deadline comes before the server wants calls again.
    fn fail_too_late(&mut self, request: Unsent) {
        let now = self.driver.connections.clock.now();
        let until = self.pushback.until();
        let wait = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        self.fail(request, Cause::PushedBack { wait });
    }

    /// Forgets the pushback of an earlier connection, which may have led to another server.
    pub(super) fn connected(&mut self) {
        self.pushback.forget();
    }

    /// Fails the requests whose deadline has passed while they waited.
    fn expire(&mut self, connection: &Reconnect<T>) {
        if self.backlog.next_deadline().is_none() {
            return;
        }
        let now = self.driver.connections.clock.now();
        while let Some(request) = self.backlog.pop_expired(now) {
            let latest = connection.latest_error();
            self.fail(request, Cause::DeadlineExceeded { latest });
        }
    }

    /// Fails the requests that wait for a connection, other than those that wait for ready, after
    /// an attempt to connect has failed.
    pub(super) fn fail_unready(&mut self, connection: &Reconnect<T>) {
        for request in self.backlog.remove_if(|request| !request.waits_for_ready()) {
            self.fail(request, connection.not_connected());
        }
    }

    /// Ends a request that was given up before it was sent.
    fn give_up(&mut self, request: Unsent) {
        self.driver.connections.counters.cancels.never_sent.add(1);
        self.fail(request, Cause::Cancelled);
    }

    /// Removes waiting streams that their callers have given up. The others of `given_up` are open, or
    /// have ended.
    pub(super) fn give_up_streams(&mut self, given_up: Vec<u64>) {
        for number in given_up {
            if let Some(request) = self.backlog.remove(Lane::Streams, number) {
                self.give_up(request);
            }
        }
    }

    /// Fails all requests that were not sent, and refuses further ones.
    fn end_unsent(&mut self, connection: &Reconnect<T>) {
        let waiting = self.backlog.remove_if(|_| true);
        for request in waiting.into_iter().chain(self.inbox.close()) {
            self.fail(request, connection.has_ended());
        }
    }

    /// Ends a request that was never sent, and is not in the backlog.
    fn fail(&mut self, request: Unsent, cause: Cause) {
        self.fail_with(request, CallError::new(cause, Execution::NeverSent));
    }

    fn fail_with(&mut self, request: Unsent, error: CallError) {
        match request {
            Unsent::Unary(request) => {
                self.records[request.permit.number as usize] = Record::Free;
                self.finish(request.permit, Err(error), None);
            }
            Unsent::Stream(core, mut request) => {
                request.counters.count(self.counters.of(request.spec));
                let mut state = core.lock();
                if state.is_cancelled() {
                    request.counters.drop_one();
                } else {
                    let code = error.code().number();
                    request
                        .counters
                        .end(&self.driver.connections.counters, code);
                }
                let wakers = state.end(StreamEnd::Failed(error));
                drop(state);
                self.wakers.add(wakers.into_iter().flatten());
            }
        }
    }
}
