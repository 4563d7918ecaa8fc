//! Measures the first call after an idle period, and the CPU use of idle processes.

use std::thread;
use std::time::{Duration, Instant};

use benches::child::CpuTime;
use benches::message::Load;
use benches::report::{self, IdleRecord};
use benches::rpc::Rpc;
use benches::shared::{Shared, Waiter};
use benches::slices::{UNRECORDED, histogram};
use benches::table::{self, Table};
use benches::{Outcome, cores};
use hdrhistogram::Histogram;
use rpc_core::Intents;

use super::Measurement;

/// First calls to record by default.
const CALLS: usize = 50;

/// How long both processes stay idle, with their connection open, while their CPU time is measured.
const IDLE_TIME: Duration = Duration::from_secs(5);

pub(crate) fn run(measurement: &Measurement, gap: Duration) -> Outcome<()> {
    let (load, cores, device) = measurement.prepare()?;
    let intents = measurement.intents(&load);
    let calls = measurement.calls.unwrap_or(CALLS).max(1);
    println!(
        "{calls} calls of {} bytes on '{}', each {} after the previous one; pollers wait '{}'",
        measurement.size,
        device.name(),
        table::duration(gap),
        intents.waiting
    );
    println!("server pinned to core {}", cores.server);
    let waiters = [Waiter::tokio()?, Waiter::Blocking];
    let mut records = vec![local(device.name(), cores, &intents, &load, gap, calls)?];
    for waiter in &waiters {
        records.push(shared(
            device.name(),
            cores,
            &intents,
            &load,
            gap,
            calls,
            waiter,
        )?);
    }
    let columns = ["server CPU", "client CPU"];
    let mut table = Table::new([""].into_iter().chain(table::PERCENTILES).chain(columns));
    for record in &records {
        let cells = table::percentiles(&record.first_call);
        let shares = record
            .cpu_shares
            .map(|share| format!("{:.2} %", share * 100.0));
        table.add(
            std::iter::once(record.client.clone())
                .chain(cells)
                .chain(shares),
        );
    }
    print!("\n{table}");
    println!(
        "first calls after an idle gap of {}; CPU: the share of one core that each process used while its \
         connection was idle, over {}",
        table::duration(gap),
        table::duration(IDLE_TIME)
    );
    for record in &records {
        let name = format!("first-call-{}", record.client.replace([',', ' '], ""));
        super::save(&record.first_call, &measurement.out, &name)?;
    }
    println!("histograms, in ns: {}", measurement.out.display());
    if measurement.json {
        println!(
            "{}",
            report::idle_gap(device.name(), measurement.size, gap, &records)
        );
    }
    Ok(())
}

fn local(
    device: &str,
    cores: cores::Cores,
    intents: &Intents,
    load: &Load,
    gap: Duration,
    calls: usize,
) -> Outcome<IdleRecord> {
    let rpc = Rpc::start(device, cores.server, intents)?;
    let client = &rpc.clients()[0];
    let mut load = load.clone();
    let mut call = |calls| {
        rpc.poller().block_on(async {
            for _ in 0..calls {
                load.exchange(client).await?;
            }
            Ok::<_, rpc_core::CallError>(())
        })
    };
    call(UNRECORDED)?;
    let first_call = first_calls(gap, calls, || Ok(call(1)?))?;
    Ok(IdleRecord {
        client: "local".to_owned(),
        first_call,
        cpu_shares: cpu_shares(rpc.server().cpu_time())?,
    })
}

fn shared(
    device: &str,
    cores: cores::Cores,
    intents: &Intents,
    load: &Load,
    gap: Duration,
    calls: usize,
    waiter: &Waiter,
) -> Outcome<IdleRecord> {
    let shared = Shared::start(device, cores.server, intents, 1)?;
    let client = shared.client();
    let mut load = load.clone();
    let mut call = |calls| waiter.make_calls(&client, &mut load, calls, || ());
    call(UNRECORDED)?;
    let first_call = first_calls(gap, calls, || Ok(call(1)?))?;
    Ok(IdleRecord {
        client: waiter.to_string(),
        first_call,
        cpu_shares: cpu_shares(shared.server().cpu_time())?,
    })
}

/// Records the latency of one call after each idle gap.
fn first_calls(
    gap: Duration,
    calls: usize,
    mut call: impl FnMut() -> Outcome<()>,
) -> Outcome<Histogram<u64>> {
    let mut times = histogram();
    for _ in 0..calls {
        thread::sleep(gap);
        let start = Instant::now();
        call()?;
        times.saturating_record((start.elapsed().as_nanos() as u64).max(1));
    }
    Ok(times)
}

/// Returns the shares of a core that the server and this process use while idle.
fn cpu_shares(server: CpuTime) -> Outcome<[f64; 2]> {
    // Let the pollers go to sleep after the last call.
    thread::sleep(Duration::from_millis(50));
    let processes = [server, CpuTime::of_this_process()];
    let read = || -> Outcome<[Duration; 2]> { Ok([processes[0].read()?, processes[1].read()?]) };
    let (start, before) = (Instant::now(), read()?);
    thread::sleep(IDLE_TIME);
    let (time, after) = (start.elapsed(), read()?);
    Ok([0, 1].map(|side| (after[side] - before[side]).as_secs_f64() / time.as_secs_f64()))
}
