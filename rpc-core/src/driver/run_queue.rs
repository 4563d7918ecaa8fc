//! [`RunQueue`]: the order in which a poller begins the requests that it has received.
//!
//! Requests that arrive together wait in their connection's queue ([`RequestQueue`]), in their
//! receive slots, and so do the tasks of handlers that have been woken together (`serving.rs`): by
//! messages of their streams, or by anything else. The connections take turns: deficit round robin
//! (Shreedhar and Varghese, "Efficient fair queueing using deficit round robin"), in units of the
//! poller's time. In each round, a connection may use a quantum. A connection that uses more owes the
//! difference in the next rounds, even if it sends nothing for a while. So a connection with many calls
//! in flight gets as much of the poller as one with a single call, and no more, whatever their calls
//! cost.
//!
//! A request in the queue holds its slot. The slot belongs to the connection's window: it was
//! promised to the client, and is promised again only when it is released. So the sum of all
//! promises, which the receives have to cover, does not change when requests wait.
//!
//! Connections with few requests each may overload a poller together. It then serves the connection
//! whose request came last, and refuses the late requests of those that have waited longest.
//!
//! The clock is read after each call, or after a few short ones, and not at all for a request that
//! is alone.
//!
//! [`RequestQueue`]: super::request_queue::RequestQueue

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::link::LinkKey;
use super::links::Links;
use super::request_queue::{Fate, Lateness, Look, QueuedRequest, ServiceTime};
use crate::clock::Clock;
use crate::protocol::frame::{CallId, Flags};
use crate::transport::Transport;

/// The time after which a turn flushes.
pub(super) const TURN_TIME: Duration = Duration::from_micros(200);

/// Calls between two readings of the clock, if they are short.
const CALLS_PER_READING: u32 = 8;
const SHORT_CALL: Duration = Duration::from_micros(5);

/// The least time that a connection may use in a round.
const QUANTUM: Duration = Duration::from_micros(20);

/// The most time that a connection can owe, unless a single call took longer.
const LONGEST_DEBT: Duration = Duration::from_millis(10);

/// Rounds in which to look for a connection that owes no time. If each of them owes more than that,
/// because its calls were much slower than the calls before, the next one is served.
const MOST_ROUNDS: u32 = 4;

/// The longest pushback.
const LONGEST_PUSHBACK: Duration = Duration::from_secs(1);

/// The connections with requests, or woken handlers, that wait.
#[derive(Debug, Default)]
pub(super) struct RunQueue {
    /// In the order of their turns; those whose requests came last are at the back.
    pub(super) round: VecDeque<LinkKey>,
    /// The number of requests that wait, on all connections.
    len: usize,
    /// The number of woken tasks that wait.
    woken: usize,
    service: ServiceTime,
    /// The time that a call takes, as an average over about eight.
    average: Duration,
    /// The first reading of the clock since the queue was empty.
    first_reading: Option<Instant>,
    /// Of all connections together.
    pub(super) lateness: Lateness,
}

/// A connection's turn.
pub(super) struct Visit {
    pub(super) link: LinkKey,
    pub(super) began_at: Instant,
    /// The latest reading of the clock.
    pub(super) now: Instant,
    pub(super) begun: u32,
    /// Of these, calls since the latest reading.
    pub(super) unmeasured: u32,
    /// Since the latest reading, a handler was resumed. The time that a call takes is then unknown.
    pub(super) has_resumed: bool,
    pub(super) refused: u32,
}

