//! Peers that break the rules of long messages: their connection ends, with every byte back in its
//! place, and others go on.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::support::raw::{
    Frame, Raw, all_memory, cancel, code_in, continuation, entries, fragment, header,
    long_request as request,
};
use crate::support::streams::{Probe, register_streams};
use crate::support::{ECHO, Gate, call, register};
use rpc_core::frame::{
    ABANDONED, CallId, ControlEntry, ControlRequest, FRAGMENT, Flags, FrameHeader, FrameKind,
    LongBody, SEGMENTS, TransferId,
};
use rpc_core::transport::RemoteSegment;
use rpc_core::{Code, Execution, Intents};
use rpc_core_testing::{Faults, Network, Pair};

/// The number of the method whose response has a given length.
const GROW_NUMBER: u16 = 4;

/// The most bytes that a receiver takes before it has accepted a message.
const FREE: usize = 64 * 1024;

/// The longest message.
const LONGEST: usize = 1 << 20;

/// The longest fragment in a continuation.
const FRAGMENT_LEN: usize = 4096;

fn intents() -> Intents {
    Intents {
        max_message_len: LONGEST,
        message_memory: 4 * LONGEST as u64,
        ..Intents::default()
    }
}

/// Lets `attack` send frames to a server. Meanwhile another client calls it. Afterwards nothing may be
/// left.
fn attacked(reads: bool, attack: impl FnOnce(&Raw<'_>, &Pair)) {
    let pair = Pair::with(&intents(), Faults::none(), 0, |methods| {
        register(methods, &Gate::default());
    });
    if reads {
        pair.network().use_reads();
    }
    let channel = pair.connect();
    let raw = Raw::client(pair.network());
    attack(&raw, &pair);
    let message = vec![7; 200_000];
    let echoed = pair.run(call(&channel, &ECHO, message.clone())).unwrap();
    assert!(echoed == message);
    raw.peer.close();
    raw.settle();
    drop(channel);
    pair.assert_nothing_left();
}

fn segments(segments: &[RemoteSegment]) -> Vec<u8> {
    segments
        .iter()
        .flat_map(|segment| segment.encode())
        .collect()
}

fn entry(transfer: u32, request: ControlRequest) -> ControlEntry {
    ControlEntry::of_transfer(TransferId(transfer), request)
}

/// Checks that the connection ends with the last of these frames, and not before.
fn assert_last_ends(reads: bool, frames: &[(FrameHeader, Vec<u8>)]) {
    attacked(reads, |raw, _| {
        for (header, body) in frames {
            assert!(!raw.peer.is_closed(), "closed before {header:?}");
            raw.send(*header, body);
        }
        assert!(raw.peer.is_closed(), "open after {:?}", frames.last());
    });
}

#[test]
fn an_honest_client_is_understood() {
    attacked(false, |raw, _| {
        // A message with one field of 9997 bytes.
        let mut piece = vec![1; 3000];
        piece[..3].copy_from_slice(&[10, 0x8d, 0x4e]);
        let (first, body) = request(1, 9, 10_000, FRAGMENT, &piece);
        raw.send(first, &body);
        let (next, body) = fragment(9, 4000);
        assert_eq!(code_in(&raw.send(next, &body)), None);
        let (next, body) = fragment(9, 3000);
        let answers = raw.send(next, &body);
        assert!(
            answers
                .iter()
                .any(|(header, _)| header.flags.contains(Flags::LONG))
        );
        assert!(!raw.peer.is_closed());
    });
}

#[test]
fn more_bytes_than_the_length() {
    assert_last_ends(
        false,
        &[request(1, 9, 5000, FRAGMENT, &[1; 4000]), fragment(9, 1001)],
    );
    assert_last_ends(false, &[request(1, 9, 10, FRAGMENT, &[1; 11])]);
}

#[test]
fn a_message_of_no_bytes() {
    assert_last_ends(false, &[request(1, 9, 0, FRAGMENT, &[])]);
}

#[test]
fn a_continuation_of_nothing() {
    assert_last_ends(
        false,
        &[request(1, 9, 5000, FRAGMENT, &[1; 4000]), fragment(9, 0)],
    );
}

#[test]
fn a_continuation_of_a_message_that_was_never_begun_or_has_ended() {
    assert_last_ends(false, &[fragment(9, 10)]);
    assert_last_ends(
        false,
        &[
            request(1, 9, 5000, FRAGMENT, &[1; 4000]),
            fragment(9, 1000),
            fragment(9, 1),
        ],
    );
    let abandoned = continuation(9, ABANDONED, &[]);
    assert_last_ends(
        false,
        &[
            request(1, 9, 5000, FRAGMENT, &[1; 4000]),
            abandoned,
            fragment(9, 1),
        ],
    );
}

#[test]
fn one_number_twice() {
    assert_last_ends(
        false,
        &[
            request(1, 9, 5000, FRAGMENT, &[]),
            request(2, 9, 5000, FRAGMENT, &[]),
        ],
    );
}

#[test]
fn a_piece_of_the_other_form() {
    let described = continuation(9, SEGMENTS, &[0; 16]);
    assert_last_ends(false, &[request(1, 9, 5000, FRAGMENT, &[]), described]);
    assert_last_ends(true, &[request(1, 9, 5000, SEGMENTS, &[]), fragment(9, 10)]);
}

#[test]
fn segments_where_nothing_is_read() {
    assert_last_ends(false, &[request(1, 9, 5000, SEGMENTS, &[])]);
}

#[test]
fn entries_about_a_message_that_this_side_never_sent() {
    for request in [
        ControlRequest::Fetched(1),
        ControlRequest::Accepted,
        ControlRequest::Stopped,
    ] {
        attacked(false, |raw, _| {
            raw.control([entry(9, request)]);
            assert!(raw.peer.is_closed(), "{request:?}");
        });
    }
}

#[test]
fn more_fragments_than_are_free_wait_for_the_receiver() {
    attacked(false, |raw, pair| {
        // Other messages use all of the memory.
        let memory = all_memory(pair, LONGEST);
        let (first, body) = request(1, 9, LONGEST, FRAGMENT, &[]);
        raw.send(first, &body);
        for _ in 0..FREE / FRAGMENT_LEN {
            let (next, body) = fragment(9, FRAGMENT_LEN);
            let answers = raw.send(next, &body);
            assert_eq!(entries(&answers, 9), []);
        }
        assert!(!raw.peer.is_closed());
        let (next, body) = fragment(9, 1);
        raw.send(next, &body);
        assert!(raw.peer.is_closed());
        drop(memory);
    });
}

#[test]
fn a_message_is_accepted_when_there_is_memory() {
    attacked(false, |raw, _| {
        let (first, body) = request(1, 9, LONGEST, FRAGMENT, &[1; 10]);
        let answers = raw.send(first, &body);
        assert_eq!(entries(&answers, 9), [ControlRequest::Accepted]);
        let (next, body) = continuation(9, ABANDONED, &[]);
        let answers = raw.send(next, &body);
        assert_eq!(code_in(&answers), Some(1));
        assert_eq!(entries(&answers, 9), []);
    });
}

#[test]
fn a_call_that_is_cancelled_stops_its_request() {
    attacked(false, |raw, _| {
        let (first, body) = request(1, 9, LONGEST, FRAGMENT, &[1; 10]);
        raw.send(first, &body);
        let answers = raw.control([cancel(1)]);
        assert_eq!(code_in(&answers), Some(1));
        assert_eq!(entries(&answers, 9), [ControlRequest::Stopped]);
        let (next, body) = continuation(9, ABANDONED, &[]);
        raw.send(next, &body);
        assert!(!raw.peer.is_closed());
    });
}

#[test]
fn a_cancel_stops_the_request_of_its_own_call_and_connection() {
    attacked(false, |raw, pair| {
        let other = Raw::client(pair.network());
        let begin = |raw: &Raw<'_>, call| {
            let (first, body) = request(call, 9 + call, LONGEST / 8, FRAGMENT, &[1; 10]);
            raw.send(first, &body);
        };
        begin(&other, 1);
        (0..4).for_each(|call| begin(raw, call));
        // The last one is of no call.
        let answers = raw.control([2, 0, 7].map(cancel));
        for (call, expected) in [(0, true), (1, false), (2, true), (3, false)] {
            let is_stopped = entries(&answers, 9 + call) == [ControlRequest::Stopped];
            assert_eq!(is_stopped, expected, "{call}");
        }
        assert_eq!(code_in(&other.settle()), None);
        let answers = other.control([cancel(1), cancel(1)]);
        assert_eq!(entries(&answers, 10), [ControlRequest::Stopped]);
        other.peer.close();
        other.settle();
    });
}

