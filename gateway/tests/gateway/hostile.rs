//! Clients that break the rules, or keep them and do harm: the calls of others go on.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proto::interop::Empty;
use proto::routeguide::{Feature, Point, RouteGuideClient};
use rpc_core::{Channel, Request};
use rustix::net::sockopt::set_socket_linger;
use tokio::time::timeout;
use tonic::Code;
use verbline::Device;
use verbline_gateway::GatewayBuilder;

use crate::interop::{EMPTY_CALL, INPUT_CALL, large_unary};
use crate::raw::{
    CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE,
    RST_STREAM, RawClient, SETTINGS, frame, frames, headers,
};
use crate::support::{Client, Fixture};
use crate::torn::{RECORD_ROUTE, counting, wait_for};

pub(crate) const GET_FEATURE: &str = "/routeguide.RouteGuide/GetFeature";
pub(crate) const LIST_FEATURES: &str = "/routeguide.RouteGuide/ListFeatures";

async fn fixture(configure: impl FnOnce(GatewayBuilder) -> GatewayBuilder) -> Fixture {
    counting(configure).await.0
}

async fn get_feature(client: &Client) -> Result<Feature, tonic::Status> {
    let request = tonic::Request::new(Point::default());
    client
        .unary(GET_FEATURE, request)
        .await
        .map(tonic::Response::into_inner)
}

/// Kinds of `garbage`.
const KINDS: u64 = 12;

/// What the connection with this number sends.
fn garbage(number: u64) -> Vec<u8> {
    let mut after_preface = Vec::from(PREFACE);
    let frames = match number % KINDS {
        0 => return Vec::new(),
        1 => return b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        // TLS.
        2 => return vec![0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3],
        3 => return PREFACE[..(number / KINDS) as usize % PREFACE.len()].to_vec(),
        4 => {
            let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let random = std::iter::repeat_with(|| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            });
            random.take(200).collect()
        }
        5 => frame(SETTINGS, 0, 0, &[0; 6]).repeat(300),
        6 => frame(PING, 0, 0, &[0; 8]).repeat(300),
        // Without an end of its headers.
        7 => {
            let mut flood = frame(HEADERS, 0, 1, &headers("/x", &[]));
            flood.extend(frame(CONTINUATION, 0, 1, &[0, 1, b'a', 1, b'b']).repeat(300));
            flood
        }
        8 => frame(HEADERS, END_HEADERS, 1, &[0xff; 40]),
        // A frame that is longer than the server permits.
        9 => vec![0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1],
        10 => frame(DATA, 0, 7, b"no stream"),
        _ => {
            let mut upload = frame(SETTINGS, 0, 0, &[]);
            upload.extend(frame(HEADERS, END_HEADERS, 1, &headers(RECORD_ROUTE, &[])));
            upload.extend(frame(DATA, END_STREAM, 1, &[0, 0, 0]));
            upload
        }
    };
    after_preface.extend(frames);
    after_preface
}

