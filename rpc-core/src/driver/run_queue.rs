//! [`RunQueue`]: the order in which a poller begins the requests that it has received.
//!
//! Requests that arrive together wait in their connection's queue ([`RequestQueue`]), in their
//! receive slots, and the connections take turns: deficit round robin (Shreedhar and Varghese,
//! "Efficient fair queueing using deficit round robin"), in units of the poller's time. In each
//! round, a connection may use a quantum; what it uses beyond that, it lacks in the next rounds. So
//! a connection with many calls in flight gets as much of the poller as one with a single call, and
//! no more, whatever their calls cost.
//!
//! A request in the queue holds its slot. The slot belongs to the connection's window: it was
//! promised to the client, and is promised again only when it is released. So the sum of all
//! promises, which the receives have to cover, does not change when requests wait.
//!
//! The clock is read once for each visit to a connection, and not at all for a request that is
//! alone.
//!
//! [`RequestQueue`]: super::request_queue::RequestQueue

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::link::{Link, LinkKey};
use super::request_queue::{Look, QueuedRequest, Taken};
use super::responses::Started;
use super::{Driver, State};
use crate::status::Status;
use crate::transport::{Event, Transport};

/// Events that a poller takes before it visits the next connection.
const EVENTS_PER_LOOK: u32 = 64;

/// Requests that a turn begins before it flushes, and the time after which it flushes.
const REQUESTS_PER_TURN: u32 = 64;
const TURN_TIME: Duration = Duration::from_micros(200);

/// Requests that a visit begins, and requests that it refuses or answers as expired.
const REQUESTS_PER_VISIT: u32 = 8;
const REFUSALS_PER_VISIT: u32 = 16;

/// The least time that a connection may use in a round. Many short calls share a reading of the
/// clock.
const QUANTUM: Duration = Duration::from_micros(20);

/// The most time that a connection can lack, so that one slow call does not shut it out for long.
const LONGEST_DEBT: Duration = Duration::from_millis(10);

/// Rounds that may pass until a connection has time again. If all of them lack more, after calls that
/// were much slower than the ones before, the first one is served.
const MOST_ROUNDS: u32 = 4;

/// The longest pushback.
const LONGEST_PUSHBACK: Duration = Duration::from_secs(1);

/// The connections with requests that wait, in the order of their turns.
#[derive(Debug, Default)]
pub(super) struct RunQueue {
    round: VecDeque<LinkKey>,
    /// The number of requests that wait, on all connections.
    len: usize,
    /// The time that a call takes: an average over the latest calls of all connections.
    service: Duration,
}

