//! Completion queues: their size, their order, and what is too much for them.

use std::time::Duration;

use rpc_transport_verbs::verbs::{
    AsyncEvent, CompletionStatus as C, QpState, VerbsError, WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::end::{End, pair, rc};
use super::verbs_side::{HANG, Plan, connected_with, received, sent};

pub(crate) const CASES: Section = Section {
    topic: "completion queues",
    cases: &[
        case!(
            a_completion_queue_that_overruns_is_dead_and_takes_its_queue_pairs_along,
            "specification: completion queues; cq_test: RecvCqOverflow"
        ),
        case!(
            a_write_with_immediate_is_heard_of_as_its_sender_wishes,
            "specification: arming"
        ),
    ],
};

fn a_completion_queue_that_overruns_is_dead_and_takes_its_queue_pairs_along(device: &Device) {
    let small = Plan {
        cq_depth: 2,
        max_recv_wr: 1024,
        ..Plan::default()
    };
    let (mut left, mut right) = connected_with(Plan::default(), small);
    // As many as were asked for, or more.
    let capacity = right.cq.capacity();
    right.add_slots(capacity);
    right.post_recv(capacity + 1);
    // Nobody polls there: the device itself takes the messages.
    for fill in 0..capacity {
        left.send_signaled(10, fill as u8);
        assert_eq!(left.wait_one(), sent());
    }
    right.assert_no_event();
    left.send(10, 0);
    let cq = right.cq.number();
    assert_eq!(right.event(), AsyncEvent::CompletionQueueError { cq });
    right.wait_for_state(QpState::Error);
    if device.deviates(&rxe::OVERRUN_GOES_ON, true, false) {
        assert_eq!(
            right.event(),
            AsyncEvent::QpFatal {
                qp_num: right.qp.qp_num()
            }
        );
    }
    let mut held = Vec::new();
    while held.len() < capacity {
        held.extend(right.poll());
    }
    for (number, done) in held.iter().enumerate() {
        assert_eq!(*done, received(10, number as u8), "what was in it stays");
    }
    let after = right.cq.poll(&mut Vec::new(), 1);
    if device.deviates(&rxe::OVERRUN_GOES_ON, false, true) {
        // It goes on as if nothing had been lost.
        assert!(matches!(after, Ok(0)), "{after:?}");
    } else {
        assert!(
            matches!(after, Err(VerbsError::CompletionQueueOverrun { capacity: c }) if c == capacity),
            "{after:?}"
        );
    }
}

/// Where completions that were solicited are listened for alone.
fn a_write_with_immediate_is_heard_of_as_its_sender_wishes(_: &Device) {
    for len in [0, 8, 40_000] {
        let (mut left, mut right) = pair(rc());
        let request = |left: &End, right: &End| {
            WorkRequest::write_with_imm(left.at(0..len), right.remote(0), 5)
        };
        right.cq.arm(true).unwrap();
        right.recv_into(vec![]);
        left.succeed(request(&left, &right));
        assert_eq!(right.expect_recv(C::Success).imm, Some(5));
        // What comes later than that when it should not is missed.
        let patience = Duration::from_millis(30);
        assert_eq!(right.channel.wait(Some(patience)).unwrap(), None, "{len}");
        // It is still armed.
        right.recv_into(vec![]);
        left.succeed(request(&left, &right).solicited());
        let raised = right.channel.wait(Some(HANG)).unwrap();
        assert_eq!(raised, Some(right.cq.number()), "{len}");
        assert_eq!(right.expect_recv(C::Success).imm, Some(5));
    }
}
