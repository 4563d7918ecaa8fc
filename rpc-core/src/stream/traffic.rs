//! The messages of a stream that its application has sent and read, for interceptors.

use std::sync::atomic::{AtomicU64, Ordering};

use super::batch::PREFIX_LEN;
use crate::call_error::CallError;
use crate::intercept::Traffic;
use crate::limits::Direction;
use crate::outcome::message_too_long;

/// The messages that the application has queued or sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HandedOver {
    messages: u64,
    /// With a prefix for each.
    prefixed_bytes: u64,
}

impl HandedOver {
    /// Adds messages, each of which has a prefix.
    #[inline]
    pub(super) fn add(&mut self, messages: u32, prefixed_bytes: usize) {
        self.messages += u64::from(messages);
        self.prefixed_bytes += prefixed_bytes as u64;
    }

    pub(super) fn traffic(self) -> Traffic {
        Traffic {
            messages: self.messages,
            bytes: self.prefixed_bytes - self.messages * PREFIX_LEN as u64,
        }
    }
}

/// The messages that the application has read, if somebody counts them. Only the reader writes the counts, and
/// they publish nothing else.
#[derive(Debug, Default)]
pub(crate) struct ReadCounts {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl ReadCounts {
    /// Begins to count: the stream before has left its counts.
    fn begin(&self) {
        for count in [&self.messages, &self.bytes] {
            count.store(0, Ordering::Relaxed);
        }
    }

    fn add(&self, len: usize) {
        for (count, more) in [(&self.messages, 1), (&self.bytes, len as u64)] {
            count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        }
    }

    pub(crate) fn traffic(&self) -> Traffic {
        Traffic {
            messages: self.messages.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// What is looked at in each message that is read: the limit of the method, and the counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadLook {
    /// Length of the longest message that the method permits.
    longest: usize,
    /// Length from which on a message is looked at: beyond the longest, or each if they are counted.
    from: usize,
    direction: Direction,
}

impl ReadLook {
    pub(super) fn new(longest: usize, direction: Direction) -> Self {
        Self {
            longest,
            from: longest.saturating_add(1),
            direction,
        }
    }

    /// Counts from now on.
    pub(super) fn begin_count(&mut self, counts: &ReadCounts) {
        self.from = 0;
        counts.begin();
    }

    /// Looks at a message of this length, which has been read.
    #[inline(always)]
    pub(super) fn at(&self, len: usize, counts: &ReadCounts) -> Result<(), CallError> {
        match len >= self.from {
            true => self.closely(len, counts),
            false => Ok(()),
        }
    }

    #[cold]
    fn closely(&self, len: usize, counts: &ReadCounts) -> Result<(), CallError> {
        self.check(len)?;
        counts.add(len);
        Ok(())
    }

    /// Checks the length of a message.
    pub(super) fn check(&self, len: usize) -> Result<(), CallError> {
        match len > self.longest {
            true => Err(message_too_long(len, self.longest, self.direction)),
            false => Ok(()),
        }
    }

    /// Counts a long message, whose length its driver has checked.
    pub(super) fn at_long(&self, len: usize, counts: &ReadCounts) {
        if self.from == 0 {
            counts.add(len);
        }
    }
}
