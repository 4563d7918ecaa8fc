//! [`Tally`]: how the calls of a phase ended.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use rpc_core::{CallError, Code, Execution};

use verbline_load::{add_time, histogram};

/// How a call ended. It was good if its response arrived before its deadline: this long after its
/// intended start.
pub type End = Result<Duration, Failure>;

/// Why a call was not good, in the order of the report. Codes have their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// The program did not make the call, because as many calls as it may have in flight were in
    /// flight.
    Dropped,
    /// Its response arrived after its deadline.
    TooLate,
    /// It was sent, and its deadline passed at the client.
    Expired,
    /// The channel ended it without sending it.
    Unsent(&'static str),
    /// The server responded that it did not start the handler.
    Refused(&'static str),
    /// The server failed it after it had started the handler.
    Failed(&'static str),
    /// It was sent, and ended without a response for another reason.
    Lost(&'static str),
}

/// The name of the figure.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dropped => f.write_str("dropped"),
            Self::TooLate => f.write_str("too_late"),
            Self::Expired => f.write_str("expired"),
            Self::Unsent(code) => write!(f, "unsent_{code}"),
            Self::Refused(code) => write!(f, "refused_{code}"),
            Self::Failed(code) => write!(f, "failed_{code}"),
            Self::Lost(code) => write!(f, "lost_{code}"),
        }
    }
}

/// Returns the end of a call whose outcome arrived `latency` after its intended start.
///
/// # Errors
///
/// Returns the failure if the call was not good.
pub fn end_of(outcome: Result<(), CallError>, latency: Duration, deadline: Duration) -> End {
    match outcome {
        Ok(()) if latency <= deadline => Ok(latency),
        Ok(()) => Err(Failure::TooLate),
        Err(error) => Err(match (error.execution(), error.code()) {
            (Execution::NotStarted, code) => Failure::Refused(code.name()),
            (Execution::Answered, code) => Failure::Failed(code.name()),
            (Execution::NeverSent, code) => Failure::Unsent(code.name()),
            (Execution::MayHaveRun, Code::DeadlineExceeded) => Failure::Expired,
            (Execution::MayHaveRun, code) => Failure::Lost(code.name()),
        }),
    }
}

/// The numbers of calls of one phase, by how they ended.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Latencies of the good calls from their intended starts, in nanoseconds.
    pub good: Histogram<u64>,
    /// The other calls.
    pub failures: BTreeMap<Failure, u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            good: histogram(),
            failures: BTreeMap::new(),
        }
    }
}

impl Tally {
    /// Counts the end of a call.
    pub fn add(&mut self, end: End) {
        match end {
            Ok(latency) => add_time(&mut self.good, latency),
            Err(failure) => *self.failures.entry(failure).or_default() += 1,
        }
    }

    /// Returns the number of arrivals, whether or not a call was made.
    #[must_use]
    pub fn offered(&self) -> u64 {
        self.good.len() + self.failures.values().sum::<u64>()
    }

    /// Returns the number of calls whose requests left the client.
    #[must_use]
    pub fn sent(&self) -> u64 {
        let is_sent = |failure| !matches!(failure, Failure::Dropped | Failure::Unsent(_));
        let failures = self.failures.iter();
        let sent = failures.filter(|(failure, _)| is_sent(**failure));
        self.good.len() + sent.map(|(_, count)| count).sum::<u64>()
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
        assert_eq!(end_of(Ok(()), 3 * MS, 3 * MS), Ok(3 * MS));
        assert_eq!(end_of(Ok(()), 4 * MS, 3 * MS), Err(Failure::TooLate));
    }

    #[test]
    fn every_call_is_counted_once() {
        let mut tally = Tally::default();
        tally.add(Ok(MS));
        for failure in [
            Failure::TooLate,
            Failure::Refused("RESOURCE_EXHAUSTED"),
            Failure::Failed("DEADLINE_EXCEEDED"),
            Failure::Expired,
            Failure::Lost("UNAVAILABLE"),
            Failure::Unsent("DEADLINE_EXCEEDED"),
            Failure::Dropped,
        ] {
            tally.add(Err(failure));
        }
        assert_eq!((tally.offered(), tally.sent(), tally.good.len()), (8, 6, 1));
        assert_eq!(tally.failures.len(), 7);
        assert_eq!(
            (tally.useless(3), tally.useless(1), tally.useless(0)),
            (2, 0, 0)
        );
    }
}
