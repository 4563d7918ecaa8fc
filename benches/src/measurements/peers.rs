//! Verbline beside its peers, in alternating turns of one run and in one table.
//!
//! tonic carries the same messages over a Unix socket and over TCP. If `ucx_perftest` is installed,
//! UCX sends active messages with the same payload; that is not an RPC but a lower bound for one.
//! iceoryx2 sends 64 bytes of plain memory, as request and response and over two publish-subscribe
//! services. Uploads come last: Verbline's beside those of all of these and of a plain Unix socket.
//! All of them poll, except the shared client; tonic has rows of both ways.

use clap::Args;
use proto::bulk::BulkClient;
use rpc_core::frame::HEADER_LEN;
use rpc_core::{Intents, LocalChannel, Waiting};
use verbline_load::unit::Unit;

use crate::bandwidth::calls::{Calls, Direction, Source};
use crate::bandwidth::puts::{self, Puts};
use crate::bandwidth::{in_flight, transfers};
use crate::external::{Exchange, NO_UCX, Ucx};
use crate::line::Distance;
use crate::message::{FIXED_SIZE, Load, Shape};
use crate::peers::iceoryx2;
use crate::peers::tonic::{Socket, Tonic};
use crate::peers::tonic_puts::TonicPuts;
use crate::rates::{Rated, rate};
use crate::raw::{PingPong, RawArgs};
use crate::report::Row;
use crate::rounds::{self, Rounds};
use crate::rpc::{Client, ClosedLoop, Rpc};
use crate::setup::{Bench, Measurement, busy_intents};
use crate::shared::Shared;
use crate::slices::{Record, Side};
use crate::sockets::{SocketArgs, SocketPingPong};
use crate::{Outcome, arguments};

/// UCX, iceoryx2, tonic and a Unix socket in alternating turns with Verbline and raw verbs
#[derive(Clone, Debug, Args)]
pub struct Peers {
    /// Payload size in bytes; with 64, the message of eight fixed64 fields is measured too
    #[arg(long, default_value_t = FIXED_SIZE)]
    size: usize,
    /// Calls in each turn
    #[arg(long, default_value_t = 20_000)]
    calls: usize,
    /// Turns that each row takes
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Measure uploads only
    #[arg(long)]
    uploads: bool,
    /// Sizes of uploads, separated by commas
    #[arg(long, value_parser = arguments::bytes, value_delimiter = ',', default_value = "4K,64K,1M,8M")]
    upload_sizes: Vec<usize>,
}

/// A side with the name of its row. Every row has its ratio to those with a base.
struct Named {
    name: String,
    base: Option<&'static str>,
    side: Box<dyn Side>,
}

/// Calls in flight from one thread when rates are measured, of a local and of a shared client.
const IN_FLIGHT: u32 = 32;
const IN_FLIGHT_SHARED: u32 = 256;

/// Bytes that a turn moves when several uploads are in flight.
const BYTES: usize = 128 << 20;

/// The size from which several uploads at a time are measured.
const LARGE: usize = 1 << 20;

impl Measurement for Peers {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        bench.announce(format_args!(
            "{} rounds; in each, every row makes {} calls of {} bytes, one at a time (tonic: a \
             quarter of them)",
            self.rounds, self.calls, self.size
        ));
        if !self.uploads {
            // Must run before this thread is pinned, so that the system chooses the core of the
            // channel's poller.
            let load = Load::new(Shape::Fixed64, self.size)
                .or_else(|_| Load::new(Shape::Bytes, self.size))?;
            // Its poller must sleep while other rows have their turns.
            let adaptive = Intents {
                waiting: Waiting::Adaptive,
                ..intents(&load, IN_FLIGHT_SHARED)
            };
            let shared = Shared::start(&bench.device, bench.cores, &adaptive, 1)?;
            let shared = rate(shared, &load, IN_FLIGHT_SHARED as usize)?;
            self.latencies(bench)?;
            self.rates(bench, &load, shared)?;
        }
        self.all_uploads(bench)
    }
}

impl Peers {
    fn latencies(&self, bench: &mut Bench) -> Outcome<()> {
        let mut rows = self.rows(bench)?;
        let mut sides: Vec<&mut dyn Side> =
            rows.iter_mut().map(|row| &mut *row.side as _).collect();
        let (records, rounds) =
            rounds::alternate(&mut sides, self.rounds, self.calls, bench.cores, |taken| {
                bench.progress(format_args!("{taken} turns"));
            })?;
        for state in [Distance::Near, Distance::Far] {
            if rounds.count(state) > 0 {
                let table: Vec<Row> = compare(&rows, &records, &rounds, state).collect();
                bench.report.table(format!("round trips {state}"), table);
            }
        }
        for (row, record) in rows.iter().zip(&records) {
            if p99(record).is_some() {
                bench.report.histogram(row.name.clone(), &record.histogram);
            }
        }
        bench.report.note(rounds.to_string());
        bench.report.note(
            "p50 is the median of a row's turns; a ratio is the median of the rounds' ratios, over the \
             rounds in which both rows saw this state; p99 is over all turns. UCX prints half round \
             trips; they are doubled here.",
        );
        Ok(())
    }

