//! A call over an RDMA device beside raw verbs and `ib_send_lat`, in alternating turns of one run. All
//! three exchange messages of the same length between two processes that are pinned to the same two
//! cores. Afterwards the system calls of each are counted.

use std::process::Command;
use std::{env, io};

use clap::Args;
use rpc_core::frame::HEADER_LEN;
use rpc_transport_verbs::Device;
use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::cores::{self, Cores};
use crate::external::{NO_PERFTEST, SendLatency};
use crate::message::{FIXED_SIZE, Load, Shape};
use crate::raw::{PingPong, RawArgs};
use crate::report::{Report, Row};
use crate::role::{self, Role};
use crate::rpc::{ClosedLoop, Rpc};
use crate::setup::{Bench, Measurement, busy_intents};
use crate::slices::{Record, Side, alternate, median, ratio_p50};
use crate::system_calls::{self, PerRoundTrip};

/// Numbers of round trips in the two runs whose system calls are compared.
const TRACED: [usize; 2] = [500, 2500];

/// The three sides, in the order of their turns.
const SIDES: [&str; 3] = ["ib_send_lat", "raw", "rpc"];

/// The ratios of one side to another, by their places in the order of turns.
const RATIOS: [(&str, usize, usize); 3] = [
    ("ratio_raw_to_ib_send_lat", 1, 0),
    ("ratio_rpc_to_ib_send_lat", 2, 0),
    ("ratio_rpc_to_raw", 2, 1),
];

/// A call over an RDMA device beside raw verbs and `ib_send_lat`, and the system calls of each
#[derive(Clone, Debug, Args)]
pub struct Rdma {
    /// Name of the device that ib_send_lat uses [default: the same device]
    #[arg(long)]
    beside: Option<String>,
    /// GID index that ib_send_lat uses; on Ethernet, the index of the IPv4 address's GID
    #[arg(long, default_value_t = 1)]
    gid_index: u32,
    /// Round trips in each turn
    #[arg(long, default_value_t = 2000)]
    calls: usize,
    /// Turns that each side takes
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Instructions per call as counted by `benches/count`, to include in the report
    #[arg(long)]
    instructions_per_call: Option<u64>,
    /// Instructions per frame exchange over `soft` as counted by `benches/count`, to include in the
    /// report
    #[arg(long)]
    instructions_per_exchange: Option<u64>,
}

/// What the process whose system calls are counted is told.
#[derive(Debug, Serialize, Deserialize)]
pub struct ExchangeArgs {
    device: String,
    is_rpc: bool,
    calls: usize,
}

impl ExchangeArgs {
    /// Makes round trips of one kind, for strace to count.
    ///
    /// # Errors
    ///
    /// Returns whatever ends them.
    pub fn run(&self) -> Outcome<()> {
        let (raw, rpc) = (!self.is_rpc, self.is_rpc);
        // Only one side exists, because strace would also count the system calls of the other.
        let mut side = start(&Device::open(&self.device)?, Cores::choose()?, raw, rpc)?;
        alternate(&mut [&mut *side.remove(0)], 1, self.calls, |_| ())?;
        Ok(())
    }
}

/// Starts raw verbs and calls, or one of them, ready to take turns.
fn start(device: &Device, cores: Cores, raw: bool, rpc: bool) -> Outcome<Vec<Box<dyn Side>>> {
    let load = Load::new(Shape::Fixed64, FIXED_SIZE)?;
    let client = Rpc::start_pinned(device, cores, &busy_intents(load.encoded_len()))?;
    let limits = client.poller().limits();
    let like_rpc = RawArgs::like(&limits, cores.client, frame_len(&load));
    let mut sides: Vec<Box<dyn Side>> = Vec::new();
    let client = rpc.then(|| ClosedLoop::new(client, load)).transpose()?;
    if raw {
        sides.push(Box::new(PingPong::start(&like_rpc, cores.server)?));
    }
    sides.extend(client.map(|client| Box::new(client) as Box<dyn Side>));
    Ok(sides)
}

fn frame_len(load: &Load) -> usize {
    HEADER_LEN + load.encoded_len()
}

