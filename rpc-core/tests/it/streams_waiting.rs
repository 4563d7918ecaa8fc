//! Streams that wait to be opened: for room among the streams of their connection, or for credits.

use std::cell::OnceCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rpc_core::frame::{CallId, Flags, FrameHeader, FrameKind};
use rpc_core::{
    CallError, Caller, Code, Execution, Idempotency, Intents, LocalChannel, MethodKind, MethodSpec,
    Request, Response, Sender, Shutdown, Streaming, sender,
};
use rpc_core_testing::{Clock, Faults, Network, Pair};

use crate::support::raw::{Raw, header, open};
use crate::support::streams::{IDLE, METHODS, Probe, SUM, register_streams};

type Call<T> = Pin<Box<dyn Future<Output = Result<T, CallError>>>>;

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    let mut cx = Context::from_waker(Waker::noop());
    match future.as_mut().poll(&mut cx) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// A pair whose client may have one stream open.
fn pair(probe: &Probe) -> Pair {
    let intents = Intents {
        max_streams: 1,
        ..Intents::default()
    };
    Pair::with(&intents, Faults::none(), 0, |methods| {
        register_streams(methods, probe);
    })
}

fn sum(channel: &LocalChannel) -> (Sender<u64>, Call<u64>) {
    let (sender, messages) = sender();
    let channel = channel.clone();
    let call = async move {
        let call = channel.client_streaming::<u64, u64>(&SUM, Request::new(messages));
        call.await.map(Response::into_inner)
    };
    (sender, Box::pin(call))
}

/// Opens a stream that does not end by itself.
fn idle(
    network: &Network,
    channel: &LocalChannel,
) -> (Sender<u64>, Call<Response<Streaming<u64>>>) {
    let (sender, messages) = sender();
    let channel = channel.clone();
    let mut call: Call<_> =
        Box::pin(async move { channel.streaming(&IDLE, Request::new(messages)).await });
    assert!(poll(&mut call).is_none());
    network.settle();
    (sender, call)
}

#[test]
fn a_connection_has_the_streams_that_its_server_permits() {
    for (server, client) in [(2, 5), (5, 2)] {
        let probe = Probe::default();
        let mut network = Network::new(Faults::none(), 0);
        let permits = |max_streams| Intents {
            max_streams,
            ..Intents::default()
        };
        network.add("server", &permits(server), |methods| {
            register_streams(methods, &probe);
        });
        let node = network.add("client", &permits(client), |_| ());
        let channel = node.poller().connect("server").unwrap();
        let streams: Vec<_> = (0..6).map(|_| idle(&network, &channel)).collect();
        assert_eq!(probe.started(), server);
        drop((streams, channel));
        network.settle();
        network.assert_nothing_left();
    }
}

#[test]
fn streams_that_wait_for_room_are_opened_though_their_applications_send_meanwhile() {
    let probe = Probe::default();
    let pair = pair(&probe);
    let channel = pair.connect();
    let first = idle(pair.network(), &channel);
    let mut calls: Vec<_> = (0..4).map(|_| sum(&channel)).collect();
    for round in 0..3 {
        for (sender, call) in &mut calls {
            assert!(poll(call).is_none());
            let mut send = Box::pin(sender.send(round));
            assert!(poll(&mut send).is_some_and(|sent| sent.is_ok()));
            pair.network().settle();
        }
    }
    assert_eq!(probe.started(), 1);
    drop(first);
    for (sender, call) in calls {
        drop(sender);
        assert_eq!(pair.run(call).unwrap(), 3);
    }
    pair.assert_nothing_left();
}

#[test]
fn streams_that_wait_for_room_fail_when_the_server_goes_away() {
    let probe = Probe::default();
    let pair = pair(&probe);
    let channel = pair.connect();
    let first = idle(pair.network(), &channel);
    let mut waiting: Vec<_> = (0..3).map(|_| sum(&channel)).collect();
    for (_, call) in &mut waiting {
        assert!(poll(call).is_none());
    }
    pair.network().settle();
    pair.server().shut_down(Shutdown {
        finish: Duration::from_secs(100),
        ..Shutdown::default()
    });
    pair.network().settle();
    for (_, mut call) in waiting {
        let error = poll(&mut call).expect("it fails at once").unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert_eq!(error.execution(), Execution::NeverSent);
    }
    assert_eq!(probe.running(), 1, "the open stream goes on");
    drop(first);
    drop(channel);
    pair.network().settle();
    assert_eq!(probe.running(), 0);
}

/// Advances the clock, so that the requests that arrived with it wait for another turn.
const SLOW: MethodSpec = MethodSpec::new(
    "test.Streams/Slow",
    MethodKind::Unary,
    Idempotency::Unknown,
    "u64",
    "u64",
);

#[test]
fn streams_that_wait_for_their_turn_are_answered_when_the_server_stops() {
    let probe = Probe::default();
    let clock: Rc<OnceCell<Clock>> = Rc::default();
    let intents = Intents {
        connections: 2,
        ..Intents::default()
    };
    let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
        register_streams(methods, &probe);
        let clock = Rc::clone(&clock);
        methods.unary(&SLOW, move |request: Request<u64>| {
            let clock = clock.get().expect("the network has a clock");
            clock.advance(Duration::from_millis(10));
            async { Ok(Response::new(request.into_inner())) }
        });
    });
    let _ = clock.set(pair.network().clock().clone());
    let raw = Raw::client(pair.network());
    raw.settle();
    for call in 10..14 {
        let slow = FrameHeader {
            call: CallId(call),
            selector: METHODS.len() as u16,
            ..header(FrameKind::Request)
        };
        raw.peer.send(slow, &[]);
    }
    // As many credits as streams.
    let credits = open(4, 4, Flags::NONE);
    raw.peer.send(
        FrameHeader {
            credits: 2,
            ..credits
        },
        &[],
    );
    raw.peer.send(open(5, 4, Flags::NONE), &[]);
    // The first request alone, and then the first of the others.
    pair.network().step();
    pair.network().step();
    assert!(!raw.peer.is_closed());
    let waiting = pair.server().leftovers().join(", ");
    assert!(waiting.contains("requests that wait"), "{waiting}");
    pair.server().shut_down(Shutdown {
        finish: Duration::ZERO,
        close: Duration::from_secs(10),
        ..Shutdown::default()
    });
    let frames = raw.settle();
    let answers = frames.iter();
    let answers: Vec<_> = answers
        .filter(|(header, _)| header.flags.contains(Flags::STREAM))
        .map(|(header, _)| (header.call, header.selector))
        .collect();
    let unavailable = Code::Unavailable.number();
    assert_eq!(
        answers,
        [(CallId(4), unavailable), (CallId(5), unavailable)]
    );
    assert_eq!(probe.started(), 0);
    raw.peer.close();
    pair.assert_nothing_left();
}
