//! A peer that does not respond: the acknowledgement timer and its retries.

use std::thread;
use std::time::{Duration, Instant};

use verbline_verbs::{
    AckTimeout, CompletionStatus as C, Psn, QpState, RemoteEndpoint, RetryCount, RtsAttributes,
    WorkKind, WorkRequest,
};

use super::case::{Section, case};
use super::device::{Device, Kind};
use super::end::{self, End, LEN, Options, rc};
use super::protection::Op;
use super::seed::Random;
use super::verbs_side::{Plan, Side, connected, failed, flushed, received, rts, sent};

pub(crate) const CASES: Section = Section {
    topic: "silent peers",
    cases: &[
        case!(
            a_peer_that_is_not_ready_is_silent_until_the_retries_are_used_up,
            "specification: acknowledgement timer"
        ),
        case!(
            a_peer_that_is_not_ready_does_not_answer_requests_of_any_kind,
            "specification: acknowledgement timer; qp_test: ResponderNotReadyToReceive; rc_test: RemoteRcQpStateTests"
        ),
        case!(
            a_peer_in_rtr_or_rts_answers_requests_of_any_kind,
            "specification: what each state permits; rc_test: RemoteRcQpStateTests"
        ),
        case!(
            a_peer_that_was_destroyed_is_silent,
            "specification: acknowledgement timer"
        ),
        case!(
            a_silent_peer_is_waited_for_as_long_as_was_asked,
            "specification: acknowledgement timer"
        ),
        case!(
            without_a_timeout_a_silent_peer_is_waited_for_for_ever,
            "specification: acknowledgement timer"
        ),
        case!(
            a_peer_that_becomes_ready_in_time_gets_what_was_sent_before,
            "specification: acknowledgement timer"
        ),
        case!(
            a_peer_that_expects_other_sequence_numbers_drops_everything_silently,
            "specification: sequence numbers"
        ),
        case!(
            a_sequence_number_with_one_flipped_bit_is_dropped,
            "specification: sequence numbers"
        ),
    ],
};

fn a_peer_that_is_not_ready_is_silent_until_the_retries_are_used_up(_: &Device) {
    for peer_state in [QpState::Reset, QpState::Init, QpState::Error] {
        let (mut left, mut right) = (Side::new(Plan::default()), Side::new(Plan::default()));
        left.init();
        if peer_state != QpState::Reset {
            right.init();
        }
        if peer_state == QpState::Error {
            let to_left = left.endpoint();
            right.rtr(to_left);
            right.go(QpState::Error);
        }
        let to_right = right.endpoint();
        left.rtr(to_right);
        left.rts();
        let start = Instant::now();
        left.send(10, 1);
        left.send_signaled(10, 2);
        let done = left.wait(2);
        // 4.096 µs × 2^10 × (2 + 1).
        assert!(
            start.elapsed() >= Duration::from_micros(12_583),
            "{:?}",
            start.elapsed()
        );
        assert_eq!(
            done[0],
            failed(WorkKind::Send, C::RetryExceeded),
            "{peer_state}"
        );
        assert_eq!(done[1], flushed(WorkKind::Send));
    }
}

fn a_peer_that_is_not_ready_does_not_answer_requests_of_any_kind(_: &Device) {
    let options = Options {
        // 4.096 µs × 2^9 × 6 = 12.6 ms.
        timeout: AckTimeout::new(9).unwrap(),
        ..rc()
    };
    for state in [QpState::Reset, QpState::Init, QpState::Error] {
        for op in [None].into_iter().chain(Op::ALL.map(Some)) {
            let (mut left, mut right) = (End::new(options), End::new(options));
            end::init(&mut left.qp, options);
            end::rtr(&mut left.qp, right.qp.qp_num(), options);
            end::rts(&mut left.qp, options);
            if state != QpState::Reset {
                end::init(&mut right.qp, options);
                right.recv(0..8);
            }
            if state == QpState::Error {
                right.go(QpState::Error);
                right.expect_recv(C::WorkRequestFlushed);
            }
            left.fill(0..8, 1);
            let request = match op {
                None => WorkRequest::send(left.at(0..8)),
                Some(op) => op.request(left.at(0..8), right.remote(0)),
            };
            left.expect(request, C::RetryExceeded);
            right.assert_quiet();
            assert_eq!(right.state(), state, "{op:?}");
            assert!(right.is_all(0..LEN, 0), "{op:?}");
        }
    }
}

fn a_peer_in_rtr_or_rts_answers_requests_of_any_kind(_: &Device) {
    for state in [QpState::Rtr, QpState::Rts] {
        for op in Op::ALL {
            let (mut left, mut right) = (End::new(rc()), End::new(rc()));
            end::init(&mut left.qp, rc());
            end::init(&mut right.qp, rc());
            end::rtr(&mut left.qp, right.qp.qp_num(), rc());
            end::rtr(&mut right.qp, left.qp.qp_num(), rc());
            end::rts(&mut left.qp, rc());
            if state == QpState::Rts {
                end::rts(&mut right.qp, rc());
            }
            left.succeed(op.request(left.at(0..8), right.remote(0)));
            assert_eq!(right.state(), state, "{op:?}");
        }
    }
}

