//! Shared receive queues with several users: elements, many queue pairs, other depths, other
//! domains.

use verbline_verbs::{
    CompletionStatus as C, ExposedMemory, PostErrorReason, QpState, QueuePairConfig,
    ReceiveRequest, RnrRetry, VerbsError, WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::end::{self, End, Options, rc, ud};
use super::verbs_side::shared_receive;

pub(crate) const CASES: Section = Section {
    topic: "sharing receive queues",
    cases: &[
        case!(
            a_shared_receive_queue_has_room_for_what_was_asked_for,
            "specification: creation parameters; srq_test: Create"
        ),
        case!(
            a_message_is_received_from_a_shared_queue,
            "specification: shared receive queues; srq_test: SrqTest.Send"
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
            a_datagram_queue_pair_in_error_leaves_the_shared_receive_to_a_connection,
            "specification: flush order; srq_test: QpFlush"
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

/// Creates ends that are each connected to a queue pair of one hub with a shared receive queue.
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
        let receive = shared_receive(place, 12);
        assert!(hub.is_all(receive * 8..receive * 8 + 8, place as u8 + 1));
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

/// The only receive that is posted is for both queue pairs until the datagram's goes to ERROR.
fn a_datagram_queue_pair_in_error_leaves_the_shared_receive_to_a_connection(_: &Device) {
    let (mut left, mut right) = end::pair_of(rc(), shared());
    let datagrams = Options { srq_wr: 16, ..ud() };
    let mut other = end::create(&right.domain, &right.cq, right.srq.as_ref(), datagrams);
    end::init(&mut other, datagrams);
    end::rtr(&mut other, right.qp.qp_num(), datagrams);
    end::rts(&mut other, datagrams);
    right.others.push(other);

    right.fill(0..4096, 2);
    right.recv(0..4096);
    right.others[0].to_error().unwrap();
    right.assert_quiet();
    assert_eq!(right.others[0].state().unwrap(), QpState::Error);

    left.fill(0..4096, 7);
    left.succeed(WorkRequest::send(left.at(0..4096)));
    let seen = right.expect_recv(C::Success);
    assert_eq!((seen.len, seen.qp_num), (4096, right.qp.qp_num()));
    assert!(right.is_all(0..4096, 7));
    // There was one receive, and it is taken.
    right.assert_quiet();
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
        let receive = shared_receive(index, depth * 2);
        assert!(
            right.is_all(receive * 8..receive * 8 + 8, index as u8 + 1),
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

/// Creates an end whose shared receive queue belongs to another domain, and memory of that domain.
/// Returns `None` if the device rejects this.
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
