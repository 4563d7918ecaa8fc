//! Exhausted resources: turns, receives, send slots, connections. Calls wait, but not forever, and
//! nothing is lost.

use std::future::poll_fn;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};
use rpc_core::{Caller, Code, Intents, Limits, LocalChannel, Request};
use rpc_core_testing::{Faults, LoopbackNode, Network, Node, Pair};

use crate::support::{ECHO, Gate, HELD, call, register, send};

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn pair(max_in_flight: u32) -> (Pair, Gate) {
    let gate = Gate::default();
    let intents = Intents {
        max_in_flight,
        ..Intents::default()
    };
    let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
        register(methods, &gate);
    });
    (pair, gate)
}

/// A server with explicit limits, and two clients with ample resources.
fn sized(limits: Limits) -> (Network, [Rc<Node>; 3], Gate) {
    let gate = Gate::default();
    let mut network = Network::new(Faults::none(), 0);
    let server = network.add_sized("server", limits, |methods| register(methods, &gate));
    let clients = ["a", "b"].map(|name| network.add(name, &Intents::default(), |_| ()));
    let [a, b] = clients;
    (network, [server, a, b], gate)
}

fn small() -> Limits {
    Limits {
        device: "small".to_owned(),
        slot_len: 4096,
        max_message_len: 4096,
        max_send_message_len: 4096,
        receives_posted: 64,
        send_slots: 64,
        send_queue_depth: 64,
        max_connections: 2,
        max_in_flight: 32,
        ..Limits::default()
    }
}

#[test]
fn a_forgotten_call_that_waited_does_not_keep_later_ones_from_their_turn() {
    let (pair, gate) = pair(1);
    let channel = pair.connect();
    {
        let mut first = Box::pin(call(&channel, &HELD, *b"first"));
        assert!(poll_once(first.as_mut()).is_pending());
        let request = Request::new(vec![1]).with_timeout(Duration::from_secs(1));
        let mut forgotten = Box::pin(send(&channel, &ECHO, request));
        assert!(poll_once(forgotten.as_mut()).is_pending());
        mem::forget(forgotten);
        let mut second = Box::pin(call(&channel, &ECHO, *b"second"));
        assert!(poll_once(second.as_mut()).is_pending());
        gate.open();
        assert_eq!(pair.run(first).unwrap(), b"first");
        assert_eq!(pair.run(second).unwrap(), b"second");
    }
    assert_eq!(
        pair.run(call(&channel, &ECHO, *b"third")).unwrap(),
        b"third"
    );
    // When the connection closes, the leaked call and its timer are removed.
    drop(channel);
    pair.assert_nothing_left();
}

/// Makes `count` calls concurrently and waits for all of them.
fn all_at_once(network: &Network, channel: &LocalChannel, count: u32) {
    let mut calls: Vec<_> = (0..count)
        .map(|n| (n, Box::pin(call(channel, &ECHO, n.to_le_bytes()))))
        .collect();
    let all = poll_fn(|cx| {
        calls.retain_mut(|(n, call)| match call.as_mut().poll(cx) {
            Poll::Ready(answer) => {
                assert_eq!(answer.unwrap(), n.to_le_bytes());
                false
            }
            Poll::Pending => true,
        });
        if calls.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    });
    network.try_run(all).expect("every call is answered");
}

#[test]
fn busy_clients_leave_the_receives_alone_that_others_were_promised() {
    let limits = Limits {
        max_connections: 8,
        ..small()
    };
    let (network, [_, client, _], _) = sized(limits);
    let connect = || client.poller().connect("server").unwrap();
    // Connections that close release their promised receives.
    for _ in 0..8 {
        drop(connect());
        network.settle();
    }
    let mut channels: Vec<LocalChannel> = Vec::new();
    for _ in 0..8 {
        let channel = connect();
        // As many calls as the window permits, until it stops growing.
        all_at_once(&network, &channel, 100);
        channels.push(channel);
    }
    for channel in &channels {
        let answer = network.try_run(call(channel, &ECHO, *b"x")).unwrap();
        assert!(answer.is_ok());
    }
    network.assert_nothing_left();
}

