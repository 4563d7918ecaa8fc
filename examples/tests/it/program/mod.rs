//! Runs an example as a process, and waits for the lines that it prints.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// How long a line may take, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the name of the device under test: `VERBLINE_DEVICE`, or `soft`.
pub(crate) fn device_name() -> String {
    std::env::var("VERBLINE_DEVICE").unwrap_or_else(|_| "soft".to_owned())
}

/// A running program, killed on drop.
pub(crate) struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Program {
    pub(crate) fn start(program: &str, arguments: &[&str]) -> Self {
        Self::start_over(&device_name(), program, arguments)
    }

    fn start_over(device: &str, program: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .env("VERBLINE_DEVICE", device)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self {
            stdin: child.stdin.take(),
            child,
            lines,
        }
    }

    /// Starts a server, and returns its address too.
    pub(crate) fn server(program: &str, arguments: &[&str]) -> (Self, String) {
        Self::server_over(&device_name(), program, arguments)
    }

    /// Starts a server with these devices, and returns its address too.
    pub(crate) fn server_over(device: &str, program: &str, arguments: &[&str]) -> (Self, String) {
        let server = Self::start_over(device, program, arguments);
        let line = server.line();
        let address = line.strip_prefix("listening at ").unwrap();
        (server, address.to_owned())
    }

    /// Returns the next line.
    pub(crate) fn line(&self) -> String {
        let line = self.lines.recv_timeout(TIMEOUT);
        line.expect("the program prints another line")
    }

    /// Writes a line to the program's standard input.
    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Ends the program's standard input.
    pub(crate) fn end_input(&mut self) {
        self.stdin = None;
    }

    /// Waits until the program has ended, and returns its remaining lines.
    pub(crate) fn finish(&mut self) -> (ExitStatus, Vec<String>) {
        self.end_input();
        let mut lines = Vec::new();
        // Ends with the program's standard output.
        while let Ok(line) = self.lines.recv_timeout(TIMEOUT) {
            lines.push(line);
        }
        (self.child.wait().unwrap(), lines)
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
