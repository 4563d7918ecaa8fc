//! A turn visits the connections that have requests or woken handlers, one after the other, as the run
//! queue says (`run_queue.rs`).

use std::time::Instant;

use super::Driver;
use super::link::LinkKey;
use super::request_queue::{Fate, QueuedRequest};
use super::responses::Started;
use super::run_queue::Visit;
use crate::status::Status;
use crate::transport::Transport;

/// Requests that a turn begins, and handlers that it resumes, before it flushes.
pub(super) const CALLS_PER_TURN: u32 = 64;

/// Requests that a visit refuses or answers as expired.
const REFUSALS_PER_VISIT: u32 = 16;

impl<T: Transport> Driver<T> {
    /// Serves the request that is alone, or resumes the handler, if there is one.
    pub(super) fn serve_only(&self) {
        let next = self.state.borrow().run_queue.round.front().copied();
        if next.is_none_or(|link| self.discard_if_ended(link)) {
            return;
        }
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let Some(link) = state.run_queue.round.pop_front() else {
            return;
        };
        if let Some(task) = state.run_queue.take_woken(&mut state.links, link) {
            drop(borrowed);
            return self.resume(task);
        }
        let only = state.run_queue.take_only_request(&mut state.links, link);
        drop(borrowed);
        if let Some(request) = only {
            self.serve(link, &request.header, request.served, request.body);
        }
    }

    /// Serves requests of the connection whose turn it is, until it has used its time. Returns `None`
    /// if there was none to serve.
    pub(super) fn visit_next(&self, now: Instant) -> Option<Visit> {
        self.refuse_late(now);
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let link = state.run_queue.next_visit(&mut state.links, now)?;
        drop(borrowed);
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
            let mut borrowed = self.state.borrow_mut();
            let state = &mut *borrowed;
            if let Some(task) = state.run_queue.take_woken(&mut state.links, link) {
                drop(borrowed);
                self.resume(task);
                visit.begun += 1;
                visit.unmeasured += 1;
                visit.has_resumed = true;
            } else if let Some((request, fate)) =
                state
                    .run_queue
                    .take_request(&mut state.links, link, visit.now)
            {
                drop(borrowed);
                if fate == Fate::Begin {
                    self.serve(link, &request.header, request.served, request.body);
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
        let state = &mut *self.state.borrow_mut();
        state.run_queue.end_visit(&mut state.links, link);
        Some(visit)
    }

    /// Charges a connection for the time since the latest reading of the clock. Returns true if it
    /// has time left.
    fn charge(&self, visit: &mut Visit) -> bool {
        let now = self.clock.now();
        let took = now.saturating_duration_since(visit.now);
        let state = &mut *self.state.borrow_mut();
        let has_time = state.run_queue.charge(&mut state.links, visit, took, now);
        visit.now = now;
        visit.unmeasured = 0;
        visit.has_resumed = false;
        has_time
    }

    /// In an overload of all connections together: refuses late requests of those that have waited
    /// longest.
    fn refuse_late(&self, now: Instant) {
        for _ in 0..REFUSALS_PER_VISIT {
            let mut borrowed = self.state.borrow_mut();
            let state = &mut *borrowed;
            let late = state.run_queue.take_late(&mut state.links, now);
            drop(borrowed);
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
            body,
            ..
        } = request;
        if fate == Fate::Expire {
            return self.serve(link, &header, served, body);
        }
        self.counters.handlers.refused.add(1);
        let state = self.state.borrow();
        let pushback = state.run_queue.pushback(&state.links, link);
        drop(state);
        // Short, and always the same: an overloaded server has no time to spare.
        let status = Status::resource_exhausted("the server is overloaded; the call did not run");
        let started = Started::Not { pushback };
        self.release_request(link, body);
        self.refuse(link, &header, served, status, started);
    }

    /// Discards the requests of a connection that this side has closed, so that no handler runs for
    /// it. Returns true if it has.
    fn discard_if_ended(&self, link: LinkKey) -> bool {
        let state = self.state.borrow();
        if state.links[link].ended.is_none() {
            return false;
        }
        drop(state);
        self.discard_queued(link);
        true
    }
}
