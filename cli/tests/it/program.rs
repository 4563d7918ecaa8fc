//! The program, as a process.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// What a process has left behind.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    /// Returns the output of a program that has succeeded, and has complained about nothing.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{self:?}");
        self.out
    }

    /// Returns what a program that has failed with this code says.
    #[track_caller]
    pub(crate) fn failed(self, code: i32) -> String {
        assert_eq!((self.code, self.out.as_str()), (code, ""), "{self:?}");
        self.err
    }
}

/// A command with these arguments. No variable of this process reaches it, besides those that it needs to
/// find its shared memory.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbline"));
    command
        .args(arguments)
        .env("VERBLINE_DEVICE", "soft")
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs the program to its end.
pub(crate) fn verbline(arguments: &[&str]) -> Ended {
    end(command(arguments).spawn().unwrap())
}

/// Runs the program with this standard input.
pub(crate) fn verbline_reads(arguments: &[&str], input: &str) -> Ended {
    let mut command = command(arguments);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A program that needs no more closes it.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    end(child)
}

pub(crate) fn end(child: Child) -> Ended {
    let output = child.wait_with_output().unwrap();
    Ended {
        code: output.status.code().expect("no signal has ended it"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs a command on a terminal with so many columns; a new terminal has none. Returns its exit code, and
/// what the terminal was sent.
pub(crate) fn on_terminal(command: &mut Command, columns: u16) -> (i32, String) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let size = Winsize {
        ws_col: columns,
        ws_row: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&terminal, size).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let mut options = OpenOptions::new();
    let other_end = options.read(true).write(true).open(name.to_str().unwrap());
    let other_end = other_end.unwrap();
    let child = command
        .env("TERM", if columns == 0 { "dumb" } else { "xterm" })
        .env_remove("COLUMNS")
        // clap's library of colours takes `CI` for a wish to have them.
        .env("NO_COLOR", "1")
        .stdout(other_end.try_clone().unwrap())
        .stderr(other_end)
        .spawn()
        .unwrap();
    // The command keeps its end of the terminal open otherwise.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // A terminal takes little without a reader.
    let reading = std::thread::spawn(move || {
        let mut shown = Vec::new();
        // Ends with an error when the last process has closed the terminal.
        let _ = File::from(terminal).read_to_end(&mut shown);
        String::from_utf8(shown).unwrap()
    });
    let output = child.wait_with_output().unwrap();
    let code = output.status.code().expect("no signal has ended it");
    (code, reading.join().unwrap().replace("\r\n", "\n"))
}
