//! The turns of a poller with many channels, and handshakes whose outcomes arrive late.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::support::{ECHO, Gate, HELD, register};
use rpc_core::transport::Transport;
use rpc_core::{
    CallError, Caller, Channel, ConnectivityState, Intents, MethodSpec, Request, Response,
};
use rpc_core_testing::{Faults, LoopbackNode, Network, Random};

type CallResult = Result<Response<Vec<u8>>, CallError>;
type Call = Pin<Box<dyn Future<Output = CallResult>>>;

fn intents(connections: u32) -> Intents {
    Intents {
        max_message_len: 64,
        max_in_flight: 8,
        connections,
        ..Intents::default()
    }
}

/// Submits a call that waits for a connection.
fn submit(channel: &Channel, method: &'static MethodSpec) -> Call {
    let channel = channel.clone();
    let request = Request::new(vec![7]).wait_for_ready(true);
    let mut call: Call = Box::pin(async move { channel.unary(method, request).await });
    assert!(poll(&mut call).is_none());
    call
}

fn poll(call: &mut Call) -> Option<CallResult> {
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

fn server(network: &mut Network) -> Gate {
    let gate = Gate::default();
    network.add("server", &intents(256), |methods| register(methods, &gate));
    gate
}

/// Calls that the poller of a channel has taken.
fn begun(channel: &Channel) -> u64 {
    let poller = &channel.stats().pollers[0];
    poller.called.iter().map(|method| method.begun).sum()
}

#[test]
fn a_turn_takes_a_bounded_number_of_calls_and_passes_over_no_channel() {
    let mut network = Network::new(Faults::none(), 0);
    server(&mut network);
    let node = network.share("server", &intents(256));
    let mut channels: Vec<Channel> = (0..100)
        .map(|index| node.add_channel("server", index))
        .collect();
    channels.push(node.channel().clone());
    let mut calls: Vec<Call> = channels
        .iter()
        .map(|channel| submit(channel, &ECHO))
        .collect();
    network.settle();
    assert!(calls.iter_mut().all(|call| poll(call).is_some()));
    // Each channel has a new call in each turn.
    let mut calls: Vec<Vec<Call>> = channels.iter().map(|_| Vec::new()).collect();
    for turn in 0..6 {
        for (channel, calls) in channels.iter().zip(&mut calls) {
            calls.push(submit(channel, &ECHO));
        }
        let before = begun(node.channel());
        network.step();
        let taken = begun(node.channel()) - before;
        assert!((64..128).contains(&taken), "turn {turn}: {taken}");
    }
    // The calls of those that a turn did not reach were taken by the next ones.
    while network.step() {}
    for call in calls.iter_mut().flatten() {
        assert!(poll(call).expect("it was taken").is_ok());
    }
    drop((calls, channels));
    network.assert_nothing_left();
}

/// Handshakes end when their channel was dropped, when its number is another channel's, or after the
/// attempt was given up.
#[test]
fn handshakes_that_end_late_leave_nothing_behind_and_connect_no_other_channel() {
    for seed in 0..30 {
        handshakes_end_late(&Random::new(seed));
    }
}

fn handshakes_end_late(random: &Random) {
    let mut network = Network::new(Faults::none(), 0);
    let gate = server(&mut network);
    gate.open();
    let node = network.share("server", &intents(64));
    node.hold_handshakes();
    let choose = |count: usize| random.below(count as u64) as usize;
    let mut channels: Vec<(Channel, Call)> = Vec::new();
    for round in 0..200 {
        if random.happens(300) && channels.len() < 20 {
            let address = if random.happens(300) {
                "absent"
            } else {
                "server"
            };
            let channel = node.add_channel(address, round);
            let method = if random.happens(500) { &ECHO } else { &HELD };
            let call = submit(&channel, method);
            channels.push((channel, call));
        }
        if random.happens(200) && !channels.is_empty() {
            drop(channels.swap_remove(choose(channels.len())));
        }
        if random.happens(300) {
            node.release_handshake(choose);
        }
        if random.happens(100) {
            // Attempts that have not begun fail after a `connect_timeout`.
            network.advance(Duration::from_millis(random.below(3_000)));
        }
        if random.happens(700) {
            network.step();
        }
        for (channel, _) in &channels {
            let is_ready = channel.state() == ConnectivityState::Ready;
            assert!(!is_ready || channel.address() == "server");
        }
    }
    // Each channel reaches its own server in the end.
    channels.retain(|(channel, _)| channel.address() == "server");
    for _ in 0..3 {
        network.advance(Duration::from_secs(5));
        network.settle();
        while node.release_handshake(choose) {
            network.settle();
        }
    }
    for (_, call) in &mut channels {
        let response = poll(call).expect("it is answered").unwrap();
        assert_eq!(response.into_inner(), [7]);
    }
    drop(channels);
    network.assert_nothing_left();
    assert_eq!(node.channels(), 1);
}

#[test]
fn an_attempt_that_gets_no_thread_in_time_fails() {
    let mut network = Network::new(Faults::none(), 0);
    server(&mut network);
    let node = network.share("server", &intents(4));
    node.hold_handshakes();
    let channel = node.channel().clone();
    let mut call: Call = Box::pin(async move { channel.unary(&ECHO, Request::new(vec![])).await });
    assert!(poll(&mut call).is_none());
    network.settle();
    assert_eq!(node.channel().state(), ConnectivityState::Connecting);
    network.advance(Duration::from_secs(6));
    network.settle();
    let error = poll(&mut call)
        .expect("the attempt has failed")
        .unwrap_err();
    let wanted = "no thread began the handshake within 5s, the channel's `connect_timeout`";
    assert!(error.to_string().contains(wanted), "{error}");
    assert!(node.release_handshake(|_| 0), "it does nothing any more");
    network.advance(Duration::from_secs(6));
    network.settle();
    assert!(node.release_handshake(|_| 0));
    network.settle();
    assert_eq!(node.channel().state(), ConnectivityState::Ready);
    drop(call);
    network.assert_nothing_left();
}

/// The poller takes a call before it learns that the connection has ended.
#[test]
fn a_call_that_meets_an_ended_connection_is_not_long_on_the_next_one() {
    let mut network = Network::new(Faults::none(), 0);
    let server = network.add("server", &intents(4), |methods| {
        register(methods, &Gate::default());
    });
    let node = network.share("server", &intents(4));
    let mut first = submit(node.channel(), &ECHO);
    network.settle();
    assert!(poll(&mut first).expect("it is answered").is_ok());
    let connection = server.connections()[0];
    server.with_transport(|transport| transport.close(connection));
    let mut second = submit(node.channel(), &ECHO);
    network.settle();
    // The delay before the next attempt to connect.
    network.advance(Duration::from_secs(5));
    network.settle();
    assert!(poll(&mut second).expect("it is answered").is_ok());
    let stats = server.poller().stats();
    assert_eq!(stats.pollers[0].transfers.received, 0, "it fits a frame");
    drop((first, second));
    network.assert_nothing_left();
}
