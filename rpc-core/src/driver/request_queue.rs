//! [`RequestQueue`]: the requests of one connection that have been received and not begun, and the
//! rule that decides which of them are worth beginning.
//!
//! # The rule
//!
//! A queue that is long for a moment absorbs a burst; a queue that stays long only makes all calls
//! late, and the server then works for callers that have given up. As in CoDel (RFC 8289), the
//! measure is therefore the *sojourn* of the request that has waited longest, and the queue is
//! overloaded once that has been too long for an [`INTERVAL`] without a break. CoDel's target is a
//! constant. Here the callers say how long is too long: a request is *late* when it has waited for
//! longer than the time that is left until its deadline. Nothing has to be tuned, whether calls
//! take microseconds or seconds.
//!
//! * While the queue is not overloaded, the oldest request is begun first.
//! * While it is overloaded, the newest is begun first: it has the best chance to be answered in
//!   time. Late requests are refused at once, so that their callers can still try elsewhere, and no
//!   slot, no credit and no place among the calls in flight is held by a call that cannot succeed.
//! * The overload ends when the queue is empty.
//! * Overloaded or not, a request with less time left than a call takes at the moment, and half of
//!   that for the way back, is refused. The measure is the shorter of the two latest calls, so that
//!   a single slow call does not shut out short ones, and it is only used while it is fresh.
//!
//! A call without a deadline is never late, so that a client without deadlines that keeps many calls
//! in flight does not overload a server. In a queue that others have overloaded, it counts as one
//! that may take [`UNLIMITED`].
//!
//! The sojourn is counted from the latest look that did not find the request. So it is never shorter
//! than the request has waited, whatever its sender claims: a false deadline only affects the calls
//! of its own connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::protocol::frame::FrameHeader;
use crate::stats::ServedCall;

/// How long requests have to be late without a break until the queue is overloaded: CoDel's
/// interval. A burst that a server works off within this time is not an overload.
const INTERVAL: Duration = Duration::from_millis(100);

/// Looks at a queue that have to find a late request until it is overloaded: one handler that
/// blocked the poller for longer than the interval is not an overload.
const LEAST_LOOKS: u32 = 4;

/// The time that a call without a deadline may take, in a queue that is overloaded.
const UNLIMITED: Duration = Duration::from_secs(1);

/// How long the time that a call takes is remembered at least. It is remembered for two calls as
/// well, if they take longer.
const MEMORY: Duration = Duration::from_millis(100);

/// A request that has been received and not begun.
#[derive(Debug)]
pub(super) struct QueuedRequest<B> {
    pub(super) header: FrameHeader,
    pub(super) served: ServedCall,
    /// The frame, in its receive slot.
    pub(super) buf: B,
    /// The latest look that did not find the request; `None` if it was found by the first look
    /// after the poller had nothing to do.
    pub(super) since: Option<Instant>,
}

/// What a look takes out of the queue.
#[derive(Debug)]
pub(super) enum Taken<B> {
    Begin(QueuedRequest<B>),
    /// Its deadline has passed.
    Expire(QueuedRequest<B>),
    Refuse(QueuedRequest<B>),
}

/// The requests of one connection.
#[derive(Debug)]
pub(super) struct RequestQueue<B> {
    /// Oldest first.
    requests: VecDeque<QueuedRequest<B>>,
    /// Nanoseconds of the poller's time that this connection may still use in this round; negative
    /// if it has used more.
    pub(super) deficit_ns: i64,
    /// The time that the two latest calls took; zero as long as there were none.
    latest: [Duration; 2],
    measured_at: Option<Instant>,
    late_since: Option<Instant>,
    late_looks: u32,
    is_overloaded: bool,
}

impl<B> Default for RequestQueue<B> {
    fn default() -> Self {
        Self {
            requests: VecDeque::new(),
            deficit_ns: 0,
            latest: [Duration::ZERO; 2],
            measured_at: None,
            late_since: None,
            late_looks: 0,
            is_overloaded: false,
        }
    }
}

