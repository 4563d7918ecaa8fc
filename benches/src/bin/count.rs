//! Counts the instructions, locked instructions, code lines and simulated cache misses of a call, and compares them with
//! the accepted figures. Each count is the difference of two runs under callgrind, so one-time work
//! cancels out. The result is the same on every machine with the same toolchain.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cmp::Ordering;
use std::error::Error;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs, thread};

use benches::Outcome;
use benches::counts::accepted::Accepted;
use benches::counts::callgrind::{self, Cost, LINE_LEN, Profile};
use benches::counts::figure::{Figure, Runs, Unit};
use benches::counts::locked::Locked;
use clap::Parser;

/// Counts instructions per call and compares them with the accepted figures
#[derive(Parser)]
struct Cli {
    /// The file with the accepted figures
    #[arg(long, default_value = "benches/accepted-counts.json")]
    file: PathBuf,
    /// Accept what is counted, for this reason
    #[arg(long, value_parser = reason, requires = "without_lto")]
    accept: Option<String>,
    /// The folder of the programs that are counted, in a release build
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
    /// The folder of the same programs, built without LTO as users' programs are [default: not counted]
    #[arg(long)]
    without_lto: Option<PathBuf>,
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

/// What is counted in instructions: the layers of the program `instructions`, and the raw verbs.
const LAYERS: [&str; 12] = [
    "call",
    "intercepted",
    "intercepted-thrice",
    "tcp",
    "connections",
    "soft",
    "verbs",
    "stream",
    "ping-pong",
    "first-message",
    "idle-client",
    "idle-server",
];

/// Says what is counted of a layer.
fn what(layer: &str) -> &str {
    match layer {
        "call" => "for one whole call: client and server, transport and soft, one empty turn each",
        "intercepted" => "for the same with an interceptor on each side, which does nothing",
        "intercepted-thrice" => "for the same with three on each side",
        "tcp" => "for one whole call over TCP, without what the kernel does",
        "connections" => "for one whole call, over 60 connections in turn",
        "soft" => "for one frame there and one back through the transport, soft included",
        "verbs" => "for one raw message there and one back through the verbs layer, soft included",
        "stream" => "for one message of 64 bytes of a server stream, in frames of many",
        "ping-pong" => "for one message there and one back on an open stream, one empty turn each",
        "first-message" => "for a server stream of one message: opened, read and ended",
        "idle-client" => "for an empty turn of a client with one connection",
        _ => "for an empty turn of a server with one connection",
    }
}

impl Cli {
    fn run(&self) -> Outcome<ExitCode> {
        let toolchain = toolchain()?;
        let mut counted = self.count()?;
        if let Some(programs) = &self.without_lto {
            counted.extend(count_without_lto(programs)?);
        }
        let known = self.accepted()?;
        if let Some(reason) = &self.accept {
            let accepted = known.accept(&toolchain, counted, reason);
            let text = serde_json::to_string_pretty(&accepted)?;
            fs::write(&self.file, text + "\n")?;
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
        Ok(self.compare(&known.of_each(&counted)?, &counted))
    }

    fn accepted(&self) -> Outcome<Accepted> {
        let in_file = |error: &dyn Error| format!("{}: {error}", self.file.display());
        let text = match fs::read_to_string(&self.file) {
            Err(error) if error.kind() == ErrorKind::NotFound && self.accept.is_some() => {
                return Ok(Accepted::default());
            }
            text => text.map_err(|error| in_file(&error))?,
        };
        Ok(serde_json::from_str(&text).map_err(|error| in_file(&error))?)
    }

    /// Counts all figures, and prints each as soon as it is known.
    fn count(&self) -> Outcome<Vec<Figure>> {
        let mut figures = Vec::new();
        let mut add = |figure: Figure, what: &str| {
            println!("{} {what}", line(&figure));
            figures.push(figure);
        };
        let call = runs(&self.programs, "call")?;
        let ping_pong = runs(&self.programs, "ping-pong")?;
        for layer in LAYERS {
            let name = match layer.split_once('-') {
                Some(("idle", side)) => format!("idle {side}"),
                _ => format!("over {layer}"),
            };
            let runs = match layer {
                "call" => call.clone(),
                "ping-pong" => ping_pong.clone(),
                layer => runs(&self.programs, layer)?,
            };
            let figure = runs.figure(&name, Unit::Instructions, Cost::instructions);
            add(figure, what(layer));
        }
        let locked = Locked::of(&self.programs.join("instructions"))?;
        let of_both = "of both sides, on one thread";
        add(call.locked("locked in a call", &locked, false), of_both);
        let name = "locked in a message there and back";
        add(ping_pong.locked(name, &locked, false), of_both);
        for (side, runs) in ["client", "server"].iter().zip(self.sides()?) {
            let name = format!("locked in a call, {side}");
            add(runs.locked(&name, &locked, true), "in a process of its own");
        }
        let lines = call.hot_lines("hot code of a call");
        let kib = lines.value * LINE_LEN as f64 / 1024.0;
        add(
            lines,
            &format!("of {LINE_LEN} bytes that a call executes, {kib:.1} KiB"),
        );
        let caches = "in a simulated cache of 32 KiB, 8 ways, 64-byte lines";
        let data = call.figure("D1 misses of a call", Unit::Misses, Cost::d1_misses);
        add(data, caches);
        // Shown, and not compared: between 7 and 96 in builds whose code was the same but for its places.
        // Where nine lines fall into one set of a cache with eight places in each set, each of the nine
        // misses in every call. Code that grows shows in the number of its lines.
        let code = call.figure("I1 misses of a call", Unit::Misses, Cost::i1_misses);
        println!("{} {caches}; not compared", line(&code));
        for figure in [&figures[0], &figures[3]] {
            if self.functions > 0 {
                println!("\nfunctions of '{}':", figure.name);
            }
            let mut functions: Vec<_> = figure.functions.iter().collect();
            functions.sort_by(|a, b| b.1.total_cmp(a.1));
            for (name, value) in functions.into_iter().take(self.functions) {
                println!("{value:>8} {name}");
            }
        }
        Ok(figures)
    }

    /// Counts the calls of one process to another, once: turns that find nothing have no locked instruction,
    /// so it does not matter how many they are. Returns what the client and the server cost.
    fn sides(&self) -> Outcome<[Runs; 2]> {
        let [few, many] = [FEW, MANY].map(|calls| sides(&self.programs, calls));
        let (few, many) = (few?.into_iter(), many?.into_iter());
        let runs = few.zip(many).map(|(few, many)| Runs {
            few,
            many,
            exchanges: MANY - FEW,
        });
        let sides: Vec<_> = runs.collect();
        Ok(sides.try_into().expect("there are two sides"))
    }

    fn compare(&self, accepted: &[&Figure], counted: &[Figure]) -> ExitCode {
        println!();
        let mut code = ExitCode::SUCCESS;
        for (accepted, counted) in accepted.iter().zip(counted) {
            match accepted.compare(counted) {
                Ordering::Equal => {}
                Ordering::Less => println!(
                    "{} is lower than the accepted {}. Keep the gain with: make count ACCEPT='why'",
                    line(counted),
                    accepted.value
                ),
                Ordering::Greater => {
                    eprintln!("!!! {}", accepted.growth(counted));
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

/// Counts what the smallest call costs a user, whose build has no LTO, and prints each figure.
fn count_without_lto(programs: &Path) -> Outcome<Vec<Figure>> {
    println!();
    let count = |layer: &str| {
        let runs = runs(programs, layer)?;
        let name = format!("{} without LTO", layer.replace('-', " "));
        let figure = runs.figure(&name, Unit::InstructionsNoLto, Cost::instructions);
        println!("{}", line(&figure));
        Ok(figure)
    };
    let layers = ["call", "idle-client", "idle-server"];
    layers.into_iter().map(count).collect()
}

fn line(figure: &Figure) -> String {
    format!("{}: {} {}", figure.name, figure.value, figure.unit.name())
}

/// Counts the exchanges of a layer in a short and in a long run.
fn runs(programs: &Path, layer: &str) -> Outcome<Runs> {
    Ok(Runs {
        few: lowest_run(programs, layer, FEW)?,
        many: lowest_run(programs, layer, MANY)?,
        exchanges: MANY - FEW,
    })
}

fn lowest_run(programs: &Path, layer: &str, exchanges: u64) -> Outcome<Profile> {
    let (program, over) = match layer {
        "verbs" => ("raw_instructions", None),
        layer => ("instructions", Some(["--over", layer])),
    };
    let calls = exchanges.to_string();
    let arguments: Vec<&str> = over
        .into_iter()
        .flatten()
        .chain(["--calls", &calls])
        .collect();
    let program = programs.join(program);
    let run = || -> Result<Profile, String> {
        let counted = callgrind::run(&program, &arguments).map_err(|error| error.to_string());
        let (profile, said) = counted?;
        match said.contains(&format!("{exchanges} exchanges made")) {
            true => Ok(profile),
            false => Err(format!(
                "{} did not make {exchanges} exchanges: {said}",
                program.display()
            )),
        }
    };
    // At once: what is counted does not depend on how long it takes.
    let profiles: Vec<Profile> = thread::scope(|scope| {
        let runs = [(); REPETITIONS].map(|()| scope.spawn(run));
        let profiles = runs.map(|run| run.join().expect("a run does not panic"));
        profiles.into_iter().collect::<Result<_, _>>()
    })?;
    let lowest = profiles
        .into_iter()
        .min_by_key(|profile| profile.total().instructions());
    Ok(lowest.ok_or("no run was made")?)
}

/// Makes calls from one process to another. Returns what the client and the server cost.
fn sides(programs: &Path, calls: u64) -> Outcome<[Profile; 2]> {
    let (program, calls) = (programs.join("instructions"), calls.to_string());
    let mut server = callgrind::start(&program, &["--serve", "--calls", &calls])?;
    let address = server.first_line()?;
    let arguments = ["--server", &address, "--calls", &calls];
    let (client, _) = callgrind::run(&program, &arguments)?;
    Ok([client, server.finish()?.0])
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