impl RunQueue {
    pub(super) fn queue_request<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        request: QueuedRequest<T::RecvBuf>,
    ) {
        // The event came from this link.
        let requests = &mut links.table[link].requests;
        if requests.is_idle() {
            self.round.push_back(link);
        }
        requests.push(request);
        self.len += 1;
    }

    /// Queues the task of a handler that has been woken.
    pub(super) fn queue_woken<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        task: u32,
    ) {
        let requests = &mut links[link].requests;
        if requests.is_idle() {
            self.round.push_back(link);
        }
        requests.push_woken(task);
        self.woken += 1;
    }

    pub(super) fn take_woken<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
    ) -> Option<u32> {
        if self.woken == 0 {
            return None;
        }
        let task = links[link].requests.take_woken()?;
        self.woken -= 1;
        Some(task)
    }

    /// Takes the only request that waits.
    pub(super) fn take_only_request<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
    ) -> Option<QueuedRequest<T::RecvBuf>> {
        let request = links[link].requests.pop_only()?;
        self.took_one();
        Some(request)
    }

    /// Begins the turn of the next connection that has time left.
    pub(super) fn next_visit<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        now: Instant,
    ) -> Option<LinkKey> {
        let quantum = QUANTUM.max(self.average).as_nanos() as i64;
        let look = self.look(now, &links.clock);
        let mut rounds = MOST_ROUNDS;
        let first = self.next()?;
        loop {
            let link = self.next()?;
            let requests = &mut links.table[link].requests;
            // A connection keeps the rest of one round, which did not suffice for a call, but does
            // not save up more.
            requests.deficit_ns = (requests.deficit_ns + quantum).min(2 * quantum);
            // A connection that is alone takes time from nobody.
            if requests.deficit_ns > 0 || self.round.len() == 1 || rounds == 0 {
                let service = self.service.get(now);
                let others = u32::try_from(self.round.len()).unwrap_or(u32::MAX);
                if let Some((is_late, left)) = requests.look(look, service.saturating_mul(others)) {
                    let all = u32::try_from(self.len).unwrap_or(u32::MAX);
                    let is_short = service.saturating_mul(2).saturating_mul(all) < left;
                    self.lateness.note(is_late, is_short, now);
                }
                return Some(link);
            }
            self.rotate();
            if self.next() == Some(first) {
                rounds -= 1;
            }
        }
    }

    #[inline(always)]
    pub(super) fn take_request<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        now: Instant,
    ) -> Option<(QueuedRequest<T::RecvBuf>, Fate)> {
        let look = self.look(now, &links.clock);
        let is_overload = self.lateness.is_overload();
        // A handler may have closed the connection.
        let requests = &mut links.table[link].requests;
        let taken = requests.take(look, is_overload, &mut self.service)?;
        self.took_one();
        Some(taken)
    }

    /// Takes a late request of the connection that has waited longest, in an overload.
    pub(super) fn take_late<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        now: Instant,
    ) -> Option<(LinkKey, QueuedRequest<T::RecvBuf>, Fate)> {
        if !self.lateness.is_overload() || self.round.len() < 2 {
            return None;
        }
        let look = self.look(now, &links.clock);
        let link = *self.round.front()?;
        let requests = &mut links.table[link].requests;
        let (request, fate) = requests.take_late(look)?;
        if requests.is_idle() {
            self.round.pop_front();
        }
        self.took_one();
        Some((link, request, fate))
    }

    /// Charges a connection for time of the poller. Returns true if it has time left.
    pub(super) fn charge<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        visit: &Visit,
        took: Duration,
        now: Instant,
    ) -> bool {
        let each = took.checked_div(visit.unmeasured);
        if let Some(each) = each.filter(|_| !visit.has_resumed) {
            self.service.measured(each, now);
            self.average = average(self.average, each);
        }
        let is_alone = self.round.len() < 2;
        let requests = &mut links[visit.link].requests;
        if is_alone {
            // It takes time from nobody, until others arrive.
            return now.saturating_duration_since(visit.began_at) < TURN_TIME;
        }
        let debt = LONGEST_DEBT.max(took).as_nanos() as i64;
        requests.deficit_ns = (requests.deficit_ns - took.as_nanos() as i64).max(-debt);
        requests.deficit_ns > 0
    }

    /// Ends the turn of a connection.
    pub(super) fn end_visit<T: Transport>(&mut self, links: &mut Links<T>, link: LinkKey) {
        let requests = &mut links[link].requests;
        if requests.is_idle() {
            // It keeps what it owes, and nothing else.
            requests.deficit_ns = requests.deficit_ns.min(0);
            self.remove(link);
        } else if self.next() == Some(link) {
            self.rotate();
        }
    }

    /// Returns how long a client should wait before it sends again: in an overload, until the
    /// requests that wait on its connection are served, while the other connections take their
    /// turns. A request with too little time is no reason to keep others away.
    pub(super) fn pushback<T: Transport>(&self, links: &Links<T>, link: LinkKey) -> Duration {
        let requests = &links[link].requests;
        if !(self.lateness.is_overload() || requests.is_overloaded()) {
            return Duration::ZERO;
        }
        let calls = u32::try_from(requests.len() + 1).unwrap_or(u32::MAX);
        let turns = u32::try_from(self.round.len().max(1)).unwrap_or(u32::MAX);
        let each = self.average.min(LONGEST_PUSHBACK);
        each.saturating_mul(calls)
            .saturating_mul(turns)
            .min(LONGEST_PUSHBACK)
    }

    pub(super) fn take_requests_of<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
    ) -> (VecDeque<QueuedRequest<T::RecvBuf>>, VecDeque<u32>) {
        let entry = &mut links[link];
        let requests = entry.requests.take_all();
        let woken = entry.requests.take_all_woken();
        self.woken -= woken.len();
        for _ in &requests {
            self.took_one();
        }
        self.remove(link);
        (requests, woken)
    }

    /// Takes the request of a call whose handler is not to begin, if one with these flags waits for its
    /// turn.
    pub(super) fn take_queued<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        call: CallId,
        flags: Flags,
    ) -> Option<QueuedRequest<T::RecvBuf>> {
        let requests = &mut links[link].requests;
        let request = requests.take_call(call, flags)?;
        if requests.is_idle() {
            self.remove(link);
        }
        self.took_one();
        Some(request)
    }
}

impl RunQueue {
    /// Returns the number of requests that wait.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of requests and woken tasks that wait.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.len + self.woken
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting() == 0
    }

    /// Returns the connection whose turn it is.
    fn next(&self) -> Option<LinkKey> {
        if self.lateness.is_overload() {
            self.round.back().copied()
        } else {
            self.round.front().copied()
        }
    }

    /// Ends the turn of the connection whose turn it is.
    fn rotate(&mut self) {
        if self.lateness.is_overload() {
            self.round.rotate_right(1);
        } else {
            self.round.rotate_left(1);
        }
    }

    pub(super) fn remove(&mut self, link: LinkKey) {
        if self.round.front() == Some(&link) {
            self.round.pop_front();
        } else if self.round.back() == Some(&link) {
            self.round.pop_back();
        } else {
            self.round.retain(|waiting| *waiting != link);
        }
    }

    /// Counts a request that has left the queue.
    pub(super) fn took_one(&mut self) {
        self.len -= 1;
        if self.len == 0 {
            self.first_reading = None;
            self.lateness = Lateness::default();
        }
    }

    fn look<'a>(&mut self, now: Instant, clock: &'a Clock) -> Look<'a> {
        let first = *self.first_reading.get_or_insert(now);
        Look { now, first, clock }
    }

    /// Returns after how many calls the clock is read.
    pub(super) fn calls_per_reading(&self, now: Instant) -> u32 {
        let service = self.service.get(now);
        if service.is_zero() || service > SHORT_CALL {
            1
        } else {
            CALLS_PER_READING
        }
    }
}

/// Adds a value to an average over about eight.
fn average(before: Duration, value: Duration) -> Duration {
    if before.is_zero() {
        return value;
    }
    (before * 7 + value) / 8
}
