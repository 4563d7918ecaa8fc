//! Completion queues: their size, their order, and overruns.

use std::collections::HashMap;
use std::time::Duration;

use verbline_verbs::{
    AsyncEvent, CompletionStatus as C, QpState, VerbsError, WindowType, WorkKind, WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::end::{End, Options, connect, pair, pair_of, rc};
use super::memory_windows::{of_memory, window};
use super::protection::Op;
use super::verbs_side::{HANG, Plan, connected_with, open, received, sent};

pub(crate) const CASES: Section = Section {
    topic: "completion queues",
    cases: &[
        case!(
            a_completion_queue_has_room_for_what_was_asked_for,
            "specification: creation parameters; cq_test: Basic"
        ),
        case!(
            a_completion_queue_as_deep_as_the_device_permits_is_made,
            "specification: creation parameters; cq_test: MaxCqe"
        ),
        case!(
            completion_vectors_that_there_are_are_taken_and_others_refused,
            "specification: creation parameters; cq_test: ZeroCompVector, LargeCompVector, \
             AboveMaxCompVector"
        ),
        case!(
            polling_takes_as_many_as_it_was_told_to_and_no_more,
            "specification: completion queues"
        ),
        case!(
            completions_come_in_the_order_in_which_they_ended,
            "specification: completion queues"
        ),
        case!(
            sends_and_receives_may_complete_to_different_queues,
            "specification: completion queues"
        ),
        case!(
            sends_of_many_queue_pairs_complete_to_one_queue,
            "specification: completion queues"
        ),
        case!(
            receives_of_many_queue_pairs_complete_to_one_queue,
            "specification: completion queues"
        ),
        case!(
            a_queue_that_grows_keeps_what_is_in_it,
            "specification: resizing"
        ),
        case!(
            a_queue_that_shrinks_keeps_what_is_in_it,
            "specification: resizing"
        ),
        case!(
            a_queue_does_not_shrink_below_what_is_in_it,
            "specification: resizing"
        ),
        case!(a_queue_can_be_resized_under_load, "specification: resizing"),
        case!(
            a_depth_that_no_queue_has_is_refused_and_the_queue_stays,
            "specification: resizing"
        ),
        case!(
            a_completion_queue_that_overruns_is_dead_and_takes_its_queue_pairs_along,
            "specification: completion queues"
        ),
        case!(
            one_sided_requests_and_bindings_raise_events_here,
            "specification: arming; comp_channel_test: Atomic, Bind, Write"
        ),
        case!(
            a_write_with_immediate_is_heard_of_as_its_sender_wishes,
            "specification: arming"
        ),
        case!(
            sends_that_overrun_their_completion_queue_are_told,
            "specification: completion queues"
        ),
        case!(
            queue_pairs_that_share_an_overrun_queue_fail_together,
            "specification: completion queues"
        ),
    ],
};

fn a_completion_queue_has_room_for_what_was_asked_for(_: &Device) {
    let end = End::new(rc());
    for depth in [1, 2, 3, 100, 1000, 1024] {
        let cq = end.context.create_cq(depth).unwrap();
        assert!(cq.capacity() >= depth);
    }
    let numbers: Vec<_> = (0..10).map(|_| end.context.create_cq(1).unwrap()).collect();
    let numbers: std::collections::HashSet<_> = numbers.iter().map(|cq| cq.number()).collect();
    assert_eq!(numbers.len(), 10);
}

fn a_completion_queue_as_deep_as_the_device_permits_is_made(_: &Device) {
    let end = End::new(rc());
    let max = end.context.query_device().max_cqe;
    let cq = end.context.create_cq(max).unwrap();
    assert!(cq.capacity() >= max);
    let error = end.context.create_cq(max + 1).unwrap_err();
    assert!(matches!(error, VerbsError::OutOfRange { .. }), "{error}");
}

/// Connects two ends and sends `count` messages with an immediate, so that their receive
/// completions are in the right end's queue. The immediates count up from 0.
fn with_completions(count: usize, options: Options) -> (End, End) {
    let (mut left, mut right) = pair_of(rc(), options);
    for index in 0..count {
        right.recv(index * 8..index * 8 + 8);
    }
    for index in 0..count {
        let send = WorkRequest::send_with_imm(left.at(0..8), index as u32);
        left.succeed(send);
    }
    (left, right)
}

fn completion_vectors_that_there_are_are_taken_and_others_refused(_: &Device) {
    let context = open();
    let count = context.query_device().num_comp_vectors;
    assert!(count > 0);
    let count = u32::try_from(count).unwrap();
    let channel = context.create_comp_channel().unwrap();
    for vector in [0, count / 2, count - 1] {
        for channel in [None, Some(&channel)] {
            let cq = context.create_cq_on(16, channel, vector).unwrap();
            assert!(cq.capacity() >= 16);
        }
    }
    for vector in [count, count + 1, 1 << 31, u32::MAX] {
        let error = context.create_cq_on(16, None, vector).unwrap_err();
        let VerbsError::OutOfRange {
            parameter, value, ..
        } = error
        else {
            panic!("vector {vector}: {error}");
        };
        assert_eq!((parameter, value), ("comp_vector", vector.into()));
    }
}

fn polling_takes_as_many_as_it_was_told_to_and_no_more(_: &Device) {
    let (_left, mut right) = with_completions(10, rc());
    let mut completions = Vec::new();
    let start = std::time::Instant::now();
    for (max, expected) in [(0, 0), (1, 1), (4, 4), (64, 5), (64, 0)] {
        let before = completions.len();
        while completions.len() < before + expected {
            let max = max - (completions.len() - before);
            right.cq.poll(&mut completions, max).unwrap();
            assert!(completions.len() <= before + max && start.elapsed() < HANG);
        }
        if expected == 0 {
            assert_eq!(right.cq.poll(&mut completions, max).unwrap(), 0);
        }
    }
    let imms: Vec<_> = completions
        .iter()
        .map(|completion| completion.imm())
        .collect();
    assert_eq!(imms, (0..10).map(Some).collect::<Vec<_>>());
}

fn completions_come_in_the_order_in_which_they_ended(_: &Device) {
    let (mut left, mut right) = pair(rc());
    for index in 0..8 {
        right.recv(index * 8..index * 8 + 8);
        left.recv(index * 8..index * 8 + 8);
    }
    // One after the other, so the order is defined.
    for index in 0..8 {
        left.succeed(WorkRequest::send_with_imm(left.at(0..8), index));
        right.post(WorkRequest::send_with_imm(right.at(0..8), index).signaled());
        assert_eq!(left.one().imm, Some(index));
    }
    let seen = right.wait(16);
    let of = |kind| seen.iter().filter(move |seen| seen.kind == kind);
    let imms: Vec<_> = of(WorkKind::Receive)
        .map(|seen| seen.imm.unwrap())
        .collect();
    assert_eq!(imms, (0..8).collect::<Vec<_>>());
    let sends: Vec<_> = of(WorkKind::Send).map(|seen| seen.wr_id).collect();
    assert!(sends.is_sorted(), "{sends:?}");
}

fn sends_and_receives_may_complete_to_different_queues(_: &Device) {
    let (mut left, mut right) = (End::new(rc()), End::new(rc()));
    let mut sends = right.context.create_cq(64).unwrap();
    let config = verbline_verbs::QueuePairConfig::new(&sends, &right.cq);
    right.qp = right.domain.create_qp(config).unwrap();
    assert_eq!(right.state(), QpState::Reset);
    connect((&mut left.qp, rc()), (&mut right.qp, rc()));
    left.recv(0..8);
    right.recv(0..8);
    right.post(WorkRequest::send(right.at(0..8)).signaled());
    left.expect_recv(C::Success);
    left.succeed(WorkRequest::send(left.at(0..8)));
    assert_eq!(right.expect_recv(C::Success).kind, WorkKind::Receive);
    right.assert_quiet();
    let mut completions = Vec::new();
    let start = std::time::Instant::now();
    while sends.poll(&mut completions, 4).unwrap() == 0 {
        assert!(start.elapsed() < HANG);
    }
    assert_eq!(completions.len(), 1);
    let completion = completions.remove(0);
    assert_eq!(completion.wr_id().kind(), Some(WorkKind::Send));
    right.qp.complete_send(completion, &mut drop).unwrap();
}

const CROWD: usize = 4;

/// Creates an end with several queue pairs, each connected to an end of its own.
fn crowd() -> (End, Vec<End>) {
    let mut hub = End::new(rc());
    let mut ends = Vec::new();
    for _ in 0..CROWD {
        let mut end = End::new(rc());
        let mut qp = hub.another();
        connect((&mut end.qp, rc()), (&mut qp, rc()));
        hub.others.push(qp);
        ends.push(end);
    }
    (hub, ends)
}

fn sends_of_many_queue_pairs_complete_to_one_queue(_: &Device) {
    let (mut hub, ends) = crowd();
    let mut expected: HashMap<_, Vec<u64>> = HashMap::new();
    for _ in 0..8 {
        for (qp, end) in hub.others.iter_mut().zip(&ends) {
            let write = WorkRequest::write(hub.memory.element(0..8).unwrap(), end.remote(0));
            let wr_id = qp.post_one(write.signaled()).unwrap();
            expected
                .entry(qp.qp_num())
                .or_default()
                .push(wr_id.to_raw());
        }
    }
    let mut came: HashMap<_, Vec<u64>> = HashMap::new();
    for seen in hub.wait(8 * CROWD) {
        assert_eq!(seen.status, C::Success);
        came.entry(seen.qp_num).or_default().push(seen.wr_id);
    }
    assert_eq!(came, expected, "of each queue pair in its order");
}

fn receives_of_many_queue_pairs_complete_to_one_queue(_: &Device) {
    let (mut hub, mut ends) = crowd();
    for qp in &mut hub.others {
        for index in 0..8 {
            let element = hub.memory.element(index * 8..index * 8 + 8).unwrap();
            let request = verbline_verbs::ReceiveRequest::new(element);
            qp.post_recv_elements(&mut vec![request]).unwrap();
        }
    }
    for imm in 0..8 {
        for end in &mut ends {
            end.succeed(WorkRequest::send_with_imm(end.at(0..8), imm));
        }
    }
    let mut came: HashMap<_, Vec<u32>> = HashMap::new();
    for seen in hub.wait(8 * CROWD) {
        came.entry(seen.qp_num).or_default().push(seen.imm.unwrap());
    }
    assert_eq!(came.len(), CROWD);
    assert!(came.values().all(|imms| imms.iter().copied().eq(0..8)));
}

fn deep(cq_depth: usize) -> Options {
    Options { cq_depth, ..rc() }
}

/// Takes the completions of `with_completions` from the queue and returns their immediates, in
/// order.
fn imms(end: &mut End, count: usize) -> Vec<u32> {
    end.wait(count)
        .iter()
        .map(|seen| seen.imm.unwrap())
        .collect()
}

fn a_queue_that_grows_keeps_what_is_in_it(_: &Device) {
    let (mut left, mut right) = with_completions(10, deep(10));
    let before = right.cq.capacity();
    right.cq.resize(before + 100).unwrap();
    assert!(right.cq.capacity() >= before + 100);
    assert_eq!(imms(&mut right, 10), (0..10).collect::<Vec<_>>());
    right.recv(0..8);
    left.succeed(WorkRequest::send_with_imm(left.at(0..8), 77));
    assert_eq!(right.expect_recv(C::Success).imm, Some(77));
}

fn a_queue_that_shrinks_keeps_what_is_in_it(_: &Device) {
    let (mut left, mut right) = with_completions(10, deep(200));
    right.cq.resize(10).unwrap();
    assert!(right.cq.capacity() >= 10);
    assert_eq!(imms(&mut right, 10), (0..10).collect::<Vec<_>>());
    right.recv(0..8);
    left.succeed(WorkRequest::send_with_imm(left.at(0..8), 77));
    assert_eq!(right.expect_recv(C::Success).imm, Some(77));
}

fn a_queue_does_not_shrink_below_what_is_in_it(_: &Device) {
    let (_left, mut right) = with_completions(10, deep(200));
    let before = right.cq.capacity();
    right.cq.resize(5).unwrap_err();
    assert_eq!(right.cq.capacity(), before);
    assert_eq!(imms(&mut right, 10), (0..10).collect::<Vec<_>>());
}

fn a_queue_can_be_resized_under_load(_: &Device) {
    let (mut left, mut right) = pair_of(rc(), deep(64));
    for round in 0..40_u32 {
        right.recv(0..8);
        right.recv(8..16);
        left.post(WorkRequest::send_with_imm(left.at(0..8), round));
        left.succeed(WorkRequest::send_with_imm(left.at(0..8), round));
        right.cq.resize(64 + round as usize % 7 * 30).unwrap();
        assert_eq!(imms(&mut right, 2), [round; 2]);
    }
}

fn a_depth_that_no_queue_has_is_refused_and_the_queue_stays(_: &Device) {
    let (_left, mut right) = with_completions(3, rc());
    let (before, max) = (right.cq.capacity(), right.context.query_device().max_cqe);
    for depth in [0, max + 1] {
        right.cq.resize(depth).unwrap_err();
    }
    assert_eq!(right.cq.capacity(), before);
    assert_eq!(imms(&mut right, 3), [0, 1, 2]);
}

fn sends_that_overrun_their_completion_queue_are_told(device: &Device) {
    let (mut left, right) = pair_of(deep(2), rc());
    let capacity = left.cq.capacity();
    for _ in 0..=capacity {
        left.post(WorkRequest::write(left.at(0..8), right.remote(0)).signaled());
    }
    let cq = left.cq.number();
    assert_eq!(left.event(), AsyncEvent::CompletionQueueError { cq });
    if device.deviates(&rxe::OVERRUN_GOES_ON, true, false) {
        left.wait_for_state(QpState::Error);
    } else {
        assert_eq!(left.state(), QpState::Rts);
    }
    assert_eq!(left.statuses(capacity), vec![C::Success; capacity]);
}

fn queue_pairs_that_share_an_overrun_queue_fail_together(device: &Device) {
    let (mut left, right) = pair_of(deep(2), rc());
    let mut other = left.another();
    let mut others_peer = End::new(rc());
    connect((&mut others_peer.qp, rc()), (&mut other, rc()));
    for _ in 0..=left.cq.capacity() {
        left.post(WorkRequest::write(left.at(0..8), right.remote(0)).signaled());
    }
    let cq = left.cq.number();
    assert_eq!(left.event(), AsyncEvent::CompletionQueueError { cq });
    if device.deviates(&rxe::OVERRUN_GOES_ON, true, false) {
        left.wait_for_state(QpState::Error);
        assert_eq!(other.state().unwrap(), QpState::Error);
    } else {
        assert_eq!(other.state().unwrap(), QpState::Rts);
    }
}

fn a_completion_queue_that_overruns_is_dead_and_takes_its_queue_pairs_along(device: &Device) {
    let small = Plan {
        cq_depth: 2,
        max_recv_wr: 1024,
        ..Plan::default()
    };
    let (mut left, mut right) = connected_with(Plan::default(), small);
    // The requested number or more.
    let capacity = right.cq.capacity();
    right.add_slots(capacity);
    right.post_recv(capacity + 1);
    // The right queue is not polled: the device itself receives the messages.
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
        // Soft-RoCE continues as if no completion had been lost.
        assert!(matches!(after, Ok(0)), "{after:?}");
    } else {
        assert!(
            matches!(after, Err(VerbsError::CompletionQueueOverrun { capacity: c }) if c == capacity),
            "{after:?}"
        );
    }
}

