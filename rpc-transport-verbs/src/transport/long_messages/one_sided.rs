//! The one-sided requests of a connection: bindings and invalidations of windows, and READs.
//!
//! They share the connection's send queue with its frames. At most [`MAX_POSTED`] of them are in
//! it at a time, for which the queue has additional entries. A request in it is only known to have
//! ended when a successful completion of it or of a later request has been polled. After a failed
//! completion nothing is known, and everything is kept until the queue pair is gone.

use std::collections::VecDeque;

/// One-sided requests in a connection's send queue at a time.
pub(crate) const MAX_POSTED: usize = 48;

/// Requests without a completion of their own, after which one is signaled, so that the queue
/// cannot fill with requests that nothing completes.
const MAX_UNSIGNALED: usize = MAX_POSTED / 2;

/// The one-sided requests of a connection.
#[derive(Debug, Default)]
pub(crate) struct OneSided {
    /// READs that may be outstanding; 0 if the two sides did not agree on READs.
    depth: u8,
    /// READs that are outstanding.
    pub(super) reading: u8,
    /// Messages that are being fetched.
    pub(super) fetches: usize,
    /// The requests in the send queue, in order.
    posted: VecDeque<Posted>,
    /// The requests at the end of `posted` that no signaled one follows.
    unsignaled: usize,
    /// Exposures whose windows are to be invalidated.
    pub(super) to_invalidate: VecDeque<u32>,
    /// Fetches with segments that are not entirely posted.
    pub(super) to_fetch: VecDeque<u32>,
}

#[derive(Debug)]
struct Posted {
    number: u32,
    request: Request,
}

/// A one-sided request, as far as its completion needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// A binding.
    Bind,
    /// The invalidation of an exposure's window.
    Invalidate(u32),
    /// A READ of a fetch. If it is the last one of a segment, the segment's length.
    Read(u32, Option<u32>),
}

impl OneSided {
    pub(crate) fn new(depth: u8) -> Self {
        Self {
            depth,
            ..Self::default()
        }
    }

    /// Returns true if the two sides have agreed on READs.
    pub(crate) fn has_reads(&self) -> bool {
        self.depth > 0
    }

    /// Returns true if `count` more requests may be posted.
    pub(super) fn has_room(&self, count: usize) -> bool {
        self.posted.len() + count <= MAX_POSTED
    }

    /// Returns true if one more READ may be outstanding.
    pub(super) fn may_read(&self) -> bool {
        self.reading < self.depth && self.has_room(1)
    }

    /// Returns true if the next request has to be signaled.
    pub(super) fn needs_signal(&self) -> bool {
        self.unsignaled + 1 >= MAX_UNSIGNALED
    }

    /// Records a request that was posted.
    pub(super) fn push(&mut self, number: u32, request: Request, signaled: bool) {
        self.posted.push_back(Posted { number, request });
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
    }

    /// Returns true if a completion of the send queue ends a one-sided request, or lets one be
    /// posted.
    #[inline]
    pub(crate) fn awaits_completion(&self) -> bool {
        !self.posted.is_empty() || !self.to_fetch.is_empty() || !self.to_invalidate.is_empty()
    }

    /// Returns true if request `number` is a binding that has not ended.
    pub(super) fn is_bind(&self, number: u32) -> bool {
        let is_it = |posted: &Posted| posted.number == number && posted.request == Request::Bind;
        self.posted.iter().any(is_it)
    }

    /// Removes the oldest request that a successful completion of request `number` covers.
    pub(super) fn take_completed(&mut self, number: u32) -> Option<Request> {
        // The numbers are the lower bits of numbers that are far less than 2³¹ apart.
        let oldest = self.posted.front()?;
        if number.wrapping_sub(oldest.number) > u32::MAX / 2 {
            return None;
        }
        let request = self.posted.pop_front()?.request;
        self.unsignaled = self.unsignaled.min(self.posted.len());
        Some(request)
    }
}

impl OneSided {
    /// Asserts the sums of the requests of a connection that is open, whose queue pair has `in_flight`.
    pub(crate) fn assert_sums(&self, in_flight: usize) {
        let posted = self.posted.len();
        let is_read = |it: &&Posted| matches!(it.request, Request::Read(..));
        let reads = self.posted.iter().filter(is_read).count();
        assert!(
            posted <= in_flight.min(MAX_POSTED),
            "{in_flight} in flight: {self:?}"
        );
        assert!(
            self.unsignaled <= posted && self.unsignaled < MAX_UNSIGNALED,
            "{self:?}"
        );
        assert!(self.reading <= self.depth, "{self:?}");
        assert_eq!(usize::from(self.reading), reads, "READs of {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_covers_its_own_request_and_all_before() {
        let mut requests = OneSided::new(4);
        for (number, request) in [
            (u32::MAX - 1, Request::Bind),
            (u32::MAX, Request::Invalidate(7)),
            (3, Request::Read(1, None)),
            (4, Request::Read(1, Some(9))),
        ] {
            requests.push(number, request, false);
        }
        assert!(requests.is_bind(u32::MAX - 1) && !requests.is_bind(3));
        assert_eq!(requests.take_completed(u32::MAX - 2), None);
        // The completion of a frame between them.
        assert_eq!(requests.take_completed(1), Some(Request::Bind));
        assert_eq!(requests.take_completed(1), Some(Request::Invalidate(7)));
        assert_eq!(requests.take_completed(1), None);
        assert_eq!(requests.take_completed(4), Some(Request::Read(1, None)));
        assert_eq!(requests.take_completed(4), Some(Request::Read(1, Some(9))));
        assert!(!requests.awaits_completion());
    }

    #[test]
    fn requests_never_fill_the_queue_without_a_signal() {
        let mut requests = OneSided::new(4);
        let mut signaled = Vec::new();
        for number in 0..10_000 {
            if !requests.has_room(1) {
                // The latest signaled request completes.
                let latest = signaled.pop().expect("one is signaled");
                signaled.clear();
                while requests.take_completed(latest).is_some() {}
            }
            assert!(requests.has_room(1));
            let needs_signal = requests.needs_signal();
            requests.push(number, Request::Bind, needs_signal);
            if needs_signal {
                signaled.push(number);
            }
        }
    }

    #[test]
    fn the_depth_limits_reads_only() {
        let mut requests = OneSided::new(2);
        assert!(requests.has_reads() && requests.may_read());
        requests.reading = 2;
        assert!(!requests.may_read() && requests.has_room(1));
        assert!(!OneSided::default().has_reads());
        assert!(!OneSided::default().may_read());
    }
}
