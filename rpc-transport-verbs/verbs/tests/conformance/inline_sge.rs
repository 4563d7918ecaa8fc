//! Scatter/gather lists and inline data: what a request may reference, and which bytes are sent.

use verbline_verbs::{
    Access, CompletionStatus as C, Element, LocalKey, PostErrorReason, QueuePairConfig,
    ReceiveRequest, WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::end::{End, Options, everything, pair, rc};
use super::protection_local::raw;
use super::seed::flip;

pub(crate) const CASES: Section = Section {
    topic: "lists and inline data",
    cases: &[
        case!(
            a_message_without_elements_arrives,
            "specification: elements; rc_test: SendEmptySgl"
        ),
        case!(
            elements_without_bytes_are_skipped_and_not_checked,
            "specification: elements; buffer_test: SendZeroByteOutsideMr"
        ),
        case!(
            a_message_is_gathered_from_its_elements_in_order,
            "specification: elements"
        ),
        case!(
            a_message_is_scattered_over_the_receives_elements_in_order,
            "specification: elements"
        ),
        case!(
            a_short_message_leaves_the_receives_later_elements_alone,
            "specification: elements"
        ),
        case!(
            a_message_that_fills_the_receives_elements_exactly_fits,
            "specification: elements"
        ),
        case!(
            a_message_of_one_byte_more_than_the_receives_elements_fails_both_ends,
            "specification: completion statuses"
        ),
        case!(
            a_write_is_gathered_and_a_read_is_scattered,
            "specification: elements"
        ),
        case!(
            as_many_elements_as_were_granted_are_taken,
            "specification: elements; qp_test: MaxSge"
        ),
        case!(
            one_element_more_than_was_granted_is_refused,
            "specification: elements"
        ),
        case!(
            one_receive_element_more_than_was_granted_is_refused,
            "specification: elements"
        ),
        case!(
            a_wrong_element_among_good_ones_fails_the_request,
            "specification: protection checks"
        ),
        case!(
            a_receive_without_elements_takes_a_message_without_bytes,
            "specification: receive queue"
        ),
        case!(
            a_receive_without_elements_takes_no_byte,
            "specification: completion statuses"
        ),
        case!(
            the_same_memory_may_be_named_twice,
            "specification: elements"
        ),
        case!(
            the_list_may_go_as_soon_as_it_was_posted,
            "specification: elements; rc_test: SgePointerChase"
        ),
        case!(inline_data_is_taken_while_posting, "specification: inline"),
        case!(
            an_inline_write_arrives,
            "specification: inline; rc_test: WriteInlineData"
        ),
        case!(
            inline_data_is_gathered_from_its_elements,
            "specification: inline"
        ),
        case!(inline_data_of_no_bytes_arrives, "specification: inline"),
        case!(
            inline_data_need_not_be_registered_here,
            "specification: inline"
        ),
        case!(
            inline_data_of_one_byte_too_many_is_refused,
            "specification: inline"
        ),
        case!(
            reads_atomics_and_invalidates_cannot_be_inline,
            "specification: inline; rc_test: SendInlineDataInvalidOp"
        ),
        case!(
            an_immediate_comes_with_its_message,
            "specification: receive queue; rc_test: SendImmData"
        ),
        case!(
            a_message_without_an_immediate_has_none,
            "specification: receive queue"
        ),
        case!(
            an_immediate_comes_without_bytes,
            "specification: receive queue"
        ),
        case!(
            of_a_list_with_a_wrong_request_those_before_it_are_carried_out,
            "specification: lists"
        ),
    ],
};

fn a_message_without_elements_arrives(_: &Device) {
    let (mut left, mut right) = pair(rc());
    for room in [vec![], vec![right.at(0..64)]] {
        right.recv_into(room);
        left.succeed(WorkRequest::send(vec![]));
        assert_eq!(right.expect_recv(C::Success).len, 0);
    }
    assert!(right.is_all(0..64, 0));
}

fn elements_without_bytes_are_skipped_and_not_checked(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..64);
    left.fill(0..8, 7);
    let other = left.context.alloc_pd().unwrap();
    let elsewhere = other.expose(4096, Access::NONE).unwrap();
    let list = vec![
        elsewhere.element(8..8).unwrap(),
        left.at(0..8),
        left.at(9..9),
    ];
    left.succeed(WorkRequest::send(list));
    assert_eq!(right.expect_recv(C::Success).len, 8);
    assert!(right.is_all(0..8, 7) && right.is_all(8..64, 0));
}

