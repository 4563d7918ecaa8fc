//! The statistics of pollers: exact over a pair, readable from any thread, and printable.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::support::{ABSENT, ECHO, FAIL, Gate, HELD, PANIC, call, register, send};
use rpc_core::stats::{MethodStats, PollerStats};
use rpc_core::{Code, Intents, Limits, Methods, Request, Response, Status};
use rpc_core_testing::{Faults, LoopbackNode, Network, Pair};

fn pair(intents: &Intents) -> (Pair, Gate) {
    let gate = Gate::default();
    let pair = Pair::with(intents, Faults::none(), 0, |methods| {
        register(methods, &gate);
    });
    (pair, gate)
}

fn timing_all() -> Intents {
    Intents {
        latency_sampling: 1,
        ..Intents::default()
    }
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn find_method<'a>(methods: &'a [MethodStats], path: &str) -> &'a MethodStats {
    let method = methods.iter().find(|method| method.path == path);
    method.unwrap_or_else(|| panic!("{path} is in {methods:?}"))
}

fn total_stats(pair: &Pair) -> [PollerStats; 2] {
    [pair.client(), pair.server()].map(|node| node.poller().stats().total())
}

#[test]
fn every_call_is_counted_once_by_its_method_and_its_code_on_both_sides() {
    let (pair, _) = pair(&timing_all());
    let (channel, other) = (pair.connect(), pair.connect());
    for n in 0..100u8 {
        let channel = if n % 2 == 0 { &channel } else { &other };
        pair.run(call(channel, &ECHO, [n])).unwrap();
    }
    for _ in 0..7 {
        pair.run(call(&channel, &FAIL, "")).unwrap_err();
        pair.run(call(&channel, &PANIC, "")).unwrap_err();
    }
    for _ in 0..3 {
        pair.run(call(&channel, &ABSENT, "")).unwrap_err();
    }
    let [client, server] = total_stats(&pair);
    for methods in [&client.called, &server.served] {
        for (method, count, code) in [
            (&ECHO, 100, Code::Ok),
            (&FAIL, 7, Code::Aborted),
            (&PANIC, 7, Code::Internal),
        ] {
            let stats = find_method(methods, method.path);
            assert_eq!((stats.begun, stats.started), (count, count));
            assert_eq!(stats.codes().collect::<Vec<_>>(), [(code, count)]);
            assert_eq!((stats.dropped, stats.in_flight), (0, 0));
            assert_eq!(stats.latency.count(), count, "each is timed");
        }
    }
    let absent = find_method(&client.called, ABSENT.path);
    assert_eq!((absent.begun, absent.started), (3, 0), "never sent");
    assert_eq!(absent.ended(Code::Unimplemented), 3);
    assert_eq!(server.served.len(), 3);
    assert!(client.served.is_empty() && server.called.is_empty());
    assert_eq!(
        (client.connections.connected, server.connections.accepted),
        (2, 2)
    );
    assert_eq!(client.transport.sends, server.transport.receives);
    drop(other);
    pair.network().settle();
    let [client, server] = total_stats(&pair).map(|stats| stats.connections);
    assert_eq!((client.closed_locally, server.closed_by_peer), (1, 1));
    assert_eq!((client.open(), server.open()), (1, 1));
    pair.assert_nothing_left();
}

#[test]
fn calls_that_are_dropped_or_cut_off_are_counted_as_such() {
    let (pair, gate) = pair(&Intents::default());
    let channel = pair.connect();
    {
        let mut held = Box::pin(call(&channel, &HELD, "a"));
        assert!(pair.network().try_run(&mut held).is_none());
        let [client, server] = total_stats(&pair);
        assert_eq!((client.in_flight(), server.in_flight()), (1, 1));
        assert_eq!((server.handlers.parked, server.handlers.awaited), (1, 1));
    }
    // The client has dropped the call, and the server hears of it.
    let other = pair.connect();
    let mut cut_off = Box::pin(call(&other, &HELD, "b"));
    assert!(pair.network().try_run(&mut cut_off).is_none());
    let connections = pair.server().connections();
    pair.server().inject(connections[1], vec![0; 3]);
    let error = pair.run(cut_off).unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    gate.open();
    pair.network().settle();
    let [client, server] = total_stats(&pair);
    let called = find_method(&client.called, HELD.path);
    assert_eq!((called.begun, called.dropped, called.in_flight), (2, 1, 0));
    assert_eq!(called.ended(Code::Unavailable), 1);
    let served = find_method(&server.served, HELD.path);
    assert_eq!((served.begun, served.dropped, served.in_flight), (2, 1, 0));
    assert_eq!(served.ended(Code::Cancelled), 1);
    assert_eq!((client.cancels.in_flight, server.cancels.running), (1, 1));
    assert_eq!(server.connections.violated, 1);
    assert_eq!(client.connections.closed_by_peer, 1);
    assert_eq!(server.handlers.parked, 0);
    drop((channel, other));
    pair.network().settle();
}