/// The receiving queue is armed for solicited completions only.
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
        // A wrong event that arrives later than this goes unnoticed.
        let patience = Duration::from_millis(30);
        assert_eq!(right.channel.wait(Some(patience)).unwrap(), None, "{len}");
        // The queue is still armed.
        right.recv_into(vec![]);
        left.succeed(request(&left, &right).solicited());
        let raised = right.channel.wait(Some(HANG)).unwrap();
        assert_eq!(raised, Some(right.cq.number()), "{len}");
        assert_eq!(right.expect_recv(C::Success).imm, Some(5));
    }
}

fn one_sided_requests_and_bindings_raise_events_here(_: &Device) {
    let assert_event = |end: &mut End, request: WorkRequest| {
        end.cq.arm(false).unwrap();
        end.post(request.signaled());
        let raised = end.channel.wait(Some(HANG)).unwrap();
        assert_eq!(raised, Some(end.cq.number()));
        assert_eq!(end.one().status, C::Success);
    };
    let (mut left, right) = pair(rc());
    for op in Op::ALL {
        let request = op.request(left.at(0..8), right.remote(0));
        assert_event(&mut left, request);
    }
    let window = window(&left, WindowType::Type2);
    let key = window.next_key();
    let request = WorkRequest::bind_window(&window, of_memory(&left, 0..4096), key);
    assert_event(&mut left, request);
    assert_event(&mut left, WorkRequest::local_invalidate(key));
}