/// Returns three pieces of 10, 200 and 90 bytes, filled with 1, 2 and 3.
fn pieces(end: &End) -> Vec<Element> {
    end.fill(1000..1010, 1);
    end.fill(500..700, 2);
    end.fill(2000..2090, 3);
    vec![end.at(1000..1010), end.at(500..700), end.at(2000..2090)]
}

fn a_message_is_gathered_from_its_elements_in_order(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..1000);
    left.succeed(WorkRequest::send(pieces(&left)));
    assert_eq!(right.expect_recv(C::Success).len, 300);
    assert!(right.is_all(0..10, 1) && right.is_all(10..210, 2) && right.is_all(210..300, 3));
    assert!(right.is_all(300..1000, 0));
}

fn a_message_is_scattered_over_the_receives_elements_in_order(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv_into(vec![
        right.at(700..703),
        right.at(0..100),
        right.at(5000..6000),
    ]);
    left.succeed(WorkRequest::send(pieces(&left)));
    assert_eq!(right.expect_recv(C::Success).len, 300);
    let all = [
        right.bytes(700..703),
        right.bytes(0..100),
        right.bytes(5000..5197),
    ]
    .concat();
    assert_eq!(all, [vec![1; 10], vec![2; 200], vec![3; 90]].concat());
    assert!(right.is_all(5197..6000, 0) && right.is_all(100..700, 0));
}

fn a_short_message_leaves_the_receives_later_elements_alone(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.fill(0..300, 9);
    right.recv_into(vec![
        right.at(0..100),
        right.at(100..200),
        right.at(200..300),
    ]);
    left.succeed(WorkRequest::send(left.at(0..100)));
    assert_eq!(right.expect_recv(C::Success).len, 100);
    assert!(right.is_all(0..100, 0) && right.is_all(100..300, 9));
}

fn a_message_that_fills_the_receives_elements_exactly_fits(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv_into(vec![right.at(0..150), right.at(150..300)]);
    left.succeed(WorkRequest::send(pieces(&left)));
    assert_eq!(right.expect_recv(C::Success).len, 300);
}

/// Returns the statuses of a receive that is too short and of the message sent to it.
fn too_short(device: &Device) -> (C, C) {
    device.deviates(
        &rxe::RECEIVE_STATUSES,
        (C::LocalLength, C::RemoteInvalidRequest),
        (C::LocalQpOperation, C::RemoteOperation),
    )
}

fn a_message_of_one_byte_more_than_the_receives_elements_fails_both_ends(device: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv_into(vec![right.at(0..150), right.at(150..299)]);
    let (received, sent) = too_short(device);
    left.expect(WorkRequest::send(pieces(&left)), sent);
    right.expect_recv(received);
}

fn a_write_is_gathered_and_a_read_is_scattered(_: &Device) {
    let (mut left, right) = pair(rc());
    left.succeed(WorkRequest::write(pieces(&left), right.remote(0)));
    let scattered = vec![
        left.at(3000..3003),
        left.at(4000..4100),
        left.at(5000..5197),
    ];
    left.succeed(WorkRequest::read(scattered, right.remote(0)));
    let all = [
        left.bytes(3000..3003),
        left.bytes(4000..4100),
        left.bytes(5000..5197),
    ]
    .concat();
    assert_eq!(all, [vec![1; 10], vec![2; 200], vec![3; 90]].concat());
}

/// Returns `count` pieces of eight bytes.
fn many(end: &End, count: usize) -> Vec<Element> {
    (0..count)
        .map(|index| end.at(index * 8..index * 8 + 8))
        .collect()
}

fn as_many_elements_as_were_granted_are_taken(_: &Device) {
    let context = super::verbs_side::open();
    let max_sge = context.query_device().max_sge.min(16);
    let (mut left, mut right) = pair(Options { max_sge, ..rc() });
    let granted = left.qp.capabilities();
    assert!(granted.max_send_sge >= max_sge && granted.max_recv_sge >= max_sge);
    right.recv_into(many(&right, max_sge));
    left.fill(0..max_sge * 8, 7);
    left.succeed(WorkRequest::send(many(&left, max_sge)));
    assert_eq!(right.expect_recv(C::Success).len, max_sge * 8);
    assert!(right.is_all(0..max_sge * 8, 7));
    let most = context.query_device().max_sge;
    End::new(Options {
        max_sge: most,
        ..rc()
    });
    for (max_send_sge, max_recv_sge) in [(most + 1, most), (most, most + 1)] {
        let config = QueuePairConfig {
            max_send_sge,
            max_recv_sge,
            ..QueuePairConfig::new(&left.cq, &left.cq)
        };
        assert!(left.domain.create_qp(config).is_err());
    }
}

