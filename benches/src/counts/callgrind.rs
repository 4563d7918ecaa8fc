//! Runs a program under valgrind's callgrind, and reads its output file.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::{self, Command};
use std::{env, fs};

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

/// What an instruction, a function or a whole run cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Instructions executed.
    pub instructions: u64,
    /// Misses of the first-level instruction cache.
    pub i1_misses: u64,
    /// Misses of the first-level data cache, for reading and for writing.
    pub d1_misses: u64,
}

impl Cost {
    fn parse(columns: &[u64]) -> Self {
        let column = |index: usize| columns.get(index).copied().unwrap_or(0);
        Self {
            instructions: column(0),
            i1_misses: column(3),
            d1_misses: column(4) + column(5),
        }
    }

    fn add(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.i1_misses += other.i1_misses;
        self.d1_misses += other.d1_misses;
    }
}

/// Where an instruction is: the program or library, and its address there.
pub type Address = (String, u64);

/// What callgrind counted in one run. Each function and each source file has its own cost, without
/// the functions that it calls.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// The whole run.
    pub total: Cost,
    /// By emitted function. What was inlined into a function is part of it.
    pub functions: BTreeMap<String, Cost>,
    /// By source file. What was inlined belongs to the file that it was written in.
    pub sources: BTreeMap<String, Cost>,
    /// Executions of each instruction, by function.
    pub instructions: HashMap<Address, (u64, String)>,
}

/// Runs `program`, and returns what callgrind counted and what the program printed.
///
/// # Errors
///
/// Fails if the program fails, if nothing was counted, or if the output file cannot be understood.
pub fn run(program: &Path, arguments: &[&str]) -> Outcome<(Profile, String)> {
    let output = env::temp_dir().join(format!("verbline-{}.callgrind", process::id()));
    let ran = Command::new("valgrind")
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
        .output()?;
    if !ran.status.success() {
        let stderr = String::from_utf8_lossy(&ran.stderr);
        return Err(format!("{} failed under valgrind: {stderr}", program.display()).into());
    }
    let text = fs::read_to_string(&output)?;
    fs::remove_file(&output)?;
    let profile = Profile::parse(&text)
        .map_err(|error| format!("cannot read callgrind's output file: {error}"))?;
    if profile.total.instructions == 0 {
        return Err(format!(
            "nothing was counted: no function of {} is named {COUNTED}",
            program.display()
        )
        .into());
    }
    Ok((profile, String::from_utf8_lossy(&ran.stdout).into_owned()))
}

impl Profile {
    /// Parses an output file with instructions and lines, without compression.
    ///
    /// # Errors
    ///
    /// Fails if a line is not understood, or if the costs do not add up to callgrind's own total.
    pub fn parse(text: &str) -> Outcome<Self> {
        let mut this = Self::default();
        let (mut object, mut source, mut function) = ("", String::new(), String::new());
        let mut of_callee = false;
        let mut total = None;
        for (number, line) in text.lines().enumerate() {
            let not_understood = || format!("line {}: {line:?} is not understood", number + 1);
            if line.starts_with("0x") {
                // The line after `calls=` has the cost of the callee, which is counted there.
                if !std::mem::take(&mut of_callee) {
                    let (address, cost) = cost_line(line).ok_or_else(not_understood)?;
                    this.add((object.to_owned(), address), &function, &source, cost);
                }
            } else if let Some((key, value)) = line.split_once('=').filter(|(key, _)| is_word(key))
            {
                match key {
                    "ob" => object = value,
                    "fl" | "fi" | "fe" => source = short(value),
                    "fn" => function = value.to_owned(),
                    "calls" => of_callee = true,
                    "cob" | "cfi" | "cfl" | "cfn" => {}
                    _ => return Err(not_understood().into()),
                }
            } else if let Some((key, value)) = line.split_once(':') {
                match key {
                    "events" if value.trim() != EVENTS => return Err(not_understood().into()),
                    "positions" if value.trim() != "instr line" => {
                        return Err(not_understood().into());
                    }
                    "totals" => {
                        let columns = numbers(value.split_whitespace());
                        total = Some(Cost::parse(&columns.ok_or_else(not_understood)?));
                    }
                    _ => {}
                }
            } else if !line.is_empty() && !line.starts_with('#') {
                return Err(not_understood().into());
            }
        }
        let total = total.ok_or("the line `totals:` is missing")?;
        if total != this.total {
            return Err(
                format!("the costs add up to {:?} instead of {total:?}", this.total).into(),
            );
        }
        Ok(this)
    }

    fn add(&mut self, address: Address, function: &str, source: &str, cost: Cost) {
        self.total.add(cost);
        self.functions
            .entry(function.to_owned())
            .or_default()
            .add(cost);
        self.sources.entry(source.to_owned()).or_default().add(cost);
        let instruction = self
            .instructions
            .entry(address)
            .or_insert_with(|| (0, function.to_owned()));
        instruction.0 += cost.instructions;
    }
}

fn is_word(text: &str) -> bool {
    text.chars().all(|letter| letter.is_ascii_lowercase())
}

/// Parses a line of an instruction's address, its source line and its costs.
fn cost_line(line: &str) -> Option<(u64, Cost)> {
    let mut words = line.split_whitespace();
    let address = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    let columns = numbers(words)?;
    let (_, costs) = columns.split_first()?;
    (!costs.is_empty()).then(|| (address, Cost::parse(costs)))
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
    let package = path
        .split_once("/registry/src/")
        .and_then(|(_, rest)| rest.split_once('/'));
    let library = path
        .strip_prefix("/rustc/")
        .and_then(|rest| rest.split_once('/'));
    package
        .or(library)
        .map_or(path, |(_, rest)| rest)
        .to_owned()
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
        let encode = profile.functions["<prost::A as B>::encode"];
        assert_eq!(
            (encode.instructions, encode.i1_misses, encode.d1_misses),
            (20, 2, 7)
        );
        assert_eq!(profile.functions["memcpy"].instructions, 500);
        assert_eq!(
            profile.sources["prost-0.14.4/src/encoding.rs"].instructions,
            10
        );
        assert_eq!(
            profile.sources["library/core/src/option.rs"].instructions,
            10
        );
        let (executions, function) =
            &profile.instructions[&("/bin/instructions".to_owned(), 0x1004)];
        assert_eq!(
            (*executions, function.as_str()),
            (10, "<prost::A as B>::encode")
        );
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
