//! A turn visits the connections that have requests or woken handlers, one after the other, as the run
//! queue says (`run_queue.rs`).

use std::time::Instant;

use super::Driver;
use super::link::{Link, LinkKey};
use super::request_queue::{Fate, QueuedRequest};
use super::responses::Started;
use super::run_queue::{TURN_TIME, Visit};
use super::turn::Arrival;
use crate::status::Status;
use crate::transport::{Event, Transport};

/// Events that a poller takes before it visits the next connection.
const EVENTS_PER_LOOK: u32 = 64;

/// Requests that a turn begins, and handlers that it resumes, before it flushes.
const CALLS_PER_TURN: u32 = 64;

/// Turns that took [`TURN_TIME`] until the gauges are updated.
const LONG_TURNS_PER_GAUGE_UPDATE: u64 = 16;

/// Requests that a visit refuses or answers as expired.
const REFUSALS_PER_VISIT: u32 = 16;

impl<T: Transport> Driver<T> {
    /// Serves the requests that wait, and those that arrive meanwhile, one connection after the
    /// other. `first` is the event that this turn has found.
    #[inline(never)]
    pub(super) fn serve_in_turn(&self, first: Option<Event<T::RecvBuf>>) {
        if let Some(event) = first {
            self.receive_or_queue(event);
        }
        let mut begun = 0;
        let mut started: Option<Instant> = None;
        let mut now: Option<Instant> = None;
        loop {
            let has_looked = self.take_events();
            let is_alone = self.state.borrow().run_queue.waiting() < 2;
            if is_alone && started.is_none() {
                self.looked_at.set(None);
                return self.serve_only();
            }
            // The time before this look, or, for the first one, after it.
            let before = now.unwrap_or_else(|| self.clock.now());
            if has_looked {
                self.looked_at.set(Some(before));
            }
            let since = *started.get_or_insert(before);
            if before.saturating_duration_since(since) >= TURN_TIME {
                return self.end_long_turn();
            }
            // None may be left, after a visit that served the last one.
            if begun >= CALLS_PER_TURN || self.state.borrow().run_queue.is_empty() {
                return;
            }
            let visit = self.visit_next(before);
            if !self.state.borrow().bodies.is_empty() {
                // The next polls may read long messages, which takes this thread's time.
                self.state.borrow_mut().links.flush();
            }
            begun += visit.as_ref().map_or(0, |visit| visit.begun);
            now = visit.map(|visit| visit.now);
        }
    }

    /// Ends a turn in which handlers took long: deadlines may have passed, and gauges may be old.
    #[cold]
    fn end_long_turn(&self) {
        self.check_clock_in_this_turn();
        let turns = self.counters.turns.taken.get();
        if turns.is_multiple_of(LONG_TURNS_PER_GAUGE_UPDATE) {
            self.update_gauges();
        }
    }

    /// Takes the events that the transport has. Returns false if there may be more.
    pub(super) fn take_events(&self) -> bool {
        for _ in 0..EVENTS_PER_LOOK {
            // The next events may be about long messages, which can wait: the application, which has
            // its response, often makes the next call.
            if self.block_on_waker.is_woken() && !self.state.borrow().bodies.is_empty() {
                return true;
            }
            let event = self.state.borrow_mut().links.transport.poll();
            // A blocked response is the first to use the slots that this poll freed.
            if event.is_some() && !self.state.borrow().blocked.is_empty() {
                self.retry_blocked_responses();
            }
            let Some(event) = event else {
                return true;
            };
            self.receive_or_queue(event);
        }
        false
    }

    // Always inlined: an event that is passed in memory is moved as a whole, and the processor waits for
    // that until its fields have been stored.
    #[inline(always)]
    fn receive_or_queue(&self, event: Event<T::RecvBuf>) {
        match self.handle(event) {
            Arrival::Handled => {}
            Arrival::Request(link, header, buf) => {
                let served = self.counters.received(header.selector, || self.clock.now());
                let since = self.looked_at.get();
                let mut state = self.state.borrow_mut();
                state.queue_request(
                    link,
                    QueuedRequest {
                        header,
                        served,
                        buf,
                        since,
                    },
                );
            }
            Arrival::Reader(link, task) => self.state.borrow_mut().queue_woken(link, task.0),
        }
    }

