//! [`Record`]: what a loop has measured.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::failures::Failures;
use crate::histogram::{self, histogram};
use crate::slices::Slices;

/// The version of the keys in a record's JSON.
const VERSION: u32 = 1;

/// What a loop has measured. It is written as a table by [`Display`](fmt::Display), and as JSON by
/// [`to_json`](Self::to_json).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    version: Version,
    /// The rate of an open loop, in calls per second.
    #[serde(rename = "wanted_per_s")]
    pub wanted: Option<f64>,
    /// Calls per second that were answered.
    #[serde(rename = "achieved_per_s")]
    pub achieved: f64,
    /// The most calls that could be in flight.
    pub callers: usize,
    /// The time in which calls were recorded. It is shorter than the plan's if the loop was ended early.
    #[serde(rename = "time_ns", with = "nanoseconds")]
    pub time: Duration,
    /// Calls that an open loop has sent more than [`LATE`](crate::LATE) after their intended time.
    pub late: u64,
    /// The late calls for which no caller was free at their intended time: all had a call in flight.
    pub held: u64,
    /// Calls that were due but still waiting to be sent at the end.
    pub unsent: u64,
    /// Calls in flight when [`until`](crate::OpenLoop::until) has ended the loop.
    pub unanswered: u64,
    /// The calls that failed, which are in neither of the two histograms below.
    pub failures: Failures,
    /// Time from the actual send to the response, in nanoseconds.
    #[serde(with = "histogram")]
    pub service: Histogram<u64>,
    /// Time from the intended send to the response, in nanoseconds. Calls that were unsent or unanswered
    /// are included with the time they had waited by the end. A closed loop intends to send a call when
    /// it sends it.
    #[serde(with = "histogram")]
    pub response: Histogram<u64>,
    /// The response time over the time of the loop.
    pub slices: Slices,
}

/// Two records that cannot become one.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// One is of an open loop, and the other of a closed one.
    #[error("a record of an open loop and one of a closed loop cannot be merged")]
    Loops,
    /// They have slices of different lengths.
    #[error(
        "the records have slices of {ours_ns} ns and of {theirs_ns} ns: merge those of loops that were \
         planned for the same time"
    )]
    Slices {
        /// The length of the slices of one record.
        ours_ns: u64,
        /// That of the other.
        theirs_ns: u64,
    },
}

/// An open loop that did not send its calls: see [`Record::shortfall`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Shortfall {
    /// The rate of the plan, in calls per second.
    pub wanted: f64,
    /// Calls per second that were answered.
    pub achieved: f64,
    /// Calls that should have been sent in the recorded time.
    pub due: u64,
    /// Those of them that were never sent.
    pub unsent: u64,
    /// The most calls that could be in flight, if all of them were in flight when others were due.
    pub busy_callers: Option<usize>,
}

impl Record {
    /// A rate could not be offered if more than this share of the calls was never sent. Calls that are due
    /// in the last microseconds are a smaller share.
    const MAX_UNSENT_SHARE: f64 = 0.01;

    /// Creates the record of a loop that has not begun.
    pub(crate) fn new(wanted: Option<f64>, callers: usize, slices: Slices) -> Self {
        Self {
            version: Version,
            wanted,
            achieved: 0.0,
            callers,
            time: Duration::ZERO,
            late: 0,
            held: 0,
            unsent: 0,
            unanswered: 0,
            failures: Failures::new(),
            service: histogram(),
            response: histogram(),
            slices,
        }
    }

    /// Returns the number of calls that should have been sent in the recorded time, or have ended in that
    /// of a closed loop.
    #[must_use]
    pub fn due(&self) -> u64 {
        self.response.len() + self.failures.count()
    }

    /// Says that the rate of an open loop could not be offered, if more than 1 % of the calls that were due
    /// had not been sent at its end. The times are then those of a lower rate, and of a queue that grew for
    /// as long as the loop lasted.
    #[must_use]
    pub fn shortfall(&self) -> Option<Shortfall> {
        let (wanted, due) = (self.wanted?, self.due());
        (self.unsent as f64 > due as f64 * Self::MAX_UNSENT_SHARE).then(|| Shortfall {
            wanted,
            achieved: self.achieved,
            due,
            unsent: self.unsent,
            busy_callers: (self.held > 0).then_some(self.callers),
        })
    }

    /// Adds the record of another thread or process that ran at the same time. Rates and callers add up.
    ///
    /// # Errors
    ///
    /// Fails if the loops were not of one kind, or not planned for the same time. This record is then as it
    /// was.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        if self.wanted.is_some() != other.wanted.is_some() {
            return Err(MergeError::Loops);
        }
        let lengths = (self.slices.length_ns, other.slices.length_ns);
        if lengths.0 != lengths.1 {
            return Err(MergeError::Slices {
                ours_ns: lengths.0,
                theirs_ns: lengths.1,
            });
        }
        self.wanted = self.wanted.zip(other.wanted).map(|(a, b)| a + b);
        self.achieved += other.achieved;
        self.callers += other.callers;
        self.time = self.time.max(other.time);
        self.late += other.late;
        self.held += other.held;
        self.unsent += other.unsent;
        self.unanswered += other.unanswered;
        self.failures.merge(&other.failures);
        self.service += &other.service;
        self.response += &other.response;
        self.slices.merge(&other.slices);
        Ok(())
    }

    /// Writes the record as JSON: figures for people and programs, and all counts, so that
    /// [`from_json`](Self::from_json) returns an equal record. `docs/load.md` lists the keys.
    ///
    /// # Panics
    ///
    /// Never: each value has a form in JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("each value has a form in JSON")
    }

    /// Reads a record that [`to_json`](Self::to_json) has written, in this process or in another.
    ///
    /// # Errors
    ///
    /// Fails if the text is something else, or of another version.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            wanted,
            achieved,
            due,
            unsent,
            ..
        } = self;
        write!(
            f,
            "the rate could not be offered: {wanted:.0} calls per second were wanted and {achieved:.0} were \
             answered. {unsent} of {due} calls were still waiting to be sent at the end: "
        )?;
        match self.busy_callers {
            Some(callers) => write!(
                f,
                "all {callers} callers had calls in flight. Either the server does not answer at this rate, \
                 or this thread does not send at it: try more callers, then more threads or processes"
            ),
            None => f.write_str(
                "this thread does not send at this rate: divide it among more threads or processes",
            ),
        }
    }
}

/// The number that says what the keys mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
struct Version;

impl From<Version> for u32 {
    fn from(_: Version) -> Self {
        VERSION
    }
}

impl TryFrom<u32> for Version {
    type Error = String;

    fn try_from(version: u32) -> Result<Self, String> {
        if version == VERSION {
            return Ok(Self);
        }
        Err(format!(
            "the record has version {version}, and this program reads {VERSION}"
        ))
    }
}

mod nanoseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        u64::deserialize(d).map(Duration::from_nanos)
    }
}