#[test]
fn a_call_that_waits_is_counted_once_and_by_what_it_waits_for() {
    let intents = Intents {
        max_in_flight: 4,
        ..Intents::default()
    };
    let (pair, gate) = pair(&intents);
    let channel = pair.connect();
    let mut calls: Vec<_> = (0..10u8)
        .map(|n| Box::pin(call(&channel, &HELD, [n])))
        .collect();
    for _ in 0..3 {
        for call in &mut calls {
            assert!(poll_once(call.as_mut()).is_pending());
        }
        pair.network().settle();
    }
    let [client, _] = total_stats(&pair);
    // A new connection has one credit. Its window had grown when the calls were retried.
    assert_eq!((client.stalls.no_credit, client.stalls.queued), (1, 8));
    assert_eq!(client.stalls.calls_waiting, 6);
    assert_eq!(client.credits.available, 0);
    let held = find_method(&client.called, HELD.path);
    assert_eq!((held.begun, held.started, held.in_flight), (10, 4, 10));
    gate.open();
    for (n, call) in (0..).zip(calls) {
        assert_eq!(pair.run(call).unwrap(), [n]);
    }
    let [client, _] = total_stats(&pair);
    assert_eq!((client.stalls.no_credit, client.stalls.queued), (1, 8));
    assert_eq!((client.stalls.calls_waiting, client.in_flight()), (0, 0));
    assert!(client.credits.available > 0);
    pair.assert_nothing_left();
}

#[test]
fn responses_without_a_send_slot_and_calls_without_one_are_counted_once_each() {
    let faults = Faults {
        no_slot: 500,
        ..Faults::none()
    };
    let gate = Gate::default();
    let pair = Pair::with(&Intents::default(), faults, 7, |methods| {
        register(methods, &gate);
    });
    let channel = pair.connect();
    for n in 0..200u8 {
        assert_eq!(pair.run(call(&channel, &ECHO, [n])).unwrap(), [n]);
    }
    let [client, server] = total_stats(&pair);
    // Of the calls about every fourth one, since a call tries twice before it waits, and of the
    // responses every second one: far from none, and at most one per call.
    let (calls, responses) = (client.stalls.no_send_slot, server.stalls.responses);
    assert!((20..100).contains(&calls), "{client}");
    assert!((50..150).contains(&responses), "{server}");
    assert_eq!(server.stalls.responses_waiting, 0);
    pair.assert_nothing_left();
}

#[test]
fn calls_that_are_shed_or_come_too_late_are_told_apart() {
    let gate = Gate::default();
    let pair = Pair::with(&Intents::default(), Faults::none(), 0, |methods| {
        register(methods, &gate);
        methods.limit_concurrent_calls(1);
    });
    let channel = pair.connect();
    let mut held = Box::pin(call(&channel, &HELD, "a"));
    assert!(pair.network().try_run(&mut held).is_none());
    for _ in 0..5 {
        pair.run(call(&channel, &ECHO, "")).unwrap_err();
    }
    let [_, server] = total_stats(&pair);
    assert_eq!(server.handlers.shed, 5);
    let echo = find_method(&server.served, ECHO.path);
    assert_eq!((echo.begun, echo.started), (5, 0));
    assert_eq!(echo.ended(Code::ResourceExhausted), 5);
    gate.open();
    pair.run(held).unwrap();
    // The deadline passes while the request is in flight.
    let request = Request::new(Vec::new()).with_timeout(Duration::from_micros(1));
    let mut late = Box::pin(send(&channel, &ECHO, request));
    assert!(poll_once(late.as_mut()).is_pending());
    pair.client().step();
    pair.network().advance(Duration::from_secs(1));
    assert_eq!(pair.run(late).unwrap_err().code(), Code::DeadlineExceeded);
    pair.network().settle();
    let [client, server] = total_stats(&pair);
    assert_eq!(
        find_method(&client.called, ECHO.path).ended(Code::DeadlineExceeded),
        1
    );
    let echo = find_method(&server.served, ECHO.path);
    assert_eq!(echo.begun, 6);
    assert_eq!(server.in_flight(), 0);
    pair.assert_nothing_left();
}

