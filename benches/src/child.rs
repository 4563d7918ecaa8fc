//! The other side's process: this program, started again in another role.
//!
//! Exactly one of a benchmark's servers runs at a time. All of them poll without pause, so two of
//! them on the server's core would measure the scheduler; the others are stopped (`SIGSTOP`) until
//! it is their turn. A stopped peer loses nothing: that is one of the software device's promises.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use std::{env, fs, io};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid,
};

use crate::Outcome;

/// A server process. Dropping this ends it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    pid: Pid,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Server {
    /// Starts this same program with other arguments: those of one of its hidden roles.
    ///
    /// # Errors
    ///
    /// If the system cannot start it.
    pub fn start(role: &[String]) -> Outcome<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a child with pipes has none".into());
        };
        Ok(Self {
            pid: Pid::from_child(&child),
            child,
            to,
            from: BufReader::new(from),
        })
    }

    /// The next line that it says.
    ///
    /// # Errors
    ///
    /// If it ended instead; it has said why on standard error.
    pub fn hear(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
            return Err(format!("the server process ended before it was ready: {status}").into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Says a line to it.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn tell(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.to, "{line}")?;
        self.to.flush()
    }

    /// Takes it off its core until [`resume`](Self::resume). Returns when it has stopped.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn pause(&self) -> io::Result<()> {
        kill_process(self.pid, Signal::STOP)?;
        match waitpid(Some(self.pid), WaitOptions::UNTRACED)? {
            Some((_, status)) if status.stopped() => Ok(()),
            _ => Err(io::Error::other("the server process has ended")),
        }
    }

    /// How much processor time it uses.
    #[must_use]
    pub fn cpu_time(&self) -> CpuTime {
        CpuTime {
            tasks: format!("/proc/{}/task", self.pid.as_raw_nonzero()).into(),
        }
    }

    /// Lets it go on.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn resume(&self) -> io::Result<()> {
        Ok(kill_process(self.pid, Signal::CONT)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself, which comes to the same.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process's processor time, of all the threads that it has.
#[derive(Clone, Debug)]
pub struct CpuTime {
    tasks: PathBuf,
}

impl CpuTime {
    /// Of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self {
            tasks: "/proc/self/task".into(),
        }
    }

    /// So far. To the nanosecond, which the ticks of `/proc/<pid>/stat` are too coarse for where little
    /// is used.
    ///
    /// # Errors
    ///
    /// If the process has ended, or the kernel does not count (`CONFIG_SCHED_INFO`).
    pub fn read(&self) -> Outcome<Duration> {
        let mut nanos = 0;
        for task in fs::read_dir(&self.tasks)? {
            let path = task?.path().join("schedstat");
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                // A thread that has ended since: before its file was opened, or before it was read.
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

/// For a server process, first of all: it ends when its parent does, even one that is killed while
/// this process is stopped.
///
/// # Errors
///
/// If the system refuses.
pub fn end_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// For a server process: says a line to its parent.
///
/// # Errors
///
/// If the parent has ended.
pub fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// For a server process: the next line from its parent.
///
/// # Errors
///
/// If the parent has ended.
pub fn listen() -> io::Result<String> {
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
