//! Queue pairs that are moved to RESET and connected again: what is discarded, and what must not
//! reappear.

use verbline_verbs::{CompletionStatus as C, QpState, QueuePair, RnrRetry, WorkRequest};

use super::case::{Section, case};
use super::device::Device;
use super::end::{End, Options, connect, pair, rc};
use super::protection::nowhere;

pub(crate) const CASES: Section = Section {
    topic: "resets",
    cases: &[
        case!(
            what_was_posted_is_discarded_without_a_completion,
            "specification: what each state permits"
        ),
        case!(
            completions_from_before_a_reset_can_still_be_polled,
            "specification: what each state permits"
        ),
        case!(
            a_queue_pair_works_again_after_a_failure_and_a_reset,
            "specification: what each state permits"
        ),
        case!(
            one_sided_operations_work_again_after_a_reset,
            "specification: what each state permits"
        ),
        case!(
            what_a_peer_repeats_finds_a_reset_queue_pair_silent,
            "specification: acknowledgement timer"
        ),
        case!(
            a_reset_frees_the_slots_of_the_send_queue,
            "specification: send queue slots"
        ),
        case!(a_reset_frees_the_receives, "specification: receive queue"),
        case!(
            a_queue_pair_may_be_connected_to_another_peer_after_a_reset,
            "specification: what each state permits"
        ),
        case!(
            a_reset_of_a_queue_pair_in_reset_changes_nothing,
            "specification: queue pair states"
        ),
    ],
};

/// Moves the queue pair to RESET and reclaims the requests in flight.
fn reset(qp: &mut QueuePair) {
    qp.reclaim(&mut drop).unwrap();
}

fn up_again(left: &mut End, right: &mut End) {
    reset(&mut left.qp);
    reset(&mut right.qp);
    connect((&mut left.qp, left.options), (&mut right.qp, right.options));
}

fn what_was_posted_is_discarded_without_a_completion(_: &Device) {
    let (mut left, mut right) = pair(rc());
    left.recv(0..64);
    // The peer has no receive for this message.
    left.post(WorkRequest::send(left.at(0..8)).signaled());
    left.post(WorkRequest::write(left.at(0..8), right.remote(0)).signaled());
    reset(&mut left.qp);
    left.assert_quiet();
    right.recv(64..128);
    right.assert_quiet();
    assert_eq!(left.state(), QpState::Reset);
}

fn completions_from_before_a_reset_can_still_be_polled(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..64);
    left.post(WorkRequest::send(left.at(0..8)).signaled());
    right.expect_recv(C::Success);
    // Wait until the completion has arrived.
    std::thread::sleep(std::time::Duration::from_millis(20));
    left.qp.modify(&super::end::to(QpState::Reset)).unwrap();
    let mut completions = Vec::new();
    left.cq.poll(&mut completions, 8).unwrap();
    for completion in &completions {
        assert!(completion.is_success());
    }
    assert!(completions.len() <= 1);
}

fn a_queue_pair_works_again_after_a_failure_and_a_reset(_: &Device) {
    let (mut left, mut right) = pair(rc());
    for _ in 0..10 {
        let [wrong, ..] = nowhere(&right);
        right.recv(0..64);
        left.expect(WorkRequest::write(left.at(0..8), wrong), C::RemoteAccess);
        assert_eq!(right.one().status, C::WorkRequestFlushed);
        up_again(&mut left, &mut right);
        right.recv(0..64);
        left.succeed(WorkRequest::send(left.at(0..8)));
        right.expect_recv(C::Success);
    }
}

fn one_sided_operations_work_again_after_a_reset(_: &Device) {
    let (mut left, mut right) = pair(rc());
    for round in 1..=10_u8 {
        left.fill(0..100, round);
        left.succeed(WorkRequest::write(left.at(0..100), right.remote(0)));
        left.succeed(WorkRequest::read(left.at(100..200), right.remote(0)));
        left.succeed(WorkRequest::fetch_and_add(
            left.at(200..208),
            right.remote(1000),
            1,
        ));
        assert!(left.is_all(100..200, round));
        assert_eq!(left.bytes(200..208), u64::from(round - 1).to_ne_bytes());
        up_again(&mut left, &mut right);
    }
}

fn what_a_peer_repeats_finds_a_reset_queue_pair_silent(_: &Device) {
    let (mut left, mut right) = pair(rc());
    reset(&mut right.qp);
    left.expect(
        WorkRequest::write(left.at(0..8), right.remote(0)),
        C::RetryExceeded,
    );
    right.assert_quiet();
    assert_eq!(right.state(), QpState::Reset);
}

fn a_reset_frees_the_slots_of_the_send_queue(_: &Device) {
    let (mut left, mut right) = pair(rc());
    let depth = left.qp.capabilities().max_send_wr;
    for _ in 0..depth {
        left.post(WorkRequest::write(left.at(0..8), right.remote(0)));
    }
    assert_eq!(left.qp.send_slots_free(), 0);
    up_again(&mut left, &mut right);
    assert_eq!(left.qp.send_slots_free(), depth);
    for _ in 1..depth {
        left.post(WorkRequest::write(left.at(0..8), right.remote(0)));
    }
    left.succeed(WorkRequest::write(left.at(0..8), right.remote(0)));
}

fn a_reset_frees_the_receives(_: &Device) {
    let (mut left, mut right) = pair(Options {
        rnr_retry: RnrRetry::new(0).unwrap(),
        ..rc()
    });
    for _ in 0..3 {
        for _ in 0..right.qp.capabilities().max_recv_wr {
            right.recv(0..64);
        }
        up_again(&mut left, &mut right);
    }
    // None of the receives is left.
    left.expect(WorkRequest::send(left.at(0..8)), C::RnrRetryExceeded);
}

fn a_queue_pair_may_be_connected_to_another_peer_after_a_reset(_: &Device) {
    let (mut left, mut first) = pair(rc());
    let mut second = End::new(rc());
    first.recv(0..64);
    left.succeed(WorkRequest::send(left.at(0..8)));
    first.expect_recv(C::Success);
    first.recv(0..64);
    reset(&mut left.qp);
    connect((&mut left.qp, rc()), (&mut second.qp, rc()));
    second.recv(0..64);
    left.succeed(WorkRequest::send(left.at(0..8)));
    second.expect_recv(C::Success);
    first.assert_quiet();
}

fn a_reset_of_a_queue_pair_in_reset_changes_nothing(_: &Device) {
    let mut end = End::new(rc());
    for _ in 0..3 {
        reset(&mut end.qp);
        assert_eq!(end.state(), QpState::Reset);
    }
}
