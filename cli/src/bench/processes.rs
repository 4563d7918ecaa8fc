//! Several processes that share a load.
//!
//! ```text
//!  parent                             each part, a child
//!    its load, one line of JSON ────────▶ connects, makes its messages
//!    ◀──────────────────────────── ready
//!    go ────────────────────────────────▶ makes its calls
//!    ◀───────────────── its record, one line of JSON
//! ```
//!
//! The end of a child's standard input is an interrupt: it ends with what it has, whatever has become of its
//! parent.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::{env, thread};

use verbline_load::Record;

use super::interrupt::Interrupt;
use super::plan::Load;
use crate::failure::Failure;

const READY: &str = "ready";

/// A child.
struct Part {
    child: Child,
    /// What it writes.
    lines: BufReader<ChildStdout>,
}

impl Part {
    /// Starts this program again, with the same command line.
    fn start() -> io::Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(env::args_os().skip(1))
            .arg("--is-part")
            // Nobody reads what it logs while it runs, and a pipe that is full would stop it.
            .env_remove("RUST_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().expect("it is a pipe");
        let lines = BufReader::new(stdout);
        Ok(Self { child, lines })
    }

    /// Writes a line to the child. One that has ended tells why, when its next line is read.
    fn write(&mut self, line: &str) {
        if let Some(stdin) = &mut self.child.stdin {
            let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        }
    }

    fn read(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(1..) => Ok(line),
            _ => Err(self.why_it_ended()),
        }
    }

    fn why_it_ended(&mut self) -> Failure {
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut said);
        }
        let said = said.trim().trim_start_matches("verbline: ").to_owned();
        Failure::Part { said }
    }
}

impl Drop for Part {
    /// Leaves no process behind.
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It has ended already, unless something has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Divides a load among processes, and merges what they have recorded.
pub(crate) fn measure(
    load: &Load,
    processes: u32,
    interrupt: &Interrupt,
    runtime: &tokio::runtime::Handle,
    begin: impl FnOnce() -> Result<(), Failure>,
) -> Result<Record, Failure> {
    let parts = (0..processes).map(|_| Part::start());
    let mut parts = parts
        .collect::<io::Result<Vec<_>>>()
        .map_err(Failure::StartPart)?;
    for (index, part) in parts.iter_mut().enumerate() {
        let load = load.part(index as u32, processes);
        let load = serde_json::to_string(&load).expect("numbers have a form in JSON");
        part.write(&load);
    }
    for part in &mut parts {
        part.read()?;
    }
    for part in &mut parts {
        part.write("go");
    }
    begin()?;
    let stdins: Vec<_> = parts
        .iter_mut()
        .map(|part| part.child.stdin.take())
        .collect();
    let interrupted = interrupt.wait();
    let ending = runtime.spawn(async move {
        interrupted.await;
        drop(stdins);
    });
    let mut merged: Option<Record> = None;
    for part in &mut parts {
        let record = Record::from_json(&part.read()?).map_err(Failure::BadPart)?;
        match &mut merged {
            Some(merged) => merged.merge(&record)?,
            None => merged = Some(record),
        }
    }
    ending.abort();
    merged.ok_or(Failure::Part {
        said: "there is none".to_owned(),
    })
}

/// The other side: reads the load.
pub(crate) fn read_load() -> Result<Load, Failure> {
    let mut line = String::new();
    io::stdin()
        .read_line(&mut line)
        .map_err(Failure::StartPart)?;
    serde_json::from_str(&line).map_err(Failure::BadPart)
}

/// Says that everything is ready, and waits for the start.
pub(crate) fn wait_for_start(interrupt: &Interrupt) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{READY}")
        .and_then(|()| out.flush())
        .map_err(Failure::Output)?;
    let mut line = String::new();
    io::stdin()
        .read_line(&mut line)
        .map_err(Failure::StartPart)?;
    let interrupt = interrupt.clone();
    let spawned = thread::Builder::new()
        .name("verbline-parent".to_owned())
        .spawn(move || {
            // Ends with the parent, or when it has enough.
            let _ = io::stdin().read_to_end(&mut Vec::new());
            interrupt.set();
        });
    spawned.map(drop).map_err(Failure::StartPart)
}