    /// Serves the request that is alone, or resumes the handler, if there is one.
    fn serve_only(&self) {
        let next = self.state.borrow().run_queue.round.front().copied();
        if next.is_none_or(|link| self.discard_if_ended(link)) {
            return;
        }
        let mut state = self.state.borrow_mut();
        let Some(link) = state.run_queue.round.pop_front() else {
            return;
        };
        if let Some(task) = state.take_woken(link) {
            drop(state);
            return self.resume(task);
        }
        let only = state.take_only_request(link);
        drop(state);
        if let Some(request) = only {
            self.serve(link, &request.header, request.served, request.buf);
        }
    }

    /// Serves requests of the connection whose turn it is, until it has used its time. Returns `None`
    /// if there was none to serve.
    fn visit_next(&self, now: Instant) -> Option<Visit> {
        self.refuse_late(now);
        let link = self.state.borrow_mut().next_visit(now)?;
        if self.discard_if_ended(link) {
            return None;
        }
        let mut visit = Visit {
            link,
            began_at: now,
            now,
            begun: 0,
            unmeasured: 0,
            has_resumed: false,
            refused: 0,
        };
        while visit.refused < REFUSALS_PER_VISIT && visit.begun < CALLS_PER_TURN {
            let mut state = self.state.borrow_mut();
            if let Some(task) = state.take_woken(link) {
                drop(state);
                self.resume(task);
                visit.begun += 1;
                visit.unmeasured += 1;
                visit.has_resumed = true;
            } else if let Some((request, fate)) = state.take_request(link, visit.now) {
                drop(state);
                if fate == Fate::Begin {
                    self.serve(link, &request.header, request.served, request.buf);
                    visit.begun += 1;
                    visit.unmeasured += 1;
                } else {
                    visit.refused += 1;
                    self.refuse_queued(link, request, fate);
                }
            } else {
                break;
            }
            let readings = self.state.borrow().run_queue.calls_per_reading(visit.now);
            if visit.unmeasured >= readings && !self.charge(&mut visit) {
                break;
            }
        }
        self.charge(&mut visit);
        self.state.borrow_mut().end_visit(link);
        Some(visit)
    }

    /// Charges a connection for the time since the latest reading of the clock. Returns true if it
    /// has time left.
    fn charge(&self, visit: &mut Visit) -> bool {
        let now = self.clock.now();
        let took = now.saturating_duration_since(visit.now);
        let has_time = self.state.borrow_mut().charge(visit, took, now);
        visit.now = now;
        visit.unmeasured = 0;
        visit.has_resumed = false;
        has_time
    }

    /// In an overload of all connections together: refuses late requests of those that have waited
    /// longest.
    fn refuse_late(&self, now: Instant) {
        for _ in 0..REFUSALS_PER_VISIT {
            let late = self.state.borrow_mut().take_late(now);
            let Some((link, request, fate)) = late else {
                return;
            };
            self.refuse_queued(link, request, fate);
        }
    }

    /// Answers a request that is not worth beginning, or that has expired.
    #[cold]
    fn refuse_queued(&self, link: LinkKey, request: QueuedRequest<T::RecvBuf>, fate: Fate) {
        let QueuedRequest {
            header,
            served,
            buf,
            ..
        } = request;
        if fate == Fate::Expire {
            return self.serve(link, &header, served, buf);
        }
        self.counters.handlers.refused.add(1);
        let pushback = self.state.borrow().pushback(link);
        // Short, and always the same: an overloaded server has no time to spare.
        let status = Status::resource_exhausted("the server is overloaded; the call did not run");
        let started = Started::Not { pushback };
        self.refuse(link, &header, served, buf, status, started);
    }

    /// Discards the requests of a connection that this side has closed, so that no handler runs for
    /// it. Returns true if it has.
    fn discard_if_ended(&self, link: LinkKey) -> bool {
        let state = self.state.borrow();
        let is_up = |link: &Link<_>| link.ended.is_none();
        if state.links.table.get(link).is_some_and(is_up) {
            return false;
        }
        drop(state);
        self.discard_queued(link);
        true
    }

    /// Discards the requests that wait on a connection that has ended.
    pub(super) fn discard_queued(&self, link: LinkKey) {
        let (discarded, woken) = self.state.borrow_mut().take_requests_of(link);
        for task in woken {
            // The task may have ended meanwhile, and its number may be another connection's.
            let other = self.tasks.borrow_mut().forget_wake(task, link);
            if let Some(other) = other {
                self.state.borrow_mut().queue_woken(other, task);
            }
        }
        for request in discarded {
            self.counters.dropped(request.served.method);
            self.state.borrow_mut().links.release_slot(request.buf);
        }
    }
}
