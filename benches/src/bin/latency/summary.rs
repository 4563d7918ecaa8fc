//! `--summary`: one sentence about a call, for somebody who sees Verbline for the first time.

use benches::Outcome;
use benches::raw::{PingPong, RawArgs};
use benches::rpc::{ClosedLoop, Rpc};
use benches::slices::{Record, alternate};
use benches::tcp::TcpPingPong;
use rpc_core::frame::HEADER_LEN;

use super::Measurement;

/// Calls of each side unless `--calls` says otherwise: about two seconds in all.
const CALLS: usize = 40_000;

/// Measures calls, raw verbs and a TCP ping-pong in alternating slices, and prints their medians, and the 99th percentile of the calls.
///
/// # Errors
///
/// Whatever ends the measurement.
pub(crate) fn run(measurement: &Measurement) -> Outcome<()> {
    if measurement.size == 0 {
        return Err("--summary compares with TCP, which cannot send 0 bytes: give a --size".into());
    }
    let (load, cores, device) = measurement.prepare()?;
    let slices = measurement.slices.max(1);
    let calls_per_slice = (measurement.calls.unwrap_or(CALLS) / slices).max(1);
    let intents = measurement.intents(&load);
    let frame_len = HEADER_LEN + load.encoded_len();

    let rpc = Rpc::start_pinned(device.name(), cores, &intents)?;
    let like_rpc = RawArgs::like(&rpc.poller().limits(), cores.client, frame_len);
    let mut rpc = ClosedLoop::new(rpc, load)?;
    let mut raw = PingPong::start(&like_rpc, cores.server)?;
    let mut tcp = TcpPingPong::start(measurement.size, cores.server)?;
    let records = alternate(
        &mut [&mut rpc, &mut raw, &mut tcp],
        slices,
        calls_per_slice,
        |_| {},
    )?;
    let [rpc, raw, tcp] = &records[..] else {
        return Err("each side has a record".into());
    };
    println!(
        "A {}-byte call over '{}' took {} (median; p99 {}); raw verbs took {}, \
         a ping-pong over TCP on loopback {}.",
        measurement.size,
        device.name(),
        at(rpc, 0.5),
        at(rpc, 0.99),
        at(raw, 0.5),
        at(tcp, 0.5),
    );
    Ok(())
}

/// A quantile in microseconds: one unit for all, so that a reader can compare.
fn at(record: &Record, quantile: f64) -> String {
    let nanos = record.histogram.value_at_quantile(quantile);
    format!("{:.1} µs", nanos as f64 / 1e3)
}