fn one_element_more_than_was_granted_is_refused(_: &Device) {
    let (mut left, right) = pair(rc());
    let limit = left.qp.capabilities().max_send_sge;
    let list = many(&left, limit + 1);
    let reason = left.refused(WorkRequest::write(list, right.remote(0)));
    let count = limit + 1;
    assert_eq!(reason, PostErrorReason::TooManyElements { count, limit });
    left.assert_quiet();
}

fn one_receive_element_more_than_was_granted_is_refused(_: &Device) {
    let (_left, mut right) = pair(rc());
    let limit = right.qp.capabilities().max_recv_sge;
    let mut list = vec![
        ReceiveRequest::new(many(&right, limit)),
        ReceiveRequest::new(many(&right, limit + 1)),
    ];
    let error = right.qp.post_recv_elements(&mut list).unwrap_err();
    let count = limit + 1;
    assert_eq!(
        error.reason,
        PostErrorReason::TooManyElements { count, limit }
    );
    assert_eq!((error.taken, list.len()), (1, 1));
}

fn a_wrong_element_among_good_ones_fails_the_request(device: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..64);
    let other = left.context.alloc_pd().unwrap();
    let elsewhere = other.expose(4096, everything()).unwrap();
    let list = vec![
        left.at(0..8),
        elsewhere.element(0..8).unwrap(),
        left.at(8..16),
    ];
    let status = device.deviates(&rxe::SEND_STATUS, C::LocalProtection, C::LocalQpOperation);
    left.expect(WorkRequest::send(list), status);
    assert!(right.is_all(0..64, 0));
    right.assert_quiet();
}

fn a_receive_without_elements_takes_a_message_without_bytes(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv_into(vec![]);
    left.succeed(WorkRequest::send(vec![]));
    assert_eq!(right.expect_recv(C::Success).len, 0);
}

fn a_receive_without_elements_takes_no_byte(device: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv_into(vec![]);
    let (received, sent) = too_short(device);
    left.expect(WorkRequest::send(left.at(0..1)), sent);
    right.expect_recv(received);
}

fn the_same_memory_may_be_named_twice(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..64);
    left.fill(0..10, 7);
    let list = vec![left.at(0..10), left.at(0..10), left.at(5..10)];
    left.post(WorkRequest::send(list));
    left.succeed(WorkRequest::write(left.at(0..10), right.remote(1000)));
    assert_eq!(right.expect_recv(C::Success).len, 25);
    assert!(right.is_all(0..25, 7));
}

fn the_list_may_go_as_soon_as_it_was_posted(_: &Device) {
    let (mut left, right) = pair(rc());
    right.fill(0..300, 7);
    {
        let list = vec![left.at(0..100), left.at(100..300)];
        left.post(WorkRequest::read(list, right.remote(0)).signaled());
    }
    assert_eq!(left.one().status, C::Success);
    assert!(left.is_all(0..300, 7));
}

fn inline_data_is_taken_while_posting(_: &Device) {
    let (mut left, mut right) = pair(rc());
    let len = left.qp.capabilities().max_inline_data.min(200);
    right.recv(0..200);
    left.fill(0..len, 7);
    left.post(WorkRequest::send(left.at(0..len)).inline().signaled());
    left.fill(0..len, 9);
    assert_eq!(right.expect_recv(C::Success).len, len);
    assert!(right.is_all(0..len, 7));
    assert_eq!(left.one().status, C::Success);
}

fn an_inline_write_arrives(_: &Device) {
    let (mut left, right) = pair(rc());
    left.fill(0..64, 7);
    // The bytes are taken while it is posted: nobody looks at the key.
    let wrong = LocalKey(flip(left.memory.local_key().0));
    let element = raw(&left.memory, 0, 64, wrong);
    let write = WorkRequest::write(element, right.remote(0));
    left.post(write.inline().signaled());
    left.fill(0..64, 9);
    assert_eq!(left.one().status, C::Success);
    right.becomes(0..64, 7);
}

