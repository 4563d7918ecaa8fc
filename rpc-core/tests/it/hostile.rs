//! Frames that no honest peer sends: the affected connection closes with a reason, and nothing else
//! does.

use std::pin::pin;
use std::task::{Context, Waker};

use proptest::prelude::*;
use rpc_core::frame::{
    CallId, ControlEntries, Flags, FrameError, FrameHeader, FrameKind, HEADER_LEN,
};
use rpc_core::transport::CloseReason;
use rpc_core::{CallError, Cause, Code, CreditError, Execution, ProtocolError, Role};
use rpc_core_testing::{LoopbackNode, Node, Pair};

use crate::support::{ECHO, Gate, HELD, call, register};

fn header(kind: FrameKind) -> FrameHeader {
    FrameHeader {
        kind,
        flags: Flags::NONE,
        credits: 0,
        call: CallId(0),
        selector: 0,
        metadata_len: 0,
        time_us: 0,
    }
}

fn frame(header: FrameHeader, message: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER_LEN];
    header.encode(&mut frame);
    frame.extend(message);
    frame
}

/// Returns the violation that closed the connection of a call.
fn violation(error: &CallError) -> Option<&ProtocolError> {
    match error.cause() {
        Cause::Disconnected(CloseReason::Failed(error)) => error.downcast_ref(),
        _ => None,
    }
}

/// Delivers `frame` to the server's or the client's side of one of two connections. Checks that
/// this connection closes with the expected violation on the receiving side, that its calls end,
/// and that the other connection, which has a call in flight, continues to work.
fn assert_ends_its_connection(
    at: fn(&Pair) -> &Node,
    frame: Vec<u8>,
    is_expected: impl Fn(&ProtocolError) -> bool,
) {
    let gate = Gate::default();
    let pair = Pair::new(|methods| register(methods, &gate));
    let (other, attacked) = (pair.connect(), pair.connect());
    let mut held = pin!(call(&other, &HELD, *b"held"));
    let mut victim = pin!(call(&attacked, &HELD, *b"victim"));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(held.as_mut().poll(&mut cx).is_pending());
    assert!(victim.as_mut().poll(&mut cx).is_pending());
    pair.network().settle();
    assert_eq!(gate.entered(), 2);

    let connection = *at(&pair).connections().last().unwrap();
    at(&pair).inject(connection, frame);
    pair.network().settle();
    assert_eq!(pair.client().connections().len(), 1);

    let error = pair.run(victim).unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::Unavailable, Execution::MayHaveRun)
    );
    assert!(matches!(error.cause(), Cause::Disconnected(_)));
    if std::ptr::eq(at(&pair), pair.client()) {
        let violation = violation(&error);
        assert!(violation.is_some_and(is_expected), "{error}");
    }
    let error = pair.run(call(&attacked, &ECHO, *b"x")).unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::Unavailable, Execution::NeverSent)
    );

    gate.open();
    assert_eq!(pair.run(held).unwrap(), b"held");
    assert_eq!(pair.run(call(&other, &ECHO, *b"on")).unwrap(), b"on");
    pair.assert_nothing_left();
}

#[test]
fn frames_that_are_none() {
    for at in [Pair::client, Pair::server] {
        assert_ends_its_connection(at, vec![1; 7], |error| {
            *error == ProtocolError::Frame(FrameError::Truncated { len: 7 })
        });
        assert_ends_its_connection(at, vec![0; 16], |error| {
            *error == ProtocolError::Frame(FrameError::Kind { kind: 0 })
        });
        for body in [&[0; 7][..], &[0; 8], &[0xff; 8]] {
            let control = frame(header(FrameKind::Control), body);
            assert_ends_its_connection(at, control, |error| {
                let entries = ControlEntries::parse(body);
                entries.is_err_and(|expected| *error == ProtocolError::Frame(expected))
            });
        }
        let lying = frame(
            FrameHeader {
                metadata_len: 500,
                ..header(FrameKind::Control)
            },
            &[0; 10],
        );
        assert_ends_its_connection(at, lying, |error| {
            let (metadata_len, len) = (500, HEADER_LEN + 10);
            *error == ProtocolError::Frame(FrameError::MetadataLen { metadata_len, len })
        });
    }
}

