//! UCX: a ping-pong of active messages over shared memory, measured with UCX's own benchmark.
//!
//! It makes no calls: it has no methods, no credits, no encoding. It shows what the fastest widely
//! used shared-memory transport needs for one message in each direction.

use std::io;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::Outcome;
use crate::cores::Cores;
use crate::slices::{Side, Stopwatch};

const PROGRAM: &str = "ucx_perftest";

/// Printed if the program is missing.
pub const MISSING: &str = "!!! UCX IS NOT MEASURED: ucx_perftest is not installed. Install the Debian package \
                           `ucx-utils`";

/// Both sides of `ucx_perftest`, restarted for each turn.
#[derive(Debug)]
pub struct Ucx {
    cores: Cores,
    size: usize,
    exchange: Exchange,
}

/// The messages that count as one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// A message in each direction.
    RoundTrip,
    /// A message in one direction: half of such a round trip, since the program prints no other
    /// latency.
    OneWay,
}

/// Kills its process when dropped.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ucx {
    /// Returns a side for messages of `size` bytes, or `None` if `ucx_perftest` is not installed.
    #[must_use]
    pub fn find(cores: Cores, size: usize, exchange: Exchange) -> Option<Self> {
        let found = Command::new(PROGRAM)
            .arg("-h")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        found.is_ok().then_some(Self {
            cores,
            size,
            exchange,
        })
    }

    fn command(port: u16, core: usize) -> Command {
        let mut command = Command::new(PROGRAM);
        // Use shared memory only, and the kernel's copy between processes for what is long.
        command
            .env("UCX_TLS", "posix,cma,self")
            .args(["-p", &port.to_string(), "-c", &core.to_string()])
            .stderr(Stdio::null());
        command
    }
}

impl Side for Ucx {
    /// Records one time: the median of all exchanges in this turn.
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        // The program does not accept port 0, so find a free port. It is very likely still free a
        // moment later.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = Self::command(port, self.cores.server)
            .stdout(Stdio::null())
            .spawn()?;
        let _server = Ending(server);
        let mut client = Self::command(port, self.cores.client);
        client
            .args(["127.0.0.1", "-t", "ucp_am_lat", "-f", "-v"])
            .args(["-s", &self.size.to_string(), "-n", &calls.to_string()]);
        // The server does not report when it starts listening, so retry.
        for _ in 0..50 {
            thread::sleep(Duration::from_millis(20));
            let output = client.output()?;
            if output.status.success() {
                let text = String::from_utf8_lossy(&output.stdout);
                let half = median_of_half_round_trips(&text).ok_or_else(|| {
                    io::Error::other(format!("cannot parse the output of {PROGRAM}: {text}"))
                })?;
                stopwatch.record(match self.exchange {
                    Exchange::RoundTrip => 2 * half,
                    Exchange::OneWay => half,
                });
                return Ok(());
            }
        }
        Err(format!("{PROGRAM} failed 50 times; run it by hand to see why").into())
    }
}

/// Parses the program's CSV output: after the header `iterations,50.0_percentile_lat,…`, the second
/// column of the last line holds half a round trip in microseconds.
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
