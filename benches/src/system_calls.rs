//! Counts the system calls per round trip, by name, with strace.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{self, Command, Stdio};
use std::{env, fmt, fs, io};

use crate::Outcome;

const PROGRAM: &str = "strace";

/// Printed if the program is missing.
pub const MISSING: &str =
    "!!! SYSTEM CALLS ARE NOT COUNTED: strace is not installed (Debian package `strace`)";

/// The system calls that ring the doorbell of a kernel device: verbs commands by `write` or by
/// `ioctl`.
const DOORBELLS: [&str; 2] = ["write", "ioctl"];

/// Rates below this are incidental work of a longer run.
const NOTICEABLE: f64 = 0.005;

/// Returns true if strace is installed.
#[must_use]
pub fn can_be_counted() -> bool {
    let version = Command::new(PROGRAM)
        .arg("-V")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    version.is_ok()
}

/// Runs a program under strace, which counts the system calls of the program and its children into
/// a file.
#[derive(Debug)]
pub struct Trace {
    file: PathBuf,
}

impl Trace {
    /// Creates a trace. The name must be unique within this process.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let file = format!("verbline-{name}-{}.strace", process::id());
        Self {
            file: env::temp_dir().join(file),
        }
    }

    /// Returns the words to put before the program's name.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let file = self.file.display().to_string();
        [PROGRAM, "-f", "-c", "-o", &file].map(str::to_owned).into()
    }

    /// Reads the counts from the file and adds them to `calls`.
    fn read(&self, calls: &mut Calls) -> Outcome<()> {
        let table = fs::read_to_string(&self.file)
            .map_err(|error| format!("cannot read strace's output file: {error}"))?;
        for (name, count) in table.lines().filter_map(row) {
            *calls.entry(name.to_owned()).or_default() += count;
        }
        Ok(())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // The file does not exist if the program could not be run.
        let _ = fs::remove_file(&self.file);
    }
}

type Calls = BTreeMap<String, u64>;

/// System calls per round trip, of both sides together.
#[derive(Clone, Debug, PartialEq)]
pub struct PerRoundTrip(BTreeMap<String, f64>);

impl PerRoundTrip {
    /// Counts the additional system calls of a run with `many` round trips over a run with `few`,
    /// and divides them by the difference in round trips. `run` makes that many round trips under
    /// the given traces, one for each name in `sides`.
    ///
    /// # Errors
    ///
    /// Fails if a run fails, or if strace counted nothing.
    pub fn count(
        sides: &[&str],
        [few, many]: [usize; 2],
        mut run: impl FnMut(usize, &[Trace]) -> Outcome<()>,
    ) -> Outcome<Self> {
        let mut counted = [Calls::new(), Calls::new()];
        for (round_trips, calls) in [few, many].into_iter().zip(&mut counted) {
            let traces: Vec<Trace> = sides.iter().map(|name| Trace::new(name)).collect();
            run(round_trips, &traces)?;
            for trace in &traces {
                trace.read(calls)?;
            }
            if calls.is_empty() {
                return Err(io::Error::other("strace counted no system call at all").into());
            }
        }
        let [before, after] = counted;
        Ok(Self::between(&before, &after, (many - few) as f64))
    }

    fn between(before: &Calls, after: &Calls, round_trips: f64) -> Self {
        let rates = after.iter().map(|(name, count)| {
            let more = *count as f64 - before.get(name).copied().unwrap_or(0) as f64;
            (name.clone(), more / round_trips)
        });
        Self(rates.filter(|(_, rate)| *rate >= NOTICEABLE).collect())
    }

    /// Returns the number of doorbells, each of which is one system call.
    #[must_use]
    pub fn doorbells(&self) -> f64 {
        let rates = DOORBELLS.iter().filter_map(|&name| self.0.get(name));
        // `sum` starts at -0.0, so fold from 0.0.
        rates.fold(0.0, |sum, rate| sum + rate)
    }

    /// Returns all other system calls, by name.
    pub fn others(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0
            .iter()
            .filter(|(name, _)| !DOORBELLS.contains(&name.as_str()))
            .map(|(name, rate)| (name.as_str(), *rate))
    }
}

impl fmt::Display for PerRoundTrip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} doorbells, ", self.doorbells())?;
        let others: Vec<String> = self
            .others()
            .map(|(name, rate)| format!("{rate:.2} {name}"))
            .collect();
        if others.is_empty() {
            f.write_str("no other system call")
        } else {
            f.write_str(&others.join(", "))
        }
    }
}

/// Parses a line of strace's table: share, seconds, microseconds per call, calls, errors if any,
/// name.
fn row(line: &str) -> Option<(&str, u64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (&name, &calls) = (words.last()?, words.get(3)?);
    let is_row = words.len() >= 5 && words[0].parse::<f64>().is_ok() && name != "total";
    is_row.then(|| Some((name, calls.parse().ok()?))).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "% time     seconds  usecs/call     calls    errors syscall\n\
                         ------ ----------- ----------- --------- --------- ----------------\n \
                         11.98    0.040156         189       212           write\n \
                         5.89    0.019747         229        86         1 newfstatat\n\
                         ------ ----------- ----------- --------- --------- ----------------\n\
                         100.00    0.335087         137      2443         5 total\n";

    #[test]
    fn rows_are_read_with_and_without_errors() {
        let rows: Vec<_> = TABLE.lines().filter_map(row).collect();
        assert_eq!(rows, [("write", 212), ("newfstatat", 86)]);
    }

    #[test]
    fn what_both_runs_do_does_not_count() {
        let calls = |write, openat| {
            Calls::from([
                ("write".to_owned(), write),
                ("openat".to_owned(), openat),
                ("mmap".to_owned(), 40),
            ])
        };
        let rates = PerRoundTrip::between(&calls(210, 5), &calls(2210, 505), 1000.0);
        assert_eq!(rates.to_string(), "2.00 doorbells, 0.50 openat");
        let none = PerRoundTrip::between(&calls(210, 5), &calls(210, 5), 1000.0);
        assert_eq!(none.to_string(), "0.00 doorbells, no other system call");
    }
}
