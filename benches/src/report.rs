//! Reports for programs: one JSON object on the last line of output.

use std::time::Duration;

use hdrhistogram::Histogram;
use rpc_core::transport::Counters;
use serde_json::{Map, Value, json};

use crate::arrivals::Arrivals;
use crate::open_loop::{LATE, OpenRecord};
use crate::rpc::AllocationsPerCall;
use crate::slices::{Record, median, ratio_p50};
use crate::sweep::Sweep;
use crate::system_calls::PerRoundTrip;

/// Returns the object that `latency --json` prints.
#[must_use]
pub fn latency(
    device: &str,
    size: usize,
    calls: usize,
    raw: &Record,
    rpc: &Record,
    shared: &[(String, &Record)],
    allocations: AllocationsPerCall,
) -> Value {
    let shared: Vec<Value> = shared
        .iter()
        .map(|(client, record)| {
            let mut report = object([("client", client.as_str().into())]);
            if let Value::Object(times) = times(&record.histogram) {
                report.extend(times);
            }
            let ratio = rounded(ratio_p50(record, rpc), 3);
            report.insert("ratio_p50_to_rpc".to_owned(), ratio.into());
            report.into()
        })
        .collect();
    json!({
        "device": device,
        "size": size,
        "calls": calls,
        "mode": "closed",
        "raw": {
            "p50_ns": raw.histogram.value_at_quantile(0.5),
            "p99_ns": raw.histogram.value_at_quantile(0.99),
            "p999_ns": raw.histogram.value_at_quantile(0.999),
        },
        "rpc": {
            "p50_ns": rpc.histogram.value_at_quantile(0.5),
            "p99_ns": rpc.histogram.value_at_quantile(0.99),
            "p999_ns": rpc.histogram.value_at_quantile(0.999),
            "max_ns": rpc.histogram.max(),
        },
        "ratio_p50": rounded(ratio_p50(rpc, raw), 3),
        "shared": shared,
        "allocs_per_call": {
            "client": rounded(allocations.client, 6),
            "server": rounded(allocations.server, 6),
        },
    })
}

/// The measurements of a client and a server that are idle between calls.
#[derive(Clone, Debug)]
pub struct IdleRecord {
    /// Name of the client.
    pub client: String,
    /// Latency of the first call after each idle gap, in nanoseconds.
    pub first_call: Histogram<u64>,
    /// Shares of a core that the server's and the client's process used while idle.
    pub cpu_shares: [f64; 2],
}

/// Returns the object that `latency --idle-gap --json` prints.
#[must_use]
pub fn idle_gap(device: &str, size: usize, gap: Duration, records: &[IdleRecord]) -> Value {
    let clients: Vec<Value> = records
        .iter()
        .map(|record| {
            let [server, client] = record.cpu_shares.map(|share| rounded(share, 5));
            json!({
                "client": record.client,
                "first_call": times(&record.first_call),
                "idle_cpu_share": { "server": server, "client": client },
            })
        })
        .collect();
    json!({
        "device": device,
        "size": size,
        "mode": "rest",
        "gap_ns": gap.as_nanos() as u64,
        "clients": clients,
    })
}

/// The load of an open loop.
#[derive(Clone, Copy, Debug)]
pub struct OpenShape<'a> {
    /// Name of the device.
    pub device: &'a str,
    /// Payload size of a message, in bytes.
    pub size: usize,
    /// Distribution of the times between calls.
    pub arrivals: Arrivals,
    /// Seed of the Poisson arrivals.
    pub seed: u64,
    /// Maximum calls in flight.
    pub in_flight: u32,
}

/// Returns the object that `latency --rate --json` prints.
#[must_use]
pub fn open_loop(shape: &OpenShape<'_>, record: &OpenRecord) -> Value {
    let mut report = open_shape(shape, "open");
    report.extend(open_record(record));
    report.into()
}

