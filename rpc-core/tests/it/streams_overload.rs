//! Streams beside unary calls: in an overload of the server, and cancels of many calls at once.

use std::cell::{Cell, OnceCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rpc_core::frame::{Flags, FrameHeader, FrameKind, MESSAGE_BATCH};
use rpc_core::{
    CallError, Caller, Code, Execution, Idempotency, Intents, LocalChannel, MethodKind, MethodSpec,
    Request, Response, Status, Streaming,
};
use rpc_core_testing::{Clock, Faults, Pair};

use crate::support::raw::{Raw, last, message, open};
use crate::support::streams::{COUNT, ECHO, METHODS, Probe, SUM, register_streams};

type Call<T> = Pin<Box<dyn Future<Output = Result<T, CallError>>>>;

const MS: Duration = Duration::from_millis(1);

/// A handler that works for the number of milliseconds in its request.
const WORK: MethodSpec = method("test.Streams/Work");

/// A handler that never ends.
const NEVER: MethodSpec = method("test.Streams/Never");

const fn method(path: &'static str) -> MethodSpec {
    MethodSpec::new(path, MethodKind::Unary, Idempotency::Unknown, "u64", "u64")
}

fn poll<T>(call: &mut Call<T>) -> Option<Result<T, CallError>> {
    let mut cx = Context::from_waker(Waker::noop());
    match call.as_mut().poll(&mut cx) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn unary(channel: &LocalChannel, spec: &'static MethodSpec, value: u64) -> Call<u64> {
    let channel = channel.clone();
    Box::pin(async move {
        let call = channel.unary::<u64, u64>(spec, Request::new(value));
        call.await.map(Response::into_inner)
    })
}

/// A stream that an overloaded server refuses ends with a status, and its connection goes on.
#[test]
fn an_overloaded_server_refuses_a_stream_like_a_call() {
    let probe = Probe::default();
    let clock: Rc<OnceCell<Clock>> = Rc::default();
    let pair = Pair::with(&Intents::default(), Faults::none(), 0, |methods| {
        register_streams(methods, &probe);
        let clock = Rc::clone(&clock);
        methods.unary(&WORK, move |request: Request<u64>| {
            let clock = clock.get().expect("the network has a clock");
            clock.advance(MS * request.into_inner() as u32);
            async { Ok(Response::new(0u64)) }
        });
    });
    let _ = clock.set(pair.network().clock().clone());
    let channel = pair.connect();
    // The connection's window grows.
    for _ in 0..8 {
        let mut calls: Vec<_> = (0..128).map(|_| unary(&channel, &ECHO, 0)).collect();
        for call in &mut calls {
            assert!(poll(call).is_none());
        }
        for call in calls {
            pair.run(call).unwrap();
        }
    }
    let mut calls: Vec<_> = (0..6).map(|_| unary(&channel, &WORK, 50)).collect();
    for call in &mut calls[..3] {
        assert!(poll(call).is_none());
    }
    // Enough to wait for the calls before it, and not enough for a handler that takes as long.
    let request = Request::new(3u64).with_timeout(170 * MS);
    let stream = channel.clone();
    let mut stream: Call<Response<Streaming<u64>>> =
        Box::pin(async move { stream.server_streaming(&COUNT, request).await });
    assert!(poll(&mut stream).is_none());
    // Streams are sent in a turn, unary calls at once.
    pair.client().step();
    for call in &mut calls[3..] {
        assert!(poll(call).is_none());
    }
    // Without the client's own timer, which would end the stream first.
    while pair.server().step() {}
    pair.network().settle();
    for call in &mut calls {
        poll(call).expect("it has ended").unwrap();
    }
    let handlers = pair.server().poller().stats().pollers[0].handlers;
    assert_eq!(handlers.refused, 1, "{handlers:?}");
    let error = poll(&mut stream).expect("it has ended").unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert_eq!(error.execution(), Execution::NotStarted);
    assert_eq!(probe.started(), 0);
    assert_eq!(pair.run(unary(&channel, &ECHO, 7)).unwrap(), 7);
    pair.assert_nothing_left();
}

/// A handler that counts itself until it is dropped.
struct Running(Rc<Cell<u32>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// More cancels than a control frame holds go in several.
#[test]
fn more_calls_than_a_control_frame_has_entries_are_cancelled_at_once() {
    let running: Rc<Cell<u32>> = Rc::default();
    let intents = Intents {
        max_message_len: 64,
        ..Intents::default()
    };
    let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
        let running = Rc::clone(&running);
        methods.unary(&NEVER, move |_: Request<u64>| {
            running.set(running.get() + 1);
            let running = Running(Rc::clone(&running));
            async move {
                let _running = running;
                std::future::pending::<Result<Response<u64>, Status>>().await
            }
        });
    });
    let channel = pair.connect();
    let mut calls: Vec<_> = (0..100).map(|_| unary(&channel, &NEVER, 0)).collect();
    for _ in 0..10 {
        for call in &mut calls {
            assert!(poll(call).is_none());
        }
        pair.network().settle();
    }
    assert_eq!(running.get(), 100);
    drop(calls);
    pair.network().settle();
    assert_eq!(running.get(), 0, "handlers that go on");
    pair.assert_nothing_left();
}

/// A client that acknowledges no control frame cannot make the server keep grants of streams that
/// have ended.
#[test]
fn grants_of_streams_that_have_ended_are_not_kept() {
    let probe = Probe::default();
    let intents = Intents {
        connections: 2,
        ..Intents::default()
    };
    let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
        register_streams(methods, &probe);
    });
    let raw = Raw::client(pair.network());
    raw.settle();
    let method = METHODS.iter().position(|spec| spec.path == SUM.path);
    let method = method.expect("it is registered") as u16;
    // Each of 1000 messages is a length of zero.
    let zeros = [0; 4 * 1000];
    let mut frames = Vec::new();
    for call in 0..20 {
        let credits = open(call, method, Flags::NONE);
        let credits = FrameHeader {
            credits: 1,
            ..credits
        };
        raw.peer.send(credits, &[]);
        for _ in 0..5 {
            raw.peer
                .send(message(call, MESSAGE_BATCH, Flags::NONE), &zeros);
            pair.network().settle();
        }
        raw.peer.send(last(call), &[]);
        pair.network().settle();
        frames.extend(raw.peer.received());
        assert!(!raw.peer.is_closed());
    }
    let of_kind = |kind| {
        frames
            .iter()
            .filter(|(frame, _)| frame.kind == kind)
            .count()
    };
    assert_eq!(of_kind(FrameKind::Response), 20);
    assert_eq!(of_kind(FrameKind::Control), 1, "it was not acknowledged");
    let left = pair.server().leftovers().join(", ");
    assert!(!left.contains("grants"), "{left}");
    raw.peer.close();
    pair.assert_nothing_left();
}
