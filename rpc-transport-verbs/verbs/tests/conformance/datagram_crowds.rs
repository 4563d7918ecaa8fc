//! Datagrams to and from many queue pairs, and their order.

use verbline_verbs::{CompletionStatus as C, QpState, WorkRequest};

use super::case::{Section, case};
use super::device::Device;
use super::end::{End, GRH, Options, QKEY, init, own_port, rc, rtr, rts, ud};

pub(crate) const CASES: Section = Section {
    topic: "datagrams among many",
    cases: &[
        case!(
            a_message_of_a_reliable_connection_to_a_datagram_queue_pair_gets_no_answer,
            "specification: responder; ud_test: RcSendToUd"
        ),
        case!(
            one_queue_pair_hears_many_and_tells_them_apart,
            "specification: datagrams"
        ),
        case!(one_queue_pair_sends_to_many, "specification: datagrams"),
        case!(
            address_handles_come_and_go,
            "specification: objects; ah_test: CreateAndDestroy"
        ),
        case!(
            datagrams_of_one_queue_pair_come_in_order,
            "specification: ordering"
        ),
        case!(
            many_completions_are_polled_at_once,
            "specification: completion queues; ud_test: PollMultipleCqe"
        ),
    ],
};

/// Creates an end whose datagram queue pair is in RTS and not connected to a peer.
fn datagrams(options: Options) -> End {
    let mut end = End::new(options);
    init(&mut end.qp, options);
    let nobody = end.qp.qp_num();
    rtr(&mut end.qp, nobody, options);
    rts(&mut end.qp, options);
    end
}

fn two() -> (End, End) {
    (datagrams(ud()), datagrams(ud()))
}

/// Addresses a request to the queue pair of `right`, with the usual Q_Key.
fn to(left: &End, right: &End, request: WorkRequest) -> WorkRequest {
    request.to(&left.way(), right.qp.qp_num(), QKEY)
}

fn a_message_of_a_reliable_connection_to_a_datagram_queue_pair_gets_no_answer(_: &Device) {
    let mut right = datagrams(ud());
    right.recv(0..200);
    let mut left = End::new(rc());
    let other = right.qp.qp_num();
    init(&mut left.qp, rc());
    rtr(&mut left.qp, other, rc());
    rts(&mut left.qp, rc());
    left.expect(WorkRequest::send(left.at(0..10)), C::RetryExceeded);
    right.assert_quiet();
    assert_eq!(right.state(), QpState::Rts);
}

fn one_queue_pair_hears_many_and_tells_them_apart(_: &Device) {
    let mut hub = datagrams(ud());
    for index in 0..5_u8 {
        let mut end = datagrams(ud());
        hub.recv(0..200);
        end.fill(0..10, index);
        end.succeed(to(&end, &hub, WorkRequest::send(end.at(0..10))));
        let seen = hub.expect_recv(C::Success);
        assert_eq!(seen.src_qp, Some(end.qp.qp_num()));
        assert!(hub.is_all(GRH..GRH + 10, index));
        // Send a datagram back to where it came from.
        end.recv(0..200);
        let back = WorkRequest::send(hub.at(GRH..GRH + 10));
        hub.succeed(back.to(&hub.way(), seen.src_qp.unwrap(), QKEY));
        assert_eq!(end.expect_recv(C::Success).src_qp, Some(hub.qp.qp_num()));
    }
}

fn one_queue_pair_sends_to_many(_: &Device) {
    let mut hub = datagrams(ud());
    let mut ends: Vec<_> = (0..5).map(|_| datagrams(ud())).collect();
    let way = hub.way();
    for (index, end) in ends.iter_mut().enumerate() {
        end.recv(0..200);
        let request = WorkRequest::send_with_imm(hub.at(0..10), index as u32);
        hub.post(request.to(&way, end.qp.qp_num(), QKEY).signaled());
    }
    assert_eq!(hub.statuses(5), [C::Success; 5]);
    for (index, end) in ends.iter_mut().enumerate() {
        assert_eq!(end.expect_recv(C::Success).imm, Some(index as u32));
    }
}

fn address_handles_come_and_go(_: &Device) {
    let end = End::new(ud());
    for _ in 0..100 {
        let way = end.way();
        assert_eq!(way.address(), own_port());
        way.destroy().unwrap();
    }
}

fn datagrams_of_one_queue_pair_come_in_order(_: &Device) {
    let (mut left, mut right) = two();
    for round in 0..10 {
        for index in 0..16 {
            right.recv(index * 100..index * 100 + 100);
        }
        for index in 0..16 {
            let imm = round * 16 + index;
            let request = WorkRequest::send_with_imm(left.at(0..10), imm);
            let request = to(&left, &right, request);
            left.post(if index == 15 {
                request.signaled()
            } else {
                request
            });
        }
        let imms: Vec<_> = right
            .wait(16)
            .iter()
            .map(|seen| seen.imm.unwrap())
            .collect();
        assert_eq!(imms, (round * 16..round * 16 + 16).collect::<Vec<_>>());
        assert_eq!(left.one().status, C::Success);
    }
}

fn many_completions_are_polled_at_once(_: &Device) {
    let (mut left, mut right) = two();
    for index in 0..20 {
        right.recv(index * 100..index * 100 + 100);
    }
    for _ in 0..20 {
        left.post(to(&left, &right, WorkRequest::send(left.at(0..10))).signaled());
    }
    // All messages have arrived once the last one completes.
    assert_eq!(left.statuses(20), [C::Success; 20]);
    let start = std::time::Instant::now();
    let mut completions = Vec::new();
    while completions.len() < 20 {
        right.cq.poll(&mut completions, 20).unwrap();
        assert!(start.elapsed() < super::verbs_side::HANG);
    }
    assert!(completions.iter().all(|completion| completion.is_success()));
    for completion in completions {
        drop(right.qp.claim_recv_elements(completion).unwrap());
    }
    right.assert_quiet();
}
