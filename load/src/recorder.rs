//! [`Recorder`]: sorts the calls of a loop into its record.

use std::time::Duration;

use crate::histogram::{add_time, add_times};
use crate::period::Period;
use crate::record::Record;
use crate::slices::Slices;

/// A call counts as late if it was sent more than this long after its intended time. The limit is
/// several turns of the loop, so a turn that first handles a few responses does not make calls
/// late.
pub const LATE: Duration = Duration::from_micros(5);

/// A call that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) intended: Duration,
    pub(crate) sent: Duration,
    /// No caller was free when it was due.
    pub(crate) was_held: bool,
}

pub(crate) struct Recorder {
    record: Record,
    period: Period,
    /// Calls that were answered in the period.
    answered: u64,
}

impl Recorder {
    pub(crate) fn new(wanted: Option<f64>, callers: usize, period: Period) -> Self {
        let slices = Slices::new(period.time, period.slices);
        Self {
            record: Record::new(wanted, callers, slices),
            period,
            answered: 0,
        }
    }

    /// Adds a call of an open loop that was answered: to the rate if that was in the period, and to the
    /// times if the call was intended to be sent in it.
    #[inline]
    pub(crate) fn answered(&mut self, call: Call, completed: Duration) {
        let Period { warm_up, .. } = self.period;
        self.answered += u64::from(completed >= warm_up && completed < self.period.end());
        let Some(at) = call.intended.checked_sub(warm_up) else {
            return;
        };
        self.count_late(call, at);
        let response = completed - call.intended;
        add_time(&mut self.record.service, completed - call.sent);
        add_time(&mut self.record.response, response);
        self.record.slices.add(at, response, 1);
    }

    /// Adds a call of a closed loop that was answered, if that was in the period.
    #[inline]
    pub(crate) fn answered_in_period(&mut self, sent: Duration, completed: Duration) {
        if let Some(at) = self.in_period(completed) {
            self.answered += 1;
            let time = completed - sent;
            add_time(&mut self.record.service, time);
            self.record.slices.add(at, time, 1);
        }
    }

    /// Adds a call of an open loop that failed.
    pub(crate) fn failed(&mut self, call: Call, completed: Duration, error: String) {
        if let Some(at) = call.intended.checked_sub(self.period.warm_up) {
            self.count_late(call, at);
            self.add_failure(at, completed - call.intended, error);
        }
    }

    /// Adds a call of a closed loop that failed.
    pub(crate) fn failed_in_period(&mut self, sent: Duration, completed: Duration, error: String) {
        if let Some(at) = self.in_period(completed) {
            self.add_failure(at, completed - sent, error);
        }
    }

    #[inline]
    fn in_period(&self, completed: Duration) -> Option<Duration> {
        let at = completed.checked_sub(self.period.warm_up)?;
        (at < self.period.time).then_some(at)
    }

    #[inline]
    fn count_late(&mut self, call: Call, at: Duration) {
        if call.sent - call.intended > LATE {
            self.record.late += 1;
            self.record.held += u64::from(call.was_held);
            if let Some(slice) = self.record.slices.at(at) {
                slice.late += 1;
            }
        }
    }

    fn add_failure(&mut self, at: Duration, time: Duration, error: String) {
        self.record.failures.add(error, time);
        if let Some(slice) = self.record.slices.at(at) {
            slice.failed += 1;
        }
    }

    /// Adds calls that were not sent by the end of the loop.
    pub(crate) fn unsent(&mut self, intended: Duration, end: Duration, count: u64) {
        self.record.unsent += self.waiting(intended, end, count);
    }

    /// Adds a call that was in flight at the end of the loop.
    pub(crate) fn unanswered(&mut self, intended: Duration, end: Duration) {
        self.record.unanswered += self.waiting(intended, end, 1);
    }

    /// Adds what calls had waited by the end, and returns how many were counted.
    fn waiting(&mut self, intended: Duration, end: Duration, count: u64) -> u64 {
        let Some(at) = intended.checked_sub(self.period.warm_up) else {
            return 0;
        };
        let waited = end.saturating_sub(intended);
        add_times(&mut self.record.response, waited, count);
        self.record.slices.add(at, waited, count);
        count
    }

    /// Returns the record of an open loop that has ended at this time.
    pub(crate) fn finish(mut self, end: Duration) -> Record {
        let time = end
            .min(self.period.end())
            .saturating_sub(self.period.warm_up);
        let record = &mut self.record;
        record.time = time;
        if time > Duration::ZERO {
            record.achieved = self.answered as f64 / time.as_secs_f64();
        }
        record.slices.end_at(time);
        self.record
    }

    /// Returns the record of a closed loop that has ended at this time.
    pub(crate) fn finish_closed(mut self, end: Duration) -> Record {
        // Only calls that were unanswered are in it.
        self.record.response += &self.record.service;
        self.finish(end)
    }
}