/// Returns the object that `latency --sweep --json` prints. The knee is the last step, or null.
#[must_use]
pub fn sweep(shape: &OpenShape<'_>, sweep: &Sweep) -> Value {
    let mut report = open_shape(shape, "sweep");
    let sustained = sweep.sustained().map(|step| step.wanted.round());
    report.insert("sustained_per_s".to_owned(), sustained.into());
    let knee = sweep.knee.map(|knee| {
        let wanted = sweep.steps.last().map(|step| step.wanted.round());
        json!({ "wanted_per_s": wanted, "because": knee.to_string() })
    });
    report.insert("knee".to_owned(), knee.into());
    let steps: Vec<Value> = sweep
        .steps
        .iter()
        .map(|step| open_record(step).into())
        .collect();
    report.insert("steps".to_owned(), steps.into());
    report.into()
}

fn open_shape(shape: &OpenShape<'_>, mode: &str) -> Map<String, Value> {
    let seed = (shape.arrivals == Arrivals::Poisson).then_some(shape.seed);
    object([
        ("device", shape.device.into()),
        ("size", shape.size.into()),
        ("mode", mode.into()),
        ("arrivals", shape.arrivals.to_string().into()),
        ("seed", seed.into()),
        ("in_flight_limit", shape.in_flight.into()),
        ("late_means_ns", (LATE.as_nanos() as u64).into()),
    ])
}

fn open_record(record: &OpenRecord) -> Map<String, Value> {
    object([
        ("wanted_per_s", record.wanted.round().into()),
        ("achieved_per_s", record.achieved.round().into()),
        ("sent", record.service.len().into()),
        ("late", record.late.into()),
        ("unsent", record.unsent.into()),
        ("service", times(&record.service)),
        ("response", times(&record.response)),
    ])
}

fn times(histogram: &Histogram<u64>) -> Value {
    json!({
        "p50_ns": histogram.value_at_quantile(0.5),
        "p99_ns": histogram.value_at_quantile(0.99),
        "p999_ns": histogram.value_at_quantile(0.999),
        "max_ns": histogram.max(),
    })
}

fn object<const N: usize>(entries: [(&str, Value); N]) -> Map<String, Value> {
    entries
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// The load of `throughput`.
#[derive(Clone, Copy, Debug)]
pub struct LoadShape {
    /// Payload size of a message, in bytes.
    pub size: usize,
    /// `local` or `shared`.
    pub client: &'static str,
    /// Threads that make calls.
    pub client_threads: usize,
    /// Calls in flight, over all connections.
    pub in_flight: usize,
    /// Connections that carry the calls.
    pub connections: usize,
}

/// Returns the object that `throughput --json` prints. `sides` holds the counters of the server
/// and, if it reports them, the client during the run.
#[must_use]
pub fn throughput(
    device: &str,
    load: LoadShape,
    calls_per_s: f64,
    histogram: &Histogram<u64>,
    sides: &[Counters],
) -> Value {
    json!({
        "device": device,
        "size": load.size,
        "client": load.client,
        "client_threads": load.client_threads,
        "in_flight": load.in_flight,
        "connections": load.connections,
        "calls_per_s": calls_per_s.round(),
        "p50_ns": histogram.value_at_quantile(0.5),
        "p99_ns": histogram.value_at_quantile(0.99),
        "sends_per_signal": rounded(worse_of(sides, sends_per_signal), 2),
        "sends_per_doorbell": rounded(worse_of(sides, sends_per_doorbell), 2),
        "srq_limit_events": sides.iter().map(|side| side.srq_limit_events).sum::<u64>(),
        "rnr": sides.iter().map(|side| side.rnr).sum::<u64>(),
    })
}

/// The measurements of `rdma`.
#[derive(Debug)]
pub struct RdmaReport<'a> {
    /// `ib_send_lat`, in whole round trips.
    pub perftest: &'a Record,
    /// Raw verbs.
    pub raw: &'a Record,
    /// RPC calls.
    pub rpc: &'a Record,
    /// System calls of the same three, if they could be counted.
    pub system_calls: Option<&'a [PerRoundTrip; 3]>,
    /// Instructions of a call through rpc-core, and of an exchange through the transport, if known.
    pub instructions: [Option<u64>; 2],
}

