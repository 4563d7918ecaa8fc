//! Long requests that wait: for the rest of their message, or, complete, for their turn. None of them runs
//! once its call has ended, whether the call is unary or a stream.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::time::Duration;

use rpc_core::frame::{CallId, FRAGMENT, Flags, FrameHeader, FrameKind};
use rpc_core::{
    Code, Idempotency, Intents, MethodKind, MethodSpec, Request, Response, ResponseSender,
    Shutdown, stream,
};
use rpc_core_testing::{Clock, Faults, Pair};

use crate::support::method;
use crate::support::raw::{Frame, Raw, cancel, header, long_request};

const SLOW: MethodSpec = method("test.Waiting/Slow");
const UNARY: MethodSpec = method("test.Waiting/Unary");
const STREAM: MethodSpec = MethodSpec::new(
    "test.Waiting/Stream",
    MethodKind::ServerStreaming,
    Idempotency::Unknown,
    "bytes",
    "bytes",
);

const MS: Duration = Duration::from_millis(1);

/// The calls whose requests are long: a unary call and a stream.
const CALLS: [u32; 2] = [20, 21];

/// Where the long requests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The rest of their messages is still to come.
    Arriving,
    /// They are complete, and wait behind calls that take 10 ms each.
    Queued,
}

struct Scene {
    pair: Pair,
    /// Handlers of the long requests that have begun.
    begun: Rc<Cell<u32>>,
}

impl Scene {
    fn new() -> Self {
        let (begun, clock) = (Rc::new(Cell::new(0)), Rc::new(OnceCell::<Clock>::new()));
        // Few connections have larger windows.
        let intents = Intents {
            connections: 2,
            ..Intents::default()
        };
        let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
            let clock = Rc::clone(&clock);
            methods.unary(&SLOW, move |request: Request<Vec<u8>>| {
                let clock = clock.get().expect("the network has a clock");
                clock.advance(10 * MS);
                async { Ok(Response::new(request.into_inner())) }
            });
            let count = Rc::clone(&begun);
            methods.unary(&UNARY, move |request: Request<Vec<u8>>| {
                count.set(count.get() + 1);
                async { Ok(Response::new(request.into_inner())) }
            });
            let count = Rc::clone(&begun);
            methods.server_streaming(&STREAM, move |_: Request<Vec<u8>>, responses| {
                count.set(count.get() + 1);
                async move {
                    let none = stream(async move |_: ResponseSender<Vec<u8>>| Ok(()));
                    responses.send_all(Ok(Response::new(none))).await
                }
            });
        });
        let _ = clock.set(pair.network().clock().clone());
        Self { pair, begun }
    }

    /// Sends the long requests, which have this much time, and takes turns until they are in their place.
    fn send(&self, raw: &Raw<'_>, place: Place, time: Option<Duration>) {
        raw.settle();
        for call in (10..14).filter(|_| place == Place::Queued) {
            let slow = FrameHeader {
                call: CallId(call),
                ..header(FrameKind::Request)
            };
            raw.peer.send(slow, &[]);
        }
        let len = match place {
            Place::Arriving => 5000,
            Place::Queued => 100,
        };
        // Bytes of a message with one field.
        let piece = [&[10, 98], &[7; 98][..]].concat();
        let clock = self.pair.network().clock();
        let deadline = time.map_or(0, |time| clock.host_us(clock.now() + time) as u32);
        let of_kind = [(1, Flags::NONE), (2, Flags::STREAM | Flags::LAST)];
        for (call, (selector, flags)) in CALLS.into_iter().zip(of_kind) {
            let (mut first, body) = long_request(call, call, len, FRAGMENT, &piece);
            first.flags |= flags;
            first.selector = selector;
            first.time_us = deadline;
            // The answer of the stream needs one.
            first.credits = 1;
            raw.peer.send(first, &body);
        }
        // The first slow request alone, and then the first of the others.
        self.pair.network().step();
        self.pair.network().step();
        let waiting = self.pair.server().leftovers().join(", ");
        let what = match place {
            Place::Arriving => "long messages",
            Place::Queued => "requests that wait",
        };
        assert!(waiting.contains(what), "{waiting}");
        assert_eq!(self.begun.get(), 0);
    }

    /// Checks that each long request was answered with this code, that none has run, and that nothing is
    /// left.
    fn assert_refused(&self, raw: &Raw<'_>, frames: &[Frame], code: Code) {
        for call in CALLS {
            let answers = frames.iter().map(|(header, _)| header);
            let mut answers = answers
                .filter(|header| header.kind == FrameKind::Response)
                .filter(|header| header.call == CallId(call));
            let answer = answers.next().map(|header| header.selector);
            assert_eq!(answer, Some(code.number()), "call {call}");
            assert_eq!(answers.next(), None, "call {call} was answered twice");
        }
        self.assert_nothing_left(raw);
    }

    fn assert_nothing_left(&self, raw: &Raw<'_>) {
        assert_eq!(self.begun.get(), 0, "a handler has begun");
        raw.peer.close();
        raw.settle();
        let stats = self.pair.server().poller().stats().total();
        assert_eq!(stats.in_flight(), 0);
        self.pair.assert_nothing_left();
    }
}