/// The time at which a poller looks at a queue, and what it knows then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'a> {
    pub(super) now: Instant,
    /// Converts a deadline from the wire.
    pub(super) clock: &'a crate::clock::Clock,
}

impl<B> RequestQueue<B> {
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Adds a request that has arrived. Returns true if it is the only one.
    pub(super) fn push(&mut self, request: QueuedRequest<B>) -> bool {
        self.requests.push_back(request);
        self.requests.len() == 1
    }

    /// Takes the only request of the queue.
    pub(super) fn pop_only(&mut self) -> Option<QueuedRequest<B>> {
        self.rest();
        self.requests.pop_front()
    }

    /// Looks at the queue: notes whether its oldest request is late.
    pub(super) fn look(&mut self, look: Look<'_>) {
        let Some(oldest) = self.requests.front() else {
            return;
        };
        let has_deadline = oldest.header.time_us != 0;
        if !(has_deadline && oldest.is_late(look)) {
            // An overload ends only with the queue: newest first, the oldest is not late for long.
            self.late_since = None;
            self.late_looks = 0;
            return;
        }
        let since = *self.late_since.get_or_insert(look.now);
        self.late_looks = self.late_looks.saturating_add(1);
        self.is_overloaded |=
            self.late_looks >= LEAST_LOOKS && look.now.saturating_duration_since(since) >= INTERVAL;
    }

    /// Takes the next request, and decides what becomes of it.
    pub(super) fn take(&mut self, look: Look<'_>) -> Option<Taken<B>> {
        let has_others = self.requests.len() > 1;
        let sheds = self.is_overloaded && has_others && self.requests.front()?.is_late(look);
        let taken = if self.is_overloaded && !sheds {
            self.requests.pop_back()?
        } else {
            self.requests.pop_front()?
        };
        if !has_others {
            self.rest();
        }
        Some(match taken.left(look) {
            Some(Duration::ZERO) => Taken::Expire(taken),
            Some(left) if sheds || self.is_too_little(left, look.now) => Taken::Refuse(taken),
            None if sheds => Taken::Refuse(taken),
            _ => Taken::Begin(taken),
        })
    }

    /// Returns true if `left` does not suffice for a call and its response.
    fn is_too_little(&self, left: Duration, now: Instant) -> bool {
        let service = self.service();
        let is_fresh = self
            .measured_at
            .is_some_and(|at| now.saturating_duration_since(at) < MEMORY.max(2 * service));
        is_fresh && left < service * 3 / 2
    }

    /// Returns the time that a call takes; zero if that is not known.
    pub(super) fn service(&self) -> Duration {
        self.latest[0].min(self.latest[1])
    }

    /// Records the time that a call took.
    pub(super) fn measured(&mut self, took: Duration, now: Instant) {
        self.latest = [self.latest[1], took];
        self.measured_at = Some(now);
    }

    /// Takes all requests, because the connection has ended.
    pub(super) fn take_all(&mut self) -> VecDeque<QueuedRequest<B>> {
        self.rest();
        std::mem::take(&mut self.requests)
    }

    /// Forgets what it knows of a queue that is about to be empty.
    fn rest(&mut self) {
        self.deficit_ns = 0;
        self.late_since = None;
        self.late_looks = 0;
        self.is_overloaded = false;
    }
}

impl<B> QueuedRequest<B> {
    /// Returns the time until the deadline: zero if it has passed, `None` if there is none.
    fn left(&self, look: Look<'_>) -> Option<Duration> {
        let deadline_us = self.header.time_us;
        (deadline_us != 0).then(|| look.clock.deadline_of(deadline_us, look.now) - look.now)
    }

    fn sojourn(&self, look: Look<'_>) -> Duration {
        self.since.map_or(Duration::ZERO, |since| {
            look.now.saturating_duration_since(since)
        })
    }

    /// Returns true if the request has waited for longer than the time that is left for it.
    fn is_late(&self, look: Look<'_>) -> bool {
        let sojourn = self.sojourn(look);
        let left = self.left(look);
        sojourn > left.unwrap_or_else(|| UNLIMITED.saturating_sub(sojourn))
    }
}
