//! [`Tally`]: how the calls of a phase ended.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use rpc_core::{CallError, Code, Execution};

use crate::slices;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its response arrived before its deadline, this long after its intended start.
    Good(Duration),
    /// Its response arrived after its deadline.
    TooLate,
    /// The server responded that it did not start the handler.
    Refused(Code),
    /// The server failed it after it had started the handler.
    Failed(Code),
    /// It was sent, and its deadline passed at the client.
    Expired,
    /// It was sent, and ended without a response for another reason.
    Lost(Code),
    /// The channel ended it without sending it.
    Unsent(Code),
    /// The program did not make the call, because as many calls as it may have in flight were in
    /// flight.
    Dropped,
}

impl End {
    /// Returns the end of a call whose outcome arrived `latency` after its intended start.
    #[must_use]
    pub fn of(outcome: Result<(), &CallError>, latency: Duration, deadline: Duration) -> Self {
        match outcome {
            Ok(()) if latency <= deadline => Self::Good(latency),
            Ok(()) => Self::TooLate,
            Err(error) => match (error.execution(), error.code()) {
                (Execution::NotStarted, code) => Self::Refused(code),
                (Execution::Answered, code) => Self::Failed(code),
                (Execution::NeverSent, code) => Self::Unsent(code),
                (Execution::MayHaveRun, Code::DeadlineExceeded) => Self::Expired,
                (Execution::MayHaveRun, code) => Self::Lost(code),
            },
        }
    }
}

/// The numbers of calls of one phase, by how they ended.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Arrivals, whether or not a call was made.
    pub offered: u64,
    /// See [`End::Dropped`].
    pub dropped: u64,
    /// Latencies of the good calls from their intended starts, in nanoseconds.
    pub good: Histogram<u64>,
    /// See [`End::TooLate`].
    pub too_late: u64,
    /// See [`End::Refused`]; by the names of the codes.
    pub refused: BTreeMap<&'static str, u64>,
    /// See [`End::Failed`]; by the names of the codes.
    pub failed: BTreeMap<&'static str, u64>,
    /// See [`End::Expired`].
    pub expired: u64,
    /// See [`End::Lost`]; by the names of the codes.
    pub lost: BTreeMap<&'static str, u64>,
    /// See [`End::Unsent`]; by the names of the codes.
    pub unsent: BTreeMap<&'static str, u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            offered: 0,
            dropped: 0,
            good: slices::histogram(),
            too_late: 0,
            refused: BTreeMap::new(),
            failed: BTreeMap::new(),
            expired: 0,
            lost: BTreeMap::new(),
            unsent: BTreeMap::new(),
        }
    }
}

impl Tally {
    /// Counts the end of a call.
    pub fn add(&mut self, end: End) {
        self.offered += 1;
        match end {
            End::Good(latency) => {
                let nanos = latency.as_nanos() as u64;
                self.good.saturating_record(nanos.max(1));
            }
            End::TooLate => self.too_late += 1,
            End::Refused(code) => *self.refused.entry(code.name()).or_default() += 1,
            End::Failed(code) => *self.failed.entry(code.name()).or_default() += 1,
            End::Expired => self.expired += 1,
            End::Lost(code) => *self.lost.entry(code.name()).or_default() += 1,
            End::Unsent(code) => *self.unsent.entry(code.name()).or_default() += 1,
            End::Dropped => self.dropped += 1,
        }
    }

    /// Returns the number of calls whose requests left the client.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.offered - self.dropped - self.unsent.values().sum::<u64>()
    }

    /// Returns the number of handlers that ran for nobody, of those that began: every good call had
    /// one handler of its own.
    #[must_use]
    pub fn useless(&self, handlers_begun: u64) -> u64 {
        handlers_begun.saturating_sub(self.good.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_response_is_good_up_to_the_deadline() {
        assert_eq!(End::of(Ok(()), 3 * MS, 3 * MS), End::Good(3 * MS));
        assert_eq!(End::of(Ok(()), 4 * MS, 3 * MS), End::TooLate);
    }

    #[test]
    fn every_call_is_counted_once() {
        let mut tally = Tally::default();
        for end in [
            End::Good(MS),
            End::TooLate,
            End::Refused(Code::ResourceExhausted),
            End::Failed(Code::DeadlineExceeded),
            End::Expired,
            End::Lost(Code::Unavailable),
            End::Unsent(Code::DeadlineExceeded),
            End::Dropped,
        ] {
            tally.add(end);
        }
        assert_eq!((tally.offered, tally.sent(), tally.good.len()), (8, 6, 1));
        assert_eq!(tally.refused["RESOURCE_EXHAUSTED"], 1);
        assert_eq!(
            (tally.useless(3), tally.useless(1), tally.useless(0)),
            (2, 0, 0)
        );
    }
}