    fn rows(&self, bench: &mut Bench) -> Outcome<Vec<Named>> {
        let cores = bench.cores;
        let loads = [
            ("fixed64", Load::new(Shape::Fixed64, self.size).ok()),
            ("bytes", Some(Load::new(Shape::Bytes, self.size)?)),
        ];
        let mut rows = Vec::new();
        let mut add = |name: String, base, side| rows.push(Named { name, base, side });
        let loads = loads
            .into_iter()
            .filter_map(|(shape, load)| Some((shape, load?)));
        for (index, (shape, load)) in loads.enumerate() {
            let rpc = Rpc::start_pinned(&bench.device, cores, &intents(&load, 1))?;
            if index == 0 {
                // The lower bounds come first. The first shape determines their frame length.
                let len = HEADER_LEN + load.encoded_len();
                let like_rpc = RawArgs::like(&rpc.poller().limits(), cores.client, len);
                let raw = Box::new(PingPong::start(&like_rpc, cores.server)?);
                add(format!("raw verbs, {len} bytes"), Some("raw"), raw);
                match Ucx::find(cores, self.size, Exchange::RoundTrip) {
                    Some(ucx) => add("UCX active message".to_owned(), Some("ucx"), Box::new(ucx)),
                    None => bench.report.note(NO_UCX),
                }
            }
            let rpc = Box::new(ClosedLoop::new(rpc, load.clone())?);
            add(format!("Verbline, {shape}"), Some(shape), rpc);
            if shape == "fixed64" {
                let name = "iceoryx2 request-response".to_owned();
                add(name, None, Box::new(iceoryx2::request_response(cores)?));
                let name = "iceoryx2 publish-subscribe, both ways".to_owned();
                add(name, None, Box::new(iceoryx2::publish_subscribe(cores)?));
            }
            for (name, socket) in [("a Unix socket", Socket::Unix), ("TCP", Socket::Tcp)] {
                for (how, waiting) in [("polls", Waiting::Busy), ("sleeps", Waiting::Event)] {
                    let tonic = Tonic::start(socket, waiting, cores, load.clone())?;
                    let name = format!("tonic over {name}, {how}, {shape}");
                    add(name, None, Box::new(tonic));
                }
            }
        }
        Ok(rows)
    }

    fn rates(&self, bench: &mut Bench, load: &Load, shared: impl Rated + 'static) -> Outcome<()> {
        let rpc = Rpc::start_pinned(&bench.device, bench.cores, &intents(load, IN_FLIGHT))?;
        let local = rate(rpc, load, IN_FLIGHT as usize)?;
        let one = format!("Verbline, {IN_FLIGHT} in flight");
        let its = format!("its shared client, {IN_FLIGHT_SHARED} in flight from one thread");
        let mut rows: Vec<(String, Box<dyn Rated>)> =
            vec![(one, Box::new(local)), (its, Box::new(shared))];
        if self.size == FIXED_SIZE {
            let iceoryx = iceoryx2::rate(bench.cores, IN_FLIGHT as usize)?;
            let name = format!("iceoryx2 request-response, {IN_FLIGHT} in flight");
            rows.push((name, Box::new(iceoryx)));
        }
        let rounds = rounds::alternate_rows(rows.len(), self.rounds, bench.cores, |row| {
            rows[row].1.take_turn()
        })?;
        let names: Vec<String> = rows.into_iter().map(|(name, _)| name).collect();
        bench
            .report
            .rounds("rates", "calls_per_s", &names, &rounds, Some(0));
        Ok(())
    }

    /// Uploads of all sizes, one at a time and several from one thread. Every receiver reads a word of
    /// each cache line, except UCX's.
    fn all_uploads(&self, bench: &mut Bench) -> Outcome<()> {
        /// The tag and the length of the field.
        const FIELD: usize = 16;
        let longest = self.upload_sizes.iter().copied().max().unwrap_or_default();
        let rpc = Rpc::start_pinned(&bench.device, bench.cores, &busy_intents(longest + FIELD))?;
        let client = rpc.bulk()?;
        rpc.server().pause()?;
        let (mut alone, mut several) = (Vec::new(), Vec::new());
        for &size in &self.upload_sizes {
            alone.extend(self.one_at_a_time(bench, &rpc, &client, size)?);
        }
        for &size in self.upload_sizes.iter().filter(|&&size| size >= LARGE) {
            several.extend(self.several_at_a_time(bench, &rpc, &client, size)?);
        }
        bench.report.table("uploads", alone);
        bench.report.table("uploads in flight", several);
        bench.report.note(
            "The receiver of an upload reads a word of each cache line and answers with eight bytes; UCX: \
             half of a round trip of such messages, which nobody reads.",
        );
        Ok(())
    }

