//! [`RequestQueue`]: the requests of one connection that have been received and not begun, and the
//! rule that decides which of them are worth beginning.
//!
//! # The rule
//!
//! A queue that is long for a moment absorbs a burst; a queue that stays long only makes all calls
//! late, and the server then works for callers that have given up. As in CoDel (RFC 8289), the
//! measure is therefore the *sojourn* of the request that has waited longest, and there is an
//! overload once that has been too long for an [`INTERVAL`] without a break. CoDel's target is a
//! constant. Here the callers say how long is too long: a request is *late* when it has waited for
//! longer than the time that is left until its deadline. Nothing has to be tuned, whether calls
//! take microseconds or seconds. Each connection is judged by itself, and all of them together
//! (`run_queue.rs`).
//!
//! * Without an overload, the oldest request is begun first.
//! * In an overload, the newest is begun first: it has the best chance to be answered in time. Late
//!   requests are refused at once, so that their callers can still try elsewhere, and no slot, no
//!   credit and no place among the calls in flight is held by a call that cannot succeed.
//! * An overload ends when the queue is empty, or so short that all of it would be begun within half
//!   of the time that the oldest request has left.
//! * In any case, a request with less time left than a call takes at the moment, and half of that
//!   for the way back, is refused. The measure is the shorter of the two latest calls, so that a
//!   single slow call does not shut out short ones. It is forgotten after [`MEMORY`], and after
//!   [`MOST_REFUSALS`] in a row one request is begun nevertheless.
//!
//! A call without a deadline is never late, so that a client without deadlines that keeps many calls
//! in flight does not overload a server. In an overload, it counts as one that may take
//! [`UNLIMITED`].
//!
//! The sojourn is counted from the latest look that did not find the request, or, for those that the
//! first look of a busy stretch finds, from that look. A sender cannot make it shorter: a false
//! deadline only affects the calls of its own connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::body::Body;
use crate::clock::Clock;
use crate::protocol::frame::{CallId, Flags, FrameHeader};
use crate::stats::ServedCall;

/// How long requests have to be late without a break until there is an overload: CoDel's interval. A
/// burst that a server works off within this time is not an overload.
const INTERVAL: Duration = Duration::from_millis(100);

/// Looks that have to find a late request until there is an overload: one handler that blocked the
/// poller for longer than the interval is not an overload.
const LEAST_LOOKS: u32 = 4;

/// The time that a call without a deadline may take in an overload.
const UNLIMITED: Duration = Duration::from_secs(1);

/// How long the time that a call takes is remembered.
const MEMORY: Duration = Duration::from_millis(100);

/// Requests in a row that are refused because of the time that a call takes.
const MOST_REFUSALS: u32 = 16;

/// A request that has been received and not begun.
#[derive(Debug)]
pub(super) struct QueuedRequest<B> {
    pub(super) header: FrameHeader,
    pub(super) served: ServedCall,
    pub(super) body: Body<B>,
    /// The time before the latest look that did not find the request; `None` if the first look of a
    /// busy stretch found it.
    pub(super) since: Option<Instant>,
}

/// What becomes of a request that is taken out of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Begin,
    /// Its deadline has passed.
    Expire,
    Refuse,
}

/// The time at which a poller looks at a queue, and what it knows then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'a> {
    pub(super) now: Instant,
    /// The first reading of the clock in this busy stretch.
    pub(super) first: Instant,
    /// Converts a deadline from the wire.
    pub(super) clock: &'a Clock,
}

/// Whether requests have been late for so long that there is an overload.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    since: Option<Instant>,
    looks: u32,
    is_overload: bool,
}

/// The time that a call takes at the moment.
#[derive(Debug, Default)]
pub(super) struct ServiceTime {
    latest: [Duration; 2],
    measured_at: Option<Instant>,
    /// Requests in a row that were refused because of it.
    refusals: u32,
}

/// The requests of one connection.
#[derive(Debug)]
pub(super) struct RequestQueue<B> {
    /// Oldest first.
    requests: VecDeque<QueuedRequest<B>>,
    /// Tasks of handlers that have been woken and not polled yet, oldest first.
    woken: VecDeque<u32>,
    /// Nanoseconds of the poller's time that this connection may still use in this round; negative
    /// if it has used more.
    pub(super) deficit_ns: i64,
    lateness: Lateness,
}

impl<B> Default for RequestQueue<B> {
    fn default() -> Self {
        Self {
            requests: VecDeque::new(),
            woken: VecDeque::new(),
            deficit_ns: 0,
            lateness: Lateness::default(),
        }
    }
}

impl Lateness {
    pub(super) fn is_overload(&self) -> bool {
        self.is_overload
    }

    /// Notes whether the oldest request is late. `is_short` is true if the queue is so short that
    /// an overload is over.
    pub(super) fn note(&mut self, is_late: bool, is_short: bool, now: Instant) {
        if !is_late {
            self.since = None;
            self.looks = 0;
            self.is_overload &= !is_short;
            return;
        }
        let since = *self.since.get_or_insert(now);
        self.looks = self.looks.saturating_add(1);
        self.is_overload |=
            self.looks >= LEAST_LOOKS && now.saturating_duration_since(since) >= INTERVAL;
    }
}

impl ServiceTime {
    /// Records the time that a call took.
    pub(super) fn measured(&mut self, took: Duration, now: Instant) {
        self.latest = [self.latest[1], took];
        self.measured_at = Some(now);
    }

    /// Returns the time that a call takes; zero if that is not known.
    pub(super) fn get(&self, now: Instant) -> Duration {
        let is_fresh = |at| now.saturating_duration_since(at) < MEMORY;
        if self.measured_at.is_some_and(is_fresh) {
            self.latest[0].min(self.latest[1])
        } else {
            Duration::ZERO
        }
    }