pub(crate) fn send_garbage(address: SocketAddr, number: u64) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    if number.is_multiple_of(2) {
        // Closes with a reset.
        set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    }
    // The gateway may have closed the connection.
    let _ = stream.write_all(&garbage(number));
    if number.is_multiple_of(97) {
        let _ = stream.read(&mut [0; 4096]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_ends_its_own_connection_only() {
    let fixture = fixture(|builder| builder).await;
    let client = fixture.client().await;
    let address = fixture.address;
    let is_done = Arc::new(AtomicBool::new(false));
    let attack = std::thread::spawn({
        let is_done = Arc::clone(&is_done);
        move || {
            (0..20 * KINDS).for_each(|number| send_garbage(address, number));
            is_done.store(true, Ordering::SeqCst);
        }
    });
    let mut calls = 0;
    while !is_done.load(Ordering::SeqCst) || calls == 0 {
        get_feature(&client).await.unwrap();
        calls += 1;
    }
    attack.join().unwrap();
    get_feature(&fixture.client().await).await.unwrap();
    fixture.end().await;
}

/// The long form. Prints the latencies of a Verbline client of the same server, without the attack
/// and beside it, and the memory of the process.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a hundred thousand connections take a minute"]
async fn a_hundred_thousand_garbage_connections_change_nothing_for_others() {
    const CONNECTIONS: u64 = 100_000;
    let fixture = fixture(|builder| builder).await;
    let server = fixture.server.local_addr().to_string();
    let measure = |is_done: Arc<AtomicBool>| {
        let server = server.clone();
        std::thread::spawn(move || latencies(&server, &is_done))
    };
    let alone = Arc::new(AtomicBool::new(false));
    let calm = measure(Arc::clone(&alone));
    tokio::time::sleep(Duration::from_secs(5)).await;
    alone.store(true, Ordering::SeqCst);
    println!("alone:             {}", calm.join().unwrap());
    let memory_before = resident_kib();
    let is_done = Arc::new(AtomicBool::new(false));
    let beside = measure(Arc::clone(&is_done));
    let client = fixture.client().await;
    let address = fixture.address;
    let attack = tokio::task::spawn_blocking(move || {
        (0..CONNECTIONS).for_each(|number| send_garbage(address, number));
    });
    let mut through_gateway = 0;
    while !attack.is_finished() {
        get_feature(&client).await.unwrap();
        through_gateway += 1;
    }
    attack.await.unwrap();
    is_done.store(true, Ordering::SeqCst);
    println!("beside the attack: {}", beside.join().unwrap());
    println!("through the gateway: {through_gateway} calls, none failed");
    println!(
        "resident memory: {memory_before} KiB before, {} KiB after",
        resident_kib()
    );
    get_feature(&fixture.client().await).await.unwrap();
    fixture.end().await;
}

fn latencies(server: &str, is_done: &AtomicBool) -> String {
    let device = Device::open("soft").unwrap();
    let channel = verbline::block_on(Channel::connect(&device, server)).unwrap();
    let client = RouteGuideClient::new(channel);
    let mut micros = Vec::new();
    while !is_done.load(Ordering::SeqCst) {
        let begun = Instant::now();
        verbline::block_on(client.get_feature(Request::new(Point::default()))).unwrap();
        micros.push(begun.elapsed().as_micros());
    }
    micros.sort_unstable();
    let at = |part: usize| micros[micros.len() * part / 1000];
    format!(
        "{} calls, p50 {} µs, p99 {} µs",
        micros.len(),
        at(500),
        at(990)
    )
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_only_resets_its_calls_is_cut_off() {
    let (fixture, counts) = counting(|builder| builder).await;
    let client = fixture.client().await;
    let address = fixture.address;
    let attack = tokio::task::spawn_blocking(move || {
        let mut attacker = RawClient::connect(address);
        for call in 0..500 {
            let [reset, refused] = [4 * call + 1, 4 * call + 3];
            // The rule is the gateway's: h2 has one for calls that are reset before they begin.
            attacker.begin(reset, RECORD_ROUTE, &[]).unwrap();
            wait_for("uploads", &counts.begun, call as usize + 1);
            attacker.reset(reset, CANCEL).unwrap();
            // Calls that the gateway refuses do not hide it.
            let head = headers("/no.such.Service/Method", &[]);
            let flags = END_HEADERS | END_STREAM;
            // It may have been cut off.
            let sent = attacker.frame(HEADERS, flags, refused, &head);
            assert!(sent.is_ok() || call == 499);
        }
        attacker.wait_for_end();
    });
    while !attack.is_finished() {
        get_feature(&client).await.unwrap();
    }
    attack.await.unwrap();
    fixture.end().await;
}

/// As one does whose user has gone: h2 takes twenty such calls for an attack unless it is told otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_cancels_many_calls_at_once_keeps_its_connection() {
    let fixture = fixture(|builder| builder).await;
    let address = fixture.address;
    let calls = tokio::task::spawn_blocking(move || {
        let mut client = RawClient::connect(address);
        let head = headers(RECORD_ROUTE, &[]);
        let cancelled = (0..200).flat_map(|call| {
            let begun = frame(HEADERS, END_HEADERS, 2 * call + 1, &head);
            let reset = frame(RST_STREAM, 0, 2 * call + 1, &CANCEL.to_be_bytes());
            [begun, reset].concat()
        });
        client.0.write_all(&cancelled.collect::<Vec<_>>()).unwrap();
        client.begin(401, GET_FEATURE, &[]).unwrap();
        client.frame(DATA, END_STREAM, 401, &[0; 5]).unwrap();
        loop {
            match client.read_frame().unwrap() {
                HEADERS => break,
                kind => assert_ne!(kind, GOAWAY),
            }
        }
    });
    calls.await.unwrap();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_is_cut_off() {
    let fixture = fixture(|builder| builder.stall_time(Duration::from_millis(300))).await;
    let mut attacker = RawClient::connect(fixture.address);
    attacker.open_windows().unwrap();
    for stream in [1, 3, 5, 7] {
        attacker.begin(stream, LIST_FEATURES, &[]).unwrap();
        attacker.frame(DATA, END_STREAM, stream, &[0; 5]).unwrap();
    }
    let client = fixture.client().await;
    let begun = Instant::now();
    // A gigabyte waits for it. Its calls end when its connection does.
    while fixture.channel.stats().total().streams.ended < 4 {
        get_feature(&client).await.unwrap();
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "nobody cuts it off"
        );
    }
    drop(attacker);
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_comes_too_slowly_fails_its_call() {
    let fixture = fixture(|builder| builder.message_time(Duration::from_millis(100))).await;
    let address = fixture.address;
    let read = tokio::task::spawn_blocking(move || {
        let mut slow = RawClient::connect(address);
        slow.begin(1, RECORD_ROUTE, &[]).unwrap();
        slow.message(1).unwrap();
        // Of a message of nine bytes.
        slow.frame(DATA, 0, 1, &[0, 0, 0, 0, 9, 1]).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        slow.go_away().unwrap();
        slow.0.shutdown(std::net::Shutdown::Write).unwrap();
        slow.wait_for_end()
    });
    let read = read.await.unwrap();
    // The status is `grpc-status: 4`, in a block of headers, which HPACK may encode in several ways.
    assert!(
        frames(&read).iter().any(|(kind, _)| *kind == HEADERS),
        "no answer"
    );
    get_feature(&fixture.client().await).await.unwrap();
    fixture.end().await;
}

/// Each of them has a place among the gateway's calls, and memory if its message has come.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_one_message_that_does_not_end_fails_in_time() {
    let fixture = fixture(|builder| {
        builder
            .message_time(Duration::from_millis(100))
            .max_calls(2)
    })
    .await;
    let address = fixture.address;
    let read = tokio::task::spawn_blocking(move || {
        let mut silent = RawClient::connect(address);
        silent.begin(1, GET_FEATURE, &[]).unwrap();
        silent.begin(3, GET_FEATURE, &[]).unwrap();
        silent.message(3).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        silent.go_away().unwrap();
        silent.0.shutdown(std::net::Shutdown::Write).unwrap();
        silent.wait_for_end()
    });
    let read = frames(&read.await.unwrap());
    let answers = read.iter().filter(|(kind, _)| *kind == HEADERS).count();
    assert_eq!(answers, 2, "{read:?}");
    get_feature(&fixture.client().await).await.unwrap();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_a_preface_is_closed() {
    let fixture = fixture(|builder| builder.preface_time(Duration::from_millis(100))).await;
    let address = fixture.address;
    let silent = tokio::task::spawn_blocking(move || {
        let mut silent = RawClient(TcpStream::connect(address).unwrap());
        silent.0.write_all(&PREFACE[..10]).unwrap();
        silent.wait_for_end()
    });
    assert!(silent.await.unwrap().is_empty());
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_answers_no_pings_is_closed_and_one_that_does_stays() {
    let (interval, time) = (Duration::from_millis(100), Duration::from_secs(2));
    let fixture = fixture(|builder| builder.keepalive(interval, time)).await;
    let address = fixture.address;
    let dead = tokio::task::spawn_blocking(move || RawClient::connect(address).wait_for_end());
    let alive = tokio::task::spawn_blocking(move || {
        let mut alive = RawClient::connect(address);
        // More time than the other one has.
        let mut pings = 0;
        while pings < 25 {
            pings += usize::from(alive.read_frame().unwrap() == PING);
        }
        alive.begin(1, GET_FEATURE, &[]).unwrap();
        alive.frame(DATA, END_STREAM, 1, &[0; 5]).unwrap();
        while alive.read_frame().unwrap() != HEADERS {}
    });
    let read = dead.await.unwrap();
    let pings = frames(&read)
        .iter()
        .filter(|(kind, _)| *kind == PING)
        .count();
    assert_eq!(pings, 1);
    alive.await.unwrap();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_are_too_long_fail_their_call_only() {
    let fixture = fixture(|builder| builder).await;
    let client = fixture.client().await;
    let mut request = tonic::Request::new(Point::default());
    request
        .metadata_mut()
        .insert("long", "x".repeat(20 << 10).parse().unwrap());
    let outcome: Result<tonic::Response<Feature>, _> = client.unary(GET_FEATURE, request).await;
    outcome.unwrap_err();
    get_feature(&client).await.unwrap();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_and_calls_have_a_limit() {
    let (fixture, counts) = counting(|builder| builder.max_connections(2).max_calls(1)).await;
    let client = fixture.client().await;
    let mut second = RawClient::connect(fixture.address);
    second.begin(1, RECORD_ROUTE, &[]).unwrap();
    second.message(1).unwrap();
    wait_for("uploads", &counts.begun, 1);
    let status = get_feature(&client).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(
        status.metadata().get("verbline-execution").unwrap(),
        "never-sent"
    );
    let address = fixture.address;
    let third = tokio::task::spawn_blocking(move || {
        // It cannot write: it is closed at once.
        RawClient(TcpStream::connect(address).unwrap()).wait_for_end()
    });
    assert!(third.await.unwrap().is_empty());
    drop(second);
    while get_feature(&client).await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_connection_is_told_to_end_and_its_calls_are_cut_off_after_the_grace() {
    let time = Duration::from_millis(100);
    let fixture = fixture(|builder| builder.max_connection_age(time, time)).await;
    let address = fixture.address;
    let read = tokio::task::spawn_blocking(move || {
        let mut old = RawClient::connect(address);
        old.begin(1, RECORD_ROUTE, &[]).unwrap();
        old.message(1).unwrap();
        old.wait_for_end()
    });
    let read = read.await.unwrap();
    assert!(
        frames(&read).iter().any(|(kind, _)| *kind == GOAWAY),
        "nobody told it"
    );
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_announces_long_messages_takes_its_share_of_the_memory_only() {
    // One connection may have half of it: a message of 4 MiB.
    let fixture = Fixture::interop_with(|builder| builder.message_memory(8 << 20)).await;
    let client = fixture.client().await;
    let announce = || {
        let mut attacker = RawClient::connect(fixture.address);
        for stream in (1..40).step_by(2) {
            attacker.begin(stream, INPUT_CALL, &[]).unwrap();
            // The first byte of a message of 4 MiB.
            attacker
                .frame(DATA, 0, stream, &[0, 0, 0x40, 0, 0, 1])
                .unwrap();
        }
        attacker
    };
    let first = announce();
    for _ in 0..10 {
        large_unary(&client).await.unwrap();
    }
    let second = announce();
    // Now others wait for memory, and calls with short messages need none.
    while let Ok(done) = timeout(Duration::from_millis(100), large_unary(&client)).await {
        done.unwrap();
    }
    let _: tonic::Response<Empty> = client
        .unary(EMPTY_CALL, tonic::Request::new(Empty {}))
        .await
        .unwrap();
    drop(second);
    large_unary(&client).await.unwrap();
    // Its calls would have the gateway wait for them.
    drop(first);
    fixture.end().await;
}