fn inline_data_is_gathered_from_its_elements(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..200);
    left.fill(0..10, 1);
    left.fill(100..120, 2);
    let list = vec![left.at(0..10), left.at(50..50), left.at(100..120)];
    left.succeed(WorkRequest::send(list).inline());
    assert_eq!(right.expect_recv(C::Success).len, 30);
    assert!(right.is_all(0..10, 1) && right.is_all(10..30, 2));
}

fn inline_data_of_no_bytes_arrives(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..64);
    left.succeed(WorkRequest::send(vec![]).inline());
    assert_eq!(right.expect_recv(C::Success).len, 0);
}

fn inline_data_need_not_be_registered_here(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..64);
    let other = left.context.alloc_pd().unwrap();
    let elsewhere = other.expose(4096, everything()).unwrap();
    elsewhere.write(0, &[7; 32]).unwrap();
    left.succeed(WorkRequest::send(elsewhere.element(0..32).unwrap()).inline());
    right.expect_recv(C::Success);
    assert!(right.is_all(0..32, 7));
}

fn inline_data_of_one_byte_too_many_is_refused(_: &Device) {
    let (mut left, right) = pair(rc());
    let limit = left.qp.capabilities().max_inline_data;
    let len = limit + 1;
    let lists = [
        vec![left.at(0..len)],
        vec![left.at(0..1), left.at(0..limit)],
    ];
    for list in lists {
        let reason = left.refused(WorkRequest::write(list, right.remote(0)).inline());
        assert_eq!(reason, PostErrorReason::InlineTooLong { len, limit });
    }
    left.assert_quiet();
}

fn reads_atomics_and_invalidates_cannot_be_inline(_: &Device) {
    let (mut left, right) = pair(rc());
    let remote = right.remote(0);
    let requests = [
        WorkRequest::read(left.at(0..8), remote),
        WorkRequest::fetch_and_add(left.at(0..8), remote, 1),
        WorkRequest::compare_and_swap(left.at(0..8), remote, 0, 1),
        WorkRequest::local_invalidate(remote.key),
    ];
    for request in requests {
        let reason = left.refused(request.inline());
        assert!(
            matches!(reason, PostErrorReason::NotInline { .. }),
            "{reason}"
        );
    }
}

fn an_immediate_comes_with_its_message(_: &Device) {
    let (mut left, mut right) = pair(rc());
    for imm in [0, 1, 0xbadd_cafe, u32::MAX] {
        right.recv(0..64);
        left.fill(0..64, 7);
        left.succeed(WorkRequest::send_with_imm(left.at(0..64), imm));
        let seen = right.expect_recv(C::Success);
        assert_eq!((seen.imm, seen.len), (Some(imm), 64));
        assert!(right.is_all(0..64, 7));
    }
}

fn a_message_without_an_immediate_has_none(_: &Device) {
    let (mut left, mut right) = pair(rc());
    for has_imm in [true, false, true, false] {
        right.recv(0..64);
        left.succeed(match has_imm {
            true => WorkRequest::send_with_imm(left.at(0..64), 5),
            false => WorkRequest::send(left.at(0..64)),
        });
        let seen = right.expect_recv(C::Success);
        assert_eq!(seen.imm, has_imm.then_some(5));
        assert_eq!((seen.invalidated, seen.src_qp), (None, None));
    }
}

fn an_immediate_comes_without_bytes(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv_into(vec![]);
    left.succeed(WorkRequest::send_with_imm(vec![], 5));
    let seen = right.expect_recv(C::Success);
    assert_eq!((seen.imm, seen.len), (Some(5), 0));
}

fn of_a_list_with_a_wrong_request_those_before_it_are_carried_out(_: &Device) {
    let (mut left, right) = pair(rc());
    left.fill(0..8, 7);
    let limit = left.qp.capabilities().max_send_sge;
    let mut list = vec![
        WorkRequest::write(left.at(0..8), right.remote(0)),
        WorkRequest::write(left.at(0..8), right.remote(8)).signaled(),
        WorkRequest::write(many(&left, limit + 1), right.remote(16)),
        WorkRequest::write(left.at(0..8), right.remote(24)),
    ];
    let error = left.qp.post(&mut list, &mut drop).unwrap_err();
    assert_eq!((error.taken, list.len()), (2, 2));
    assert_eq!(left.one().status, C::Success);
    right.becomes(0..16, 7);
    left.assert_quiet();
    assert!(right.is_all(16..64, 0));
}
