//! What channels cost a process that calls many servers: with pollers of their own, and over pollers
//! that they share. Each row is a process of its own.

use std::fs;

use clap::Args;
use proto::bench::BenchClient;
use rpc_core::{Channel, Intents, Pollers, Waiting, block_on};
use rpc_transport_verbs::Device;
use rustix::process::getpid;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::child::{self, Process, resident};
use crate::cores::Cores;
use crate::in_flight::allow_more_files;
use crate::message::{FIXED_SIZE, Load};
use crate::report::Row;
use crate::role::Role;
use crate::service::{ServerArgs, intents_for};
use crate::setup::{Bench, Measurement};
use crate::slices::{Record, Stopwatch};
use crate::{Outcome, arguments};

/// Threads, files, memory and latency of a process with many channels
#[derive(Clone, Debug, Args)]
pub struct Channels {
    /// Channels
    #[arg(long, default_value_t = 100)]
    channels: usize,
    /// Pollers that the channels share
    #[arg(long, default_value_t = 1)]
    pollers: usize,
    /// Calls on the busy channel
    #[arg(long, default_value_t = 50_000)]
    calls: usize,
    /// What pollers do while idle
    #[arg(long, default_value = "adaptive", value_parser = arguments::waiting())]
    waiting: Waiting,
}

impl Measurement for Channels {
    /// Starts a process for each row.
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        bench.announce(format_args!(
            "channels, each with one connection to one server process; calls of {FIXED_SIZE} bytes, \
             one at a time, on one of them"
        ));
        let of = |channels, pollers: Option<usize>| {
            let with = pollers.map_or("a poller each".to_owned(), |n| format!("{n} for all"));
            bench.progress(format_args!("{channels} channels, {with}"));
            let args = RowArgs {
                device: bench.device().to_owned(),
                channels,
                pollers,
                calls: self.calls,
                waiting: self.waiting.to_string(),
            };
            let (_process, figures) = Process::start(&Role::Channels(args))?;
            let figures: serde_json::Map<String, Value> = serde_json::from_str(&figures)?;
            let row = Row::new(format!("{channels} channels, {with}"));
            Outcome::Ok(
                figures
                    .into_iter()
                    .fold(row, |row, (figure, value)| row.with(figure, value)),
            )
        };
        let shared = Some(self.pollers.max(1));
        let rows = [
            of(1, None)?,
            of(1, shared)?,
            of(self.channels, None)?,
            of(self.channels, shared)?,
        ];
        bench.report.table("pollers", rows);
        bench.report.note(
            "Threads, files and resident memory are those beyond the process without channels.",
        );
        Ok(())
    }
}

/// What the process of a row is told.
#[derive(Debug, Serialize, Deserialize)]
pub struct RowArgs {
    device: String,
    channels: usize,
    /// Shared pollers; without a number, each channel has its own.
    pollers: Option<usize>,
    calls: usize,
    waiting: String,
}

impl RowArgs {
    /// Opens the channels to one server, makes a call on each, counts what the process uses, and then
    /// makes calls on one of them while the others are idle. Prints the figures.
    ///
    /// # Errors
    ///
    /// Returns whatever ends the measurement.
    pub fn measure(&self) -> Outcome<()> {
        child::end_with_parent()?;
        allow_more_files()?;
        let device = Device::open(&self.device)?;
        let mut load = Load::fixed();
        let intents = Intents {
            connections: u32::try_from(self.channels)?.max(64),
            waiting: arguments::waiting_of(&self.waiting),
            ..intents_for(load.encoded_len())
        };
        let args = ServerArgs::new(device.name(), Cores::choose()?.server, &intents);
        let (_server, address) = Process::start(&Role::Calls(args))?;
        let before = used()?;
        let (channels, registered) = self.open(&device, &address, intents.waiting)?;
        for channel in &channels {
            block_on(load.exchange(&BenchClient::new(channel.clone())))?;
        }
        let after = used()?;

        let client = BenchClient::new(channels[0].clone());
        let mut stopwatch = Stopwatch::new(self.calls);
        stopwatch.time(self.calls / 10, self.calls, || {
            block_on(load.exchange(&client))
        })?;
        let record = Record::of(stopwatch);
        let [threads, files, resident] =
            [0, 1, 2].map(|what| after[what].saturating_sub(before[what]));
        child::write_line_to_parent(&serde_json::to_string(&serde_json::json!({
            "threads": threads,
            "files": files,
            "resident_bytes": resident,
            "registered_bytes": registered,
            "p50_ns": record.histogram.value_at_quantile(0.5),
            "p99_ns": record.histogram.value_at_quantile(0.99),
        }))?)?;
        Ok(())
    }

    /// Returns the channels, and the bytes of slots that their pollers have registered.
    fn open(
        &self,
        device: &Device,
        address: &str,
        waiting: Waiting,
    ) -> Outcome<(Vec<Channel>, usize)> {
        let Some(count) = self.pollers else {
            let open = || block_on(Channel::builder(device, address).waiting(waiting).connect());
            let channels = (0..self.channels)
                .map(|_| open())
                .collect::<Result<Vec<_>, _>>()?;
            let limits = channels.iter().filter_map(Channel::limits);
            let registered = limits.map(|limits| limits.registered_len()).sum();
            return Ok((channels, registered));
        };
        let pollers = Pollers::builder(device)
            .pollers(count)
            .connections(u32::try_from(self.channels.div_ceil(count))?)
            .waiting(waiting)
            .start()?;
        let open = || block_on(Channel::connect(&pollers, address));
        let channels = (0..self.channels)
            .map(|_| open())
            .collect::<Result<Vec<_>, _>>()?;
        Ok((channels, pollers.limits().registered_len() * count))
    }
}

/// The threads, the files and the bytes of memory that this process uses.
fn used() -> Outcome<[u64; 3]> {
    let count = |folder| -> Outcome<u64> { Ok(fs::read_dir(folder)?.count() as u64) };
    Ok([
        count("/proc/self/task")?,
        count("/proc/self/fd")?,
        resident(getpid())?,
    ])
}