    fn one_at_a_time(
        &self,
        bench: &mut Bench,
        rpc: &Rpc,
        client: &BulkClient<LocalChannel>,
        size: usize,
    ) -> Outcome<Vec<Row>> {
        let cores = bench.cores;
        let directory = tempfile::tempdir()?;
        let socket = SocketArgs {
            message_len: size,
            answer_len: 8,
            busy: true,
            path: Some(directory.path().join("puts")),
            ..SocketArgs::default()
        };
        let verbline = Puts::from(Calls::new(rpc, client, size, Source::Heap)?);
        let socket = SocketPingPong::start(cores, socket)?;
        let iceoryx = iceoryx2::puts(cores, size)?;
        let tonic = TonicPuts::start(Socket::Unix, Waiting::Busy, cores, size)?;
        let mut rows: Vec<(&'static str, Box<dyn Side + '_>)> = vec![
            ("verbline", Box::new(verbline)),
            ("unix socket", Box::new(socket)),
            ("iceoryx2", Box::new(iceoryx)),
            ("tonic", Box::new(tonic)),
        ];
        match Ucx::find(cores, size, Exchange::OneWay) {
            Some(ucx) => rows.push(("ucx", Box::new(ucx))),
            None => bench.report.note(NO_UCX),
        }
        let names: Vec<_> = rows.iter().map(|(name, _)| *name).collect();
        let mut sides: Vec<&mut dyn Side> =
            rows.iter_mut().map(|(_, side)| &mut **side as _).collect();
        let calls = puts::puts_in_a_turn(size);
        let text = Unit::Bytes.text(size as f64);
        let (records, rounds) =
            rounds::alternate(&mut sides, self.rounds, calls, cores, |taken| {
                bench.progress(format_args!("{text}: {taken} turns"));
            })?;
        bench.report.note(rounds.to_string());
        let rows = names.into_iter().zip(&records).enumerate();
        Ok(rows
            .map(|(row, (name, record))| {
                Row::new(format!("{text}, {name}"))
                    .with("size_bytes", size)
                    .with_rounds("p50_ns", &rounds, row, Some(0))
                    .with("p99_ns", p99(record))
            })
            .collect())
    }

    fn several_at_a_time(
        &self,
        bench: &mut Bench,
        rpc: &Rpc,
        client: &BulkClient<LocalChannel>,
        size: usize,
    ) -> Outcome<Vec<Row>> {
        let text = Unit::Bytes.text(size as f64);
        bench.progress(format_args!("{text}, several"));
        let calls = Calls::new(rpc, client, size, Source::Heap)?;
        let mut tonic = TonicPuts::start(Socket::Unix, Waiting::Busy, bench.cores, size)?;
        let names = ["tonic", "verbline"];
        let rounds = rounds::alternate_rows(names.len(), self.rounds, bench.cores, |row| {
            if row == 0 {
                return tonic.rate(transfers(BYTES, size), in_flight(size));
            }
            rpc.server()
                .in_turn(|| calls.rate(Direction::Upload, BYTES))
        })?;
        let rows = names.into_iter().enumerate().map(|(row, name)| {
            let gbs = rounds.median(row, None).map(|rate| rate / 1e9);
            Row::new(format!("{text}, {name}"))
                .with("size_bytes", size)
                .with("in_flight", in_flight(size))
                .with("rate_gbs", gbs)
                .with("ratio_to_tonic", rounds.ratio(row, 0, None))
        });
        Ok(rows.collect())
    }
}

/// Returns intents with busy polling, as UCX and iceoryx2 poll.
fn intents(load: &Load, in_flight: u32) -> Intents {
    let defaults = busy_intents(load.encoded_len());
    Intents {
        max_in_flight: defaults.max_in_flight.max(in_flight),
        ..defaults
    }
}

/// The 99th percentile; `None` for an external program, of which only the medians are known.
fn p99(record: &Record) -> Option<u64> {
    (record.histogram.len() > record.slice_p50.len() as u64)
        .then(|| record.histogram.value_at_quantile(0.99))
}

/// All rows in one state of the machine, with their ratios to the base rows.
fn compare<'a>(
    rows: &'a [Named],
    records: &'a [Record],
    rounds: &'a Rounds,
    state: Distance,
) -> impl Iterator<Item = Row> + 'a {
    rows.iter()
        .zip(records)
        .enumerate()
        .map(move |(index, (named, record))| {
            let row = Row::new(named.name.as_str())
                .with("p50_ns", rounds.median(index, state))
                .with("p99_ns", p99(record));
            let bases = rows.iter().enumerate();
            let bases = bases.filter_map(|(index, row)| Some((row.base?, index)));
            bases.fold(row, |row, (name, base)| {
                row.with(format!("ratio_to_{name}"), rounds.ratio(index, base, state))
            })
        })
}