impl Measurement for Rdma {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        if !SendLatency::is_installed() {
            return Err(NO_PERFTEST.into());
        }
        let frame_len = frame_len(&Load::new(Shape::Fixed64, FIXED_SIZE)?);
        let mut beside = SendLatency {
            device: self.beside.as_deref().unwrap_or(bench.device()).to_owned(),
            gid_index: self.gid_index,
            frame_len,
            cores: bench.cores,
        };
        bench.announce(format_args!(
            "{} rounds; in each, {} round trips of {frame_len} bytes each way, one at a time; \
             ib_send_lat on '{}'",
            self.rounds, self.calls, beside.device
        ));
        let mut sides = start(&bench.device, bench.cores, true, true)?;
        let mut all: Vec<&mut dyn Side> = vec![&mut beside];
        all.extend(sides.iter_mut().map(|side| &mut **side as &mut dyn Side));
        let records = alternate(&mut all, self.rounds, self.calls, |_| ())?;
        // Two pollers on one core would make strace count the scheduler's work.
        drop(sides);
        bench.report.figure("frame_bytes", frame_len);
        bench.report.figure("calls_per_round", self.calls);
        report_times(&mut bench.report, &records);
        if system_calls::can_be_counted() {
            let counts = [
                count_of_perftest(&beside)?,
                count_of(bench.device(), false)?,
                count_of(bench.device(), true)?,
            ];
            let rows = SIDES.into_iter().zip(&counts).map(|(name, count)| {
                let row = Row::new(name).with("doorbells", count.doorbells());
                count
                    .others()
                    .fold(row, |row, (name, rate)| row.with(name, rate))
            });
            bench.report.table("system calls per round trip", rows);
        } else {
            bench.report.note(system_calls::MISSING);
        }
        if let (Some(call), Some(exchange)) =
            (self.instructions_per_call, self.instructions_per_exchange)
        {
            bench
                .report
                .figure("instructions_of_a_call_over_soft", call);
            bench
                .report
                .figure("instructions_of_an_exchange_over_soft", exchange);
        }
        Ok(())
    }
}

/// Adds the times of each side, and those of each round.
fn report_times(report: &mut Report, records: &[Record]) {
    let row =
        |name: String, nanos: &dyn Fn(&Record) -> f64, ratio: &dyn Fn(&Record, &Record) -> f64| {
            let sides = SIDES.into_iter().zip(records);
            let row = sides.fold(Row::new(name), |row, (side, record)| {
                row.with(format!("{side}_p50_ns"), nanos(record))
            });
            RATIOS.into_iter().fold(row, |row, (name, side, base)| {
                row.with(name, ratio(&records[side], &records[base]))
            })
        };
    let rounds = (0..records[0].slice_p50.len()).map(|round| {
        let p50 = |record: &Record| record.slice_p50[round] as f64;
        let ratio = |side: &Record, base: &Record| p50(side) / p50(base);
        row(format!("round {}", round + 1), &p50, &ratio)
    });
    let p50 = |record: &Record| median(&mut record.slice_p50.clone()) as f64;
    let medians = row("median".to_owned(), &p50, &ratio_p50);
    report.table("round trips", rounds.chain([medians]).collect::<Vec<_>>());
    report.histogram("raw", &records[1].histogram);
    report.histogram("rpc", &records[2].histogram);
    report.note(
        "ib_send_lat's typical half round trip is doubled; the ratios of the last row are the medians \
         of the rounds' ratios.",
    );
}

fn count_of_perftest(beside: &SendLatency) -> Outcome<PerRoundTrip> {
    PerRoundTrip::count(&["server", "client"], TRACED, |calls, traces| {
        let under = [traces[0].words(), traces[1].words()];
        beside.exchange(calls, &under).map(drop)
    })
}

fn count_of(device: &str, is_rpc: bool) -> Outcome<PerRoundTrip> {
    PerRoundTrip::count(&["exchange"], TRACED, |calls, traces| {
        let words = traces[0].words();
        let device = device.to_owned();
        let role = Role::Exchange(ExchangeArgs {
            device,
            is_rpc,
            calls,
        });
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .arg(env::current_exe()?)
            .args(role::to_args(&role)?);
        let status = cores::spawn_unpinned(&mut command)?.wait()?;
        if status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!("exchanges under strace ended with {status}")).into())
    })
}