/// Returns the object that `rdma --json` prints.
#[must_use]
pub fn rdma(device: &str, frame_len: usize, calls: usize, report: &RdmaReport<'_>) -> Value {
    let names = ["ib_send_lat", "raw", "rpc"];
    let records = [report.perftest, report.raw, report.rpc];
    let p50: Map<String, Value> = names
        .iter()
        .zip(records)
        .map(|(&name, record)| {
            let median = median(&mut record.slice_p50.clone());
            let value = json!({ "p50_ns": median, "rounds_p50_ns": record.slice_p50 });
            (name.to_owned(), value)
        })
        .collect();
    let system_calls = report.system_calls.map(|counts| -> Map<String, Value> {
        names
            .iter()
            .zip(counts)
            .map(|(&name, count)| {
                let others: Map<String, Value> = count
                    .others()
                    .map(|(name, rate)| (name.to_owned(), rounded(rate, 3).into()))
                    .collect();
                let value = json!({ "doorbells": rounded(count.doorbells(), 3), "others": others });
                (name.to_owned(), value)
            })
            .collect()
    });
    let [per_call, per_exchange] = report.instructions;
    json!({
        "device": device,
        "frame_len": frame_len,
        "calls_per_round": calls,
        "round_trip": p50,
        "ratio_p50": {
            "raw_to_ib_send_lat": rounded(ratio_p50(report.raw, report.perftest), 3),
            "rpc_to_ib_send_lat": rounded(ratio_p50(report.rpc, report.perftest), 3),
            "rpc_to_raw": rounded(ratio_p50(report.rpc, report.raw), 3),
        },
        "system_calls_per_round_trip": system_calls,
        "instructions": { "call_over_pair": per_call, "exchange_over_soft": per_exchange },
    })
}

/// Returns the object that `overload` prints: good calls per second at best and at the last load,
/// and the largest share of handlers that ran for nobody.
#[must_use]
pub fn overload(peak: f64, at_4x: f64, useless_handlers: f64) -> Value {
    json!({
        "peak": rounded(peak, 1),
        "at_4x": rounded(at_4x, 1),
        "useless_handlers": rounded(useless_handlers, 4),
    })
}

/// Returns the object that `unfair` prints: the calls per second of each client, and the smallest
/// rate of the others as a share of an equal share.
#[must_use]
pub fn unfair(flooder: f64, others: &[f64]) -> Value {
    let all = flooder + others.iter().sum::<f64>();
    let equal = all / (1 + others.len()) as f64;
    let least = others.iter().copied().fold(f64::INFINITY, f64::min);
    json!({
        "flooder": rounded(flooder, 1),
        "others": others.iter().map(|&rate| rounded(rate, 1)).collect::<Vec<_>>(),
        "least_of_equal_share": rounded(least / equal, 3),
    })
}

/// Returns the number of frames posted per requested completion.
#[must_use]
pub fn sends_per_signal(counters: &Counters) -> f64 {
    counters.sends as f64 / counters.signaled.max(1) as f64
}

/// Returns the number of frames posted per doorbell.
#[must_use]
pub fn sends_per_doorbell(counters: &Counters) -> f64 {
    counters.sends as f64 / counters.doorbells.max(1) as f64
}