#[test]
fn a_request_that_waits_and_is_cancelled_does_not_run() {
    for place in [Place::Arriving, Place::Queued] {
        let scene = Scene::new();
        let raw = Raw::client(scene.pair.network());
        scene.send(&raw, place, None);
        let frames = raw.control(CALLS.map(cancel));
        let cancels = scene.pair.server().poller().stats().total().cancels;
        assert_eq!(cancels.before_start, 2, "{place:?}");
        scene.assert_refused(&raw, &frames, Code::Cancelled);
    }
}

#[test]
fn a_request_whose_deadline_passes_while_it_waits_does_not_run() {
    for place in [Place::Arriving, Place::Queued] {
        let scene = Scene::new();
        let raw = Raw::client(scene.pair.network());
        scene.send(&raw, place, Some(35 * MS));
        if place == Place::Arriving {
            scene.pair.network().advance(35 * MS);
        }
        scene.assert_refused(&raw, &raw.settle(), Code::DeadlineExceeded);
    }
}

#[test]
fn a_request_that_waits_when_the_server_stops_does_not_run() {
    for place in [Place::Arriving, Place::Queued] {
        let scene = Scene::new();
        let raw = Raw::client(scene.pair.network());
        scene.send(&raw, place, None);
        scene.pair.server().shut_down(Shutdown {
            finish: Duration::ZERO,
            close: Duration::from_secs(10),
            ..Shutdown::default()
        });
        scene.assert_refused(&raw, &raw.settle(), Code::Unavailable);
    }
}

#[test]
fn a_request_that_begins_when_the_server_has_stopped_is_answered_at_once() {
    let scene = Scene::new();
    let raw = Raw::client(scene.pair.network());
    raw.settle();
    scene.pair.server().shut_down(Shutdown {
        finish: Duration::ZERO,
        close: Duration::from_secs(10),
        ..Shutdown::default()
    });
    raw.settle();
    scene.send(&raw, Place::Arriving, None);
    scene.assert_refused(&raw, &raw.settle(), Code::Unavailable);
}

#[test]
fn a_request_that_waits_ends_with_its_connection() {
    for place in [Place::Arriving, Place::Queued] {
        let scene = Scene::new();
        let raw = Raw::client(scene.pair.network());
        scene.send(&raw, place, None);
        raw.peer.close();
        raw.settle();
        scene.assert_nothing_left(&raw);
    }
}

#[test]
fn requests_that_are_complete_begin_in_their_turn() {
    let scene = Scene::new();
    let raw = Raw::client(scene.pair.network());
    scene.send(&raw, Place::Queued, None);
    raw.settle();
    assert_eq!(scene.begun.replace(0), 2);
    scene.assert_nothing_left(&raw);
}

/// A client that uses the number of a long request again, for a stream or for a call, breaks the protocol.
#[test]
fn a_number_that_a_long_request_has_is_not_used_again() {
    let stream = Flags::STREAM | Flags::LAST;
    for (first, second) in [
        (stream, Flags::NONE),
        (Flags::NONE, stream),
        (Flags::NONE, Flags::NONE),
        (stream, stream),
    ] {
        let scene = Scene::new();
        let raw = Raw::client(scene.pair.network());
        raw.settle();
        for (transfer, flags) in [(1, first), (2, second)] {
            let (mut header, body) = long_request(7, transfer, 5000, FRAGMENT, &[7; 100]);
            header.flags |= flags;
            header.selector = if flags == stream { 2 } else { 1 };
            raw.send(header, &body);
        }
        assert!(raw.peer.is_closed(), "{first:?}, {second:?}");
        scene.assert_nothing_left(&raw);
    }
}
