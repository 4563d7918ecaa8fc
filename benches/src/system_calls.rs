//! System calls per round trip, by name, counted by strace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{self, Command, Stdio};
use std::{env, fmt, fs, io};

use crate::Outcome;

const PROGRAM: &str = "strace";

/// What to say where it is missing.
pub const MISSING: &str =
    "!!! NO SYSTEM CALL IS COUNTED: strace is not installed (Debian package `strace`)";

/// Those that ring a doorbell where the kernel does it: a verbs command by `write` or by `ioctl`.
const DOORBELLS: [&str; 2] = ["write", "ioctl"];

/// Less than this per round trip is what a longer run does by the way.
const NOTICEABLE: f64 = 0.005;

/// Whether it is installed.
#[must_use]
pub fn can_be_counted() -> bool {
    let version = Command::new(PROGRAM)
        .arg("-V")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    version.is_ok()
}

/// The words to run a program under, so that all system calls of it and of its children are counted
/// into a file.
#[derive(Debug)]
pub struct Trace {
    file: PathBuf,
}

impl Trace {
    /// A count with this name among those of this process.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let file = format!("verbline-{name}-{}.strace", process::id());
        Self {
            file: env::temp_dir().join(file),
        }
    }

    /// What to put before the program's name.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let file = self.file.display().to_string();
        [PROGRAM, "-f", "-c", "-o", &file].map(str::to_owned).into()
    }

    /// What was counted; adds it to `calls`.
    fn read(&self, calls: &mut Calls) -> Outcome<()> {
        let table = fs::read_to_string(&self.file)
            .map_err(|error| format!("cannot read what strace counted: {error}"))?;
        for (name, count) in table.lines().filter_map(row) {
            *calls.entry(name.to_owned()).or_default() += count;
        }
        Ok(())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // It is not there if the program could not be run.
        let _ = fs::remove_file(&self.file);
    }
}

type Calls = BTreeMap<String, u64>;

/// System calls per round trip, of both sides together.
#[derive(Clone, Debug, PartialEq)]
pub struct PerRoundTrip(BTreeMap<String, f64>);

impl PerRoundTrip {
    /// What a run with `many` round trips does more than one with `few`, divided by their number:
    /// `run` makes so many under the given traces, which are as many as `sides` has names.
    ///
    /// # Errors
    ///
    /// If a run fails, or strace counted nothing.
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
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let of = |calls: &Calls, name: &String| calls.get(name).copied().unwrap_or(0) as f64;
        let rates = names
            .into_iter()
            .map(|name| {
                let rate = (of(after, name) - of(before, name)) / round_trips;
                (name.clone(), rate)
            })
            .filter(|(_, rate)| *rate >= NOTICEABLE)
            .collect();
        Self(rates)
    }

    /// Doorbells, each of which is one system call here.
    #[must_use]
    pub fn doorbells(&self) -> f64 {
        let rates = DOORBELLS.iter().filter_map(|&name| self.0.get(name));
        // Folded from 0, as the sum of no floating-point numbers is -0.
        rates.fold(0.0, |sum, rate| sum + rate)
    }

    /// All others, by name.
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

/// A line of strace's table: share, seconds, microseconds per call, calls, errors if any, name.
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