/// What a visit did.
struct Visit {
    link: LinkKey,
    began: u32,
}

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
        loop {
            self.take_events();
            let is_alone = self.state.borrow().run_queue.len < 2;
            if is_alone && started.is_none() {
                self.looked_at.set(None);
                return self.serve_only();
            }
            let now = self.clock.now();
            self.looked_at.set(Some(now));
            if is_alone {
                return self.serve_only();
            }
            let since = *started.get_or_insert(now);
            let took = now.saturating_duration_since(since);
            if begun >= REQUESTS_PER_TURN || took >= TURN_TIME {
                if took >= TURN_TIME {
                    self.check_clock_in_this_turn();
                }
                return;
            }
            begun += self.visit_next(now);
        }
    }

    /// Takes the events that the transport has, up to a limit.
    fn take_events(&self) {
        for _ in 0..EVENTS_PER_LOOK {
            let mut state = self.state.borrow_mut();
            // A blocked response is the first to use the slots that the next poll frees.
            if !state.blocked.is_empty() {
                return;
            }
            let Some(event) = state.transport.poll() else {
                return;
            };
            drop(state);
            self.receive_or_queue(event);
        }
    }

    fn receive_or_queue(&self, event: Event<T::RecvBuf>) {
        if let Some((link, header, buf)) = self.handle(event) {
            let served = self.counters.received(header.selector, || self.clock.now());
            let request = QueuedRequest {
                header,
                served,
                buf,
                since: self.looked_at.get(),
            };
            self.state.borrow_mut().queue_request(link, request);
        }
    }

    /// Serves the request that is alone, if there is one.
    fn serve_only(&self) {
        let next = self.state.borrow().run_queue.round.front().copied();
        if next.is_none_or(|link| self.discard_if_ended(link)) {
            return;
        }
        let only = self.state.borrow_mut().take_only_request();
        let Some((link, request)) = only else {
            return;
        };
        self.serve(link, &request.header, request.served, request.buf);
    }

    /// Serves requests of the connection whose turn it is. Returns how many were begun.
    fn visit_next(&self, now: Instant) -> u32 {
        let next = self.state.borrow_mut().next_visit(now);
        let Some(link) = next else {
            return 0;
        };
        if self.discard_if_ended(link) {
            return 0;
        }
        let mut visit = Visit { link, began: 0 };
        let most = self.state.borrow().requests_per_visit(link);
        let mut refused = 0;
        while visit.began < most && refused < REFUSALS_PER_VISIT {
            let mut state = self.state.borrow_mut();
            let Some(taken) = state.take_request(link, now) else {
                break;
            };
            drop(state);
            match taken {
                Taken::Begin(request) => {
                    visit.began += 1;
                    self.serve(link, &request.header, request.served, request.buf);
                }
                Taken::Expire(request) => {
                    refused += 1;
                    self.serve(link, &request.header, request.served, request.buf);
                }
                Taken::Refuse(request) => {
                    refused += 1;
                    self.refuse_queued(link, request);
                }
            }
        }
        let end = self.clock.now();
        self.state.borrow_mut().end_visit(&visit, now, end);
        visit.began
    }

    /// Answers a request that is not worth beginning.
    #[cold]
    fn refuse_queued(&self, link: LinkKey, request: QueuedRequest<T::RecvBuf>) {
        self.counters.handlers.refused.add(1);
        let pushback = self.state.borrow().pushback(link);
        // Short, and always the same: an overloaded server has no time to spare.
        let status = Status::resource_exhausted("the server is overloaded; the call did not run");
        let QueuedRequest {
            header,
            served,
            buf,
            ..
        } = request;
        let started = Started::Not { pushback };
        self.refuse(link, &header, served, buf, status, started);
    }

    /// Discards the requests of a connection that this side has closed, so that no handler runs for
    /// it. Returns true if it has.
    fn discard_if_ended(&self, link: LinkKey) -> bool {
        let state = self.state.borrow();
        let is_up = |link: &Link<_>| link.ended.is_none();
        if state.links.get(link.index()).is_some_and(is_up) {
            return false;
        }
        drop(state);
        self.discard_queued(link);
        true
    }

    /// Discards the requests that wait on a connection that has ended.
    pub(super) fn discard_queued(&self, link: LinkKey) {
        let discarded = self.state.borrow_mut().take_requests_of(link);
        for request in discarded {
            self.counters.dropped(request.served.method);
            self.state.borrow_mut().transport.release(request.buf);
        }
    }
}

impl<T: Transport> State<T> {
    fn queue_request(&mut self, link: LinkKey, request: QueuedRequest<T::RecvBuf>) {
        // The event came from this link.
        if self.links[link.index()].requests.push(request) {
            self.run_queue.round.push_back(link);
        }
        self.run_queue.len += 1;
    }

    fn take_only_request(&mut self) -> Option<(LinkKey, QueuedRequest<T::RecvBuf>)> {
        let link = self.run_queue.round.pop_front()?;
        let request = self.links[link.index()].requests.pop_only()?;
        self.run_queue.len -= 1;
        Some((link, request))
    }

