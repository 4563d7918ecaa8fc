//! The table of a record.

use std::fmt;

use hdrhistogram::Histogram;

use crate::record::Record;
use crate::unit::Unit;

/// The percentiles of tables: their headings, and the share of the calls that took at most this long.
pub(crate) const PERCENTILES: [(&str, f64); 6] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
    ("max", 1.0),
];

/// Kinds of failures that are listed, the most frequent ones.
pub(crate) const MOST_KINDS: usize = 5;

impl fmt::Display for Record {
    /// Writes a table of percentiles: those of the response time and of the service time of an open loop,
    /// those of the service time of a closed one. Below it is what must be known to trust them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |nanos: u64| Unit::Nanoseconds.text(nanos as f64);
        let quantile_of = |times: &Histogram<u64>, quantile| match times.is_empty() {
            true => "–".to_owned(),
            false => time(times.value_at_quantile(quantile)),
        };
        let per_second = |rate| Unit::PerSecond.text(rate);
        let is_open = self.wanted.is_some();
        write!(f, "{:<8}", "")?;
        if is_open {
            write!(f, "{:>12}", "response")?;
        }
        writeln!(f, "{:>12}", "service")?;
        for (name, quantile) in PERCENTILES {
            write!(f, "{name:<8}")?;
            if is_open {
                write!(f, "{:>12}", quantile_of(&self.response, quantile))?;
            }
            writeln!(f, "{:>12}", quantile_of(&self.service, quantile))?;
        }
        let (achieved, recorded) = (per_second(self.achieved), time(self.time.as_nanos() as u64));
        let callers = self.callers;
        match self.wanted {
            Some(wanted) => writeln!(
                f,
                "answered: {achieved} of {} for {recorded}, at most {callers} in flight",
                per_second(wanted)
            )?,
            None => writeln!(
                f,
                "answered: {achieved} for {recorded}, {callers} in flight"
            )?,
        }
        let due = self.due();
        let of_due = |count| Unit::Share.text(count as f64 / due.max(1) as f64);
        if is_open {
            let (late, held, unsent) = (self.late, self.held, self.unsent);
            writeln!(
                f,
                "sent late: {late} of {due} calls ({}), {held} of them while all callers had calls in \
                 flight; never sent: {unsent}",
                of_due(late)
            )?;
        }
        if self.unanswered > 0 {
            writeln!(f, "in flight when the loop was ended: {}", self.unanswered)?;
        }
        let failures = &self.failures;
        if failures.count() > 0 {
            writeln!(
                f,
                "failed: {} of {due} calls ({}), which are not in the table, after {} (p50) to {} (max)",
                failures.count(),
                of_due(failures.count()),
                time(failures.times.value_at_quantile(0.5)),
                time(failures.times.max()),
            )?;
            let mut kinds: Vec<_> = failures.kinds.iter().collect();
            kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            for (error, count) in kinds.iter().take(MOST_KINDS) {
                writeln!(f, "  {count} times: {error}")?;
            }
            let listed: u64 = kinds
                .iter()
                .take(MOST_KINDS)
                .map(|(_, count)| **count)
                .sum();
            if listed < failures.count() {
                writeln!(f, "  {} times: other errors", failures.count() - listed)?;
            }
        }
        if let Some(shortfall) = self.shortfall() {
            writeln!(f, "{shortfall}")?;
        }
        Ok(())
    }
}
