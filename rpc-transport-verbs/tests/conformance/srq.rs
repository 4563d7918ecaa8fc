//! A shared receive queue: who gets what, the limit and its event, and the device's progress while
//! nobody polls.

use std::time::Instant;

use rpc_transport_verbs::verbs::{
    AsyncEvent, CompletionStatus as C, ExposedMemory, PostErrorReason, QpState, QueuePairConfig,
    ReceiveRequest, RnrRetry, VerbsError, WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::end::{self, End, Options, rc};
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
            "specification: shared receive queues; srq_test: MaxWr, ExceedMaxWr, ExceedMaxWrInfinitChain"
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
            "specification: threads; srq_test: MultiThreadedSrqLoopback"
        ),
        case!(
            a_failed_receive_gives_its_slot_back_and_leaves_the_others_posted,
            "specification: flush order; srq_test: QpFlush"
        ),
        case!(
            a_queue_pair_on_a_shared_receive_queue_says_when_it_has_taken_its_last,
            "specification: asynchronous events"
        ),
        case!(
            a_shared_receive_queue_has_room_for_what_was_asked_for,
            "specification: creation parameters; srq_test: Create, DeviceCap"
        ),
        case!(
            a_message_is_received_from_a_shared_queue,
            "specification: shared receive queues; srq_test: SrqTest.Send, SendManyWithOneOutstanding"
        ),
        case!(
            receives_of_several_elements_are_taken_from_a_shared_queue,
            "specification: elements; srq_test: MaxSge"
        ),
        case!(
            one_element_too_many_of_a_shared_receive_is_refused,
            "specification: elements; srq_test: ExceedMaxSge"
        ),
        case!(
            a_shared_queue_that_is_empty_is_not_ready,
            "specification: receiver not ready; srq_test: SendRnr"
        ),
        case!(
            many_queue_pairs_take_from_one_queue_in_the_order_of_arrival,
            "specification: shared receive queues; srq_test: SrqRcMultiplexTest.Send"
        ),
        case!(
            writes_with_immediate_of_many_queue_pairs_take_from_one_queue,
            "specification: shared receive queues; srq_test: WriteWithImmediate"
        ),
        case!(
            a_queue_pair_in_error_leaves_the_shared_queue_to_the_others,
            "specification: flush order"
        ),
        case!(
            a_shared_queue_that_grows_keeps_what_is_posted,
            "specification: resizing; srq_test: ModifyMaxWr"
        ),
        case!(
            a_shared_queue_does_not_shrink_below_what_is_posted,
            "specification: resizing"
        ),
        case!(
            a_shared_queue_of_another_domain_is_refused_or_checked_by_its_own,
            "specification: protection checks; pd_test: CreateSrq, SrqRecvMrSrqMatch, QpSrqPdMismatchWriteWithImm"
        ),
        case!(
            memory_of_the_queue_pairs_domain_is_not_that_of_the_shared_queue,
            "specification: protection checks; pd_test: SrqRecvMrSrqMismatch"
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
    // Not one poll here: the event comes all the same, and another thread posts more.
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
    // Fewer than the queue takes: there is always room for one in hand.
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
            // A queue pair that is destroyed repeats nothing: stay until all has been taken.
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
    srq.post_recv(&mut short, 1).unwrap();
    right.post_recv(3);
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

fn shared() -> Options {
    Options { srq_wr: 16, ..rc() }
}

fn a_shared_receive_queue_has_room_for_what_was_asked_for(_: &Device) {
    let end = End::new(rc());
    let limits = end.context.query_device();
    for (max_wr, max_sge) in [(1, 1), (16, 4), (1000, 1), (16, limits.max_srq_sge)] {
        let srq = end.domain.create_srq(max_wr, max_sge).unwrap();
        let granted = srq.query().unwrap();
        assert!(granted.max_wr >= max_wr && granted.max_sge >= max_sge);
        assert_eq!(granted.limit, 0);
    }
}

fn a_message_is_received_from_a_shared_queue(_: &Device) {
    let (mut left, mut right) = end::pair_of(rc(), shared());
    for round in 1..=100 {
        right.recv(0..100);
        left.fill(0..100, round);
        left.succeed(WorkRequest::send(left.at(0..100)));
        let seen = right.expect_recv(C::Success);
        assert_eq!((seen.len, seen.qp_num), (100, right.qp.qp_num()));
        assert!(right.is_all(0..100, round));
    }
}

fn receives_of_several_elements_are_taken_from_a_shared_queue(_: &Device) {
    let (mut left, mut right) = end::pair_of(rc(), shared());
    let max_sge = right.srq.as_ref().unwrap().query().unwrap().max_sge.min(8);
    let list = (0..max_sge).map(|index| right.at(index * 100..index * 100 + 10));
    let list = list.collect();
    right.recv_into(list);
    left.fill(0..max_sge * 10, 7);
    left.succeed(WorkRequest::send(left.at(0..max_sge * 10)));
    assert_eq!(right.expect_recv(C::Success).len, max_sge * 10);
    for index in 0..max_sge {
        assert!(right.is_all(index * 100..index * 100 + 10, 7));
        assert!(right.is_all(index * 100 + 10..index * 100 + 100, 0));
    }
}

fn one_element_too_many_of_a_shared_receive_is_refused(_: &Device) {
    let (_left, right) = end::pair_of(rc(), shared());
    let srq = right.srq.as_ref().unwrap();
    let limit = srq.query().unwrap().max_sge;
    let count = limit + 1;
    let list: Vec<_> = (0..count).map(|index| right.at(index..index + 1)).collect();
    let error = srq
        .post_recv_elements(&mut vec![ReceiveRequest::new(list)])
        .unwrap_err();
    let reason = PostErrorReason::TooManyElements { count, limit };
    assert_eq!((error.taken, error.reason), (0, reason));
}

fn a_shared_queue_that_is_empty_is_not_ready(_: &Device) {
    let impatient = Options {
        rnr_retry: RnrRetry::new(0).unwrap(),
        ..rc()
    };
    let (mut left, right) = end::pair_of(impatient, shared());
    left.expect(WorkRequest::send(left.at(0..8)), C::RnrRetryExceeded);
    assert_eq!(right.state(), QpState::Rts);
}

/// Ends that are each connected to a queue pair of one end with a shared queue.
fn multiplexed(count: usize) -> (Vec<End>, End) {
    let mut hub = End::new(shared());
    let ends = (0..count)
        .map(|_| {
            let (mut end, mut qp) = (End::new(rc()), hub.another());
            end::connect((&mut end.qp, rc()), (&mut qp, shared()));
            hub.others.push(qp);
            end
        })
        .collect();
    (ends, hub)
}

fn many_queue_pairs_take_from_one_queue_in_the_order_of_arrival(_: &Device) {
    let (mut ends, mut hub) = multiplexed(4);
    for index in 0..12 {
        hub.recv(index * 8..index * 8 + 8);
    }
    for round in 0..3 {
        for (index, end) in ends.iter_mut().enumerate() {
            let place = round * 4 + index;
            end.fill(0..8, place as u8 + 1);
            end.succeed(WorkRequest::send(end.at(0..8)));
        }
    }
    for (place, seen) in hub.wait(12).iter().enumerate() {
        assert_eq!(seen.status, C::Success);
        assert_eq!(seen.qp_num, hub.others[place % 4].qp_num());
        assert!(hub.is_all(place * 8..place * 8 + 8, place as u8 + 1));
    }
}

fn writes_with_immediate_of_many_queue_pairs_take_from_one_queue(_: &Device) {
    let (mut ends, mut hub) = multiplexed(4);
    for _ in 0..8 {
        hub.recv_into(vec![]);
    }
    for round in 0..2 {
        for (index, end) in ends.iter_mut().enumerate() {
            let place = round * 4 + index;
            end.fill(0..8, place as u8 + 1);
            let to = hub.remote(place * 8);
            end.succeed(WorkRequest::write_with_imm(end.at(0..8), to, place as u32));
        }
    }
    for (place, seen) in hub.wait(8).iter().enumerate() {
        assert_eq!((seen.imm, seen.len), (Some(place as u32), 8));
        assert!(hub.is_all(place * 8..place * 8 + 8, place as u8 + 1));
    }
}

fn a_queue_pair_in_error_leaves_the_shared_queue_to_the_others(_: &Device) {
    let (mut ends, mut hub) = multiplexed(2);
    for index in 0..4 {
        hub.recv(index * 8..index * 8 + 8);
    }
    hub.others[0].to_error().unwrap();
    hub.assert_quiet();
    for _ in 0..4 {
        let sender = &mut ends[1];
        sender.succeed(WorkRequest::send(sender.at(0..8)));
        let seen = hub.expect_recv(C::Success);
        assert_eq!(seen.qp_num, hub.others[1].qp_num());
    }
}

fn a_shared_queue_that_grows_keeps_what_is_posted(_: &Device) {
    let (mut left, mut right) = end::pair_of(rc(), shared());
    let srq = right.srq.clone().unwrap();
    let depth = srq.query().unwrap().max_wr;
    for index in 0..depth {
        right.recv(index * 8..index * 8 + 8);
    }
    srq.resize(depth * 2).unwrap();
    assert!(srq.query().unwrap().max_wr >= depth * 2);
    for index in depth..depth * 2 {
        right.recv(index * 8..index * 8 + 8);
    }
    for index in 0..depth * 2 {
        left.fill(0..8, index as u8 + 1);
        left.succeed(WorkRequest::send(left.at(0..8)));
        right.expect_recv(C::Success);
        assert!(
            right.is_all(index * 8..index * 8 + 8, index as u8 + 1),
            "{index}"
        );
    }
}

fn a_shared_queue_does_not_shrink_below_what_is_posted(_: &Device) {
    let (mut left, mut right) = end::pair_of(rc(), shared());
    let srq = right.srq.clone().unwrap();
    for index in 0..10 {
        right.recv(index * 8..index * 8 + 8);
    }
    srq.resize(5).unwrap_err();
    assert!(srq.query().unwrap().max_wr >= 16);
    for _ in 0..10 {
        left.succeed(WorkRequest::send(left.at(0..8)));
        right.expect_recv(C::Success);
    }
}

/// An end with a shared receive queue of a domain of its own, and memory of that domain. Devices may refuse
/// that.
fn with_queue_of_another_domain() -> Option<(End, End, ExposedMemory)> {
    let (mut left, mut right) = (End::new(rc()), End::new(rc()));
    let domain = right.context.alloc_pd().unwrap();
    let srq = domain.create_srq(16, 4).unwrap();
    let config = QueuePairConfig {
        srq: Some(&srq),
        ..QueuePairConfig::new(&right.cq, &right.cq)
    };
    right.qp = match right.domain.create_qp(config) {
        Ok(qp) => qp,
        Err(VerbsError::ForeignObject { object: "srq", .. }) => return None,
        Err(error) => panic!("{error}"),
    };
    right.srq = Some(srq);
    end::connect((&mut left.qp, rc()), (&mut right.qp, rc()));
    let memory = domain.expose(4096, end::everything()).unwrap();
    Some((left, right, memory))
}

fn a_shared_queue_of_another_domain_is_refused_or_checked_by_its_own(device: &Device) {
    let Some((mut left, mut right, memory)) = with_queue_of_another_domain() else {
        return;
    };
    right.recv_into(vec![memory.element(0..64).unwrap()]);
    left.succeed(WorkRequest::write_with_imm(
        left.at(0..8),
        right.remote(0),
        5,
    ));
    assert_eq!(right.expect_recv(C::Success).imm, Some(5));
    right.recv_into(vec![memory.element(0..64).unwrap()]);
    left.fill(0..64, 7);
    left.post(WorkRequest::send(left.at(0..64)));
    let expected = device.deviates(&rxe::SRQ_DOMAIN, C::Success, C::LocalQpOperation);
    right.expect_recv(expected);
    if expected == C::Success {
        assert_eq!(memory.to_vec(0..64).unwrap(), [7; 64]);
    }
}

fn memory_of_the_queue_pairs_domain_is_not_that_of_the_shared_queue(device: &Device) {
    let Some((mut left, mut right, _memory)) = with_queue_of_another_domain() else {
        return;
    };
    right.recv(0..64);
    let (sent, received) = device.deviates(
        &rxe::SRQ_DOMAIN,
        (C::RemoteOperation, C::LocalProtection),
        (C::Success, C::Success),
    );
    left.expect(WorkRequest::send(left.at(0..64)), sent);
    right.expect_recv(received);
}