#[test]
fn a_length_over_the_limit_by_one_byte_is_refused() {
    attacked(false, |raw, _| {
        let (first, body) = request(1, 9, LONGEST + 1, FRAGMENT, &[1; 10]);
        let answers = raw.send(first, &body);
        assert_eq!(code_in(&answers), Some(8));
        assert_eq!(entries(&answers, 9), [ControlRequest::Stopped]);
        assert!(!raw.peer.is_closed());
    });
}

/// Sends the frames, of which the last one ends the connection or nothing does. Afterwards no call
/// may count as in flight.
fn not_served(reads: bool, frames: &[(FrameHeader, Vec<u8>)]) {
    let pair = Pair::with(&intents(), Faults::none(), 0, |methods| {
        register_streams(methods, &Probe::default());
    });
    if reads {
        pair.network().use_reads();
    }
    let raw = Raw::client(pair.network());
    for (header, body) in frames {
        raw.send(*header, body);
    }
    raw.peer.close();
    raw.settle();
    let stats = pair.server().poller().stats().total();
    let begun: u64 = stats.served.iter().map(|method| method.begun).sum();
    assert_eq!((begun, stats.in_flight()), (1, 0));
    pair.assert_nothing_left();
}

#[test]
fn calls_whose_long_requests_do_not_arrive_do_not_count_as_in_flight() {
    let of_stream = |(header, body): (FrameHeader, Vec<u8>)| {
        let header = FrameHeader {
            flags: Flags::STREAM | Flags::LONG | Flags::LAST,
            selector: 3,
            ..header
        };
        (header, body)
    };
    let wrong = request(1, 9, 5000, SEGMENTS, &[0; 16]);
    let refused_and_wrong = request(1, 9, LONGEST + 1, SEGMENTS, &[0; 16]);
    for (reads, begun) in [
        (false, request(1, 9, 5000, FRAGMENT, &[1; 10])),
        (true, wrong),
        (true, refused_and_wrong),
    ] {
        not_served(reads, std::slice::from_ref(&begun));
        not_served(reads, &[of_stream(begun)]);
    }
    let refused = request(1, 9, LONGEST + 1, FRAGMENT, &[1; 10]);
    not_served(false, std::slice::from_ref(&refused));
    not_served(false, &[of_stream(refused)]);
}