    /// Returns true if `left` does not suffice for a call and its response.
    fn is_too_little(&mut self, left: Duration, now: Instant) -> bool {
        let is_too_little = left < self.get(now) * 3 / 2 && self.refusals < MOST_REFUSALS;
        self.refusals = if is_too_little { self.refusals + 1 } else { 0 };
        is_too_little
    }
}

impl<B> RequestQueue<B> {
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_overloaded(&self) -> bool {
        self.lateness.is_overload
    }

    /// Returns true if no request and no woken task waits.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.woken.is_empty()
    }

    /// Adds a request that has arrived.
    pub(super) fn push(&mut self, request: QueuedRequest<B>) {
        self.requests.push_back(request);
    }

    /// Adds the task of a handler that has been woken.
    pub(super) fn push_woken(&mut self, task: u32) {
        self.woken.push_back(task);
    }

    /// Takes the task that was woken first. A handler that has begun comes before requests.
    pub(super) fn take_woken(&mut self) -> Option<u32> {
        self.woken.pop_front()
    }

    /// Takes all woken tasks.
    pub(super) fn take_all_woken(&mut self) -> VecDeque<u32> {
        std::mem::take(&mut self.woken)
    }

    /// Takes the only request of the queue.
    pub(super) fn pop_only(&mut self) -> Option<QueuedRequest<B>> {
        self.lateness = Lateness::default();
        self.requests.pop_front()
    }

    /// Looks at the queue, whose requests are each begun after `turn`. Returns whether the oldest one
    /// is late, and the time that it has left; `None` if it has no deadline.
    pub(super) fn look(&mut self, look: Look<'_>, turn: Duration) -> Option<(bool, Duration)> {
        let oldest = self.requests.front()?;
        let left = oldest.left(look)?;
        let is_late = oldest.is_late(look);
        let len = u32::try_from(self.requests.len()).unwrap_or(u32::MAX);
        let is_short = turn.saturating_mul(2).saturating_mul(len) < left;
        self.lateness.note(is_late, is_short, look.now);
        Some((is_late, left))
    }

    /// Takes the next request, and decides what becomes of it. `is_overload` is true if all
    /// connections together are in an overload.
    // Inlined, so that the request is read where it lies in the queue.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        look: Look<'_>,
        is_overload: bool,
        service: &mut ServiceTime,
    ) -> Option<(QueuedRequest<B>, Fate)> {
        let is_overload = is_overload || self.lateness.is_overload;
        let has_others = self.requests.len() > 1;
        let sheds = is_overload && has_others && self.requests.front()?.is_late(look);
        let is_newest = is_overload && !sheds;
        let next = match is_newest {
            true => self.requests.back()?,
            false => self.requests.front()?,
        };
        let fate = match next.left(look) {
            Some(Duration::ZERO) => Fate::Expire,
            _ if sheds => Fate::Refuse,
            Some(left) if service.is_too_little(left, look.now) => Fate::Refuse,
            _ => Fate::Begin,
        };
        let taken = match is_newest {
            true => self.requests.pop_back()?,
            false => self.requests.pop_front()?,
        };
        if !has_others {
            self.lateness = Lateness::default();
        }
        Some((taken, fate))
    }

    /// Takes the oldest request if it is late.
    pub(super) fn take_late(&mut self, look: Look<'_>) -> Option<(QueuedRequest<B>, Fate)> {
        if !self.requests.front()?.is_late(look) {
            return None;
        }
        let late = self.requests.pop_front()?;
        let fate = match late.left(look) {
            Some(Duration::ZERO) => Fate::Expire,
            _ => Fate::Refuse,
        };
        Some((late, fate))
    }

    /// Returns true if the request of a call waits.
    pub(super) fn contains(&self, call: CallId) -> bool {
        let mut requests = self.requests.iter();
        requests.any(|request| request.header.call == call)
    }

    /// Takes the request of a call that is to end, with these flags. A peer may use a number twice.
    pub(super) fn take_call(&mut self, call: CallId, flags: Flags) -> Option<QueuedRequest<B>> {
        let mut requests = self.requests.iter().map(|request| &request.header);
        let is_it = |header: &FrameHeader| header.call == call && header.flags.contains(flags);
        let index = requests.position(is_it)?;
        self.requests.remove(index)
    }

    /// Takes all requests, because the connection has ended.
    pub(super) fn take_all(&mut self) -> VecDeque<QueuedRequest<B>> {
        self.lateness = Lateness::default();
        std::mem::take(&mut self.requests)
    }

    /// Returns the number of requests and woken tasks that wait.
    #[cfg(debug_assertions)]
    pub(super) fn waiting(&self) -> usize {
        self.requests.len() + self.woken.len()
    }
}

impl<B> QueuedRequest<B> {
    /// Returns the time until the deadline: zero if it has passed, `None` if there is none.
    fn left(&self, look: Look<'_>) -> Option<Duration> {
        let deadline_us = self.header.time_us;
        (deadline_us != 0).then(|| look.clock.deadline_of(deadline_us, look.now) - look.now)
    }

    fn sojourn(&self, look: Look<'_>) -> Duration {
        let since = self.since.unwrap_or(look.first);
        look.now.saturating_duration_since(since)
    }

    /// Returns true if the request has waited for longer than the time that is left for it.
    fn is_late(&self, look: Look<'_>) -> bool {
        let sojourn = self.sojourn(look);
        let left = self.left(look);
        sojourn > left.unwrap_or_else(|| UNLIMITED.saturating_sub(sojourn))
    }
}
