//! Counts the instructions, code lines and simulated cache misses of a call, and compares them with
//! the accepted figures. Each count is the difference of two runs under callgrind, so one-time work
//! cancels out. The result is the same on every machine with the same toolchain.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fmt, fs, io};

use benches::Outcome;
use benches::counts::accepted::{Accepted, Verdict};
use benches::counts::callgrind::{self, LINE_LEN, Profile};
use benches::counts::figure::{Figure, Runs};
use clap::Parser;

/// Counts instructions per call and compares them with the accepted figures
#[derive(Parser)]
struct Cli {
    /// The file with the accepted figures
    #[arg(long, default_value = "benches/accepted-counts.txt")]
    file: PathBuf,
    /// Accept what is counted, for this reason
    #[arg(long, value_parser = reason)]
    accept: Option<String>,
    /// The folder of the programs that are counted, in a release build
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
    /// The folder of the same programs, built without LTO as users' programs are
    #[arg(long, default_value = "target/no-lto")]
    without_lto: PathBuf,
    /// Number of functions to list for each layer
    #[arg(long, default_value_t = 12)]
    functions: usize,
}

fn reason(text: &str) -> Result<String, String> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.is_empty() {
        return Err("a figure is accepted for a reason: ACCEPT='why it changed'".to_owned());
    }
    Ok(text)
}

/// Exchanges in the two runs.
const FEW: u64 = 500;
const MANY: u64 = 5500;

/// The device's thread occasionally takes over some of the work, depending on the clock. That thread
/// is not counted, so runs differ by about 50 parts per million. Rarely, a run waits for that thread:
/// use the lowest count.
const REPETITIONS: usize = 3;

impl Cli {
    fn run(&self) -> Outcome<ExitCode> {
        let toolchain = toolchain()?;
        let mut counted = count(&self.programs, self.functions)?;
        counted.extend(count_without_lto(&self.without_lto)?);
        let known = match fs::read_to_string(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.accept.is_some() => {
                Accepted {
                    toolchain: toolchain.clone(),
                    entries: Vec::new(),
                }
            }
            text => self.accepted(text)?,
        };
        if let Some(reason) = &self.accept {
            let accepted = known.accept(&toolchain, counted, reason);
            fs::write(&self.file, accepted.to_string())?;
            println!(
                "\n{} is written again: review the difference",
                self.file.display()
            );
            return Ok(ExitCode::SUCCESS);
        }
        if known.toolchain != toolchain {
            eprintln!(
                "\n!!! NOTHING IS COMPARED: the accepted figures were counted with another toolchain.\n\
                 !!! accepted: {}\n!!! here:     {toolchain}\n\
                 !!! Accept what this toolchain counts with: make count ACCEPT='the new toolchain'",
                known.toolchain
            );
            // CI must not skip a check.
            return Ok(match env::var_os("CI") {
                Some(_) => ExitCode::FAILURE,
                None => ExitCode::SUCCESS,
            });
        }
        Ok(self.report(&counted, &known.compare(&counted)?))
    }

    fn accepted(&self, text: io::Result<String>) -> Outcome<Accepted> {
        let in_file = |error: &dyn fmt::Display| format!("{}: {error}", self.file.display());
        let text = text.map_err(|error| in_file(&error))?;
        Ok(Accepted::parse(&text).map_err(|error| in_file(&error))?)
    }

    fn report(&self, counted: &[Figure], verdicts: &[Verdict]) -> ExitCode {
        println!();
        let mut code = ExitCode::SUCCESS;
        for (figure, verdict) in counted.iter().zip(verdicts) {
            match verdict {
                Verdict::Within => {}
                Verdict::Lower { accepted } => println!(
                    "{} is lower than the accepted {accepted}. Keep the gain with: make count ACCEPT='why'",
                    line(figure)
                ),
                Verdict::Exceeded(growth) => {
                    eprintln!("!!! {growth}");
                    code = ExitCode::FAILURE;
                }
            }
        }
        let file = self.file.display();
        if code == ExitCode::SUCCESS {
            println!("No figure exceeds the accepted one by more than its margin ({file})");
        } else {
            eprintln!(
                "!!! If this has to be, accept it with: make count ACCEPT='why it grew' ({file})"
            );
        }
        code
    }
}

