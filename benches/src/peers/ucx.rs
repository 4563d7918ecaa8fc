//! UCX: the ping-pong of active messages over shared memory, by its own benchmark.
//!
//! It carries no calls: no method, no credits, no encoding. It is what the fastest shared-memory
//! transport in wide use takes for a message there and one back.

use std::io;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::Outcome;
use crate::cores::Cores;
use crate::slices::{Side, Stopwatch};

const PROGRAM: &str = "ucx_perftest";

/// What to say where it is missing.
pub const MISSING: &str = "!!! UCX IS NOT MEASURED: ucx_perftest is not installed (Debian package \
                           `ucx-utils`)";

/// Both sides of `ucx_perftest`, started anew for each turn.
#[derive(Debug)]
pub struct Ucx {
    cores: Cores,
    size: usize,
}

/// Ends the process that it holds.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ucx {
    /// For messages of `size` bytes; `None` where it is not installed.
    #[must_use]
    pub fn find(cores: Cores, size: usize) -> Option<Self> {
        let found = Command::new(PROGRAM)
            .arg("-h")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        found.is_ok().then_some(Self { cores, size })
    }

    fn command(port: u16, core: usize) -> Command {
        let mut command = Command::new(PROGRAM);
        // Shared memory and nothing else.
        command
            .env("UCX_TLS", "posix,self")
            .args(["-p", &port.to_string(), "-c", &core.to_string()])
            .stderr(Stdio::null());
        command
    }
}

impl Side for Ucx {
    /// Records one time: the median of all its round trips in this turn.
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        // It has no port 0: one that is free now will still be in a moment.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = Self::command(port, self.cores.server)
            .stdout(Stdio::null())
            .spawn()?;
        let _server = Ending(server);
        let mut client = Self::command(port, self.cores.client);
        client
            .args(["127.0.0.1", "-t", "ucp_am_lat", "-f", "-v"])
            .args(["-s", &self.size.to_string(), "-n", &calls.to_string()]);
        // The server does not say when it listens.
        for _ in 0..50 {
            thread::sleep(Duration::from_millis(20));
            let output = client.output()?;
            if output.status.success() {
                let text = String::from_utf8_lossy(&output.stdout);
                let half = median_of_half_round_trips(&text).ok_or_else(|| {
                    io::Error::other(format!("{PROGRAM} printed what is not understood: {text}"))
                })?;
                stopwatch.record(2 * half);
                return Ok(());
            }
        }
        Err(format!("{PROGRAM} does not run: try it by hand").into())
    }
}

/// From its CSV: after the header `iterations,50.0_percentile_lat,…`, the last line's second column
/// in microseconds. It prints half of a round trip.
fn median_of_half_round_trips(csv: &str) -> Option<Duration> {
    let lines: Vec<&str> = csv.lines().filter(|line| line.contains(',')).collect();
    let (header, row) = (lines.first()?, lines.last()?);
    let column = header
        .split(',')
        .position(|name| name.starts_with("50.0"))?;
    let micros: f64 = row.split(',').nth(column)?.trim().parse().ok()?;
    Some(Duration::from_nanos((micros * 1e3).round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_read_from_the_last_line() {
        let csv = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw\n\
                   300000,0.547,1.719,2.124,35.52\n";
        assert_eq!(
            median_of_half_round_trips(csv),
            Some(Duration::from_nanos(547))
        );
        assert_eq!(median_of_half_round_trips("no such test\n"), None);
    }
}
