//! Queue pairs that the application ends, or drains.

use super::*;
use crate::QpAttributes;

#[test]
fn a_queue_pair_moved_to_error_flushes_sends_and_then_receives() {
    in_every_way(|plan| {
        let (mut left, mut right) = connected(plan, plan);
        right.receive(2);
        left.receive(3);
        left.post([left.send(), left.send().signaled()]);
        left.post([left.send().signaled(), left.send()]);
        expect([
            (&mut left, &["send 2: Success"]),
            (&mut right, &["receive 1: Success", "receive 2: Success"]),
        ]);
        left.qp.to_error().expect("ERROR");
        expect([
            (
                &mut left,
                &[
                    "send 3: WorkRequestFlushed",
                    "send 4: WorkRequestFlushed",
                    "receive 1: WorkRequestFlushed",
                    "receive 2: WorkRequestFlushed",
                    "receive 3: WorkRequestFlushed",
                ],
            ),
            (&mut right, &[]),
        ]);
        left.post([left.send(), left.send()]);
        left.receive(1);
        expect([(
            &mut left,
            &[
                "send 5: WorkRequestFlushed",
                "send 6: WorkRequestFlushed",
                "receive 4: WorkRequestFlushed",
            ],
        )]);
        // The peer hears of it when it sends something.
        assert_eq!(right.state(), QpState::Rts);
        right.receive(1);
        right.post([right.send(), right.send()]);
        expect([(
            &mut right,
            &[
                "send 1: RetryExceeded",
                "send 2: WorkRequestFlushed",
                "receive 3: WorkRequestFlushed",
            ],
        )]);
    });
}

/// A queue pair moved to RESET forgets everything, and its peer is none the wiser.
#[test]
fn a_queue_pair_that_is_reset_completes_nothing() {
    in_every_way(|plan| {
        let (mut left, mut right) = connected(plan, plan);
        left.receive(2);
        left.post([left.send(), left.send().signaled()]);
        left.qp.reclaim(&mut drop).expect("RESET");
        assert_eq!(left.state(), QpState::Reset);
        expect([(&mut left, &[]), (&mut right, &[])]);
    });
}

fn drain(end: &mut End) {
    let sqd = QpAttributes {
        state: Some(QpState::Sqd),
        notify_drained: Some(true),
        ..QpAttributes::default()
    };
    end.qp.modify(&sqd).expect("SQD");
}

#[test]
fn a_queue_pair_that_is_drained_finishes_what_is_in_flight_and_says_so() {
    in_every_way(|plan| {
        let (mut left, mut right) = connected(plan, plan);
        left.receive(2);
        left.post([left.send().signaled(), left.send(), left.send().signaled()]);
        drain(&mut left);
        left.post([left.send().signaled()]);
        // The peer is not ready.
        expect([(&mut left, &[]), (&mut right, &[])]);
        right.receive(5);
        expect([
            (
                &mut left,
                &["send 1: Success", "send 3: Success", "event SqDrained"],
            ),
            (
                &mut right,
                &[
                    "receive 1: Success",
                    "receive 2: Success",
                    "receive 3: Success",
                ],
            ),
        ]);
        let rts = QpAttributes {
            state: Some(QpState::Rts),
            ..QpAttributes::default()
        };
        left.qp.modify(&rts).expect("RTS");
        expect([
            (&mut left, &["send 4: Success"]),
            (&mut right, &["receive 4: Success"]),
        ]);
    });
}

#[test]
fn a_queue_pair_that_ends_while_it_is_drained_says_nothing_of_it() {
    in_every_way(|plan| {
        let (mut left, mut right) = connected(plan, plan);
        left.receive(1);
        left.post([left.send(), left.send()]);
        drain(&mut left);
        left.post([left.send()]);
        left.qp.to_error().expect("ERROR");
        expect([
            (
                &mut left,
                &[
                    "send 1: WorkRequestFlushed",
                    "send 2: WorkRequestFlushed",
                    "send 3: WorkRequestFlushed",
                    "receive 1: WorkRequestFlushed",
                ],
            ),
            (&mut right, &[]),
        ]);
    });
}

/// The receives of a shared receive queue stay for others.
#[test]
fn a_queue_pair_with_a_shared_receive_queue_says_once_that_it_takes_no_more() {
    in_every_way(|plan| {
        let (mut left, mut right) = connected(
            plan,
            Plan {
                is_srq: true,
                ..plan
            },
        );
        right.receive(3);
        left.post([left.send().signaled()]);
        right.post([right.send()]);
        expect([
            (&mut left, &["send 1: Success"]),
            // The newest receive is taken first.
            (&mut right, &["receive 3: Success"]),
        ]);
        right.qp.to_error().expect("ERROR");
        right.qp.to_error().expect("ERROR again");
        expect([(
            &mut right,
            &["send 1: WorkRequestFlushed", "event QpLastWqeReached"],
        )]);
    });
}
