//! Clients that stream and keep no rules: the affected connection, or the affected stream, ends, and
//! nothing else does.

use std::time::Duration;

use rpc_core::frame::{CallId, Flags, FrameHeader, FrameKind, MESSAGE_BATCH, NO_MESSAGE};
use rpc_core::{Caller, Code, Intents, Request, Response, Streaming, sender};
use rpc_core_testing::{Faults, Pair};

use crate::support::raw::{Raw, cancel, code_in, grant, header, last, message, one, open};
use crate::support::streams::{DOUBLE, ECHO, METHODS, Probe, register_streams};

/// The numbers of the methods.
const ECHO_NUMBER: u16 = 0;
const SUM_NUMBER: u16 = 1;
const COUNT_NUMBER: u16 = 2;
const DOUBLE_NUMBER: u16 = 3;
const IDLE_NUMBER: u16 = 4;

/// The window of a stream at first, and what one of our long messages takes of it.
const WINDOW: usize = 32 * 1024;
const LONG: usize = 4000;

fn intents() -> Intents {
    Intents {
        max_streams: 4,
        ..Intents::default()
    }
}

/// Lets `attack` send frames to a server as a client with two receives for the server's frames
/// (`credits` more with its first request). Meanwhile another client has a stream open, which has to
/// go on. Afterwards nothing may be left.
fn attacked(attack: impl FnOnce(&Raw<'_>, &Pair, &Probe)) {
    assert_eq!(METHODS[usize::from(IDLE_NUMBER)].path, "test.Streams/Idle");
    let probe = Probe::default();
    let pair = Pair::with(&intents(), Faults::none(), 0, |methods| {
        register_streams(methods, &probe);
    });
    let channel = pair.connect();
    let (mut numbers, messages) = sender();
    let mut doubled: Streaming<u64> = pair.run(async {
        let response = channel.streaming(&DOUBLE, Request::new(messages)).await;
        response.unwrap().into_inner()
    });
    let raw = Raw::client(pair.network());
    attack(&raw, &pair, &probe);
    raw.settle();
    raw.peer.close();
    raw.settle();
    assert_eq!(probe.running(), 1, "handlers outlive their connection");
    pair.run(async {
        for number in 0..100 {
            numbers.send(number).await.unwrap();
            assert_eq!(doubled.message().await.unwrap(), Some(2 * number));
        }
        drop(numbers);
        assert_eq!(doubled.message().await.unwrap(), None);
        let echoed: Response<u64> = channel.unary(&ECHO, Request::new(7)).await.unwrap();
        assert_eq!(echoed.into_inner(), 7);
    });
    assert_eq!(probe.running(), 0);
    drop((channel, doubled));
    pair.assert_nothing_left();
}

/// Checks that the connection ends with the last of these frames, and not before.
fn assert_last_ends(frames: &[(FrameHeader, &[u8])]) {
    attacked(|raw, _, _| {
        for (header, body) in frames {
            assert!(!raw.peer.is_closed(), "closed before {header:?}");
            raw.send(*header, body);
        }
        assert!(raw.peer.is_closed(), "open after {:?}", frames.last());
    });
}

fn with_credits(header: FrameHeader, credits: u16) -> FrameHeader {
    FrameHeader { credits, ..header }
}

/// An encoded number.
const NUMBER: &[u8] = &[8, 5];

#[test]
fn an_honest_raw_client_is_served() {
    attacked(|raw, _, _| {
        let opening = with_credits(open(1, SUM_NUMBER, Flags::NONE), 8);
        raw.send(opening, &[]);
        raw.send(one(1), NUMBER);
        raw.send(message(1, MESSAGE_BATCH, Flags::NONE), &[2, 0, 0, 0, 8, 7]);
        let frames = raw.send(last(1), &[]);
        let (response, body) = &frames[0];
        assert_eq!((response.kind, response.selector), (FrameKind::Response, 0));
        assert!(response.flags.contains(Flags::STREAM));
        assert_eq!(*body, [8, 12]);
        assert!(!raw.peer.is_closed());
    });
}

#[test]
fn messages_after_the_half_close() {
    let opening = (open(1, IDLE_NUMBER, Flags::NONE), &[][..]);
    assert_last_ends(&[opening, (last(1), &[]), (one(1), NUMBER)]);
    assert_last_ends(&[opening, (last(1), &[]), (last(1), &[])]);
    // The request itself has half-closed.
    let whole = (open(1, IDLE_NUMBER, Flags::LAST), &[][..]);
    assert_last_ends(&[whole, (one(1), NUMBER)]);
    assert_last_ends(&[whole, (last(1), &[])]);
}

#[test]
fn messages_of_calls_that_have_ended_or_never_were_are_dropped() {
    attacked(|raw, _, _| {
        raw.send(with_credits(open(1, SUM_NUMBER, Flags::NONE), 8), &[]);
        let frames = raw.send(last(1), &[]);
        assert_eq!(code_in(&frames), Some(0));
        for call in [1, 2, 77, u32::MAX] {
            for _ in 0..40 {
                raw.send(one(call), NUMBER);
                raw.send(last(call), &[]);
            }
        }
        assert!(!raw.peer.is_closed());
        raw.send(open(1, SUM_NUMBER, Flags::NONE), &[]);
        let frames = raw.send(last(1), &[]);
        assert_eq!(code_in(&frames), Some(0), "the id can be used again");
    });
}

#[test]
fn messages_beyond_the_window() {
    attacked(|raw, _, probe| {
        raw.send(open(1, IDLE_NUMBER, Flags::NONE), &[]);
        let fitting = WINDOW / (LONG + 4);
        for _ in 0..fitting {
            raw.send(one(1), &[0; LONG]);
        }
        let rest = WINDOW - fitting * (LONG + 4);
        raw.send(one(1), &vec![0; rest - 4]);
        assert!(!raw.peer.is_closed(), "the window was kept");
        assert_eq!(probe.running(), 2);
        raw.send(one(1), &[]);
        assert!(raw.peer.is_closed());
        assert_eq!(probe.running(), 1, "the handler is dropped");
    });
}

#[test]
fn grants_that_no_window_can_hold() {
    let opening = (open(1, COUNT_NUMBER, Flags::LAST), NUMBER);
    let huge = FrameHeader {
        time_us: u32::MAX,
        ..message(1, NO_MESSAGE, Flags::NONE)
    };
    let bidirectional = (open(1, IDLE_NUMBER, Flags::NONE), &[][..]);
    assert_last_ends(&[bidirectional, (huge, &[])]);
    let body = grant(1, i32::MAX as u32).encode();
    assert_last_ends(&[opening, (header(FrameKind::Control), &body)]);
}

#[test]
fn grants_for_nothing_are_dropped() {
    attacked(|raw, _, _| {
        raw.control((0..400).map(|call| grant(call, i32::MAX as u32)));
        raw.control((0..400).map(|call| grant(call << 20, 1)));
        assert!(!raw.peer.is_closed());
    });
}

#[test]
fn streams_beyond_the_limit() {
    let opening = |call| (open(call, IDLE_NUMBER, Flags::NONE), &[][..]);
    let frames: Vec<_> = (0..5).map(opening).collect();
    assert_last_ends(&frames);
}

#[test]
fn streams_with_the_id_of_an_open_one() {
    let opening = (open(9, IDLE_NUMBER, Flags::NONE), &[][..]);
    assert_last_ends(&[opening, opening]);
}

#[test]
fn a_client_that_never_grants_holds_no_more_than_a_queue() {
    // No credit of the connection, or credits and no window, for three ways to end the call.
    for credits in [0, 16] {
        for end in 0..3 {
            attacked(|raw, pair, probe| {
                let deadline = pair.network().clock().host_us(pair.network().clock().now()) as u32;
                let opening = FrameHeader {
                    time_us: deadline.wrapping_add(50_000),
                    ..with_credits(open(1, COUNT_NUMBER, Flags::LAST), credits)
                };
                // Numbers without end.
                raw.send(opening, &[8, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
                let sent = probe.sent();
                // Four frames, a window, and two queues, of numbers of two bytes and more.
                let most = (5 * (LONG + 200) + WINDOW) / 6 + 200;
                assert!(sent > 0 && sent < most as u64, "{sent} messages");
                assert_eq!(probe.running(), 2);
                for _ in 0..10 {
                    raw.settle();
                }
                assert_eq!(probe.sent(), sent);
                match end {
                    0 => pair.network().advance(Duration::from_millis(60)),
                    1 => raw.peer.close(),
                    _ => drop(raw.control([cancel(1)])),
                }
                let frames = raw.settle();
                assert_eq!(probe.running(), 1, "the handler is dropped");
                if end == 0 && credits > 0 {
                    let late = Code::DeadlineExceeded.number();
                    assert_eq!(code_in(&frames), Some(late));
                }
            });
        }
    }
}

#[test]
fn cancels_for_nothing() {
    attacked(|raw, _, probe| {
        raw.send(with_credits(open(1, IDLE_NUMBER, Flags::NONE), 8), &[]);
        for first in (0..10_000).step_by(500) {
            // Index 1 with other generations, and all calls but 1.
            raw.control((first..first + 250).map(|call| cancel(call + 2)));
            raw.control((first..first + 250).map(|call| cancel((call % 4000 + 1) << 20 | 1)));
        }
        assert!(!raw.peer.is_closed());
        assert_eq!(probe.running(), 2, "the call goes on");
        let frames = raw.control((0..500).map(|_| cancel(1)));
        assert_eq!(probe.running(), 1);
        let responses = frames.iter();
        let responses = responses.filter(|(header, _)| header.kind == FrameKind::Response);
        assert_eq!(responses.count(), 1, "a cancelled call is answered once");
        assert_eq!(code_in(&frames), Some(Code::Cancelled.number()));
    });
}

#[test]
fn a_cancel_overtakes_the_requests_that_wait() {
    attacked(|raw, _, probe| {
        // All of them arrive in the same turn.
        let opening = with_credits(open(1, IDLE_NUMBER, Flags::NONE), 8);
        raw.peer.send(opening, &[]);
        raw.peer
            .send(header(FrameKind::Control), &cancel(1).encode());
        raw.settle();
        assert_eq!(probe.running(), 1);
        // A unary call, too.
        let request = FrameHeader {
            call: CallId(2),
            selector: ECHO_NUMBER,
            ..header(FrameKind::Request)
        };
        raw.peer.send(request, NUMBER);
        raw.peer
            .send(header(FrameKind::Control), &cancel(2).encode());
        let frames = raw.settle();
        let code = code_in(&frames).expect("a call is answered");
        assert!(code == 0 || code == Code::Cancelled.number(), "{code}");
    });
}

#[test]
fn responses_and_metadata_to_a_server() {
    let response = |flags| FrameHeader {
        flags,
        call: CallId(1),
        ..header(FrameKind::Response)
    };
    let opening = (open(1, IDLE_NUMBER, Flags::NONE), &[][..]);
    assert_last_ends(&[opening, (response(Flags::NONE), &[])]);
    assert_last_ends(&[opening, (response(Flags::STREAM), &[])]);
    let metadata = FrameHeader {
        metadata_len: 1,
        ..one(1)
    };
    assert_last_ends(&[opening, (metadata, &[0, 8, 5])]);
}

#[test]
fn selectors_and_bodies_that_contradict_each_other() {
    let opening = (open(1, IDLE_NUMBER, Flags::NONE), &[][..]);
    for selector in [3, 4, u16::MAX] {
        let unknown = message(1, selector, Flags::NONE);
        assert_last_ends(&[opening, (unknown, NUMBER)]);
    }
    let none = message(1, NO_MESSAGE, Flags::NONE);
    assert_last_ends(&[opening, (none, NUMBER)]);
    let wrong = message(1, NO_MESSAGE, Flags::STREAM);
    assert_last_ends(&[opening, (wrong, &[])]);
    // Only a stream has a last message.
    let half = FrameHeader {
        flags: Flags::LAST,
        ..open(1, IDLE_NUMBER, Flags::LAST)
    };
    assert_last_ends(&[(half, &[])]);
}

#[test]
fn batches_whose_lengths_lie_end_their_stream() {
    let batches: [&[u8]; 5] = [
        &[1],
        &[0, 0, 0],
        &[3, 0, 0, 0, 8, 5],
        &[2, 0, 0, 0, 8, 5, 0xff, 0xff, 0xff, 0xff, 1],
        &[0xff; 12],
    ];
    for batch in batches {
        attacked(|raw, _, probe| {
            raw.send(with_credits(open(1, SUM_NUMBER, Flags::NONE), 8), &[]);
            raw.send(with_credits(open(2, SUM_NUMBER, Flags::NONE), 8), &[]);
            let frames = raw.send(message(1, MESSAGE_BATCH, Flags::NONE), batch);
            assert_eq!(code_in(&frames), Some(Code::Internal.number()), "{batch:?}");
            assert_eq!(probe.running(), 2, "the other streams go on");
            raw.send(one(2), NUMBER);
            let frames = raw.send(last(2), &[]);
            assert_eq!(code_in(&frames), Some(0));
            assert!(!raw.peer.is_closed());
        });
    }
}

#[test]
fn messages_that_do_not_decode_end_their_stream() {
    attacked(|raw, _, _| {
        raw.send(with_credits(open(1, SUM_NUMBER, Flags::NONE), 8), &[]);
        let frames = raw.send(one(1), &[0xff; 9]);
        assert!(code_in(&frames).is_some_and(|code| code != 0));
        assert!(!raw.peer.is_closed());
    });
}

#[test]
fn control_frames_of_any_length_but_entries() {
    for len in [1, 4, 7, 9, 12, 15] {
        assert_last_ends(&[(header(FrameKind::Control), &vec![1; len])]);
    }
    // An entry that asks for nothing, and a cancel that grants too.
    for value in [0, 0x8000_0001, u32::MAX] {
        let body = [1u32.to_le_bytes(), value.to_le_bytes()].concat();
        assert_last_ends(&[(header(FrameKind::Control), &body)]);
    }
}

#[test]
fn acknowledgements_of_nothing() {
    let ack = FrameHeader {
        flags: Flags::ACK,
        ..header(FrameKind::Acknowledgement)
    };
    assert_last_ends(&[(ack, &[])]);
    assert_last_ends(&[(header(FrameKind::Acknowledgement), &[])]);
}

#[test]
fn calls_of_another_kind_than_their_method() {
    attacked(|raw, _, probe| {
        let unimplemented = Some(Code::Unimplemented.number());
        let frames = raw.send(with_credits(open(1, ECHO_NUMBER, Flags::NONE), 8), &[]);
        assert_eq!(code_in(&frames), unimplemented);
        let frames = raw.send(open(2, 999, Flags::LAST), NUMBER);
        assert_eq!(code_in(&frames), unimplemented);
        for method in [SUM_NUMBER, COUNT_NUMBER, DOUBLE_NUMBER, IDLE_NUMBER] {
            let unary = FrameHeader {
                call: CallId(3),
                selector: method,
                ..header(FrameKind::Request)
            };
            let frames = raw.send(unary, NUMBER);
            assert_eq!(code_in(&frames), unimplemented, "{method}");
        }
        assert_eq!(probe.started(), 1);
        assert!(!raw.peer.is_closed());
    });
}

#[test]
fn a_request_that_opens_a_stream_and_has_a_message_is_an_opening() {
    attacked(|raw, _, _| {
        raw.send(
            with_credits(open(1, SUM_NUMBER, Flags::NONE), 8),
            &[0xff; 40],
        );
        let frames = raw.send(last(1), &[]);
        assert!(code_in(&frames).is_some());
        assert!(!raw.peer.is_closed());
    });
}