/// The server keeps the receives that it was promised for the rest of a response, until it has been idle
/// for a while.
#[test]
fn the_rest_of_a_long_response_leaves_a_receive_for_the_next_call() {
    let mut network = Network::new(Faults::none(), 0);
    network.add("server", &Intents::default(), |methods| {
        register(methods, &Gate::default());
    });
    let model = network.add("model", &Intents::default(), |_| ());
    // As many as a device posts for one call at a time on one connection.
    let limits = Limits {
        receives_posted: 5,
        receives_reserved: 1,
        max_connections: 1,
        max_in_flight: 1,
        ..model.limits()
    };
    let client = network.add_sized("client", limits, |_| ());
    let channel = client.poller().connect("server").unwrap();
    // Of several frames.
    let long = vec![7; 20_000];
    for number in 0..3 {
        let answer = network.try_run(call(&channel, &ECHO, long.clone()));
        let answer = answer.unwrap_or_else(|| panic!("call {number} waits for a receive"));
        assert!(answer.unwrap() == long, "call {number}");
    }
    drop(channel);
    network.assert_nothing_left();
}

#[test]
fn a_window_grows_while_there_are_receives() {
    let (pair, gate) = pair(32);
    let channel = pair.connect();
    let mut calls: Vec<_> = (0..32)
        .map(|_| Box::pin(call(&channel, &HELD, *b"x")))
        .collect();
    for call in &mut calls {
        assert!(poll_once(call.as_mut()).is_pending());
    }
    // There are no responses, so only control frames carry credits.
    for _ in 0..100 {
        pair.network().settle();
        for call in &mut calls {
            assert!(poll_once(call.as_mut()).is_pending());
        }
    }
    assert_eq!(gate.entered(), 32);
    // The window stays large: the whole next batch is sent in one turn.
    gate.open();
    drop(calls);
    pair.network().settle();
    let sent = pair.client().poller().stats().total().transport.sends;
    let mut calls: Vec<_> = (0..32)
        .map(|_| Box::pin(call(&channel, &ECHO, *b"x")))
        .collect();
    for call in &mut calls {
        assert!(poll_once(call.as_mut()).is_pending());
    }
    assert_eq!(
        pair.client().poller().stats().total().transport.sends - sent,
        32
    );
    drop(calls);
    pair.assert_nothing_left();
}

#[test]
fn a_window_grows_though_each_answer_gives_back_what_its_request_took() {
    let (pair, _) = pair(32);
    let channel = pair.connect();
    all_at_once(pair.network(), &channel, 100);
    let sent = pair.client().poller().stats().total().transport.sends;
    let mut calls: Vec<_> = (0..40)
        .map(|_| Box::pin(call(&channel, &ECHO, *b"x")))
        .collect();
    for call in &mut calls {
        assert!(poll_once(call.as_mut()).is_pending());
    }
    assert_eq!(
        pair.client().poller().stats().total().transport.sends - sent,
        32
    );
    drop(calls);
    pair.assert_nothing_left();
}

