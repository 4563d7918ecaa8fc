//! Senders that stop in the middle of a long message: their connection ends, and the memory for the
//! message is free again. Senders that are slow, or that wait for the receiver, go on.

use std::time::Duration;

use crate::support::raw::{Raw, all_memory, cancel, code_in, fragment, long, long_request};
use crate::support::{ECHO, Gate, call, register};
use rpc_core::Intents;
use rpc_core::frame::{
    CallId, FRAGMENT, FrameHeader, FrameKind, LONG_BODY_LEN, LongBody, SEGMENTS, TransferId,
};
use rpc_core::transport::RemoteSegment;
use rpc_core_testing::{Faults, Network, Pair};

/// The longest message.
const LONGEST: usize = 1 << 20;

fn intents() -> Intents {
    Intents {
        max_message_len: LONGEST,
        message_memory: 4 * LONGEST as u64,
        ..Intents::default()
    }
}

/// Lets `attack` send frames to a server. Afterwards nothing may be left.
fn attacked(reads: bool, attack: impl FnOnce(&Raw<'_>, &Pair)) {
    let pair = Pair::with(&intents(), Faults::none(), 0, |methods| {
        register(methods, &Gate::default());
    });
    if reads {
        pair.network().use_reads();
    }
    let raw = Raw::client(pair.network());
    attack(&raw, &pair);
    raw.peer.close();
    raw.settle();
    pair.assert_nothing_left();
}

/// The receiver looks at a message every 15 seconds.
const LOOK: Duration = Duration::from_secs(15);

fn bytes_for_messages(pair: &Pair) -> u64 {
    pair.server().poller().stats().total().memory.posted
}

#[test]
fn a_client_that_stops_sending_a_message_loses_its_connection() {
    for (reads, form, piece) in [
        (false, FRAGMENT, &[1][..]),
        (false, FRAGMENT, &[]),
        (true, SEGMENTS, &[]),
    ] {
        attacked(reads, |raw, pair| {
            let (first, body) = long_request(1, 9, LONGEST, form, piece);
            raw.send(first, &body);
            assert_eq!(bytes_for_messages(pair), LONGEST as u64);
            pair.network().advance(LOOK);
            pair.network().advance(LOOK - Duration::from_millis(1));
            raw.settle();
            assert!(!raw.peer.is_closed());
            pair.network().advance(Duration::from_millis(1));
            pair.network().advance(LOOK);
            raw.settle();
            assert!(raw.peer.is_closed(), "{form}, {piece:?}");
            assert_eq!(bytes_for_messages(pair), 0);
        });
    }
}

fn segment(len: u32) -> [u8; RemoteSegment::ENCODED_LEN] {
    let segment = RemoteSegment {
        address: 1 << 40,
        key: 77,
        len,
    };
    segment.encode()
}

#[test]
fn a_client_whose_memory_cannot_be_read_loses_its_connection() {
    for is_cancelled in [false, true] {
        attacked(true, |raw, pair| {
            pair.network().hold_reads_after(0);
            let len = LONGEST as u32;
            let (first, body) = long_request(1, 9, LONGEST, SEGMENTS, &segment(len));
            raw.send(first, &body);
            if is_cancelled {
                raw.control([cancel(1)]);
            }
            assert_eq!(bytes_for_messages(pair), LONGEST as u64);
            pair.network().advance(LOOK);
            pair.network().advance(LOOK - Duration::from_millis(1));
            raw.settle();
            assert!(!raw.peer.is_closed());
            pair.network().advance(Duration::from_millis(1));
            raw.settle();
            pair.network().advance(LOOK);
            raw.settle();
            assert!(raw.peer.is_closed(), "cancelled: {is_cancelled}");
            assert_eq!(bytes_for_messages(pair), 0);
        });
    }
}

#[test]
fn a_client_whose_messages_are_read_slowly_keeps_its_connection() {
    attacked(true, |raw, pair| {
        pair.network().hold_reads_after(0);
        let segment = raw.peer.expose(vec![7]).encode();
        let (first, body) = long_request(1, 9, LONGEST / 8, SEGMENTS, &segment.repeat(12));
        raw.send(first, &body);
        // All READs of the other message are executed before the one of this message.
        let (second, body) = long_request(2, 10, LONGEST / 8, SEGMENTS, &segment);
        raw.send(second, &body);
        for _ in 0..12 {
            pair.network().hold_reads_after(1);
            raw.settle();
            pair.network().advance(LOOK);
            raw.settle();
            assert!(!raw.peer.is_closed());
        }
    });
}

#[test]
fn a_client_that_sends_a_message_slowly_keeps_its_connection() {
    attacked(false, |raw, pair| {
        let (first, body) = long_request(1, 9, LONGEST, FRAGMENT, &[]);
        raw.send(first, &body);
        for _ in 0..10 {
            pair.network().advance(LOOK);
            pair.network().advance(LOOK - Duration::from_secs(1));
            let (next, body) = fragment(9, 1);
            raw.send(next, &body);
            assert!(!raw.peer.is_closed());
        }
        // The server's poller takes no turns for minutes, and the frame waits for it.
        let (next, body) = fragment(9, 1);
        raw.peer.send(next, &body);
        pair.network().advance(20 * LOOK);
        raw.settle();
        pair.network().advance(LOOK);
        raw.settle();
        assert!(!raw.peer.is_closed());
    });
}

/// Over a slow path, the runs of other messages take longer than a look.
#[test]
fn a_client_that_sends_other_messages_in_between_keeps_its_connection() {
    attacked(false, |raw, pair| {
        for (call, transfer) in [(1, 9), (2, 10)] {
            let (first, body) = long_request(call, transfer, LONGEST, FRAGMENT, &[1]);
            raw.send(first, &body);
        }
        for _ in 0..10 {
            pair.network().advance(LOOK);
            let (next, body) = fragment(10, 1);
            raw.send(next, &body);
            assert!(!raw.peer.is_closed());
        }
        for _ in 0..3 {
            pair.network().advance(LOOK);
            raw.settle();
        }
        assert!(raw.peer.is_closed());
    });
}

#[test]
fn a_message_that_waits_for_memory_is_not_its_senders_fault() {
    for (reads, form) in [(false, FRAGMENT), (true, SEGMENTS)] {
        attacked(reads, |raw, pair| {
            let memory = all_memory(pair, LONGEST);
            let (first, body) = long_request(1, 9, LONGEST, form, &[]);
            raw.send(first, &body);
            for _ in 0..10 {
                pair.network().advance(LOOK);
                raw.settle();
            }
            assert!(!raw.peer.is_closed());
            drop(memory);
            // Now it has memory, and its sender has to send.
            raw.settle();
            for _ in 0..2 {
                assert!(!raw.peer.is_closed());
                pair.network().advance(LOOK);
                raw.settle();
            }
            assert!(raw.peer.is_closed());
        });
    }
}

#[test]
fn the_deadline_of_a_call_ends_it_between_two_looks() {
    attacked(false, |raw, pair| {
        let (mut first, body) = long_request(1, 9, LONGEST, FRAGMENT, &[1; 10]);
        let clock = pair.network().clock();
        first.time_us = clock.host_us(clock.now() + LOOK + LOOK / 2) as u32;
        raw.send(first, &body);
        pair.network().advance(LOOK);
        assert_eq!(code_in(&raw.settle()), None);
        pair.network().advance(LOOK / 2);
        assert_eq!(code_in(&raw.settle()), Some(4));
        assert_eq!(bytes_for_messages(pair), 0);
        assert!(!raw.peer.is_closed());
    });
}

#[test]
fn the_deadline_of_a_call_that_waits_for_memory_says_so() {
    for (reads, form) in [(false, FRAGMENT), (true, SEGMENTS)] {
        attacked(reads, |raw, pair| {
            let memory = all_memory(pair, LONGEST);
            let (mut first, body) = long_request(1, 9, LONGEST, form, &[]);
            let clock = pair.network().clock();
            first.time_us = clock.host_us(clock.now() + LOOK) as u32;
            raw.send(first, &body);
            assert_eq!(code_in(&raw.settle()), None);
            pair.network().advance(LOOK);
            let frames = raw.settle();
            assert_eq!(code_in(&frames), Some(4));
            let (_, body) = &frames[0];
            let text = String::from_utf8_lossy(body);
            for part in ["waited for memory", "did not run", "1048576 bytes"] {
                assert!(text.contains(part), "{text}");
            }
            drop(memory);
        });
    }
}

#[test]
fn a_server_that_stops_sending_a_response_loses_its_connection() {
    for (reads, form, piece) in [(false, FRAGMENT, &[1; 10][..]), (true, SEGMENTS, &[])] {
        let mut network = Network::new(Faults::none(), 0);
        if reads {
            network.use_reads();
        }
        let client = network.add("client", &intents(), |_| ());
        let raw = Raw::server(&network, &[&ECHO]);
        let channel = client.poller().connect("hostile").unwrap();
        let mut request = Box::pin(call(&channel, &ECHO, vec![7; 10]));
        assert!(network.try_run(&mut request).is_none());
        let frames = raw.settle();
        let mut body = vec![0; LONG_BODY_LEN];
        LongBody::encode(TransferId(9), LONGEST as u32, form, &mut body);
        body.extend(piece);
        let response = FrameHeader {
            call: CallId(frames[0].0.call.0),
            ..long(FrameKind::Response)
        };
        raw.send(response, &body);
        for _ in 0..2 {
            network.advance(LOOK);
            raw.settle();
        }
        assert_eq!(raw.peer.is_closed(), piece.is_empty());
        network.advance(LOOK);
        let error = network.try_run(request).expect("the call ends");
        let error = error.expect_err("the response is not complete");
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            text = format!("{text}: {error}");
            source = error.source();
        }
        for part in [
            format!("{} of the {LONGEST} bytes of a long message", piece.len()),
            "nothing more for 30 s".to_owned(),
            "check that the peer's poller still takes turns".to_owned(),
        ] {
            assert!(text.contains(&part), "{part}: {text}");
        }
        raw.settle();
        assert!(raw.peer.is_closed());
        drop(channel);
        network.assert_nothing_left();
    }
}
