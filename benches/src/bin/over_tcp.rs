//! Measures calls over TCP beside bare TCP sockets, over loopback, in alternating slices of one run:
//!
//! ```text
//! cargo run --release -p benches --bin over_tcp
//! ```
//!
//! * One call of 64 bytes at a time beside a ping-pong of as many bytes as its frame has. Both wait in
//!   the same way: by reading again and again, or asleep in the kernel. tonic is beside them; it
//!   sleeps in both cases.
//! * Calls of 64 bytes, 32 in flight.
//! * Uploads of 1 MiB beside messages of 1 MiB on a bare socket, whose receiver reads a word of each
//!   cache line and answers with eight bytes; downloads, and tonic's uploads.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;
use std::time::Duration;

use benches::bandwidth::calls::{Calls, Direction, Source, client_of};
use benches::bandwidth::in_flight;
use benches::in_flight::{Period, keep_in_flight};
use benches::message::{FIXED_SIZE, Load, Shape};
use benches::peers::tonic::{self, Socket, Tonic, TonicArgs};
use benches::peers::tonic_puts::TonicPuts;
use benches::rpc::{ClosedLoop, Rpc};
use benches::service::{ServerArgs, intents_for};
use benches::slices::{self, alternate};
use benches::table::{self, Table};
use benches::tcp::{self, TcpArgs, TcpPingPong};
use benches::{Outcome, allocations, cores};
use clap::{Parser, Subcommand};
use rpc_core::frame::HEADER_LEN;
use rpc_core::{Intents, Waiting};

const DEVICE: &str = "tcp";
const MIB: usize = 1 << 20;
/// Bytes of an answer to a long message.
const ANSWER_LEN: usize = 8;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::COUNTING;

/// Measures calls over TCP beside bare TCP sockets
#[derive(Parser)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    measurement: Measurement,
}

/// The roles of the processes that this program starts.
#[derive(Subcommand)]
enum Role {
    #[command(name = benches::rpc::SERVE, hide = true)]
    Calls(ServerArgs),
    #[command(name = tcp::SERVE, hide = true)]
    Tcp(TcpArgs),
    #[command(name = tonic::SERVE, hide = true)]
    Tonic(TonicArgs),
}

#[derive(clap::Args)]
struct Measurement {
    /// Calls of each slice
    #[arg(long, default_value_t = 2000)]
    calls: usize,
    /// Slices of each side
    #[arg(long, default_value_t = 20)]
    slices: usize,
    /// Uploads of each slice
    #[arg(long, default_value_t = 256)]
    uploads: usize,
    /// Seconds of calls in flight
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
}

impl Measurement {
    fn run(&self) -> Outcome<()> {
        let cores = cores::Cores::choose()?;
        println!("{cores}\n");
        for waiting in [Waiting::Busy, Waiting::Event] {
            self.latency(cores, waiting)?;
        }
        self.rate(cores)?;
        self.uploads(cores)
    }

    fn intents(waiting: Waiting, len: usize) -> Intents {
        Intents {
            waiting,
            ..intents_for(len)
        }
    }

    fn latency(&self, cores: cores::Cores, waiting: Waiting) -> Outcome<()> {
        let load = Load::new(Shape::Fixed64, FIXED_SIZE)?;
        let len = HEADER_LEN + load.encoded_len();
        let rpc = Rpc::start_pinned(DEVICE, cores, &Self::intents(waiting, load.encoded_len()))?;
        let mut rpc = ClosedLoop::new(rpc, load)?;
        let mut bare = TcpPingPong::start_with(&TcpArgs {
            core: cores.server,
            message_len: len,
            answer_len: len,
            busy: waiting == Waiting::Busy,
        })?;
        let load = Load::new(Shape::Fixed64, FIXED_SIZE)?;
        let mut tonic = Tonic::start(Socket::Tcp, cores, load)?;
        let sides: &mut [&mut dyn slices::Side] = &mut [&mut bare, &mut rpc, &mut tonic];
        let records = alternate(sides, self.slices, self.calls, |_| {})?;
        let [bare, rpc, tonic] = &records[..] else {
            return Err("internal error: a side has no record".into());
        };
        let mut table = Table::new([""].into_iter().chain(table::PERCENTILES));
        for (name, record) in [("bare TCP", bare), ("calls", rpc), ("tonic", tonic)] {
            let cells = table::percentiles(&record.histogram);
            table.add([format!("{name}, {len} bytes")].into_iter().chain(cells));
        }
        println!("One at a time, waiting: {waiting}\n{table}");
        println!(
            "calls / bare TCP: {:.2}, tonic / calls: {:.1} (median over slices of the ratio of their p50)\n",
            slices::ratio_p50(rpc, bare),
            slices::ratio_p50(tonic, rpc)
        );
        Ok(())
    }

    fn rate(&self, cores: cores::Cores) -> Outcome<()> {
        let load = Load::new(Shape::Fixed64, FIXED_SIZE)?;
        let rpc = Rpc::start_pinned(DEVICE, cores, &Intents::default())?;
        let period = Period::from_now(Duration::from_secs_f64(self.seconds));
        let calls = keep_in_flight(rpc.clients(), 32, &load, period);
        let histogram = rpc.poller().block_on(calls)?;
        println!("32 in flight: {}\n", table::rate(period.rate(&histogram)));
        Ok(())
    }

    fn uploads(&self, cores: cores::Cores) -> Outcome<()> {
        let rpc = Rpc::start_pinned(DEVICE, cores, &Self::intents(Waiting::Busy, 2 * MIB))?;
        let client = client_of(&rpc)?;
        let mut bare = TcpPingPong::start_with(&TcpArgs {
            core: cores.server,
            message_len: MIB,
            answer_len: ANSWER_LEN,
            busy: true,
        })?;
        let heap = Calls::new(&rpc, &client, MIB, Source::Heap)?;
        let allocated = Calls::new(&rpc, &client, MIB, Source::Allocated)?;
        let mut tonic = TonicPuts::start(Socket::Tcp, cores, MIB)?;
        let bytes = self.uploads * MIB;
        let mut rates: Vec<[f64; 5]> = Vec::new();
        for _ in 0..self.slices.max(1) {
            rpc.server().pause()?;
            let bare = bare.rate(self.uploads)?;
            // As many at a time as the calls.
            let tonic = tonic.rate(self.uploads, in_flight(MIB))?;
            rpc.server().resume()?;
            rates.push([
                bare,
                heap.rate(Direction::Upload, bytes)?,
                allocated.rate(Direction::Upload, bytes)?,
                heap.rate(Direction::Download, bytes)?,
                tonic,
            ]);
        }
        println!("1 MiB, both sides polling (medians over slices)");
        let names = [
            "bare TCP",
            "uploads from the heap",
            "uploads from allocated memory",
            "downloads",
            "uploads with tonic",
        ];
        for (column, name) in names.into_iter().enumerate() {
            let rate = median(rates.iter().map(|row| row[column]));
            let ratio = median(rates.iter().map(|row| row[column] / row[0]));
            println!("{name:<30} {:6.2} GB/s {ratio:6.2} of bare TCP", rate / 1e9);
        }
        Ok(())
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.role {
        Some(Role::Calls(server)) => server.serve(),
        Some(Role::Tcp(server)) => server.serve(),
        Some(Role::Tonic(server)) => server.serve(),
        None => cli.measurement.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("over_tcp: {error}");
            ExitCode::FAILURE
        }
    }
}