#[test]
fn an_address_that_is_not_exposed() {
    let segment = RemoteSegment {
        address: 1,
        key: 77,
        len: 5000,
    };
    assert_last_ends(
        true,
        &[request(1, 9, 5000, SEGMENTS, &segments(&[segment]))],
    );
}

#[test]
fn segments_longer_than_the_message_and_of_no_bytes() {
    let segment = |len| RemoteSegment {
        address: 1,
        key: 77,
        len,
    };
    assert_last_ends(
        true,
        &[request(1, 9, 5000, SEGMENTS, &segments(&[segment(5001)]))],
    );
    assert_last_ends(
        true,
        &[request(1, 9, 5000, SEGMENTS, &segments(&[segment(0)]))],
    );
    let (first, rest) = (request(1, 9, 5000, SEGMENTS, &[]), &[0; 15]);
    assert_last_ends(true, &[first, continuation(9, SEGMENTS, rest)]);
}

#[test]
fn more_segments_than_a_sender_may_have_exposed() {
    let segment = RemoteSegment {
        address: 1,
        key: 77,
        len: 1,
    };
    attacked(true, |raw, pair| {
        let memory = all_memory(pair, LONGEST);
        let (first, body) = request(1, 9, 5000, SEGMENTS, &segments(&[segment; 64]));
        raw.send(first, &body);
        assert!(!raw.peer.is_closed());
        let (next, body) = continuation(9, SEGMENTS, &segments(&[segment]));
        raw.send(next, &body);
        assert!(raw.peer.is_closed());
        drop(memory);
    });
}

