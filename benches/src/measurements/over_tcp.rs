//! Calls over TCP beside bare TCP sockets and beside tonic, over loopback, in alternating slices.
//!
//! * One call of 64 bytes at a time beside a ping-pong of as many bytes as its frame has. Both wait in
//!   the same way: by reading again and again, or asleep in the kernel; so does tonic.
//! * Calls of 64 bytes, 32 in flight.
//! * Uploads of 1 MiB beside messages of 1 MiB on a bare socket, whose receiver reads a word of each
//!   cache line and answers with eight bytes; downloads, and tonic's uploads.

use clap::Args;
use rpc_core::frame::HEADER_LEN;
use rpc_core::{Intents, Waiting};

use crate::bandwidth::calls::{Calls, Direction, Source};
use crate::bandwidth::in_flight;
use crate::in_flight::{Period, keep_in_flight};
use crate::message::Load;
use crate::peers::tonic::{Socket, Tonic};
use crate::peers::tonic_puts::TonicPuts;
use crate::report::Row;
use crate::rpc::{Client, ClosedLoop, Rpc};
use crate::service::intents_for;
use crate::setup::{Bench, Measurement, busy_intents};
use crate::slices::{alternate, median_of, ratio_p50};
use crate::sockets::{SocketArgs, SocketPingPong};
use crate::{Outcome, arguments};

const MIB: usize = 1 << 20;
/// Bytes of an answer to a long message.
const ANSWER_LEN: usize = 8;

/// Calls, uploads and downloads over TCP beside a bare socket and beside tonic
#[derive(Clone, Debug, Args)]
pub struct OverTcp {
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

impl Measurement for OverTcp {
    fn device(&self) -> Option<&'static str> {
        Some("tcp")
    }

    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        bench.announce(format_args!(
            "{} slices of calls and of uploads",
            self.slices
        ));
        for waiting in [Waiting::Busy, Waiting::Event] {
            self.latency(bench, waiting)?;
        }
        self.rate(bench)?;
        self.uploads(bench)
    }
}

impl OverTcp {
    fn latency(&self, bench: &mut Bench, waiting: Waiting) -> Outcome<()> {
        let (load, cores) = (Load::fixed(), bench.cores);
        let len = HEADER_LEN + load.encoded_len();
        let intents = Intents {
            waiting,
            ..intents_for(load.encoded_len())
        };
        let rpc = Rpc::start_pinned(&bench.device, cores, &intents)?;
        let mut rpc = ClosedLoop::new(rpc, load.clone())?;
        let args = SocketArgs {
            message_len: len,
            answer_len: len,
            busy: waiting == Waiting::Busy,
            ..SocketArgs::default()
        };
        let mut bare = SocketPingPong::start(cores, args)?;
        let mut tonic = Tonic::start(Socket::Tcp, waiting, cores, load)?;
        let sides = &mut [&mut bare as _, &mut rpc as _, &mut tonic as _];
        let records = alternate(sides, self.slices, self.calls, |taken| {
            bench.progress(format_args!("waiting {waiting}: {taken} turns"));
        })?;
        let names = ["bare TCP", "call", "tonic"];
        let rows = names.iter().zip(&records).map(|(name, record)| {
            let row = Row::new(format!("{name}, {waiting}")).with_times(&record.histogram);
            row.with("ratio_to_bare", ratio_p50(record, &records[0]))
                .with("ratio_to_call", ratio_p50(record, &records[1]))
        });
        let title = format!("one at a time, waiting {waiting}");
        bench.report.table(title, rows);
        for (name, record) in names.iter().zip(&records) {
            let name = format!("{name}, {waiting}");
            bench.report.histogram(name, &record.histogram);
        }
        bench.report.figure("frame_bytes", len);
        Ok(())
    }

    fn rate(&self, bench: &mut Bench) -> Outcome<()> {
        let rpc = Rpc::start_pinned(&bench.device, bench.cores, &Intents::default())?;
        let (clients, load) = (rpc.clients(), Load::fixed());
        let period = Period::from_now(arguments::recorded(self.seconds)?);
        let counted = rpc.block_on(keep_in_flight(&clients, 32, &load, period))?;
        let rate = period.rate(&counted).round();
        bench.report.figure("in_flight_32_calls_per_s", rate);
        Ok(())
    }

    fn uploads(&self, bench: &mut Bench) -> Outcome<()> {
        let cores = bench.cores;
        let rpc = Rpc::start_pinned(&bench.device, cores, &busy_intents(2 * MIB))?;
        let client = rpc.bulk()?;
        let args = SocketArgs {
            message_len: MIB,
            answer_len: ANSWER_LEN,
            busy: true,
            ..SocketArgs::default()
        };
        let mut bare = SocketPingPong::start(cores, args)?;
        let heap = Calls::new(&rpc, &client, MIB, Source::Heap)?;
        let allocated = Calls::new(&rpc, &client, MIB, Source::Allocated)?;
        let mut tonic = TonicPuts::start(Socket::Tcp, Waiting::Busy, cores, MIB)?;
        let bytes = self.uploads * MIB;
        let mut rates: Vec<[f64; 5]> = Vec::new();
        rpc.server().pause()?;
        for slice in 0..self.slices.max(1) {
            bench.progress(format_args!("uploads: slice {}", slice + 1));
            let bare = bare.rate(self.uploads)?;
            // As many at a time as the calls.
            let tonic = tonic.rate(self.uploads, in_flight(MIB))?;
            rates.push(rpc.server().in_turn(|| {
                Outcome::Ok([
                    bare,
                    heap.rate(Direction::Upload, bytes)?,
                    allocated.rate(Direction::Upload, bytes)?,
                    heap.rate(Direction::Download, bytes)?,
                    tonic,
                ])
            })?);
        }
        let names = [
            "bare TCP",
            "uploads from the heap",
            "uploads from allocated memory",
            "downloads",
            "uploads with tonic",
        ];
        let rows = names.into_iter().enumerate().map(|(column, name)| {
            let gbs = median_of(rates.iter().map(|row| row[column] / 1e9));
            let ratio = median_of(rates.iter().map(|row| row[column] / row[0]));
            Row::new(name)
                .with("rate_gbs", gbs)
                .with("ratio_to_bare", ratio)
        });
        bench.report.table("uploads of 1 MiB", rows);
        Ok(())
    }
}
