//! [`ReadTurns`]: when READs are posted, and how long they are, beside the calls of others.
//!
//! The software device executes a READ where it is posted, so the READ takes this thread's time.
//! READs therefore wait after a poll that has found a call of another connection, for a bounded
//! number of polls, and are short for a while after such a call.
//!
//! Other devices execute READs themselves. There, READs wait in the same way, although they would
//! take no time of this thread, and all of them have the full length.

use crate::transport::plan::ReadPlan;

/// Polls in a row for which READs wait because each has found a call. The next poll allows READs.
const MOST_POLLS_WITHOUT_READS: u32 = 8;

/// READs that are short after a call of another connection: so many that a connection which makes
/// one call after another usually sends its next call before they end.
const SHORT_READS: u32 = 16;

/// The turns of a lane's READs.
#[derive(Debug)]
pub(super) struct ReadTurns {
    reads_per_poll: usize,
    /// READs that may still be posted before a poll allows others.
    left: usize,
    /// Polls that found a call, since a poll last allowed READs.
    polls_without_reads: u32,
    max_read_len: usize,
    short_read_len: usize,
    /// How many of the next READs are short.
    short_reads: u32,
}

impl ReadTurns {
    pub(super) fn new(plan: &ReadPlan) -> Self {
        Self {
            reads_per_poll: plan.reads_per_poll,
            left: plan.reads_per_poll,
            polls_without_reads: 0,
            max_read_len: plan.max_read_len,
            short_read_len: plan.short_read_len,
            short_reads: 0,
        }
    }

    /// Called after each poll, with whether it has found a call. Allows the next READs, unless they
    /// have to wait for the call.
    pub(super) fn allow(&mut self, found_call: bool) {
        self.polls_without_reads += 1;
        if !found_call || self.polls_without_reads > MOST_POLLS_WITHOUT_READS {
            self.polls_without_reads = 0;
            self.left = self.reads_per_poll;
        }
    }

    /// Returns true if a READ may be posted.
    pub(super) fn may_read(&self) -> bool {
        self.left > 0
    }

    /// Returns true if no READ was posted since READs were allowed.
    pub(super) fn has_all_left(&self) -> bool {
        self.left == self.reads_per_poll
    }

    /// Counts a READ that is about to be posted. Returns the most bytes that it may have.
    pub(super) fn take(&mut self) -> usize {
        self.left = self.left.saturating_sub(1);
        if self.short_reads == 0 {
            return self.max_read_len;
        }
        self.short_reads -= 1;
        self.short_read_len
    }

    /// Makes the next READs short, because a call has arrived beside them.
    pub(super) fn note_call(&mut self) {
        self.short_reads = SHORT_READS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns() -> ReadTurns {
        ReadTurns::new(&ReadPlan {
            reads_per_poll: 1,
            max_read_len: 32,
            short_read_len: 8,
            ..ReadPlan::default()
        })
    }

    #[test]
    fn a_read_waits_for_calls_but_not_for_ever() {
        let mut turns = turns();
        assert!(turns.may_read() && turns.has_all_left());
        turns.take();
        assert!(!turns.may_read() && !turns.has_all_left());
        for _ in 0..MOST_POLLS_WITHOUT_READS {
            turns.allow(true);
            assert!(!turns.may_read(), "a call has arrived");
        }
        turns.allow(true);
        assert!(turns.may_read(), "READs have waited long enough");
        turns.take();
        turns.allow(false);
        assert!(turns.may_read() && turns.has_all_left());
    }

    #[test]
    fn reads_are_short_for_a_while_after_a_call() {
        let mut turns = turns();
        assert_eq!(turns.take(), 32);
        turns.note_call();
        for _ in 0..SHORT_READS {
            assert_eq!(turns.take(), 8);
        }
        assert_eq!(turns.take(), 32);
    }
}
