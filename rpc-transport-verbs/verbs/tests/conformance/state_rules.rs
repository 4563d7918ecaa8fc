//! The rules of each queue pair state: what may be posted, what ERR flushes, what RESET discards,
//! and what SQD holds back.

use verbline_verbs::{
    AsyncEvent, CompletionStatus, ModifyError, PostErrorReason, QpAttributes, QpState as S,
    WorkKind,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::states::{REACHABLE, side_in};
use super::verbs_side::{self, Plan, Side, connected, failed, flushed, received, sent};

pub(crate) const CASES: Section = Section {
    topic: "what each state permits",
    cases: &[
        case!(
            each_state_takes_or_refuses_posts_as_specified,
            "specification: what each state permits; qp_test: PostSendReset, PostRecvReset, PostSendInit, PostRecvInit, PostSendRtr, PostRecvRtr"
        ),
        case!(
            what_is_posted_in_error_is_flushed_unsignaled_or_not,
            "specification: what each state permits; qp_test: PostSendErr, PostRecvErr"
        ),
        case!(
            what_is_posted_after_a_failure_is_flushed_at_the_latest_by_going_to_error,
            "specification: what each state permits; qp_test: PostSendErrDelayed"
        ),
        case!(
            receives_are_flushed_in_their_order,
            "specification: flush order"
        ),
        case!(
            going_to_error_flushes_sends_and_receives_in_order,
            "specification: flush order; qp_test: ModRtsToError"
        ),
        case!(
            reset_forgets_everything_without_a_completion_and_the_way_up_is_free,
            "specification: what each state permits; qp_test: ReuseQp"
        ),
        case!(
            a_drained_send_queue_receives_but_starts_nothing_until_it_is_back_in_rts,
            "specification: send queue drained"
        ),
        case!(
            a_send_queue_that_is_still_draining_cannot_go_back_to_rts,
            "specification: send queue drained"
        ),
        case!(
            the_first_message_before_rts_establishes_the_communication_once,
            "specification: asynchronous events"
        ),
    ],
};

fn each_state_takes_or_refuses_posts_as_specified(_: &Device) {
    for state in REACHABLE {
        let mut side = side_in(state);
        let can_receive = state != S::Reset;
        assert_eq!(
            side.try_post_recv(1).is_ok(),
            can_receive,
            "post_recv in {state}"
        );
        let can_send = matches!(state, S::Rts | S::Sqd | S::Error);
        let request = side.message(8, 1);
        let posted = side.post(request);
        assert_eq!(posted.is_ok(), can_send, "post_send in {state}");
        if let Err(error) = posted {
            assert_eq!(error.reason, PostErrorReason::State { state });
        }
    }
}

fn what_is_posted_in_error_is_flushed_unsignaled_or_not(_: &Device) {
    let mut side = side_in(S::Error);
    side.post_recv(2);
    side.send(8, 1);
    side.send_signaled(8, 2);
    assert_flushed(&mut side, 2, 2);
}

fn what_is_posted_after_a_failure_is_flushed_at_the_latest_by_going_to_error(device: &Device) {
    let (mut left, right) = connected(Plan::default());
    drop(right);
    left.send(8, 1);
    let exceeded = CompletionStatus::RetryExceeded;
    assert_eq!(left.wait_one(), failed(WorkKind::Send, exceeded));
    assert_eq!(left.state(), S::Error);
    left.send(8, 2);
    assert_eq!(left.wait_one(), flushed(WorkKind::Send));
    left.post_recv(2);
    if device.deviates(&rxe::RECEIVES_STAY_IN_ERROR, false, true) {
        left.assert_quiet();
        left.go(S::Error);
    }
    assert_flushed(&mut left, 0, 2);
}

/// Checks that everything is flushed. The order between sends and receives is not specified.
fn assert_flushed(side: &mut Side, sends: usize, receives: usize) {
    let done = side.wait(sends + receives);
    for (kind, count) in [(WorkKind::Send, sends), (WorkKind::Receive, receives)] {
        let of_kind: Vec<_> = done.iter().filter(|done| done.kind == kind).collect();
        assert_eq!(of_kind, vec![&flushed(kind); count], "{kind:?}");
    }
}

fn going_to_error_flushes_sends_and_receives_in_order(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    let slots = left.slots.len();
    left.post_recv(3);
    right.post_recv(1);
    left.send_signaled(10, 1);
    right.wait(1);
    assert_eq!(left.wait_one(), sent(), "acknowledged, so not flushed");
    // The peer has no receives for these: they stay unacknowledged.
    for fill in 2..5 {
        left.send(10, fill);
    }
    left.go(S::Error);
    assert_flushed(&mut left, 3, 3);
    assert_eq!(left.slots.len(), slots, "every slot is back");
    assert_eq!(left.state(), S::Error);
    left.assert_quiet();
}

fn reset_forgets_everything_without_a_completion_and_the_way_up_is_free(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    let slots = left.slots.len();
    // Many rounds: the second connection setup can start before the peer knows of the first.
    for round in 1..50 {
        left.post_recv(3);
        left.send(10, 1);
        left.send_signaled(10, 2);
        for side in [&mut left, &mut right] {
            let back = &mut side.slots;
            side.qp.reclaim(&mut |slot| back.push(slot)).unwrap();
            assert_eq!(side.slots.len(), slots);
            assert_eq!(side.state(), S::Reset);
            assert_eq!(side.poll(), []);
        }
        left.init();
        right.init();
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        left.rtr(to_right);
        right.rtr(to_left);
        left.rts();
        right.rts();
        right.post_recv(1);
        left.send_signaled(10, round);
        assert_eq!(right.wait_one(), received(10, round));
        assert_eq!(left.wait_one(), sent());
    }
}

fn a_drained_send_queue_receives_but_starts_nothing_until_it_is_back_in_rts(device: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    left.post_recv(1);
    right.post_recv(1);
    left.qp
        .modify(&QpAttributes {
            state: Some(S::Sqd),
            notify_drained: Some(true),
            ..QpAttributes::default()
        })
        .unwrap();
    assert_eq!(
        left.event(),
        AsyncEvent::SqDrained {
            qp_num: left.qp.qp_num()
        }
    );
    left.send_signaled(10, 1);
    right.send(10, 2);
    assert_eq!(left.wait_one(), received(10, 2));
    right.assert_quiet();
    left.go(S::Rts);
    if device.deviates(&rxe::SQD_RESUMES_LATE, false, true) {
        // Soft-RoCE does not resume the send queue until the next request is posted.
        right.assert_quiet();
        right.post_recv(1);
        left.send(10, 3);
        let fills: Vec<_> = right.wait(2).iter().map(|done| done.first).collect();
        assert_eq!(fills, [1, 3]);
    } else {
        assert_eq!(right.wait_one(), received(10, 1));
    }
    assert_eq!(left.wait_one(), sent());
}

fn a_send_queue_that_is_still_draining_cannot_go_back_to_rts(device: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    left.send(10, 1);
    // The request has started once the peer has sent an RNR NAK for it.
    while right.rnr_naks_sent() == 0 {
        right.poll();
    }
    left.go(S::Sqd);
    if device.deviates(&rxe::RNR_IS_NOT_BEGUN, false, true) {
        // A request that got an RNR NAK counts as not started, and starts again with the next send.
        let qp_num = left.qp.qp_num();
        assert_eq!(left.event(), AsyncEvent::SqDrained { qp_num });
        right.post_recv(2);
        right.assert_quiet();
        left.go(S::Rts);
        left.send(10, 2);
        let fills: Vec<_> = right.wait(2).iter().map(|done| done.first).collect();
        assert_eq!(fills, [1, 2]);
        return;
    }
    let error = left
        .qp
        .modify(&QpAttributes {
            state: Some(S::Rts),
            ..QpAttributes::default()
        })
        .unwrap_err();
    assert!(matches!(error, ModifyError::Draining), "{error}");
    right.post_recv(1);
    right.wait(1);
    let start = std::time::Instant::now();
    let back = QpAttributes {
        state: Some(S::Rts),
        ..QpAttributes::default()
    };
    while left.qp.modify(&back).is_err() {
        left.poll();
        assert!(start.elapsed() < verbs_side::HANG);
    }
}

fn the_first_message_before_rts_establishes_the_communication_once(device: &Device) {
    let (mut left, mut right) = (Side::new(Plan::default()), Side::new(Plan::default()));
    left.init();
    right.init();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    left.rtr(to_right);
    right.rtr(to_left);
    left.rts();
    right.post_recv(2);
    left.send(10, 1);
    left.send(10, 2);
    right.wait(2);
    if device.deviates(&rxe::FEW_EVENTS, true, false) {
        assert_eq!(
            right.event(),
            AsyncEvent::CommunicationEstablished {
                qp_num: right.qp.qp_num()
            }
        );
    }
    right.assert_no_event();
}

fn receives_are_flushed_in_their_order(_: &Device) {
    let (mut left, _right) = connected(Plan::default());
    let slots = left.slots.iter().rev();
    let posted: Vec<_> = slots.take(5).map(|slot| slot.as_ptr()).collect();
    left.post_recv(5);
    left.go(S::Error);
    let mut flushed = Vec::new();
    let start = std::time::Instant::now();
    while flushed.len() < 5 {
        let mut completions = Vec::new();
        left.cq.poll(&mut completions, 8).unwrap();
        for completion in completions {
            assert_eq!(completion.status(), CompletionStatus::WorkRequestFlushed);
            let (slot, _) = left.qp.claim_recv(completion).unwrap();
            flushed.push(slot.as_ptr());
            left.slots.push(slot);
        }
        assert!(start.elapsed() < verbs_side::HANG);
    }
    assert_eq!(flushed, posted);
}