/// Returns the value of the side that does worse.
fn worse_of(sides: &[Counters], of: impl Fn(&Counters) -> f64) -> f64 {
    sides.iter().map(of).fold(f64::INFINITY, f64::min)
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(nanos: u64) -> Record {
        let mut record = Record::new();
        record.add(&mut [nanos; 100]);
        record
    }

    #[test]
    fn the_latency_report_has_its_keys_in_order() {
        let allocations = AllocationsPerCall {
            client: 0.0,
            server: 1.0,
        };
        let shared = record(1500);
        let shared = [("shared, async".to_owned(), &shared)];
        let json = latency(
            "soft",
            64,
            100,
            &record(500),
            &record(750),
            &shared,
            allocations,
        );
        assert_eq!(
            json.to_string(),
            r#"{"device":"soft","size":64,"calls":100,"mode":"closed","raw":{"p50_ns":500,"p99_ns":500,"p999_ns":500},"rpc":{"p50_ns":750,"p99_ns":750,"p999_ns":750,"max_ns":750},"ratio_p50":1.5,"shared":[{"client":"shared, async","p50_ns":1500,"p99_ns":1500,"p999_ns":1500,"max_ns":1500,"ratio_p50_to_rpc":2.0}],"allocs_per_call":{"client":0.0,"server":1.0}}"#
        );
    }

    #[test]
    fn the_reports_of_open_loops_have_both_times() {
        let shape = OpenShape {
            device: "soft",
            size: 64,
            arrivals: Arrivals::Fixed,
            seed: 7,
            in_flight: 256,
        };
        let (service, response) = (record(500).histogram, record(900).histogram);
        let step = OpenRecord {
            wanted: 1e5,
            achieved: 99_000.4,
            service,
            response,
            late: 3,
            unsent: 0,
        };
        let times = r#""service":{"p50_ns":500,"p99_ns":500,"p999_ns":500,"max_ns":500},"response":{"p50_ns":900,"p99_ns":900,"p999_ns":900,"max_ns":900}"#;
        let numbers = format!(
            r#""wanted_per_s":100000.0,"achieved_per_s":99000.0,"sent":100,"late":3,"unsent":0,{times}"#
        );
        assert_eq!(
            open_loop(&shape, &step).to_string(),
            format!(
                r#"{{"device":"soft","size":64,"mode":"open","arrivals":"fixed","seed":null,"in_flight_limit":256,"late_means_ns":5000,{numbers}}}"#
            )
        );
        let shape = OpenShape {
            arrivals: Arrivals::Poisson,
            ..shape
        };
        let steps = Sweep {
            steps: vec![step],
            knee: None,
        };
        assert_eq!(
            sweep(&shape, &steps).to_string(),
            format!(
                r#"{{"device":"soft","size":64,"mode":"sweep","arrivals":"poisson","seed":7,"in_flight_limit":256,"late_means_ns":5000,"sustained_per_s":100000.0,"knee":null,"steps":[{{{numbers}}}]}}"#
            )
        );
    }

    #[test]
    fn the_rdma_report_says_null_where_nothing_was_counted() {
        let report = RdmaReport {
            perftest: &record(400),
            raw: &record(500),
            rpc: &record(800),
            system_calls: None,
            instructions: [Some(7000), None],
        };
        let json = rdma("rxe0", 88, 100, &report);
        assert_eq!(
            json.to_string(),
            r#"{"device":"rxe0","frame_len":88,"calls_per_round":100,"round_trip":{"ib_send_lat":{"p50_ns":400,"rounds_p50_ns":[400]},"raw":{"p50_ns":500,"rounds_p50_ns":[500]},"rpc":{"p50_ns":800,"rounds_p50_ns":[800]}},"ratio_p50":{"raw_to_ib_send_lat":1.25,"rpc_to_ib_send_lat":2.0,"rpc_to_raw":1.6},"system_calls_per_round_trip":null,"instructions":{"call_over_pair":7000,"exchange_over_soft":null}}"#
        );
    }

    #[test]
    fn the_overload_report_is_one_object() {
        assert_eq!(
            overload(880.04, 39.96, 0.941_26).to_string(),
            r#"{"peak":880.0,"at_4x":40.0,"useless_handlers":0.9413}"#
        );
    }

    #[test]
    fn the_unfair_report_compares_with_an_equal_share() {
        assert_eq!(
            unfair(600.0, &[150.0, 50.0, 0.0]).to_string(),
            r#"{"flooder":600.0,"others":[150.0,50.0,0.0],"least_of_equal_share":0.0}"#
        );
    }

    #[test]
    fn the_throughput_report_is_of_the_side_that_does_worse() {
        let load = LoadShape {
            size: 64,
            client: "local",
            client_threads: 1,
            in_flight: 32,
            connections: 1,
        };
        let client = Counters {
            sends: 320,
            signaled: 10,
            doorbells: 40,
            ..Counters::default()
        };
        let server = Counters {
            signaled: 20,
            srq_limit_events: 3,
            ..client
        };
        let json = throughput("soft", load, 2e6, &record(9).histogram, &[client, server]);
        assert_eq!(
            json.to_string(),
            r#"{"device":"soft","size":64,"client":"local","client_threads":1,"in_flight":32,"connections":1,"calls_per_s":2000000.0,"p50_ns":9,"p99_ns":9,"sends_per_signal":16.0,"sends_per_doorbell":8.0,"srq_limit_events":3,"rnr":0}"#
        );
    }
}
