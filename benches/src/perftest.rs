//! `ib_send_lat` from the perftest package: the standard ping-pong for RDMA devices.

use std::io;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::Outcome;
use crate::cores::Cores;
use crate::slices::{Side, Stopwatch};

const PROGRAM: &str = "ib_send_lat";

/// Printed if the program is missing.
pub const MISSING: &str =
    "!!! NOTHING TO COMPARE WITH: ib_send_lat is not installed (Debian package `perftest`)";

/// How often a turn is tried if the program cannot read its clock.
const ATTEMPTS: usize = 5;

/// Both sides of `ib_send_lat`, restarted for each turn.
#[derive(Clone, Debug)]
pub struct SendLatency {
    /// The device's name.
    pub device: String,
    /// GID index to use.
    pub gid_index: u32,
    /// Length of a message in bytes.
    pub frame_len: usize,
    /// The cores that the two sides run on.
    pub cores: Cores,
}

/// Kills its process when dropped.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl SendLatency {
    /// Returns true if the program is installed.
    #[must_use]
    pub fn is_installed() -> bool {
        let help = Command::new(PROGRAM)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        help.is_ok()
    }

    /// Exchanges `calls` messages and returns the client's output. `under` holds the command line
    /// of a wrapper for each side, the server's first and the client's second. An empty one means
    /// no wrapper.
    ///
    /// # Errors
    ///
    /// Fails if the program does not run.
    pub fn exchange(&self, calls: usize, under: &[Vec<String>; 2]) -> Outcome<String> {
        // The program does not accept port 0, so find a free port. It is very likely still free a
        // moment later.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let [server, client] = under;
        let server = self
            .command(self.cores.server, server, port, calls)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut server = Ending(server);
        let mut client = self.command(self.cores.client, client, port, calls);
        client.arg("127.0.0.1");
        let mut stderr = String::new();
        // The server does not report when it starts listening, so retry.
        for _ in 0..50 {
            thread::sleep(Duration::from_millis(200));
            let output = client.output()?;
            if output.status.success() {
                // The server ends on its own, and its wrapper then writes its results.
                server.0.wait()?;
                return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
            }
            stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        }
        Err(format!("{PROGRAM} failed on '{}': {stderr}", self.device).into())
    }

    fn command(&self, core: usize, under: &[String], port: u16, calls: usize) -> Command {
        let mut command = Command::new("taskset");
        command
            .args(["-c", &core.to_string()])
            .args(under)
            .arg(PROGRAM)
            .args(["-d", &self.device, "-x", &self.gid_index.to_string()])
            .args(["-s", &self.frame_len.to_string(), "-n", &calls.to_string()])
            // `-F` suppresses the warning about the CPU frequency.
            .args(["-p", &port.to_string(), "-F"]);
        command
    }
}

impl Side for SendLatency {
    /// Records one time: the median of all round trips in this turn.
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        for _ in 0..ATTEMPTS {
            let text = self.exchange(calls, &Default::default())?;
            let micros = typical_half_round_trip(&text).ok_or_else(|| {
                io::Error::other(format!("cannot parse the output of {PROGRAM}: {text}"))
            })?;
            // The program could not calibrate its two clocks, which happens on a busy machine.
            if !micros.is_finite() {
                continue;
            }
            stopwatch.record(Duration::from_nanos((2e3 * micros).round() as u64));
            return Ok(());
        }
        Err(format!("{PROGRAM} could not read its clock {ATTEMPTS} times; retry when idle").into())
    }
}

/// Parses the column `t_typical[usec]` of the program's table: the median half round trip in
/// microseconds.
fn typical_half_round_trip(text: &str) -> Option<f64> {
    let mut lines = text
        .lines()
        .skip_while(|line| !line.contains("t_typical[usec]"));
    let column = lines
        .next()?
        .split_whitespace()
        .position(|name| name == "t_typical[usec]")?;
    lines.next()?.split_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = " GID: 00:00\n---\n \
        #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n \
        88      2000          20.97          776.61       30.17    \t       34.64       \t25.92  \t\t196.49  \t\t383.97 \n---\n";

    #[test]
    fn the_typical_time_is_read_from_its_column() {
        assert_eq!(typical_half_round_trip(TABLE), Some(30.17));
        assert_eq!(typical_half_round_trip("Couldn't connect\n"), None);
    }

    #[test]
    fn a_run_without_a_clock_is_told_from_nonsense() {
        let text = TABLE.replace("30.17", "inf");
        assert_eq!(typical_half_round_trip(&text), Some(f64::INFINITY));
    }
}
