//! Runs the benchmarks that have a reference in the same run, and compares their figures with those
//! of a file:
//!
//! ```text
//! make bench-compare            # compares with benches/baselines/soft.json
//! make bench-compare WRITE=1    # writes it
//! ```
//!
//! A difference is never a failure: a machine changes its speed by itself, and `make count` is what
//! fails. Where a ratio differs, measure both versions in turn.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

use benches::Outcome;
use benches::baseline::Baseline;
use clap::Parser;

/// Compares the figures of the benchmarks with those of a file
#[derive(Parser)]
struct Cli {
    /// The file with the figures to compare with
    #[arg(long, default_value = "benches/baselines/soft.json")]
    file: PathBuf,
    /// Write the figures to the file instead
    #[arg(long)]
    write: bool,
    /// Device name
    #[arg(long, default_value = "soft")]
    device: String,
    /// Runs of each program
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

/// The programs, each with the name that its figures get.
const PROGRAMS: [(&str, &[&str]); 5] = [
    ("latency fixed64", &["latency"]),
    ("latency bytes", &["latency", "--message", "bytes"]),
    ("throughput", &["throughput"]),
    ("throughput", &["throughput", "--client", "shared"]),
    (
        "stream",
        &["stream", "--only", "rate", "--only", "round-trip"],
    ),
];

impl Cli {
    fn run(&self) -> Outcome<()> {
        let then = match self.write {
            true => None,
            false => Some(self.read()?),
        };
        let mut now = Baseline {
            machine: machine()?,
            figures: BTreeMap::new(),
        };
        // One after the other, so that the runs of a program see the machine at different moments.
        for run in 1..=self.runs.max(1) {
            for (name, command) in PROGRAMS {
                eprintln!("run {run} of {}: {}", self.runs.max(1), command.join(" "));
                let program = env::current_exe()?.with_file_name(command[0]);
                let output = Command::new(program)
                    .args(&command[1..])
                    .args(["--device", &self.device, "--json"])
                    .stderr(Stdio::inherit())
                    .output()?;
                if !output.status.success() {
                    return Err(format!("{} failed", command.join(" ")).into());
                }
                now.add(name, &String::from_utf8(output.stdout)?)?;
            }
        }
        let Some(then) = then else {
            fs::write(&self.file, format!("{:#}\n", now.to_json()))?;
            println!("wrote {}", self.file.display());
            return Ok(());
        };
        print!("\n{}", then.compare(&now));
        println!(
            "p50 and p99 in ns, rates per second; each the median of its runs. `differs`: all runs of one \
             side exceed all runs of the other one, and by more than 5 % (ratios) or 25 % (others)."
        );
        for (key, value) in &now.machine {
            let then = then.machine.get(key).map_or("unknown", String::as_str);
            println!(
                "{key}: {value}{}",
                match then == value {
                    true => String::new(),
                    false => format!(", then {then}"),
                }
            );
        }
        Ok(())
    }

    fn read(&self) -> Outcome<Baseline> {
        let file = self.file.display();
        let text = fs::read_to_string(&self.file).map_err(|error| {
            format!("{file}: {error}. `make bench-compare WRITE=1` writes the file")
        })?;
        Ok(Baseline::from_json(&text).map_err(|error| format!("{file}: {error}"))?)
    }
}

/// Describes what the figures depend on besides the source code.
fn machine() -> Outcome<BTreeMap<String, String>> {
    let first_line = |program: &str, arguments: &[&str]| -> Outcome<String> {
        let output = Command::new(program).args(arguments).output()?;
        let text = String::from_utf8(output.stdout)?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    };
    let processors = fs::read_to_string("/proc/cpuinfo")?;
    let models = processors.lines().filter_map(|line| {
        line.strip_prefix("model name")?
            .split_once(": ")
            .map(|(_, model)| model)
    });
    let models: Vec<&str> = models.collect();
    let model = models.first().copied().unwrap_or("unknown");
    let entries = [
        ("processor", format!("{model} × {}", models.len())),
        ("kernel", first_line("uname", &["-srm"])?),
        ("rustc", first_line("rustc", &["--version"])?),
        (
            "commit",
            first_line("git", &["describe", "--always", "--dirty", "--abbrev=12"])?,
        ),
        ("day", first_line("date", &["--utc", "+%Y-%m-%d"])?),
    ];
    Ok(entries
        .map(|(key, value)| (key.to_owned(), value))
        .into_iter()
        .collect())
}

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}
