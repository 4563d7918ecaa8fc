//! Failures of the network, the peer or the kernel during calls over kernel verbs. These tests run
//! in the guest of `.ci/guest`, because they take its devices and network down and up. They need
//! root and the environment variables that the guest sets.
//!
//! The server process is another instance of this test program that runs the ignored test
//! `server_process`.

#![allow(clippy::print_stderr, reason = "prints what the tests counted")]

mod echo_process;

use std::env;
use std::process::Command;
use std::time::{Duration, Instant};

use echo_process::{NEVER, Process, all, call};
use proto::echo::EchoClient;
use rpc_core::transport::CloseReason;
use rpc_core::{CallError, Cause, Code, Execution, LocalChannel, LocalPoller};
use rpc_transport_verbs::Device;

#[test]
#[ignore = "the other tests run it, as the server's process"]
fn server_process() {
    echo_process::serve();
}

/// Returns an environment variable that the guest sets.
fn from_guest(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: these tests run in the guest only (make test-rdma)")
    })
}

/// Runs a system command line, split at spaces.
fn run(line: &str) {
    let mut words = line.split(' ');
    let status = Command::new(words.next().unwrap())
        .args(words)
        .status()
        .unwrap_or_else(|error| panic!("{line}: {error}"));
    assert!(status.success(), "{line}: {status}");
}

/// Runs a command when the test ends, even if it panics.
struct Undo(String);

impl Drop for Undo {
    fn drop(&mut self) {
        run(&self.0);
    }
}

/// Starts a server on one device and a client on another.
fn server_and_client(
    server: &str,
    client: &str,
) -> (Process, LocalPoller, EchoClient<LocalChannel>, String) {
    let (process, address) = Process::server_on(server);
    let poller = LocalPoller::new(&Device::open(client).unwrap()).unwrap();
    let channel = poller
        .connect(&address)
        .unwrap_or_else(|error| panic!("{error}"));
    (process, poller, EchoClient::new(channel), address)
}

/// Returns a payload that is unique to the call. The lengths surround the limits of inline sends
/// and of single packets.
fn payload(number: u64) -> Vec<u8> {
    const LENGTHS: [usize; 6] = [8, 64, 200, 600, 2000, 4000];
    let len = LENGTHS[(number % 6) as usize];
    number.to_be_bytes().into_iter().cycle().take(len).collect()
}

/// The outcomes of calls.
#[derive(Debug, Default)]
struct CallCounts {
    answered: u64,
    unavailable: u64,
}

/// Makes calls, 16 at a time, while `goes_on`. Each call must end once, either with its own response
/// or because the connection ended. Stops after the first batch with a failure.
fn call_while(
    poller: &LocalPoller,
    echo: &EchoClient<LocalChannel>,
    first: &mut u64,
    mut goes_on: impl FnMut() -> bool,
) -> CallCounts {
    let mut counts = CallCounts::default();
    while counts.unavailable == 0 && goes_on() {
        let payloads: Vec<_> = (*first..*first + 16).map(payload).collect();
        *first += 16;
        let outcomes = poller.block_on(all(payloads.iter().map(|payload| call(echo, payload))));
        assert_eq!(outcomes.len(), payloads.len());
        for (outcome, payload) in outcomes.into_iter().zip(&payloads) {
            match outcome {
                Ok(answer) => {
                    assert!(&answer == payload, "the response is another call's");
                    counts.answered += 1;
                }
                Err(error) => {
                    assert_disconnected(&error);
                    counts.unavailable += 1;
                }
            }
        }
    }
    counts
}

fn assert_disconnected(error: &CallError) {
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(matches!(error.cause(), Cause::Disconnected(_)), "{error:?}");
}

#[test]
fn with_one_packet_in_a_hundred_lost_for_a_minute_every_call_ends_once_and_none_wrong() {
    let (there, back) = (from_guest("RXE1_NETDEV"), from_guest("RXE2_NETDEV"));
    let (_server, poller, echo, _) = server_and_client("rxe2", "rxe1");
    let mut number = 0;
    let quiet = Instant::now() + Duration::from_secs(1);
    let before = call_while(&poller, &echo, &mut number, || Instant::now() < quiet);
    assert_eq!(before.unavailable, 0);

    let dropped_before = dropped(&there) + dropped(&back);
    run(&format!("tc qdisc add dev {there} root netem loss 1%"));
    let _undo_there = Undo(format!("tc qdisc del dev {there} root"));
    run(&format!("tc qdisc add dev {back} root netem loss 1%"));
    let _undo_back = Undo(format!("tc qdisc del dev {back} root"));
    let end = Instant::now() + Duration::from_secs(60);
    let counts = call_while(&poller, &echo, &mut number, || Instant::now() < end);
    let dropped = dropped(&there) + dropped(&back) - dropped_before;
    eprintln!("{counts:?}, {dropped} packets lost");
    // With 6 retries, a connection ends if a packet is lost seven times in a row.
    assert_eq!(counts.unavailable, 0, "{counts:?}");
    assert!(counts.answered > 0);
    assert!(dropped > 0, "the network lost nothing: {counts:?}");
}