#[test]
fn a_peer_that_takes_nothing_holds_up_nobody_elses_credits() {
    let limits = Limits {
        send_queue_depth: 1,
        ..small()
    };
    let (network, [server, a, b], gate) = sized(limits);
    let (of_a, of_b) = (
        a.poller().connect("server").unwrap(),
        b.poller().connect("server").unwrap(),
    );
    let mut from_b: Vec<_> = (0..8)
        .map(|_| Box::pin(call(&of_b, &HELD, *b"b")))
        .collect();
    let mut from_a: Vec<_> = (0..8)
        .map(|n| Box::pin(call(&of_a, if n == 0 { &ECHO } else { &HELD }, *b"a")))
        .collect();
    for call in from_b.iter_mut().chain(&mut from_a) {
        assert!(poll_once(call.as_mut()).is_pending());
    }
    // From here on, process a is stopped. The response to its first call fills the send queue of
    // its connection.
    b.step();
    a.step();
    for _ in 0..5 {
        server.step();
    }
    assert_eq!(gate.entered(), 15);
    let mut more = Box::pin(call(&of_b, &ECHO, *b"more"));
    for _ in 0..50 {
        if poll_once(more.as_mut()).is_ready() {
            gate.open();
            drop((more, from_a, from_b));
            drop((of_a, of_b));
            network.assert_nothing_left();
            return;
        }
        b.step();
        server.step();
    }
    panic!("b has no credit because a takes nothing");
}

#[test]
fn responses_that_wait_for_a_slot_are_not_overtaken() {
    let (network, [server, a, b], _) = sized(Limits {
        send_slots: 1,
        ..small()
    });
    let (of_a, of_b) = (
        a.poller().connect("server").unwrap(),
        b.poller().connect("server").unwrap(),
    );
    let mut from_a: Vec<_> = (0..4)
        .map(|_| Box::pin(call(&of_a, &ECHO, *b"a")))
        .collect();
    for call in &mut from_a {
        assert!(poll_once(call.as_mut()).is_pending());
    }
    a.step();
    // In every turn, the server receives a new request and gets one free slot.
    let mut from_b: Vec<_> = (0..12)
        .map(|_| Box::pin(call(&of_b, &ECHO, *b"b")))
        .collect();
    for call in &mut from_b {
        let _ = poll_once(call.as_mut());
        b.step();
        server.step();
    }
    a.step();
    from_a.retain_mut(|call| poll_once(call.as_mut()).is_pending());
    assert_eq!(from_a.len(), 0, "overtaken");
    drop((from_a, from_b));
    network.assert_nothing_left();
}

#[test]
fn responses_that_wait_for_a_slot_go_with_their_connection() {
    // There are no send slots at all.
    let (network, [server, a, b], _) = sized(Limits {
        send_slots: 0,
        ..small()
    });
    let of_a = a.poller().connect("server").unwrap();
    for method in [&ECHO, &crate::support::FAIL] {
        let mut blocked = Box::pin(call(&of_a, method, *b"x"));
        assert!(poll_once(blocked.as_mut()).is_pending());
        server.step();
    }
    // The next connection reuses the first one's index in the server's tables, and must not be sent
    // the responses that were owed to the first.
    drop(of_a);
    let of_b = b.poller().connect("server").unwrap();
    network.assert_nothing_left();
    drop(of_b);
}

/// A message whose own code panics on request.
#[derive(Clone, Debug, Default, PartialEq)]
struct Brittle {
    breaks: bool,
    /// A long message is encoded into its slot, a short one before it is admitted.
    is_long: bool,
}

impl Brittle {
    fn breaking(is_long: bool) -> Self {
        let breaks = true;
        Self { breaks, is_long }
    }
}

impl Message for Brittle {
    fn encode_raw(&self, _: &mut impl BufMut) {
        assert!(!self.breaks, "broke in encode");
    }
    fn merge_field(
        &mut self,
        _: u32,
        _: WireType,
        _: &mut impl Buf,
        _: DecodeContext,
    ) -> Result<(), DecodeError> {
        panic!("broke in decode");
    }
    fn encoded_len(&self) -> usize {
        if self.is_long { 100 } else { 0 }
    }
    fn clear(&mut self) {}
}

