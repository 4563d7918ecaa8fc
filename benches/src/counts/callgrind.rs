//! Runs a program under valgrind's callgrind, and reads its output file.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, mem};

use crate::Outcome;

/// Printed if the program is missing.
pub const MISSING: &str = "!!! NOTHING IS COUNTED: valgrind is not installed (Debian package `valgrind`, or `make setup`)";

/// The simulated caches: sizes of the machines of this decade, and the same on every machine that
/// counts. The last level plays no part in the figures.
const CACHES: [&str; 3] = ["--I1=32768,8,64", "--D1=32768,8,64", "--LL=8388608,16,64"];

/// Bytes of a cache line.
pub const LINE_LEN: u64 = 64;

/// Callgrind counts only inside the functions of this name, on the thread that runs them.
const COUNTED: &str = "*instructions::exchange_*";

/// The events that callgrind counts, in the order of its columns. It leaves zeros at the end of a
/// line out.
const EVENTS: &str = "Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw";

/// What an instruction or a whole run cost, by event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost([u64; 9]);

impl Cost {
    fn of_columns(columns: &[u64]) -> Self {
        let column = |index| columns.get(index).copied().unwrap_or(0);
        Self(std::array::from_fn(column))
    }

    /// Returns the instructions executed.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.0[0]
    }

    /// Returns the misses of the first-level instruction cache.
    #[must_use]
    pub fn i1_misses(&self) -> u64 {
        self.0[3]
    }

    /// Returns the misses of the first-level data cache, for reading and for writing.
    #[must_use]
    pub fn d1_misses(&self) -> u64 {
        self.0[4] + self.0[5]
    }

    fn add(&mut self, other: Self) {
        for (sum, event) in self.0.iter_mut().zip(other.0) {
            *sum += event;
        }
    }
}

/// Where an instruction is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// The program or library.
    pub object: String,
    /// The address there.
    pub address: u64,
    /// The emitted function. What was inlined into a function is part of it.
    pub function: String,
    /// The source file. What was inlined belongs to the file that it was written in.
    pub source: String,
}

/// What callgrind counted in one run: the cost of each instruction itself, without that of the
/// functions that it calls.
#[derive(Clone, Debug, Default)]
pub struct Profile(HashMap<Place, Cost>);

/// A program that runs under callgrind. Dropping this ends it.
#[derive(Debug)]
pub struct Run {
    program: PathBuf,
    child: Child,
    output: PathBuf,
}

/// Runs `program`, and returns what callgrind counted and what the program printed.
///
/// # Errors
///
/// Fails if the program fails, if nothing was counted, or if the output file cannot be understood.
pub fn run(program: &Path, arguments: &[&str]) -> Outcome<(Profile, String)> {
    start(program, arguments)?.finish()
}

