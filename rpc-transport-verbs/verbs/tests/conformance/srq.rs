//! A shared receive queue: which queue pair gets which receive, the limit and its event, and the
//! device's progress while no queue is polled.

use std::time::Instant;

use verbline_verbs::{AsyncEvent, PostErrorReason, QpState, VerbsError};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::verbs_side::{self, HANG, Plan, Side, connected, connected_with, received, sent};

pub(crate) const CASES: Section = Section {
    topic: "shared receive queues",
    cases: &[
        case!(
            the_limit_fires_below_it_not_at_it_and_once,
            "specification: shared receive queues; srq_test: SrqLimit"
        ),
        case!(
            an_armed_limit_does_not_fire_for_what_is_already_below,
            "specification: shared receive queues"
        ),
        case!(
            a_limit_can_be_armed_again_after_posting_and_disarmed,
            "specification: shared receive queues"
        ),
        case!(
            a_limit_above_the_depth_is_refused_and_nothing_changes,
            "specification: shared receive queues"
        ),
        case!(creating_arms_nothing, "specification: creation parameters"),
        case!(
            it_takes_what_it_has_room_for,
            "specification: shared receive queues; srq_test: MaxWr, ExceedMaxWr"
        ),
        case!(
            a_queue_pair_with_a_shared_receive_queue_has_none_of_its_own,
            "specification: creation parameters; srq_test: CreateQpWithSrq, PostWrongApi"
        ),
        case!(
            while_nobody_polls_the_device_takes_messages_and_says_when_few_receives_are_left,
            "specification: shared receive queues"
        ),
        case!(
            two_threads_post_while_the_poller_claims,
            "specification: threads"
        ),
        case!(
            a_failed_receive_gives_its_slot_back_and_leaves_the_others_posted,
            "specification: flush order"
        ),
        case!(
            a_queue_pair_on_a_shared_receive_queue_says_when_it_has_taken_its_last,
            "specification: asynchronous events"
        ),
    ],
};

fn pair(srq_wr: usize) -> (Side, Side) {
    connected_with(
        Plan::default(),
        Plan {
            srq_wr,
            ..Plan::default()
        },
    )
}

fn limit_of(side: &Side) -> usize {
    side.srq.as_ref().unwrap().query().unwrap().limit
}

fn arm(side: &Side, limit: usize) {
    side.srq.as_ref().unwrap().arm_limit(limit).unwrap();
}

fn consume(left: &mut Side, right: &mut Side, count: usize) {
    for _ in 0..count {
        left.send_signaled(10, 1);
        left.wait(1);
    }
    right.wait(count);
}

fn limit_event(side: &Side) -> AsyncEvent {
    AsyncEvent::SrqLimitReached {
        srq: side.srq.as_ref().unwrap().number(),
    }
}

fn the_limit_fires_below_it_not_at_it_and_once(_: &Device) {
    let (mut left, mut right) = pair(16);
    right.post_recv(10);
    arm(&right, 7);
    consume(&mut left, &mut right, 3);
    assert_eq!(limit_of(&right), 7);
    right.assert_no_event();
    consume(&mut left, &mut right, 1);
    assert_eq!(right.event(), limit_event(&right));
    assert_eq!(limit_of(&right), 0, "it is disarmed");
    consume(&mut left, &mut right, 3);
    right.assert_no_event();
}

fn an_armed_limit_does_not_fire_for_what_is_already_below(_: &Device) {
    let (mut left, mut right) = pair(16);
    right.post_recv(2);
    arm(&right, 5);
    right.assert_no_event();
    consume(&mut left, &mut right, 1);
    assert_eq!(right.event(), limit_event(&right));
}

fn a_limit_can_be_armed_again_after_posting_and_disarmed(_: &Device) {
    let (mut left, mut right) = pair(16);
    for _ in 0..3 {
        right.post_recv(4);
        arm(&right, 4);
        consume(&mut left, &mut right, 1);
        assert_eq!(right.event(), limit_event(&right));
        consume(&mut left, &mut right, 3);
    }
    right.post_recv(4);
    arm(&right, 4);
    arm(&right, 0);
    consume(&mut left, &mut right, 4);
    right.assert_no_event();
}