/// Lets a client call a server that has no driver, which then does what `serve` does. Returns true if
/// the connection ended. Afterwards the client has nothing left.
fn served(
    len: usize,
    is_dropped: bool,
    serve: impl FnOnce(&Raw<'_>, &Network, TransferId),
) -> bool {
    let mut network = Network::new(Faults::none(), 0);
    network.use_reads();
    let client = network.add("client", &intents(), |_| ());
    let raw = Raw::server(&network, &[&ECHO]);
    let channel = client.poller().connect("hostile").unwrap();
    let mut request = Some(Box::pin(call(&channel, &ECHO, vec![7; len])));
    let mut cx = Context::from_waker(Waker::noop());
    if let Some(request) = &mut request {
        assert!(request.as_mut().poll(&mut cx).is_pending());
    }
    let frames = raw.settle();
    let (first, body) = &frames[0];
    let body = LongBody::parse(first.kind, &body[first.metadata_len.into()..]).unwrap();
    if is_dropped {
        request = None;
    }
    serve(&raw, &network, body.transfer);
    raw.settle();
    let is_closed = raw.peer.is_closed();
    raw.peer.close();
    network.settle();
    if let Some(request) = &mut request {
        let Poll::Ready(Err(error)) = request.as_mut().poll(&mut cx) else {
            panic!("the call goes on without a connection");
        };
        assert_eq!(error.code(), Code::Unavailable);
        assert_eq!(error.execution(), Execution::MayHaveRun);
    }
    drop(request);
    drop(channel);
    network.assert_nothing_left();
    is_closed
}

/// The sender looks at a message every 15 seconds.
const LOOK: Duration = Duration::from_secs(15);

#[test]
fn a_server_that_fetches_some_of_a_message_must_fetch_the_rest_in_time() {
    let is_closed = served(50_000, false, |raw, network, transfer| {
        network.advance(LOOK);
        raw.control([entry(transfer.0, ControlRequest::Fetched(1))]);
        for _ in 0..3 {
            assert!(!raw.peer.is_closed());
            network.advance(LOOK);
            raw.settle();
        }
    });
    assert!(is_closed);
}

#[test]
fn a_server_must_release_the_request_of_a_call_that_was_dropped() {
    let is_closed = served(50_000, true, |raw, network, _| {
        for _ in 0..3 {
            assert!(!raw.peer.is_closed());
            network.advance(LOOK);
            raw.settle();
        }
    });
    assert!(is_closed);
}

#[test]
fn a_server_may_keep_the_request_of_a_call_that_waits() {
    let is_closed = served(50_000, false, |raw, network, _| {
        for _ in 0..20 {
            network.advance(LOOK);
            raw.settle();
        }
    });
    assert!(!is_closed);
}

#[test]
fn releases_of_more_than_was_exposed_and_after_the_end() {
    for requests in [
        &[ControlRequest::Fetched(9)][..],
        &[ControlRequest::Accepted, ControlRequest::Accepted],
        // The message has two segments.
        &[ControlRequest::Fetched(2), ControlRequest::Fetched(1)],
    ] {
        let is_closed = served(5000, false, |raw, _, transfer| {
            for request in requests {
                assert!(!raw.peer.is_closed());
                raw.control([entry(transfer.0, *request)]);
            }
        });
        assert!(is_closed, "{requests:?}");
    }
}

#[test]
fn a_message_that_its_receiver_stops_is_given_up() {
    let is_closed = served(500_000, false, |raw, _, transfer| {
        let frames = raw.control([entry(transfer.0, ControlRequest::Stopped)]);
        let abandoned = |(header, _): &&Frame| header.selector == ABANDONED;
        assert!(frames.iter().any(|frame| abandoned(&frame)));
        // The entry may cross the end of the message.
        raw.control([entry(transfer.0, ControlRequest::Stopped)]);
    });
    assert!(!is_closed);
}

#[test]
fn a_client_that_accepts_no_response_leaves_half_of_the_memory_for_them_to_others() {
    attacked(true, |raw, pair| {
        let in_flight = || pair.server().poller().stats().total().memory.in_flight;
        let share = 4 * LONGEST as u64 / 16;
        let ask = |raw: &Raw<'_>, calls: std::ops::Range<u32>| {
            for number in calls {
                let asks = FrameHeader {
                    call: CallId(number),
                    selector: GROW_NUMBER,
                    ..header(FrameKind::Request)
                };
                // A response of 50 000 bytes.
                raw.send(asks, &[8, 0xd0, 0x86, 3]);
            }
        };
        ask(raw, 0..64);
        assert!(!raw.peer.is_closed());
        // The pieces of one first frame more, at most.
        assert!((share..share + 8 * 4096).contains(&in_flight()));
        let other = Raw::client(pair.network());
        let before = in_flight();
        ask(&other, 0..4);
        assert!(in_flight() > before);
        other.peer.close();
        other.settle();
    });
}
