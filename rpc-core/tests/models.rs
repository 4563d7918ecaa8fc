//! The models of a connection: every state that two sides can reach. A program of its own, since it computes
//! for long without optimization: `make faults` and `make test` run it optimized.

use rpc_core_testing::model::{Plan, Reached};

/// Visits all states, and checks that neither side stops.
#[track_caller]
fn assert_neither_stops(plan: &Plan) {
    Reached::all(plan).assert_neither_stops();
}

const STREAMS: Plan = Plan {
    initial_credits: 1,
    max_in_flight: 1,
    client_window: 1,
    calls: 0,
    streams: 2,
    client_messages: 2,
    server_messages: 2,
    request_pieces: 0,
    response_pieces: 0,
    releases: false,
    cancels: 1,
    goes_away: false,
    idles: false,
    ack_frames: true,
};

#[test]
fn streams_with_one_credit_each_way() {
    assert_neither_stops(&STREAMS);
}

#[test]
fn streams_with_windows_that_grow() {
    assert_neither_stops(&Plan {
        max_in_flight: 2,
        client_window: 2,
        streams: 1,
        ..STREAMS
    });
}

#[test]
fn streams_and_calls_through_a_shutdown() {
    assert_neither_stops(&Plan {
        calls: 1,
        streams: 1,
        client_messages: 1,
        server_messages: 1,
        cancels: 0,
        goes_away: true,
        ..STREAMS
    });
}

#[test]
fn streams_of_sides_that_become_idle() {
    assert_neither_stops(&Plan {
        max_in_flight: 2,
        client_messages: 1,
        server_messages: 0,
        cancels: 0,
        idles: true,
        ..STREAMS
    });
}

const LONG_CALLS: Plan = Plan {
    calls: 2,
    streams: 0,
    client_messages: 0,
    server_messages: 0,
    request_pieces: 2,
    response_pieces: 2,
    cancels: 0,
    ..STREAMS
};

#[test]
fn long_calls_with_one_credit_each_way() {
    assert_neither_stops(&LONG_CALLS);
}

/// Each side sends a piece only when the other has released the one before, in a control frame.
#[test]
fn long_calls_whose_pieces_wait_for_releases() {
    assert_neither_stops(&Plan {
        max_in_flight: 2,
        client_window: 2,
        releases: true,
        ..LONG_CALLS
    });
}

#[test]
fn long_calls_beside_a_stream() {
    assert_neither_stops(&Plan {
        calls: 1,
        streams: 1,
        client_messages: 1,
        server_messages: 1,
        releases: true,
        ..LONG_CALLS
    });
}

#[test]
fn long_calls_through_a_shutdown() {
    assert_neither_stops(&Plan {
        releases: true,
        goes_away: true,
        ..LONG_CALLS
    });
}

#[test]
fn long_calls_of_sides_that_become_idle() {
    assert_neither_stops(&Plan {
        max_in_flight: 2,
        request_pieces: 1,
        releases: true,
        idles: true,
        ..LONG_CALLS
    });
}

/// Without acknowledgement frames, the releases of long messages also stop both sides.
#[test]
fn without_acknowledgement_frames_releases_stop_both_sides() {
    let reached = Reached::all(&Plan {
        ack_frames: false,
        releases: true,
        ..LONG_CALLS
    });
    assert!(reached.stop_with("pieces"));
}

/// Without acknowledgement frames, two control frames that cross stop both sides: neither may send
/// another one, and neither has a credit for a frame that would carry the acknowledgement.
#[test]
fn without_acknowledgement_frames_crossing_control_frames_stop_both_sides() {
    let reached = Reached::all(&Plan {
        ack_frames: false,
        ..STREAMS
    });
    assert!(reached.both_wait_for_acks_with("messages"));
}