/// Returns the number of packets that the queueing discipline of a network device dropped.
fn dropped(netdev: &str) -> u64 {
    let output = Command::new("tc")
        .args(["-s", "qdisc", "show", "dev", netdev])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<_> = text.split_whitespace().collect();
    // "… Sent 100 bytes 2 pkt (dropped 1, overlimits 0 requeues 0)"
    words
        .windows(2)
        .filter(|pair| pair[0] == "(dropped")
        .map(|pair| pair[1].trim_end_matches(',').parse::<u64>().unwrap())
        .sum()
}

#[test]
fn when_the_link_goes_down_and_up_under_load_calls_end_and_new_connections_work() {
    let netdev = from_guest("RXE0_NETDEV");
    let (_server, poller, echo, address) = server_and_client("rxe0", "rxe0");
    let mut number = 0;
    let mut rounds = 0;
    let counts = call_while(&poller, &echo, &mut number, || {
        rounds += 1;
        match rounds {
            20 => {
                run(&format!("ip link set {netdev} down"));
                std::thread::sleep(Duration::from_millis(300));
            }
            // A little later, after the device has retried what was in flight.
            21 => run(&format!("ip link set {netdev} up")),
            _ => {}
        }
        rounds < 200
    });
    if rounds == 20 {
        run(&format!("ip link set {netdev} up"));
    }
    eprintln!("{counts:?} in {rounds} rounds");
    assert!(rounds >= 20, "the link was never down: {counts:?}");
    assert!(counts.answered >= 19 * 16);

    // The old connection may or may not survive, depending on when the link was down. A new one
    // must work as soon as the port and its address are back.
    let patience = Instant::now() + Duration::from_secs(20);
    let channel = loop {
        match poller.connect(&address) {
            Ok(channel) => break channel,
            Err(error) => assert!(Instant::now() < patience, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    let echo = EchoClient::new(channel);
    assert_eq!(poller.block_on(call(&echo, b"back")).unwrap(), b"back");
}

#[test]
fn a_killed_server_is_told_of_by_its_tcp_connection_before_the_device_gives_up() {
    let (server, poller, echo, _) = server_and_client("rxe0", "rxe0");
    assert_eq!(poller.block_on(call(&echo, b"first")).unwrap(), b"first");
    let calls: Vec<_> = (0..8).map(|_| Box::pin(call(&echo, NEVER))).collect();
    let mut calls = Box::pin(all(calls));
    poller.block_on(std::future::poll_fn(|cx| {
        assert!(calls.as_mut().poll(cx).is_pending());
        std::task::Poll::Ready(())
    }));
    for _ in 0..200 {
        poller.turn();
    }
    server.kill();
    for outcome in poller.block_on(calls) {
        let error = outcome.unwrap_err();
        assert_disconnected(&error);
        // The device would report that its retries were used up.
        assert!(
            matches!(error.cause(), Cause::Disconnected(CloseReason::PeerGone)),
            "{error}"
        );
        assert_ne!(error.execution(), Execution::Answered);
    }
}

#[test]
fn a_message_that_is_too_long_is_refused_here_and_the_connection_lives() {
    let (_server, poller, echo, _) = server_and_client("rxe0", "rxe0");
    let too_long = vec![0; 4 << 20];
    let error = poller.block_on(call(&echo, &too_long)).unwrap_err();
    assert_eq!(error.execution(), Execution::NeverSent, "{error}");
    assert!(error.to_string().contains("max_message_len"), "{error}");
    assert_eq!(poller.block_on(call(&echo, b"on")).unwrap(), b"on");
}

#[test]
fn more_connections_than_a_completion_queue_has_room_for_are_refused_with_the_number_that_fits() {
    let server = rpc_core::Server::builder(&Device::open("rxe0").unwrap())
        .add_service(proto::echo::EchoServer::per_poller(|| {
            echo_process::CommandEcho
        }))
        .connections(10_000)
        .bind("127.0.0.1:0");
    let error = server.expect_err("rxe has 32,767 entries").to_string();
    assert!(error.contains("connections"), "{error}");
    assert!(error.contains("32767"), "{error}");
}

#[test]
fn a_server_on_two_devices_takes_each_client_over_the_first_that_it_has() {
    let (_server, address) = Process::server_on("rxe0,soft");
    for (client, is_rxe) in [("rxe0", true), ("soft", false), ("soft,rxe0", true)] {
        let poller = LocalPoller::new(&Device::open(client).unwrap()).unwrap();
        let echo = EchoClient::new(poller.connect(&address).unwrap());
        let before = sends_of_rxe0();
        assert_eq!(
            poller.block_on(call(&echo, b"over which?")).unwrap(),
            b"over which?",
            "{client}"
        );
        assert_eq!(sends_of_rxe0() > before, is_rxe, "{client}");
    }
}

/// Returns the number of messages that the device has sent, for any process.
fn sends_of_rxe0() -> u64 {
    // The kernel caches these counters for 10 ms (their `lifespan`).
    std::thread::sleep(Duration::from_millis(30));
    let counter = "/sys/class/infiniband/rxe0/ports/1/hw_counters/rdma_sends";
    std::fs::read_to_string(counter)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}
