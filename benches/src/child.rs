//! The processes of the other side: this program, started again in another role.
//!
//! Exactly one of a benchmark's servers runs at a time. All of them poll without pause, so two of
//! them on the server's core would measure the scheduler. The others are stopped with `SIGSTOP`
//! until their turn. The software device guarantees that a stopped peer loses nothing.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use std::{env, fs, io};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid,
};

use crate::Outcome;
use crate::cores::spawn_unpinned;
use crate::role::{self, Role};

/// A process in another role, mostly a server. Dropping this kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid: Pid,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts this program again in a role, on all cores, and returns the first line that it prints:
    /// mostly its address.
    ///
    /// # Errors
    ///
    /// Fails if the system cannot start the process, or if it ends instead.
    pub fn start(role: &Role) -> Outcome<(Self, String)> {
        let mut process = Self::start_as(None, &role::to_args(role)?)?;
        let line = process.read_line()?;
        Ok((process, line))
    }

    /// Starts this program again with these arguments, for another user and the group with the same
    /// number, or for this one.
    ///
    /// # Errors
    ///
    /// Fails if the system cannot start the process, or if this user may not start processes of
    /// others.
    pub fn start_as(user: Option<u32>, args: &[String]) -> Outcome<Self> {
        let mut command = Command::new(env::current_exe()?);
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = spawn_unpinned(&mut command)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("internal error: the server process has no pipes".into());
        };
        Ok(Self {
            pid: Pid::from_child(&child),
            child,
            stdin,
            stdout: BufReader::new(stdout),
        })
    }

    /// Returns the next line that the server prints.
    ///
    /// # Errors
    ///
    /// Fails if the server ended instead. It has printed the reason on standard error.
    pub fn read_line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
            return Err(format!("the server process ended before it was ready: {status}").into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Sends a line to the server.
    ///
    /// # Errors
    ///
    /// Fails if the server has ended.
    pub fn write_line(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.stdin, "{line}")?;
        self.stdin.flush()
    }

    /// Stops the server until [`resume`](Self::resume). Returns once it has stopped.
    ///
    /// # Errors
    ///
    /// Fails if the server has ended.
    pub fn pause(&self) -> io::Result<()> {
        kill_process(self.pid, Signal::STOP)?;
        match waitpid(Some(self.pid), WaitOptions::UNTRACED)? {
            Some((_, status)) if status.stopped() => Ok(()),
            _ => Err(io::Error::other("the server process has ended")),
        }
    }

    /// Returns the id of the process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the id of the process as a plain number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns a handle that reads the server's CPU time.
    #[must_use]
    pub fn cpu_time(&self) -> CpuTime {
        CpuTime {
            tasks: format!("/proc/{}/task", self.pid.as_raw_nonzero()).into(),
        }
    }

    /// Lets the server continue.
    ///
    /// # Errors
    ///
    /// Fails if the server has ended.
    pub fn resume(&self) -> io::Result<()> {
        Ok(kill_process(self.pid, Signal::CONT)?)
    }

    /// Lets the server continue for the time of `turn`.
    ///
    /// # Errors
    ///
    /// Returns the error of `turn`, or fails if the server has ended.
    pub fn in_turn<R, E>(&self, turn: impl FnOnce() -> Result<R, E>) -> Outcome<R>
    where
        Box<dyn Error>: From<E>,
    {
        self.resume()?;
        let result = turn()?;
        self.pause()?;
        Ok(result)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may already have ended, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the resident memory of a process, in bytes.
///
/// # Errors
///
/// Fails if the system does not report it.
pub fn resident(pid: Pid) -> Outcome<u64> {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let text = fs::read_to_string(&path)?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib: u64 = kib.ok_or(format!("{path} has no VmRSS"))?.parse()?;
    Ok(kib * 1024)
}

/// Reads the CPU time of a process, over all its current threads.
#[derive(Clone, Debug)]
pub struct CpuTime {
    tasks: PathBuf,
}

impl CpuTime {
    /// Returns a handle for this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self {
            tasks: "/proc/self/task".into(),
        }
    }

    /// Returns the CPU time used so far, in nanoseconds. The ticks of `/proc/<pid>/stat` are too
    /// coarse for a process that uses little.
    ///
    /// # Errors
    ///
    /// Fails if the process has ended, or if the kernel does not count (`CONFIG_SCHED_INFO`).
    pub fn read(&self) -> Outcome<Duration> {
        let mut nanos = 0;
        for task in fs::read_dir(&self.tasks)? {
            let path = task?.path().join("schedstat");
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                // The thread ended before its file was opened or read.
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound
                        || Errno::from_io_error(&error) == Some(Errno::SRCH) =>
                {
                    continue;
                }
                Err(error) => return Err(format!("{}: {error}", path.display()).into()),
            };
            let first = text.split_whitespace().next().unwrap_or_default();
            nanos += first
                .parse::<u64>()
                .map_err(|error| format!("{}: {first:?}: {error}", path.display()))?;
        }
        Ok(Duration::from_nanos(nanos))
    }
}

/// Makes this server process end with its parent. A server process calls this first. It works even
/// if the parent is killed while this process is stopped.
///
/// # Errors
///
/// Fails if the system call fails.
pub fn end_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Sends a line from a server process to its parent.
///
/// # Errors
///
/// Fails if the parent has ended.
pub fn write_line_to_parent(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Reads the next line that the parent sends to a server process.
///
/// # Errors
///
/// Fails if the parent has ended.
pub fn read_line_from_parent() -> io::Result<String> {
    let mut line = String::new();
    if io::stdin().read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_is_seen_in_the_processor_time() {
        let time = CpuTime::of_this_process();
        let before = time.read().expect("the kernel counts");
        let start = Instant::now();
        while time.read().expect("the kernel counts") < before + Duration::from_millis(20) {
            assert!(start.elapsed() < Duration::from_secs(60), "{before:?}");
        }
    }
}