    /// Begins the turn of the next connection that has time left.
    fn next_visit(&mut self, now: Instant) -> Option<LinkKey> {
        let quantum = QUANTUM.max(self.run_queue.service).as_nanos() as i64;
        let mut rounds = MOST_ROUNDS;
        let first = *self.run_queue.round.front()?;
        loop {
            let link = *self.run_queue.round.front()?;
            let requests = &mut self.links[link.index()].requests;
            // A connection keeps the rest of one round, which did not suffice for a call, but does
            // not save up more.
            requests.deficit_ns = (requests.deficit_ns + quantum).min(2 * quantum);
            // A connection that is alone takes time from nobody.
            if requests.deficit_ns > 0 || self.run_queue.round.len() == 1 || rounds == 0 {
                requests.look(Look {
                    now,
                    clock: &self.clock,
                });
                return Some(link);
            }
            self.run_queue.round.rotate_left(1);
            if self.run_queue.round.front() == Some(&first) {
                rounds -= 1;
            }
        }
    }

    /// Returns how many requests a visit begins: as many as fit into the time that the connection
    /// has, and one if that is not known.
    fn requests_per_visit(&self, link: LinkKey) -> u32 {
        let Some(Link { requests, .. }) = self.links.get(link.index()) else {
            return 0;
        };
        let service = requests.service().as_nanos() as i64;
        let fits = requests.deficit_ns.checked_div(service).unwrap_or(1);
        fits.clamp(1, REQUESTS_PER_VISIT.into()) as u32
    }

    fn take_request(&mut self, link: LinkKey, now: Instant) -> Option<Taken<T::RecvBuf>> {
        let look = Look {
            now,
            clock: &self.clock,
        };
        // A handler may have closed the connection.
        let taken = self.links.get_mut(link.index())?.requests.take(look)?;
        self.run_queue.len -= 1;
        Some(taken)
    }

    /// Ends the turn of a connection, and charges it for the time that it took.
    fn end_visit(&mut self, visit: &Visit, began_at: Instant, ended_at: Instant) {
        let took = ended_at.saturating_duration_since(began_at);
        let each = took.checked_div(visit.began);
        if let Some(each) = each {
            self.run_queue.service = average(self.run_queue.service, each);
        }
        if self.run_queue.round.front() != Some(&visit.link) {
            // The connection ended in its turn.
            return;
        }
        let requests = &mut self.links[visit.link.index()].requests;
        if let Some(each) = each {
            requests.measured(each, ended_at);
        }
        if requests.len() == 0 {
            self.run_queue.round.pop_front();
        } else {
            let debt = LONGEST_DEBT.as_nanos() as i64;
            requests.deficit_ns = (requests.deficit_ns - took.as_nanos() as i64).max(-debt);
            self.run_queue.round.rotate_left(1);
        }
    }

    /// Returns how long a client should wait before it sends again: until the requests that wait on
    /// its connection are served, while the other connections take their turns.
    fn pushback(&self, link: LinkKey) -> Duration {
        let Some(Link { requests, .. }) = self.links.get(link.index()) else {
            return Duration::ZERO;
        };
        let waiting = requests.len();
        let rounds = u32::try_from(waiting + 1).unwrap_or(u32::MAX);
        let turns = u32::try_from(self.run_queue.round.len()).unwrap_or(u32::MAX);
        let service = requests.service().min(LONGEST_PUSHBACK);
        service
            .saturating_mul(rounds)
            .saturating_mul(turns)
            .min(LONGEST_PUSHBACK)
    }

    fn take_requests_of(&mut self, link: LinkKey) -> VecDeque<QueuedRequest<T::RecvBuf>> {
        let Some(entry) = self.links.get_mut(link.index()) else {
            return VecDeque::new();
        };
        let requests = entry.requests.take_all();
        if !requests.is_empty() {
            self.run_queue.len -= requests.len();
            self.run_queue.round.retain(|waiting| *waiting != link);
        }
        requests
    }
}

impl RunQueue {
    /// Returns the number of requests that wait.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Adds a value to an average over about eight.
fn average(before: Duration, value: Duration) -> Duration {
    if before.is_zero() {
        return value;
    }
    (before * 7 + value) / 8
}