fn a_peer_that_was_destroyed_is_silent(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    right.post_recv(1);
    left.send_signaled(10, 1);
    left.wait(1);
    drop(right);
    left.send(10, 2);
    assert_eq!(left.wait_one(), failed(WorkKind::Send, C::RetryExceeded));
}

fn a_silent_peer_is_waited_for_as_long_as_was_asked(device: &Device) {
    // rxe waits for whole ticks of the kernel's clock, of 10 ms at the most, and leaves fractions out
    // (nsecs_to_jiffies in rxe_qp_from_attr).
    let tick = match device.kind {
        Kind::Soft => Duration::ZERO,
        _ => Duration::from_millis(10),
    };
    for retries in [0, 1] {
        let (mut left, mut right) = (Side::new(Plan::default()), Side::new(Plan::default()));
        left.init();
        right.init();
        left.rtr(right.endpoint());
        // 4.096 µs × 2^15 = 134.2 ms.
        let attributes = RtsAttributes {
            timeout: AckTimeout::new(15).unwrap(),
            retry_cnt: RetryCount::new(retries).unwrap(),
            ..rts()
        };
        left.qp.to_rts(attributes).unwrap();
        let start = Instant::now();
        left.send(10, 1);
        assert_eq!(left.wait_one(), failed(WorkKind::Send, C::RetryExceeded));
        let elapsed = start.elapsed();
        let least = Duration::from_micros(134_217) * (u32::from(retries) + 1);
        let ticks = tick * (u32::from(retries) + 1);
        assert!(elapsed >= least - ticks, "{retries} retries: {elapsed:?}");
    }
}

fn without_a_timeout_a_silent_peer_is_waited_for_for_ever(_: &Device) {
    let (mut left, mut right) = (Side::new(Plan::default()), Side::new(Plan::default()));
    left.init();
    right.init();
    left.rtr(right.endpoint());
    left.qp
        .to_rts(RtsAttributes {
            timeout: AckTimeout::FOREVER,
            ..rts()
        })
        .unwrap();
    left.send_signaled(10, 1);
    for _ in 0..3 {
        left.assert_quiet();
    }
    assert_eq!(left.state(), QpState::Rts);
}

fn a_peer_that_becomes_ready_in_time_gets_what_was_sent_before(_: &Device) {
    let (mut left, mut right) = (Side::new(Plan::default()), Side::new(Plan::default()));
    left.init();
    right.init();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    left.rtr(to_right);
    left.qp.to_rts(RtsAttributes::new(rts().psn)).unwrap();
    left.send_signaled(10, 1);
    right.rtr(to_left);
    right.post_recv(1);
    assert_eq!(right.wait_one(), received(10, 1));
    assert_eq!(left.wait_one(), sent());
}

fn a_peer_that_expects_other_sequence_numbers_drops_everything_silently(_: &Device) {
    // The software device learns what the peer expects behind RTS or, after the pause, before it.
    for pause in [Duration::ZERO, Duration::from_millis(50)] {
        let (mut left, mut right) = (Side::new(Plan::default()), Side::new(Plan::default()));
        left.init();
        right.init();
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        left.rtr(to_right);
        right.rtr(to_left);
        thread::sleep(pause);
        left.qp
            .to_rts(RtsAttributes {
                psn: Psn::new(1),
                ..rts()
            })
            .unwrap();
        right.post_recv(1);
        left.send(10, 1);
        assert_eq!(left.wait_one(), failed(WorkKind::Send, C::RetryExceeded));
        right.assert_quiet();
        assert_eq!(right.state(), QpState::Rtr);
    }
}

/// The sender is ahead of what its peer expects: what is behind it counts as sent again.
fn a_sequence_number_with_one_flipped_bit_is_dropped(device: &Device) {
    let mut random = Random::new();
    let bits: Vec<u32> = match device.kind {
        Kind::Soft => (0..24).collect(),
        // Half of all numbers are ahead, so the highest bit says nothing.
        _ => vec![random.below(23) as u32],
    };
    for bit in bits {
        let expected = random.next() as u32 & 0x00ff_ffff & !(1 << bit);
        let (mut left, mut right) = (Side::new(Plan::default()), Side::new(Plan::default()));
        left.init();
        right.init();
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        left.rtr(to_right);
        right.rtr(RemoteEndpoint {
            psn: Psn::new(expected),
            ..to_left
        });
        let attributes = RtsAttributes {
            psn: Psn::new(expected | 1 << bit),
            ..rts()
        };
        left.qp.to_rts(attributes).unwrap();
        right.post_recv(1);
        left.send(10, 1);
        let failure = failed(WorkKind::Send, C::RetryExceeded);
        assert_eq!(left.wait_one(), failure, "bit {bit} of {expected:#x}");
        assert_eq!(right.poll(), [], "bit {bit} of {expected:#x}");
        assert_eq!(right.state(), QpState::Rtr);
    }
}