#[test]
fn frames_that_go_the_wrong_way() {
    assert_ends_its_connection(
        Pair::client,
        frame(header(FrameKind::Request), &[]),
        |error| {
            let (kind, role) = (FrameKind::Request, Role::Client);
            *error == ProtocolError::WrongDirection { kind, role }
        },
    );
    assert_ends_its_connection(
        Pair::server,
        frame(header(FrameKind::Response), &[]),
        |error| {
            let (kind, role) = (FrameKind::Response, Role::Server);
            *error == ProtocolError::WrongDirection { kind, role }
        },
    );
}

#[test]
fn flags_of_the_other_side() {
    let is_wrong_flag = |error: &ProtocolError| matches!(error, ProtocolError::WrongFlag { .. });
    let going_away = FrameHeader {
        flags: Flags::GOING_AWAY,
        ..header(FrameKind::Control)
    };
    assert_ends_its_connection(Pair::server, frame(going_away, &[]), is_wrong_flag);
    let returned = |kind, credits| {
        let header = FrameHeader {
            flags: Flags::RETURNED,
            credits,
            ..header(kind)
        };
        frame(header, &[])
    };
    assert_ends_its_connection(
        Pair::client,
        returned(FrameKind::Response, 1),
        is_wrong_flag,
    );
    assert_ends_its_connection(Pair::server, returned(FrameKind::Request, 0), is_wrong_flag);
    // More credits than the window has grown by. The client's window is empty.
    for (at, credits) in [
        (Pair::client as fn(&Pair) -> &Node, 1),
        (Pair::server, 3),
        (Pair::server, u16::MAX),
    ] {
        let lie = returned(FrameKind::Control, credits);
        assert_ends_its_connection(at, lie, |error| {
            matches!(error, ProtocolError::Credit(CreditError::NotHeld { .. }))
        });
    }
}

#[test]
fn answers_to_calls_that_were_never_made() {
    for id in [1, 1 << 20, u32::MAX] {
        let answer = frame(
            FrameHeader {
                call: CallId(id),
                ..header(FrameKind::Response)
            },
            &[],
        );
        assert_ends_its_connection(Pair::client, answer, |error| {
            *error == ProtocolError::UnknownCall { call: CallId(id) }
        });
    }
}

#[test]
fn credits_that_were_not_agreed_on() {
    let is_overflow = |error: &ProtocolError| {
        matches!(error, ProtocolError::Credit(CreditError::Overflow { .. }))
    };
    let many = frame(
        FrameHeader {
            credits: u16::MAX,
            ..header(FrameKind::Control)
        },
        &[],
    );
    assert_ends_its_connection(Pair::client, many.clone(), is_overflow);
    assert_ends_its_connection(Pair::server, many, is_overflow);
    let ack = frame(
        FrameHeader {
            flags: Flags::ACK,
            ..header(FrameKind::Control)
        },
        &[],
    );
    assert_ends_its_connection(Pair::client, ack.clone(), |error| {
        *error == ProtocolError::Credit(CreditError::UnexpectedAck)
    });
}

#[test]
fn control_frames_beyond_the_one_there_is_a_receive_for() {
    for at in [Pair::client, Pair::server] {
        let gate = Gate::default();
        let pair = Pair::new(|methods| register(methods, &gate));
        let channel = pair.connect();
        let connection = at(&pair).connections()[0];
        for _ in 0..2 {
            at(&pair).inject(connection, frame(header(FrameKind::Control), &[]));
        }
        pair.network().settle();
        let error = pair.run(call(&channel, &ECHO, *b"x")).unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        if std::ptr::eq(at(&pair), pair.client()) {
            let expected = ProtocolError::Credit(CreditError::TwoControlFrames);
            assert_eq!(violation(&error), Some(&expected));
        }
        pair.assert_nothing_left();
    }
}