#[test]
fn times_are_taken_from_arrival_to_response_and_from_call_to_answer() {
    let (pair, gate) = pair(&timing_all());
    let channel = pair.connect();
    let mut held = Box::pin(call(&channel, &HELD, "a"));
    assert!(pair.network().try_run(&mut held).is_none());
    let took = Duration::from_millis(320);
    pair.network().advance(took);
    gate.open();
    pair.run(held).unwrap();
    let [client, server] = total_stats(&pair);
    for methods in [&client.called, &server.served] {
        let latency = &find_method(methods, HELD.path).latency;
        assert_eq!((latency.count(), latency.max()), (1, Some(took)));
        let median = latency.percentile(0.5).unwrap();
        assert!(median.abs_diff(took) * 32 <= took, "{median:?}");
    }
}

#[test]
fn a_difference_has_what_came_between_and_levels_as_they_are() {
    let (pair, gate) = pair(&Intents::default());
    let channel = pair.connect();
    pair.run(call(&channel, &ECHO, "")).unwrap();
    let mut held = Box::pin(call(&channel, &HELD, "a"));
    assert!(pair.network().try_run(&mut held).is_none());
    let before = pair.server().poller().stats();
    for _ in 0..3 {
        pair.run(call(&channel, &ECHO, "")).unwrap();
    }
    let difference = pair.server().poller().stats().since(&before).total();
    assert_eq!(find_method(&difference.served, ECHO.path).begun, 3);
    let still = find_method(&difference.served, HELD.path);
    assert_eq!((still.begun, still.in_flight), (0, 1));
    assert_eq!(difference.connections.accepted, 0);
    assert_eq!(difference.handlers.parked, 1);
    gate.open();
    pair.run(held).unwrap();
}

/// The reader runs as long as the poller does. Every snapshot is consistent: no count decreases,
/// and no call has ended without having begun.
#[test]
fn another_thread_reads_while_the_poller_runs() {
    let (pair, _) = pair(&Intents::default());
    let channel = pair.connect();
    let stats_reader = pair.client().poller().stats_reader();
    let (is_over, has_begun) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (over, begun) = (Arc::clone(&is_over), Arc::clone(&has_begun));
    let reader = thread::spawn(move || {
        let (mut latest, mut looks) = (0, 0u32);
        loop {
            let last_look = over.load(Ordering::Acquire);
            let stats = stats_reader.stats().total();
            if let Some(echo) = stats.called.first() {
                begun.store(true, Ordering::Release);
                assert!(echo.begun >= latest, "{} after {latest}", echo.begun);
                assert!(echo.ended(Code::Ok) <= echo.begun, "{echo:?}");
                latest = echo.begun;
            }
            looks += 1;
            if last_look {
                return (latest, looks);
            }
        }
    });
    let mut made = 0u64;
    while made < 2000 || !has_begun.load(Ordering::Acquire) {
        pair.run(call(&channel, &ECHO, "")).unwrap();
        made += 1;
    }
    is_over.store(true, Ordering::Release);
    let (latest, looks) = reader.join().unwrap();
    assert_eq!(latest, made);
    assert!(looks > 1);
}

