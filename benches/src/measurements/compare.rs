//! Runs the measurements that have a reference in the same run, and compares their figures with those
//! of a file. A difference is never a failure: a machine changes its speed by itself, and `make count`
//! is what fails. Where a ratio differs, measure both versions in turn.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use clap::Args;

use crate::Outcome;
use crate::baseline::Baseline;
use crate::setup::{Bench, Measurement};

/// Latency, throughput and streams, compared with the figures of a file
#[derive(Clone, Debug, Args)]
pub struct Compare {
    /// The file with the figures to compare with
    #[arg(long, default_value = "benches/baselines/soft.json")]
    file: PathBuf,
    /// Write the figures to the file instead
    #[arg(long)]
    write: bool,
    /// Runs of each measurement
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

/// The measurements, each with the name that its figures get.
const COMMANDS: [(&str, &str); 5] = [
    ("latency fixed64", "latency"),
    ("latency bytes", "latency --message bytes"),
    ("throughput local", "throughput"),
    ("throughput shared", "throughput --client shared"),
    ("stream", "stream --only rate --only round-trip"),
];

impl Measurement for Compare {
    fn device(&self) -> Option<&'static str> {
        Some("soft")
    }

    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        let then = (!self.write).then(|| read(&self.file)).transpose()?;
        let mut now = Baseline {
            machine: machine()?,
            figures: BTreeMap::new(),
        };
        // One after the other, so that the runs of a measurement see the machine at different moments.
        let runs = self.runs.max(1);
        for run in 1..=runs {
            for (name, command) in COMMANDS {
                bench.progress(format_args!("run {run} of {runs}: {command}"));
                let output = Command::new(env::current_exe()?)
                    .args(command.split(' '))
                    .args(["--device", bench.device(), "--json"])
                    .stderr(Stdio::inherit())
                    .output()?;
                if !output.status.success() {
                    return Err(format!("`bench {command}` failed").into());
                }
                now.add(name, &String::from_utf8(output.stdout)?)?;
            }
        }
        let Some(then) = then else {
            if let Some(folder) = self.file.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&self.file, serde_json::to_string_pretty(&now)? + "\n")?;
            bench.report.note(format!("wrote {}", self.file.display()));
            return Ok(());
        };
        bench.report.table("figures", then.compare(&now));
        bench.report.note(
            "p50 and p99 in ns, rates per second; each the median of its runs. `differs`: all runs of one \
             side exceed all runs of the other one, and by more than 5 % (ratios) or 25 % (others).",
        );
        for (key, value) in &now.machine {
            let then = then.machine.get(key).map_or("unknown", String::as_str);
            let other = if then == value {
                String::new()
            } else {
                format!(", then {then}")
            };
            bench.report.note(format!("{key}: {value}{other}"));
        }
        Ok(())
    }
}

fn read(file: &Path) -> Outcome<Baseline> {
    let text = fs::read_to_string(file).map_err(|error| {
        let file = file.display();
        format!("{file}: {error}. `make bench-compare WRITE=1` writes the file")
    })?;
    Ok(serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?)
}

/// Describes what the figures depend on besides the source code.
fn machine() -> Outcome<BTreeMap<String, String>> {
    let first_line = |program: &str, arguments: &[&str]| -> Outcome<String> {
        let output = Command::new(program).args(arguments).output()?;
        let text = String::from_utf8(output.stdout)?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    };
    let processors = fs::read_to_string("/proc/cpuinfo")?;
    let lines = processors
        .lines()
        .filter(|line| line.starts_with("model name"));
    let models: Vec<_> = lines
        .filter_map(|line| Some(line.split_once(": ")?.1))
        .collect();
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
    Ok(entries.map(|(key, value)| (key.to_owned(), value)).into())
}
