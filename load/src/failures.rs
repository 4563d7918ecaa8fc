//! [`Failures`]: the calls that failed, and why.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::histogram::{self, add_time, histogram};

/// Failures that are told apart. Errors that name an address or a number could otherwise fill the memory.
const MAX_KINDS: usize = 32;

/// The calls that failed. They are in no other histogram: an error that comes at once would make a
/// service look fast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Failures {
    /// What the first error said.
    pub first: Option<String>,
    /// How many calls failed with an error that says this. There are 32 texts at most.
    pub kinds: BTreeMap<String, u64>,
    /// Failed calls with other texts.
    pub others: u64,
    /// Time from the intended send to the error, in nanoseconds. Many as long as the deadline are
    /// calls without an answer.
    #[serde(with = "histogram")]
    pub times: Histogram<u64>,
}

impl Failures {
    pub(crate) fn new() -> Self {
        Self {
            first: None,
            kinds: BTreeMap::new(),
            others: 0,
            times: histogram(),
        }
    }

    /// Returns the number of calls that failed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.times.len()
    }

    pub(crate) fn add(&mut self, error: String, time: Duration) {
        if self.first.is_none() {
            self.first = Some(error.clone());
        }
        add_time(&mut self.times, time);
        self.add_kind(error, 1);
    }

    fn add_kind(&mut self, error: String, count: u64) {
        if self.kinds.len() < MAX_KINDS || self.kinds.contains_key(&error) {
            *self.kinds.entry(error).or_default() += count;
        } else {
            self.others += count;
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        if self.first.is_none() {
            self.first.clone_from(&other.first);
        }
        for (error, count) in &other.kinds {
            self.add_kind(error.clone(), *count);
        }
        self.others += other.others;
        self.times += &other.times;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_each_say_something_else_do_not_fill_the_memory() {
        let mut failures = Failures::new();
        for index in 0..100 {
            let error = format!("no route to host {}", index % 50);
            failures.add(error, Duration::from_millis(1));
        }
        assert_eq!(failures.kinds.len(), MAX_KINDS);
        assert_eq!(failures.kinds["no route to host 3"], 2);
        assert_eq!((failures.others, failures.count()), (36, 100));
        assert_eq!(failures.first.as_deref(), Some("no route to host 0"));
        let mut merged = failures.clone();
        merged.merge(&failures);
        assert_eq!((merged.others, merged.count()), (72, 200));
    }
}
