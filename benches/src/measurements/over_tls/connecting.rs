//! Connections with and without TLS, one after the other and eight at a time.
//!
//! Each connection of Verbline has a whole handshake. tonic, which keeps what rustls remembers of a
//! server, may resume the session of an earlier connection; Verbline never does.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use proto::bench::BenchClient;
use rpc_core::{Intents, LocalPoller, Waiting};
use rpc_transport_verbs::Device;

use super::{Compared, add_rates, start};
use crate::in_flight::with_room;
use crate::message::Load;
use crate::peers::tonic::{Socket, Tonic};
use crate::report::Row;
use crate::rounds::{alternate, alternate_rows};
use crate::rpc::{Client, Rpc};
use crate::security::Security;
use crate::setup::Bench;
use crate::slices::{Side, Stopwatch};
use crate::{Outcome, cores};

/// Threads that connect at a time.
const THREADS: usize = 8;

/// Connections before those that are timed.
const UNRECORDED: usize = 5;

/// Room for those of a few turns: a server learns later that its client has closed one.
const ROOM: usize = 2000;

/// Connections of Verbline and of tonic, which wait as they do without further settings.
pub(super) fn measure(bench: &mut Bench, [slices, connects]: [usize; 2]) -> Outcome<()> {
    let kinds = [
        Security::default(),
        Security::tls(false),
        Security::tls(true),
    ];
    let intents = with_room(Intents::default(), ROOM, 0)?;
    let rpcs = kinds
        .each_ref()
        .map(|security| start(bench, security, &intents));
    let rpcs = rpcs.into_iter().collect::<Outcome<Vec<_>>>()?;
    for rpc in &rpcs {
        rpc.server().pause()?;
    }
    let tonic = |security: Option<&Security>| match security {
        Some(tls) => Tonic::start_secured(tls, Waiting::Event, bench.cores, Load::fixed()),
        None => Tonic::start(Socket::Tcp, Waiting::Event, bench.cores, Load::fixed()),
    };
    let tonics = [
        tonic(None)?,
        tonic(Some(&kinds[1]))?,
        tonic(Some(&kinds[2]))?,
    ];
    in_sequence(bench, &rpcs, tonics, [slices, connects])?;
    let devices = kinds
        .each_ref()
        .map(|security| security.of_clients(&bench.device));
    let devices = devices.into_iter().collect::<Outcome<Vec<_>>>()?;
    let rows: [Compared; 3] = [
        ("plain", 0),
        ("TLS", 0),
        ("TLS with client certificates", 0),
    ];
    let rounds = alternate_rows(rows.len(), slices, bench.cores, |row| {
        let (rpc, device) = (&rpcs[row], &devices[row]);
        let turn = || at_a_time(device, rpc.address(), connects);
        rpc.server().in_turn(turn)
    })?;
    let title = format!("{THREADS} threads connect");
    add_rates(bench, &title, "connections_per_s", &rows, &rounds);
    Ok(())
}

/// Connects, makes a call and closes the connection, again and again.
fn in_sequence(
    bench: &mut Bench,
    rpcs: &[Rpc],
    tonics: [Tonic; 3],
    [slices, connects]: [usize; 2],
) -> Outcome<()> {
    const NAMES: [&str; 6] = [
        "plain",
        "TLS",
        "TLS with client certificates",
        "tonic",
        "tonic, TLS",
        "tonic, TLS with client certificates",
    ];
    let mut sides: Vec<Box<dyn Side + '_>> = Vec::new();
    for rpc in rpcs {
        sides.push(Box::new(move |count: usize, stopwatch: &mut Stopwatch| {
            let mut load = Load::fixed();
            let connect = || {
                let client = BenchClient::new(rpc.poller().connect(rpc.address())?);
                Outcome::Ok(rpc.block_on(load.exchange(&client))?)
            };
            rpc.server()
                .in_turn(|| stopwatch.time(UNRECORDED, count, connect))
        }));
    }
    for mut tonic in tonics {
        sides.push(Box::new(move |count: usize, stopwatch: &mut Stopwatch| {
            tonic.time_connections([UNRECORDED, count], stopwatch)
        }));
    }
    let mut sides: Vec<&mut dyn Side> = sides.iter_mut().map(|side| &mut **side as _).collect();
    let (records, rounds) = alternate(&mut sides, slices, connects, bench.cores, |taken| {
        bench.progress(format_args!("connecting: {taken} turns"));
    })?;
    let rows = NAMES.iter().zip(&records).enumerate();
    let rows = rows.map(|(row, (name, record))| {
        Row::new(*name)
            .with_rounds("p50_ns", &rounds, row, Some(0))
            .with("p99_ns", record.histogram.value_at_quantile(0.99))
            .with("connections_per_s", record.rate())
    });
    bench.report.table("a connection and its first call", rows);
    for (name, record) in NAMES.iter().zip(&records) {
        let name = format!("connecting, {name}");
        bench.report.histogram(name, &record.histogram);
    }
    bench.report.note(rounds.to_string());
    Ok(())
}

/// Connects from several threads, each with a poller of its own, and returns the connections per second
/// of all. They may use all cores.
fn at_a_time(device: &Device, address: &str, connects: usize) -> Outcome<f64> {
    let (begin, end) = (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1));
    let connect = || -> Result<(), String> {
        let poller = cores::unpin_current_thread()
            .map_err(|error| error.to_string())
            .and_then(|()| {
                let poller = LocalPoller::builder(device).build();
                poller.map_err(|error| error.to_string())
            });
        begin.wait();
        let connect = |poller: LocalPoller| {
            for _ in 0..connects {
                let channel = poller.connect(address);
                drop(channel.map_err(|error| error.to_string())?);
            }
            Ok(())
        };
        let outcome = poller.and_then(connect);
        end.wait();
        outcome
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(connect)).collect();
        begin.wait();
        let start = Instant::now();
        end.wait();
        let elapsed = start.elapsed();
        for thread in threads {
            let outcome = thread.join();
            outcome.map_err(|_| "a thread that connects has panicked")??;
        }
        Ok((THREADS * connects) as f64 / elapsed.as_secs_f64())
    })
}