#[test]
fn a_number_that_no_method_has_is_counted_under_no_name() {
    let (pair, _) = pair(&Intents::default());
    let _channel = pair.connect();
    pair.network().settle();
    let [connection] = pair.server().connections()[..] else {
        panic!("there is one connection");
    };
    let mut frame = vec![0; rpc_core::frame::HEADER_LEN];
    frame[0] = 1;
    frame[8..10].copy_from_slice(&999u16.to_le_bytes());
    pair.server().inject(connection, frame);
    pair.network().settle();
    let [_, server] = total_stats(&pair);
    let unknown = find_method(&server.served, "(unknown method)");
    assert_eq!((unknown.begun, unknown.ended(Code::Unimplemented)), (1, 1));
}

const SLOW: rpc_core::MethodSpec = crate::support::method("demo.Greeter/SayHelloSlowly");

fn greeter(methods: &mut Methods) {
    methods.unary(&ECHO, |request: Request<Vec<u8>>| async {
        Ok(Response::new(request.into_inner()))
    });
    methods.unary(&FAIL, |_: Request<Vec<u8>>| async {
        Err::<Response<Vec<u8>>, _>(Status::not_found("nobody"))
    });
    methods.unary(&SLOW, |_: Request<Vec<u8>>| async {
        poll_fn(|_| Poll::<()>::Pending).await;
        Ok(Response::new(Vec::<u8>::new()))
    });
}

#[test]
fn the_table_is_as_expected() {
    let limits = Limits {
        device: "loopback".to_owned(),
        slot_len: 4096,
        max_message_len: 4096,
        max_send_message_len: 4096,
        receives_posted: 256,
        send_slots: 64,
        send_queue_depth: 64,
        max_connections: 8,
        max_in_flight: 32,
        latency_sampling: 1,
        ..Limits::default()
    };
    let mut network = Network::new(Faults::none(), 0);
    let server = network.add_sized("server", limits.clone(), greeter);
    let client = network.add_sized("client", limits, |_| ());
    let channel = client.poller().connect("server").unwrap();
    for n in 0..3u8 {
        network
            .try_run(call(&channel, &ECHO, [n]))
            .unwrap()
            .unwrap();
    }
    for _ in 0..2 {
        network
            .try_run(call(&channel, &FAIL, ""))
            .unwrap()
            .unwrap_err();
    }
    let mut slow = pin!(call(&channel, &SLOW, ""));
    assert!(network.try_run(slow.as_mut()).is_none());
    network.advance(Duration::from_micros(1500));
    let text = server.poller().stats().to_string();
    let expected = "\
served                             calls           ok   dropped in flight       p50       p99       max  errors
test.Test/Echo                         3            3         0         0      0 ns      0 ns      0 ns
test.Test/Fail                         2            0         0         0      0 ns      0 ns      0 ns  2 NOT_FOUND
demo.Greeter/SayHelloSlowly            1            0         0         1         -         -         -
  handlers    1 suspended now, 1 suspended at least once, 0 calls shed, 0 expired before their handler started, 0 refused for overload; 0 queued now
  stalls      0 calls and 0 responses waiting now; waited: 0 for a credit, 0 for a receive, 0 for a send slot, 0 queued behind others, 0 for a permit, 0 in the backlog; 0 responses
  credits     0 available; 10 of 256 receives promised, 8 of these in windows; 0 credit frames sent
  connections 1 open: 1 accepted, 0 connected; closed: 0 by this side, 0 by the peer, 0 failed, 0 for protocol violations; 0 attempts to connect failed
  streams     0 open, 0 opened; 0 frames sent, 0 received; waited 0 times for a credit
  cancelled   0 calls never sent, 0 in flight; of clients: 0 before their handler started, 0 running, 0 too late
";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.contains("\n  device      loopback: "), "{text}");
    assert!(
        text.contains("\n  slots       320 slots: receives 0 free + 256 posted"),
        "{text}"
    );

    let mut stats = server.poller().stats();
    stats.pollers[0].latency_sampling = 32;
    let text = stats.to_string();
    let expected = "\
served                             calls           ok   dropped in flight of 1 in 32: p50       p99       max  errors
test.Test/Echo                         3            3         0         0            0 ns      0 ns      0 ns
";
    assert!(text.starts_with(expected), "{text}");
}