fn a_limit_above_the_depth_is_refused_and_nothing_changes(_: &Device) {
    let (_left, right) = pair(16);
    let depth = right.receive_capacity();
    arm(&right, depth);
    let srq = right.srq.as_ref().unwrap();
    let error = srq.arm_limit(depth + 1).unwrap_err();
    assert!(
        matches!(
            error,
            VerbsError::OutOfRange {
                parameter: "limit",
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(limit_of(&right), depth);
}

fn creating_arms_nothing(_: &Device) {
    let (_left, right) = pair(16);
    assert_eq!(limit_of(&right), 0);
}

fn it_takes_what_it_has_room_for(_: &Device) {
    let (_left, mut right) = pair(4);
    let capacity = right.receive_capacity();
    right.add_slots(capacity);
    let slots = right.slots.len();
    let error = right.try_post_recv(capacity + 2).unwrap_err();
    assert_eq!(
        (error.taken, error.reason),
        (capacity, PostErrorReason::QueueFull { capacity })
    );
    assert_eq!(right.slots.len(), slots - capacity);
}

fn a_queue_pair_with_a_shared_receive_queue_has_none_of_its_own(_: &Device) {
    let (_left, mut right) = pair(4);
    assert_eq!(right.qp.capabilities().max_recv_wr, 0);
    let mut slots = right.slots.split_off(right.slots.len() - 1);
    let error = right.qp.post_recv(&mut slots, 1).unwrap_err();
    assert_eq!(error.reason, PostErrorReason::HasSharedReceiveQueue);
}

fn while_nobody_polls_the_device_takes_messages_and_says_when_few_receives_are_left(_: &Device) {
    let (mut left, mut right) = pair(16);
    right.post_recv(8);
    arm(&right, 4);
    for fill in 1..=6 {
        left.send(10, fill);
    }
    // No queue is polled here: the event is raised nevertheless, and another thread posts more
    // receives.
    assert_eq!(right.event(), limit_event(&right));
    let srq = right.srq.clone().unwrap();
    let mut reserve = right.slots.split_off(right.slots.len() - 6);
    std::thread::spawn(move || srq.post_recv(&mut reserve, 6).unwrap())
        .join()
        .unwrap();
    for fill in 7..14 {
        left.send(10, fill);
    }
    left.send_signaled(10, 14);
    assert_eq!(left.wait_one(), sent(), "all have been taken");
    let fills: Vec<_> = right.wait(14).iter().map(|done| done.first).collect();
    assert_eq!(fills, (1..=14).collect::<Vec<_>>());
    assert_eq!(right.rnr_naks_sent(), 0);
}

fn two_threads_post_while_the_poller_claims(_: &Device) {
    let (mut left, mut right) = connected_with(
        Plan {
            max_send_wr: 64,
            ..Plan::default()
        },
        Plan {
            srq_wr: 64,
            cq_depth: 1024,
            ..Plan::default()
        },
    );
    let srq = right.srq.clone().unwrap();
    const MESSAGES: usize = 5_000;
    let (give, slots) = std::sync::mpsc::channel();
    // Fewer than the queue's capacity, so there is always room for the slot in hand.
    for slot in right.slots.drain(..60) {
        give.send(slot).unwrap();
    }
    let slots = std::sync::Arc::new(std::sync::Mutex::new(slots));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (slots, srq) = (slots.clone(), srq.clone());
            scope.spawn(move || {
                let mut in_hand = Vec::new();
                while let Ok(slot) = slots.lock().unwrap().recv() {
                    in_hand.push(slot);
                    srq.post_recv(&mut in_hand, 1).unwrap();
                }
            });
        }
        scope.spawn(move || {
            for number in 0..MESSAGES {
                let request = left.message(8, (number % 251) as u8);
                let request = if number % 8 == 7 {
                    request.signaled()
                } else {
                    request
                };
                let mut list = vec![request];
                let start = Instant::now();
                while left.post_list(&mut list).is_err() {
                    left.poll();
                    assert!(start.elapsed() < HANG);
                    std::thread::yield_now();
                }
            }
            // A destroyed queue pair does not retransmit: keep it until everything has been
            // received.
            while left.qp.send_slots_free() < 64 {
                left.poll();
                std::thread::yield_now();
            }
        });
        let mut completions = Vec::new();
        let start = Instant::now();
        let mut next = 0;
        while next < MESSAGES {
            right.cq.poll(&mut completions, 16).unwrap();
            for completion in completions.drain(..) {
                let (slot, len) = srq.claim(completion).unwrap();
                assert_eq!((len, slot[0]), (8, (next % 251) as u8));
                next += 1;
                give.send(slot).unwrap();
            }
            assert!(start.elapsed() < 3 * HANG, "{next} of {MESSAGES}");
        }
        drop(give);
    });
}

fn a_failed_receive_gives_its_slot_back_and_leaves_the_others_posted(_: &Device) {
    let (mut left, mut right) = pair(8);
    let mut short = verbs_side::region(&right.domain, 1).into_slots(64).unwrap();
    let srq = right.srq.clone().unwrap();
    let is_first = verbs_side::shared_receive(0, 2) == 0;
    if !is_first {
        right.post_recv(3);
    }
    srq.post_recv(&mut short, 1).unwrap();
    if is_first {
        right.post_recv(3);
    }
    let slots = right.slots.len();
    left.send(200, 1);
    assert_ne!(right.wait_one().status, received(0, 0).status);
    assert_eq!(right.slots.len(), slots + 1);
    right.assert_quiet();
    let capacity = right.receive_capacity();
    right.add_slots(capacity);
    let error = right.try_post_recv(capacity).unwrap_err();
    assert_eq!(error.taken, capacity - 3, "three are still posted");
}

fn a_queue_pair_on_a_shared_receive_queue_says_when_it_has_taken_its_last(device: &Device) {
    let plan = Plan {
        srq_wr: 8,
        ..Plan::default()
    };
    let (mut left, mut right) = connected(plan);
    right.post_recv(4);
    left.send(10, 1);
    right.wait(1);
    right.go(QpState::Error);
    if device.deviates(&rxe::FEW_EVENTS, true, false) {
        assert_eq!(
            right.event(),
            AsyncEvent::QpLastWqeReached {
                qp_num: right.qp.qp_num()
            }
        );
    }
    right.assert_quiet();
    right.go(QpState::Error);
    right.assert_no_event();
}