/// Starts `program`.
///
/// # Errors
///
/// Fails if valgrind cannot be started.
pub fn start(program: &Path, arguments: &[&str]) -> Outcome<Run> {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let output = env::temp_dir().join(format!("verbline-{}-{run}.callgrind", process::id()));
    let child = Command::new("valgrind")
        // The environment lies on the stack: without it, the stack's addresses are the same for
        // everyone.
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .args(["--quiet", "--tool=callgrind", "--cache-sim=yes"])
        .args(CACHES)
        .args(["--dump-instr=yes", "--dump-line=yes"])
        .args(["--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(format!("--callgrind-out-file={}", output.display()))
        .arg(program)
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    Ok(Run {
        program: program.to_owned(),
        child,
        output,
    })
}

impl Run {
    /// Returns the first line that the program prints.
    ///
    /// # Errors
    ///
    /// Fails if it ends instead.
    pub fn first_line(&mut self) -> Outcome<String> {
        let mut line = Vec::new();
        let stdout = self.child.stdout.as_mut().ok_or("it has no pipe")?;
        let mut byte = [0];
        // Byte by byte: `finish` reads the rest.
        while stdout.read(&mut byte)? > 0 && byte != *b"\n" {
            line.extend(byte);
        }
        match String::from_utf8(line)? {
            line if line.is_empty() => Err(self.failure()),
            line => Ok(line),
        }
    }

    /// Waits for the program to end. Returns what callgrind counted and what the program printed.
    ///
    /// # Errors
    ///
    /// Those of [`run`].
    pub fn finish(mut self) -> Outcome<(Profile, String)> {
        let mut stdout = Vec::new();
        if let Some(pipe) = &mut self.child.stdout {
            pipe.read_to_end(&mut stdout)?;
        }
        if !self.child.wait()?.success() {
            return Err(self.failure());
        }
        let text = fs::read_to_string(&self.output)?;
        fs::remove_file(&self.output)?;
        let profile = Profile::parse(&text)
            .map_err(|error| format!("cannot read callgrind's output file: {error}"))?;
        if profile.total().instructions() == 0 {
            return Err(format!(
                "nothing was counted: no function of {} is named {COUNTED}",
                self.program.display()
            )
            .into());
        }
        Ok((profile, String::from_utf8_lossy(&stdout).into_owned()))
    }

    fn failure(&mut self) -> Box<dyn Error> {
        let mut stderr = Vec::new();
        if let Some(pipe) = &mut self.child.stderr {
            // What can be read says more than why the rest cannot.
            let _ = pipe.read_to_end(&mut stderr);
        }
        let stderr = String::from_utf8_lossy(&stderr);
        format!("{} failed under valgrind: {stderr}", self.program.display()).into()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // It has ended already, or nobody needs its outcome.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Profile {
    /// Parses an output file with instructions and lines, without compression.
    ///
    /// # Errors
    ///
    /// Fails if a line is not understood, or if the costs do not add up to callgrind's own total.
    pub fn parse(text: &str) -> Outcome<Self> {
        let mut this = Self::default();
        let mut place = Place::default();
        let mut of_callee = false;
        let mut total = None;
        for (number, line) in text.lines().enumerate() {
            let not_understood = || format!("line {}: {line:?} is not understood", number + 1);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some(end) = line.find(['=', ':']) else {
                let (address, cost) = cost_line(line).ok_or_else(not_understood)?;
                // The line after `calls=` has the cost of the callee, which is counted there.
                if !mem::take(&mut of_callee) {
                    place.address = address;
                    this.0.entry(place.clone()).or_default().add(cost);
                }
                continue;
            };
            let (key, value) = line.split_at(end + 1);
            match key {
                "ob=" => value.clone_into(&mut place.object),
                "fl=" | "fi=" | "fe=" => place.source = short(value),
                "fn=" => value.clone_into(&mut place.function),
                "calls=" => of_callee = true,
                "cob=" | "cfi=" | "cfl=" | "cfn=" => {}
                "events:" if value.trim() == EVENTS => {}
                "positions:" if value.trim() == "instr line" => {}
                "totals:" => {
                    let columns = numbers(value.split_whitespace());
                    total = Some(Cost::of_columns(&columns.ok_or_else(not_understood)?));
                }
                "events:" | "positions:" => return Err(not_understood().into()),
                _ if key.ends_with(':') => {}
                _ => return Err(not_understood().into()),
            }
        }
        let total = total.ok_or("the line `totals:` is missing")?;
        let sum = this.total();
        if total != sum {
            return Err(format!("the costs add up to {sum:?} instead of {total:?}").into());
        }
        Ok(this)
    }

    /// Returns the cost of the whole run.
    #[must_use]
    pub fn total(&self) -> Cost {
        self.by(|_| ()).remove(&()).unwrap_or_default()
    }

    /// Returns the sums of the costs by a part of the place.
    pub fn by<'a, K: Ord>(&'a self, part: impl Fn(&'a Place) -> K) -> BTreeMap<K, Cost> {
        let mut sums = BTreeMap::<K, Cost>::new();
        for (place, cost) in &self.0 {
            sums.entry(part(place)).or_default().add(*cost);
        }
        sums
    }
}

/// Parses a line of an instruction's address, its source line and its costs.
fn cost_line(line: &str) -> Option<(u64, Cost)> {
    let mut words = line.split_whitespace();
    let address = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    let columns = numbers(words)?;
    let (_, costs) = columns.split_first()?;
    (!costs.is_empty()).then(|| (address, Cost::of_columns(costs)))
}

fn numbers<'a>(words: impl Iterator<Item = &'a str>) -> Option<Vec<u64>> {
    words.map(|word| word.parse().ok()).collect()
}

/// Shortens a source file's path to what is the same on every machine: relative to this workspace,
/// to the package of a registry, or to the standard library.
fn short(path: &str) -> String {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let own = workspace.and_then(|root| Path::new(path).strip_prefix(root).ok());
    if let Some(own) = own {
        return own.display().to_string();
    }
    let outside = ["/registry/src/", "/rustc/"]
        .iter()
        .find_map(|folder| path.split_once(folder)?.1.split_once('/'));
    outside.map_or(path, |(_, rest)| rest).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# callgrind format\nversion: 1\npositions: instr line\n\
        events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\n\n\
        ob=/bin/instructions\n\
        fl=/home/someone/.cargo/registry/src/index.crates.io-1/prost-0.14.4/src/encoding.rs\n\
        fn=<prost::A as B>::encode\n\
        0x1000 12 10 0 0 2 3 4\n\
        fi=/rustc/abc/library/core/src/option.rs\n\
        0x1004 13 10\n\
        cob=/lib/libc.so.6\ncfi=???\ncfn=memcpy\ncalls=5 0x20 \n0x1004 13 500 1 1\n\n\
        ob=/lib/libc.so.6\nfl=???\nfn=memcpy\n0x20 0 500\n\n\
        totals: 520 0 0 2 3 4\n";

    #[test]
    fn costs_are_of_the_function_itself() {
        let profile = Profile::parse(TEXT).expect("it is whole");
        let functions = profile.by(|place| place.function.as_str());
        let encode = functions["<prost::A as B>::encode"];
        assert_eq!(
            (
                encode.instructions(),
                encode.i1_misses(),
                encode.d1_misses()
            ),
            (20, 2, 7)
        );
        assert_eq!(functions["memcpy"].instructions(), 500);
        let sources = profile.by(|place| place.source.as_str());
        for source in ["prost-0.14.4/src/encoding.rs", "library/core/src/option.rs"] {
            assert_eq!(sources[source].instructions(), 10);
        }
        let addresses = profile.by(|place| (place.object.as_str(), place.address));
        let executions = addresses[&("/bin/instructions", 0x1004)].instructions();
        assert_eq!(executions, 10);
    }

    #[test]
    fn a_file_that_is_cut_off_or_unknown_is_an_error() {
        for (from, to) in [
            ("totals: 520", "totals: 521"),
            ("\ntotals: 520 0 0 2 3 4", ""),
            ("0x1000 12 10", "0x1000 12 ten"),
            ("0x1000 12 10 0 0 2 3 4", "0x1000 12"),
            ("instr line", "line"),
            ("Ir Dr", "Dr Ir"),
            ("fi=", "jump="),
        ] {
            let text = TEXT.replacen(from, to, 1);
            assert_ne!(text, TEXT);
            assert!(Profile::parse(&text).is_err(), "{to}");
        }
    }
}