#[test]
fn a_method_number_out_of_the_table_fails_that_call_alone() {
    let gate = Gate::default();
    let pair = Pair::new(|methods| register(methods, &gate));
    let channel = pair.connect();
    // The server cannot know that the client never sent this request: it responds, and the client
    // reports the violation.
    let request = FrameHeader {
        selector: 999,
        call: CallId(5),
        ..header(FrameKind::Request)
    };
    pair.server()
        .inject(pair.server().connections()[0], frame(request, &[]));
    pair.network().settle();
    let error = pair.run(call(&channel, &ECHO, *b"x")).unwrap_err();
    let expected = ProtocolError::UnknownCall { call: CallId(5) };
    assert_eq!(violation(&error), Some(&expected));
    drop(channel);
    pair.assert_nothing_left();
}

#[test]
fn requests_beyond_the_window() {
    let gate = Gate::default();
    let pair = Pair::new(|methods| register(methods, &gate));
    let (_other, attacked) = (pair.connect(), pair.connect());
    let connection = *pair.server().connections().last().unwrap();
    // More requests than the server granted, before it takes a turn. It responds to none of them,
    // so the client does not report a violation.
    for n in 0..12 {
        let request = FrameHeader {
            call: CallId(n),
            selector: 1,
            ..header(FrameKind::Request)
        };
        pair.server().inject(connection, frame(request, &[]));
    }
    pair.network().settle();
    assert_eq!(pair.server().connections().len(), 1);
    drop(attacked);
    pair.network().settle();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever arrives on one connection, in either direction: nothing panics, and the other
    /// connection works.
    #[test]
    fn garbage_on_one_connection_leaves_the_other_alone(
        to_server in any::<bool>(),
        frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..8),
        plausible in proptest::collection::vec((1u8..6, any::<u8>(), 0u16..4, 0u32..4, 0u16..8), 0..8),
    ) {
        let gate = Gate::default();
        gate.open();
        let pair = Pair::new(|methods| register(methods, &gate));
        let (other, attacked) = (pair.connect(), pair.connect());
        let node = if to_server { pair.server() } else { pair.client() };
        let connection = *node.connections().last().unwrap();
        let plausible = plausible.into_iter().map(|(kind, flags, credits, call, selector)| {
            let kind = [FrameKind::Request, FrameKind::Response, FrameKind::Control, FrameKind::Message, FrameKind::Acknowledgement][usize::from(kind - 1)];
            // Half of the frames have flags of credits and of the shutdown alone.
            let flags = Flags::from_bits(if flags % 2 == 0 { flags >> 4 } else { flags });
            frame(FrameHeader { kind, flags, credits, call: CallId(call), selector, metadata_len: 0, time_us: 0 }, &[])
        });
        for frame in plausible.chain(frames) {
            if node.connections().contains(&connection) {
                node.inject(connection, frame);
            }
            pair.network().step();
        }
        pair.network().settle();
        prop_assert_eq!(pair.run(call(&other, &ECHO, *b"on")).unwrap(), b"on");
        let _ = pair.run(call(&attacked, &ECHO, *b"x"));
        drop(attacked);
        pair.network().settle();
        prop_assert_eq!(pair.server().slot_counts().held + pair.client().slot_counts().held, 0);
        prop_assert_eq!(pair.server().slot_counts().sending + pair.client().slot_counts().sending, 0);
    }
}

#[test]
fn a_control_frame_that_frees_receives_and_breaks_a_rule_leaves_none_of_them_promised() {
    let gate = Gate::default();
    let pair = Pair::new(|methods| register(methods, &gate));
    let channel = pair.connect();
    // Grows the window, so that a client may return a part of it.
    for _ in 0..3 {
        let mut calls: Vec<_> = (0..64)
            .map(|_| Box::pin(call(&channel, &ECHO, *b"x")))
            .collect();
        let mut cx = Context::from_waker(Waker::noop());
        for call in &mut calls {
            assert!(call.as_mut().poll(&mut cx).is_pending());
        }
        for call in calls {
            assert!(pair.run(call).is_ok());
        }
    }
    let connection = pair.server().connections()[0];
    let returned = FrameHeader {
        // No control frame is in flight that could be acknowledged.
        flags: Flags::RETURNED | Flags::ACK,
        credits: 1,
        ..header(FrameKind::Control)
    };
    pair.server().inject(connection, frame(returned, &[]));
    pair.network().settle();
    assert!(pair.server().connections().is_empty());
    drop(channel);
    pair.assert_nothing_left();
}