/// Counts all figures, and prints each as soon as it is known.
fn count(programs: &Path, functions: usize) -> Outcome<Vec<Figure>> {
    let runs = |program, arguments: &[&str]| runs(&programs.join(program), arguments);
    let over = |name| vec!["--over", name];
    let call = runs("instructions", &over("call"))?;
    let mut figures = Vec::new();
    let mut add = |figure: Figure, what: &str| {
        println!("{} {what}", line(&figure));
        figures.push(figure);
    };
    add(
        call.instructions("over call"),
        "for one whole call: client and server, transport and soft, one empty turn each",
    );
    add(
        runs("instructions", &over("soft"))?.instructions("over soft"),
        "for one frame there and one back through the transport, soft included",
    );
    add(
        runs("raw_instructions", &[])?.instructions("over verbs"),
        "for one raw message there and one back through the verbs layer, soft included",
    );
    add(
        runs("instructions", &over("stream"))?.instructions("over stream"),
        "for one message of 64 bytes of a server stream, in frames of many",
    );
    add(
        runs("instructions", &over("ping-pong"))?.instructions("over ping-pong"),
        "for one message there and one back on an open stream, one empty turn each",
    );
    add(
        runs("instructions", &over("idle-client"))?.instructions("idle client"),
        "for an empty turn of a client with one connection",
    );
    add(
        runs("instructions", &over("idle-server"))?.instructions("idle server"),
        "for an empty turn of a server with one connection",
    );
    let lines = call.hot_lines("hot code of a call");
    let kib = lines.value * LINE_LEN as f64 / 1024.0;
    add(
        lines,
        &format!("of {LINE_LEN} bytes that a call executes, {kib:.1} KiB"),
    );
    let caches = "in a simulated cache of 32 KiB, 8 ways, 64-byte lines";
    add(call.i1_misses("I1 misses of a call"), caches);
    add(call.d1_misses("D1 misses of a call"), caches);
    for figure in &figures[..2] {
        if functions > 0 {
            println!("\nfunctions of '{}':", figure.name);
        }
        for (name, value) in figure.functions().into_iter().take(functions) {
            println!("{value:>8} {name}");
        }
    }
    Ok(figures)
}

/// Counts what the smallest call costs a user, whose build has no LTO, and prints each figure.
fn count_without_lto(programs: &Path) -> Outcome<Vec<Figure>> {
    println!();
    ["call", "idle-client", "idle-server"]
        .map(|layer| {
            let runs = runs(&programs.join("instructions"), &["--over", layer])?;
            let figure =
                runs.instructions_no_lto(&format!("{} without LTO", layer.replace('-', " ")));
            println!("{}", line(&figure));
            Ok(figure)
        })
        .into_iter()
        .collect()
}

fn line(figure: &Figure) -> String {
    format!("{}: {} {}", figure.name, figure.value, figure.unit.name())
}

/// Counts a program's exchanges in a short and in a long run.
fn runs(program: &Path, arguments: &[&str]) -> Outcome<Runs> {
    Ok(Runs {
        few: lowest_run(program, arguments, FEW)?,
        many: lowest_run(program, arguments, MANY)?,
        exchanges: MANY - FEW,
    })
}

fn lowest_run(program: &Path, arguments: &[&str], exchanges: u64) -> Outcome<Profile> {
    let calls = exchanges.to_string();
    let mut arguments = arguments.to_vec();
    arguments.extend(["--calls", &calls]);
    let mut profiles = Vec::new();
    for _ in 0..REPETITIONS {
        let (profile, text) = callgrind::run(program, &arguments)?;
        if !text.contains(&format!("{exchanges} exchanges made")) {
            return Err(format!("{} made no exchanges: {text}", program.display()).into());
        }
        profiles.push(profile);
    }
    let lowest = profiles
        .into_iter()
        .min_by_key(|profile| profile.total.instructions);
    Ok(lowest.ok_or("no run was made")?)
}

/// Describes all that the figures depend on besides the source code.
fn toolchain() -> Outcome<String> {
    let rustc = output("rustc", &["-vV"])?;
    let field = |key: &str| {
        let line = rustc.lines().find_map(|line| line.strip_prefix(key));
        line.ok_or_else(|| format!("rustc -vV prints no line '{key}'"))
    };
    let (release, host) = (field("rustc ")?, field("host: ")?);
    let libc = output("getconf", &["GNU_LIBC_VERSION"])?;
    let valgrind = output("valgrind", &["--version"])?;
    Ok(format!(
        "rustc {release} {host}; {}; {}",
        libc.trim(),
        valgrind.trim()
    ))
}

fn output(program: &str, arguments: &[&str]) -> Outcome<String> {
    let output = Command::new(program)
        .args(arguments)
        .stderr(Stdio::inherit())
        .output();
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program} {} failed", arguments.join(" ")).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        eprintln!("{}", callgrind::MISSING);
        return ExitCode::FAILURE;
    }
    cli.run().unwrap_or_else(|error| {
        eprintln!("count: {error}");
        ExitCode::FAILURE
    })
}
