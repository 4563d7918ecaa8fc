//! [`ReadTurns`]: when READs are posted, and how long they are, beside the calls of others.
//!
//! The software device executes a READ where it is posted, so the READ takes this thread's time. READs
//! therefore wait after a poll that has found a call of another connection, until the next poll, before
//! which the driver serves it. For a while after such a call, READs are short, and wait until a poll
//! finds nothing: there may be another call behind the events that it finds. They wait for a bounded
//! number of polls.
//!
//! Other devices execute READs themselves. There, READs wait in the same way, although they would
//! take no time of this thread, and all of them have the full length.

use crate::transport::plan::ReadPlan;

/// The most polls for which READs wait. The next poll allows READs.
const MOST_POLLS_WITHOUT_READS: u32 = 16;

/// READs that are short after a call of another connection: so many that a connection which makes
/// one call after another usually sends its next call before they end.
const SHORT_READS: u32 = 16;

/// Bytes of a READ that the peer executes, and sends over a socket.
const READ_LEN_OF_PEER: usize = 256 * 1024;

/// What a poll has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    /// A call that long messages of other connections are not to delay.
    Call,
    Other,
}

/// The turns of a lane's READs.
#[derive(Debug)]
pub(super) struct ReadTurns {
    reads_per_poll: usize,
    /// READs that may still be posted before a poll allows others.
    left: usize,
    /// True if a call was found that has no response yet.
    is_call_waiting: bool,
    /// Polls since a poll last allowed READs.
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
            is_call_waiting: false,
            polls_without_reads: 0,
            max_read_len: plan.max_read_len,
            short_read_len: plan.short_read_len,
            short_reads: 0,
        }
    }

    /// Called after each poll, with what it has found. Allows the next READs, unless they have to wait
    /// for a call.
    pub(super) fn after_poll(&mut self, found: Found) {
        let waits = match found {
            Found::Call => {
                self.is_call_waiting = true;
                self.left = 0;
                self.short_reads = SHORT_READS;
                true
            }
            // The driver serves the call before the next poll.
            Found::Nothing => std::mem::take(&mut self.is_call_waiting),
            Found::Other => self.is_call_waiting || self.short_reads > 0,
        };
        self.polls_without_reads += 1;
        if !waits || self.polls_without_reads > MOST_POLLS_WITHOUT_READS {
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

    /// Returns the most bytes of a READ that the peer executes. Such a READ takes no time of this
    /// thread, so it has no part in the turns of the others.
    pub(super) fn take_of_peer(&self) -> usize {
        self.max_read_len.max(READ_LEN_OF_PEER)
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
    fn reads_wait_until_a_call_can_have_its_response() {
        let mut turns = turns();
        assert!(turns.may_read() && turns.has_all_left());
        turns.after_poll(Found::Call);
        turns.after_poll(Found::Other);
        turns.after_poll(Found::Nothing);
        assert!(!turns.may_read(), "the driver is about to serve it");
        turns.after_poll(Found::Nothing);
        assert!(turns.may_read() && turns.has_all_left());
        turns.take();
        assert!(!turns.may_read() && !turns.has_all_left());
        turns.after_poll(Found::Other);
        assert!(!turns.may_read(), "there may be another call behind it");
        turns.after_poll(Found::Nothing);
        assert!(turns.may_read());
    }

    #[test]
    fn reads_do_not_wait_for_calls_for_ever() {
        let mut turns = turns();
        for _ in 0..3 {
            for _ in 0..MOST_POLLS_WITHOUT_READS {
                turns.after_poll(Found::Call);
                assert!(!turns.may_read());
            }
            turns.after_poll(Found::Call);
            assert!(turns.may_read(), "READs have waited long enough");
        }
    }

    #[test]
    fn reads_are_short_for_a_while_after_a_call() {
        let mut turns = turns();
        assert_eq!(turns.take(), 32);
        turns.after_poll(Found::Call);
        for _ in 0..SHORT_READS {
            assert_eq!(turns.take(), 8);
        }
        assert_eq!(turns.take(), 32);
        turns.after_poll(Found::Nothing);
        turns.after_poll(Found::Other);
        assert!(turns.may_read(), "there was no call for long");
    }
}