#[test]
fn a_message_that_panics_on_the_client_loses_nothing_but_its_call() {
    // More panics than there are calls, credits or slots.
    for max_in_flight in [1, 4] {
        let (pair, _) = pair(max_in_flight);
        let channel = pair.connect();
        for n in 0..500u32 {
            let request = Request::new(Brittle::breaking(n % 2 == 0));
            let encode = request.with_timeout(Duration::from_secs(1));
            let encode = channel.unary::<Brittle, Vec<u8>>(&ECHO, encode);
            let outcome = catch_unwind(AssertUnwindSafe(|| pair.run(encode)));
            assert!(outcome.is_err());
            let decode = channel.unary::<Vec<u8>, Brittle>(
                &ECHO,
                Request::new(vec![1; if n % 2 == 0 { 1 } else { 300 }]),
            );
            let outcome = catch_unwind(AssertUnwindSafe(|| pair.run(decode)));
            assert!(outcome.is_err());
            if n % 100 == 0 {
                assert_eq!(pair.run(call(&channel, &ECHO, *b"x")).unwrap(), b"x");
            }
        }
        // Also for a call that had to wait.
        let mut busy: Vec<_> = (0..max_in_flight + 1)
            .map(|_| Box::pin(call(&channel, &ECHO, *b"y")))
            .collect();
        for call in &mut busy {
            assert!(poll_once(call.as_mut()).is_pending());
        }
        let waits = channel.unary::<Brittle, Vec<u8>>(&ECHO, Request::new(Brittle::breaking(true)));
        let mut waits = Box::pin(waits);
        assert!(poll_once(waits.as_mut()).is_pending());
        for call in busy {
            assert!(pair.run(call).is_ok());
        }
        assert!(catch_unwind(AssertUnwindSafe(|| pair.run(waits))).is_err());
        pair.assert_nothing_left();
    }
}

#[test]
fn limits_of_nothing_or_of_too_much_are_corrected() {
    for max_in_flight in [0, u32::MAX] {
        let (pair, _) = pair(max_in_flight);
        let channel = pair.connect();
        assert_eq!(pair.run(call(&channel, &ECHO, *b"x")).unwrap(), b"x");
        pair.assert_nothing_left();
    }
}

#[test]
fn a_call_that_is_woken_and_then_gives_up_leaves_its_turn_to_the_next() {
    let (pair, gate) = pair(1);
    let channel = pair.connect();
    let mut first = Box::pin(call(&channel, &HELD, *b"first"));
    assert!(poll_once(first.as_mut()).is_pending());
    let late = Request::new(vec![1]).with_timeout(Duration::from_micros(5));
    let mut late = Box::pin(send(&channel, &ECHO, late));
    let mut dropped = Box::pin(call(&channel, &ECHO, *b"dropped"));
    let mut next = Box::pin(call(&channel, &ECHO, *b"next"));
    assert!(poll_once(late.as_mut()).is_pending());
    assert!(poll_once(dropped.as_mut()).is_pending());
    assert!(poll_once(next.as_mut()).is_pending());
    gate.open();
    assert!(pair.run(first).is_ok());
    pair.client().step();
    pair.network().advance(Duration::from_micros(6));
    let error = pair.run(late).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    pair.client().step();
    drop(dropped);
    assert_eq!(pair.run(next).unwrap(), b"next");
    pair.assert_nothing_left();
}

#[test]
fn calls_that_wait_when_the_connection_ends_were_never_sent() {
    let (pair, _gate) = pair(1);
    let channel = pair.connect();
    let mut first = pin!(call(&channel, &HELD, *b"first"));
    let mut waits = pin!(call(&channel, &ECHO, *b"waits"));
    assert!(poll_once(first.as_mut()).is_pending());
    assert!(poll_once(waits.as_mut()).is_pending());
    pair.network().settle();
    let connection = pair.client().connections()[0];
    pair.client().inject(connection, vec![0; 3]);
    let first = pair.run(first).unwrap_err();
    let waits = pair.run(waits).unwrap_err();
    assert_eq!(first.execution(), rpc_core::Execution::MayHaveRun);
    assert_eq!(waits.execution(), rpc_core::Execution::NeverSent);
    pair.assert_nothing_left();
}
