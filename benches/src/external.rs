//! Benchmarks of other projects, which run as two programs: `ib_send_lat` of perftest, the standard
//! ping-pong for RDMA devices, and `ucx_perftest`, a ping-pong of active messages over shared memory. UCX
//! makes no calls: it has no methods, no credits, no encoding. It shows what the fastest widely used
//! shared-memory transport needs for one message in each direction.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::Outcome;
use crate::cores::Cores;
use crate::slices::{Side, Stopwatch};

/// Printed if `ib_send_lat` is missing.
pub const NO_PERFTEST: &str =
    "!!! NOTHING TO COMPARE WITH: ib_send_lat is not installed (Debian package `perftest`)";

/// Printed if `ucx_perftest` is missing.
pub const NO_UCX: &str = "!!! UCX IS NOT MEASURED: ucx_perftest is not installed. Install the Debian package \
                           `ucx-utils`";

const PERFTEST: &str = "ib_send_lat";
const UCX: &str = "ucx_perftest";

/// How often a turn is tried if `ib_send_lat` cannot read its clock.
const ATTEMPTS: usize = 5;

/// Returns true if a program can be started.
fn is_installed(program: &str) -> bool {
    let mut help = Command::new(program);
    help.arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    help.status().is_ok()
}

/// Kills its process when dropped.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs both sides, whose commands are made for a free port, and returns what the client printed. The
/// server does not report when it starts listening, so the client is started again after a `pause` until
/// it succeeds.
fn run_both(pause: Duration, mut command: impl FnMut(Which, u16) -> Command) -> Outcome<String> {
    // The programs do not accept port 0, so find a free port. It is very likely still free a moment later.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut server = command(Which::Server, port);
    let mut server = Ending(server.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let mut client = command(Which::Client, port);
    let mut stderr = String::new();
    for _ in 0..50 {
        thread::sleep(pause);
        let output = client.output()?;
        if output.status.success() {
            // The server ends on its own, and its wrapper then writes its results.
            server.0.wait()?;
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    }
    let program = client.get_program().display();
    Err(format!("{program} failed; run it by hand to see why: {stderr}").into())
}

/// A side of a program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Server,
    Client,
}

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

impl SendLatency {
    /// Returns true if the program is installed.
    #[must_use]
    pub fn is_installed() -> bool {
        is_installed(PERFTEST)
    }

    /// Exchanges `calls` messages and returns the client's output. `under` holds the command line
    /// of a wrapper for each side, the server's first and the client's second. An empty one means
    /// no wrapper.
    ///
    /// # Errors
    ///
    /// Fails if the program does not run.
    pub fn exchange(&self, calls: usize, under: &[Vec<String>; 2]) -> Outcome<String> {
        run_both(Duration::from_millis(200), |side, port| {
            let (core, under) = match side {
                Which::Server => (self.cores.server, &under[0]),
                Which::Client => (self.cores.client, &under[1]),
            };
            let mut command = Command::new("taskset");
            command
                .args(["-c", &core.to_string()])
                .args(under)
                .arg(PERFTEST)
                .args(["-d", &self.device, "-x", &self.gid_index.to_string()])
                .args(["-s", &self.frame_len.to_string(), "-n", &calls.to_string()])
                // `-F` suppresses the warning about the CPU frequency.
                .args(["-p", &port.to_string(), "-F"])
                .args((side == Which::Client).then_some("127.0.0.1"));
            command
        })
    }
}

impl Side for SendLatency {
    /// Records one time: the median of all round trips in this turn.
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        for _ in 0..ATTEMPTS {
            let text = self.exchange(calls, &Default::default())?;
            let micros = typical_half_round_trip(&text)
                .ok_or_else(|| format!("cannot parse the output of {PERFTEST}: {text}"))?;
            // The program could not calibrate its two clocks, which happens on a busy machine.
            if micros.is_finite() {
                stopwatch.record(Duration::from_nanos((2e3 * micros).round() as u64));
                return Ok(());
            }
        }
        Err(format!("{PERFTEST} could not read its clock {ATTEMPTS} times; retry when idle").into())
    }
}

/// Parses the column `t_typical[usec]` of the program's table: the median half round trip in
/// microseconds.
fn typical_half_round_trip(text: &str) -> Option<f64> {
    let mut lines = text
        .lines()
        .skip_while(|line| !line.contains("t_typical[usec]"));
    let mut names = lines.next()?.split_whitespace();
    let column = names.position(|name| name == "t_typical[usec]")?;
    lines.next()?.split_whitespace().nth(column)?.parse().ok()
}

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

impl Ucx {
    /// Returns a side for messages of `size` bytes, or `None` if `ucx_perftest` is not installed.
    #[must_use]
    pub fn find(cores: Cores, size: usize, exchange: Exchange) -> Option<Self> {
        is_installed(UCX).then_some(Self {
            cores,
            size,
            exchange,
        })
    }
}

impl Side for Ucx {
    /// Records one time: the median of all exchanges in this turn.
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        let text = run_both(Duration::from_millis(20), |side, port| {
            let mut command = Command::new(UCX);
            // Use shared memory only, and the kernel's copy between processes for what is long.
            command
                .env("UCX_TLS", "posix,cma,self")
                .args(["-p", &port.to_string()]);
            if side == Which::Server {
                command.args(["-c", &self.cores.server.to_string()]);
                return command;
            }
            command
                .args(["-c", &self.cores.client.to_string()])
                .args(["127.0.0.1", "-t", "ucp_am_lat", "-f", "-v"])
                .args(["-s", &self.size.to_string(), "-n", &calls.to_string()]);
            command
        })?;
        let half = median_of_half_round_trips(&text)
            .ok_or_else(|| format!("cannot parse the output of {UCX}: {text}"))?;
        stopwatch.record(match self.exchange {
            Exchange::RoundTrip => 2 * half,
            Exchange::OneWay => half,
        });
        Ok(())
    }
}

/// Parses the program's CSV output: after the header `iterations,50.0_percentile_lat,…`, the second
/// column of the last line holds half a round trip in microseconds.
fn median_of_half_round_trips(csv: &str) -> Option<Duration> {
    let lines: Vec<&str> = csv.lines().filter(|line| line.contains(',')).collect();
    let (header, row) = (lines.first()?, lines.last()?);
    let mut names = header.split(',');
    let column = names.position(|name| name.starts_with("50.0"))?;
    let micros: f64 = row.split(',').nth(column)?.trim().parse().ok()?;
    Some(Duration::from_nanos((micros * 1e3).round() as u64))
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
