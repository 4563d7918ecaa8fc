//! Receivers that stop in the middle of a long message: their connection ends, and the rest of the
//! message is freed. Receivers that are slow, or that wait for the sender, go on.

use std::time::Duration;

use crate::support::raw::{Frame, Raw, header};
use crate::support::{Gate, register};
use rpc_core::Intents;
use rpc_core::frame::{
    CallId, ControlEntry, ControlRequest, Flags, FrameHeader, FrameKind, LongBody, TransferId,
};
use rpc_core_testing::{Faults, Pair};

/// The number of the method whose response has a given length.
const GROW_NUMBER: u16 = 4;

/// The sender looks at a message every 15 seconds.
const LOOK: Duration = Duration::from_secs(15);

/// The segments of a response that are exposed at first.
const FIRST: u32 = 8;

/// More credits than the messages of a test take.
const MANY: u16 = 200;

fn intents() -> Intents {
    Intents {
        max_message_len: 1 << 20,
        message_memory: 4 << 20,
        ..Intents::default()
    }
}

/// Lets a client ask for a response of 200,000 bytes, and then do what `receive` does. Afterwards
/// nothing may be left.
fn asked(reads: bool, receive: impl FnOnce(&Raw<'_>, &Pair, TransferId)) {
    let pair = Pair::with(&intents(), Faults::none(), 0, |methods| {
        register(methods, &Gate::default());
    });
    if reads {
        pair.network().use_reads();
    }
    let raw = Raw::client(pair.network());
    let request = FrameHeader {
        call: CallId(1),
        selector: GROW_NUMBER,
        ..header(FrameKind::Request)
    };
    let frames = raw.send(request, &[8, 0xc0, 0x9a, 0x0c]);
    let is_response = |(header, _): &&Frame| header.flags.contains(Flags::LONG);
    let (first, body) = frames.iter().find(is_response).expect("a response");
    let body = LongBody::parse(first.kind, &body[first.metadata_len.into()..]).unwrap();
    receive(&raw, &pair, body.transfer);
    raw.peer.close();
    raw.settle();
    pair.assert_nothing_left();
}

fn credits(raw: &Raw<'_>, credits: u16) -> Vec<Frame> {
    let credits = FrameHeader {
        credits,
        ..header(FrameKind::Control)
    };
    raw.send(credits, &[])
}

fn fetched(transfer: TransferId, segments: u32) -> ControlEntry {
    ControlEntry::of_transfer(transfer, ControlRequest::Fetched(segments))
}

fn accepted(transfer: TransferId) -> ControlEntry {
    ControlEntry::of_transfer(transfer, ControlRequest::Accepted)
}

/// Looks until the connection ends, for three looks at most.
fn assert_ends_in_time(raw: &Raw<'_>, pair: &Pair) {
    pair.network().advance(LOOK);
    raw.settle();
    assert!(!raw.peer.is_closed(), "closed too soon");
    for _ in 0..2 {
        pair.network().advance(LOOK);
        raw.settle();
    }
    assert!(raw.peer.is_closed(), "still open");
}

#[test]
fn a_client_that_never_accepts_a_response_loses_its_connection() {
    asked(false, |raw, pair, _| {
        let pieces = credits(raw, MANY);
        let bytes: usize = pieces.iter().map(|(_, body)| body.len()).sum();
        assert!(bytes < 64 * 1024, "{bytes}");
        assert_ends_in_time(raw, pair);
    });
}

#[test]
fn a_client_that_grants_no_credit_for_the_rest_of_a_response_loses_its_connection() {
    asked(false, |raw, pair, transfer| {
        raw.control([accepted(transfer)]);
        assert_ends_in_time(raw, pair);
    });
    asked(true, |raw, pair, transfer| {
        raw.control([fetched(transfer, FIRST)]);
        let memory = pair.server().poller().stats().total().memory;
        assert_eq!(memory.in_flight, 0, "the first pieces are released");
        assert_ends_in_time(raw, pair);
    });
}

#[test]
fn a_client_that_grants_no_credit_for_the_end_of_a_stopped_response_loses_its_connection() {
    asked(true, |raw, pair, transfer| {
        let stopped = ControlEntry::of_transfer(transfer, ControlRequest::Stopped);
        raw.control([stopped]);
        assert_ends_in_time(raw, pair);
    });
}

#[test]
fn the_rest_of_a_response_that_its_client_does_not_take_counts_as_pinned() {
    asked(false, |raw, pair, _| {
        let pinned = || pair.server().poller().stats().total().memory.pinned;
        credits(raw, MANY);
        pair.network().advance(LOOK);
        assert_eq!(pinned(), 0, "it has granted credits meanwhile");
        pair.network().advance(LOOK);
        assert!(pinned() > 200_000 - 64 * 1024);
    });
}

#[test]
fn a_client_that_takes_a_response_slowly_keeps_its_connection() {
    for reads in [false, true] {
        asked(reads, |raw, pair, transfer| {
            if reads {
                raw.control([fetched(transfer, FIRST)]);
            } else {
                raw.control([accepted(transfer)]);
            }
            for _ in 0..20 {
                pair.network().advance(LOOK);
                raw.settle();
                pair.network().advance(LOOK - Duration::from_secs(1));
                let pieces = credits(raw, 1);
                assert_eq!(pieces.len(), 1, "{pieces:?}");
                assert!(!raw.peer.is_closed());
                if reads {
                    raw.control([fetched(transfer, 1)]);
                }
            }
        });
    }
}

#[test]
fn a_server_that_was_stopped_itself_closes_no_connection() {
    for reads in [false, true] {
        asked(reads, |raw, pair, transfer| {
            // The server's poller takes no turns for a minute, and the frame waits for it.
            let entry = match reads {
                true => fetched(transfer, FIRST),
                false => accepted(transfer),
            };
            let control = FrameHeader {
                credits: MANY,
                ..header(FrameKind::Control)
            };
            raw.peer.send(control, &entry.encode());
            pair.network().advance(4 * LOOK);
            let pieces = raw.settle();
            assert!(!raw.peer.is_closed());
            assert!(!pieces.is_empty());
        });
    }
}
