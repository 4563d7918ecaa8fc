//! `verbline bench` beside this program's own loop.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::cores::spawn_unpinned;
use crate::message::Load;
use crate::report::Row;
use crate::rounds::alternate;
use crate::rpc::{Client, Rpc};
use crate::setup::{Bench, Measurement, MessageArgs};
use crate::slices::{Stopwatch, UNRECORDED};
use crate::{Outcome, arguments};

/// One call at a time to one server: `verbline bench` in turn with this program's loop, which has two turns
#[derive(Clone, Debug, Args)]
pub struct Tool {
    #[command(flatten)]
    message: MessageArgs,
    /// The program, from `cargo build --release -p verbline-cli`
    #[arg(long, default_value = "target/release/verbline")]
    program: PathBuf,
    /// Turns of each
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Length of a turn
    #[arg(long, default_value = "500ms", value_parser = arguments::duration)]
    turn: Duration,
}

impl Measurement for Tool {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        let rounds = self.rounds.max(1);
        bench.announce(format_args!(
            "{rounds} turns of {:?} of each, calls of {} bytes",
            self.turn, self.message.size
        ));
        let load = self.message.load()?;
        let intents = self.message.intents(&load);
        let rpc = Rpc::start_pinned(&bench.device, bench.cores, &intents)?;
        let client = rpc.client();
        let calls = self.calls_of_a_turn(&rpc, load.clone())?;
        let own = |load: &mut Load, stopwatch: &mut Stopwatch| {
            let exchange = async || load.exchange(&client).await;
            Ok(rpc.block_on(stopwatch.time_async(UNRECORDED, calls, exchange))?)
        };
        let (mut first, mut second) = (load.clone(), load.clone());
        let mut sides = (
            |_: usize, stopwatch: &mut Stopwatch| own(&mut first, stopwatch),
            |_: usize, stopwatch: &mut Stopwatch| {
                stopwatch.record(self.p50_of_tool(bench.device.name(), rpc.address(), &load)?);
                Ok(())
            },
            |_: usize, stopwatch: &mut Stopwatch| own(&mut second, stopwatch),
        );
        let (_, rounds) = alternate(
            &mut [&mut sides.0, &mut sides.1, &mut sides.2],
            rounds,
            calls,
            bench.cores,
            |taken| bench.progress(format_args!("{taken} of {} turns", 3 * rounds)),
        )?;
        let names = ["own loop", "verbline bench", "own loop again"];
        let rows = names.iter().enumerate().map(|(row, name)| {
            let (least, most) = rounds.least_and_most_ratio(row, 0);
            Row::new(*name)
                .with_rounds("p50_ns", &rounds, row, Some(0))
                .with("least_ratio", least)
                .with("most_ratio", most)
        });
        let rows: Vec<_> = rows.collect();
        bench.report.figure("size_bytes", self.message.size);
        bench.report.table("clients", rows);
        bench.report.note(rounds.to_string());
        Ok(())
    }
}

impl Tool {
    /// Returns about how many calls this program's loop makes in a turn.
    fn calls_of_a_turn(&self, rpc: &Rpc, mut load: Load) -> Outcome<usize> {
        const SAMPLE: usize = 10 * UNRECORDED;
        let client = rpc.client();
        let mut stopwatch = Stopwatch::new(SAMPLE);
        let exchange = async || load.exchange(&client).await;
        rpc.block_on(stopwatch.time_async(UNRECORDED, SAMPLE, exchange))?;
        let record = crate::slices::Record::of(stopwatch);
        Ok(((record.rate() * self.turn.as_secs_f64()) as usize).max(1))
    }

    /// Runs the program for a turn, and returns its median.
    fn p50_of_tool(&self, device: &str, address: &str, load: &Load) -> Outcome<Duration> {
        let method = match load {
            Load::Fixed(_) => "verbline.bench.Bench/EchoFixed",
            Load::Blob(_) => "verbline.bench.Bench/EchoBlob",
        };
        let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/../proto/bench.proto");
        let mut command = Command::new(&self.program);
        command
            .args(["bench", address, method, "--device", device])
            .args(["--proto", proto, "--json", "-", "--warm-up", "0.1"])
            .args(["--random", &load.encoded_len().to_string()])
            .args(["--seconds", &self.turn.as_secs_f64().to_string()])
            .args(["--waiting", &self.message.waiting.to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let program = self.program.display();
        let output = spawn_unpinned(&mut command)
            .and_then(std::process::Child::wait_with_output)
            .map_err(|error| {
                format!("cannot run {program}: {error}. Run: cargo build --release -p verbline-cli")
            })?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{program} has failed: {text}").into());
        }
        let report: Value = serde_json::from_slice(&output.stdout)?;
        let p50 = &report["runs"][0]["sweep"]["steps"][0]["record"]["response"]["p50_ns"];
        let p50 = p50.as_u64().ok_or("the program's report has no p50_ns")?;
        Ok(Duration::from_nanos(p50))
    }
}
