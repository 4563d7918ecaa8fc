//! RDMA WRITE and READ: which bytes are moved, what the peer is notified of, and in which order.

use verbline_verbs::{
    CompletionOpcode as O, CompletionStatus as C, PostErrorReason, RnrRetry, WorkKind, WorkRequest,
};

use super::case::{Section, case};
use super::device::Device;
use super::end::{LEN, Options, everything, pair, pair_of, rc};

pub(crate) const CASES: Section = Section {
    topic: "RDMA write and read",
    cases: &[
        case!(
            a_write_puts_its_bytes_where_it_says_and_nowhere_else,
            "specification: RDMA WRITE; rc_test: BasicWrite; access_test: RdmaAccessTest.AllAccess"
        ),
        case!(
            a_read_fetches_what_it_names_and_nothing_else,
            "specification: RDMA READ; rc_test: BasicRead"
        ),
        case!(
            a_write_of_many_packets_arrives_whole,
            "specification: RDMA WRITE; rc_test: BasicWriteLargePayload"
        ),
        case!(
            a_read_of_many_packets_arrives_whole,
            "specification: RDMA READ; rc_test: BasicReadLargePayload"
        ),
        case!(
            a_write_takes_no_receive_and_completes_nothing_at_the_peer,
            "specification: receive queue"
        ),
        case!(
            a_read_takes_no_receive_and_completes_nothing_at_the_peer,
            "specification: receive queue"
        ),
        case!(
            an_unsignaled_write_completes_with_the_next_signaled_one,
            "specification: signaling; rc_test: UnsignaledWrite"
        ),
        case!(
            an_unsignaled_read_completes_with_the_next_signaled_one,
            "specification: signaling; rc_test: UnsignaledRead"
        ),
        case!(
            sq_sig_all_completes_writes_reads_and_atomics,
            "specification: signaling; rc_test: QpSigAll"
        ),
        case!(
            a_write_without_bytes_succeeds,
            "specification: protection checks; buffer_test: BufferMrTest.WriteZeroByte"
        ),
        case!(
            a_write_without_bytes_is_not_checked,
            "specification: protection checks; buffer_test: WriteZeroByteInvalidRKey, WriteZeroByteOutsideMr"
        ),
        case!(
            a_read_without_bytes_succeeds,
            "specification: protection checks; buffer_test: BufferMrTest.ReadZeroByte"
        ),
        case!(
            a_read_without_bytes_is_not_checked,
            "specification: protection checks; buffer_test: ReadZeroByteInvalidRKey, ReadZeroByteOutsideMr"
        ),
        case!(
            a_write_with_immediate_takes_one_receive_and_leaves_its_bytes_alone,
            "specification: receive queue; rc_test: WriteImmData"
        ),
        case!(
            a_write_with_immediate_and_without_bytes_says_so,
            "specification: receive queue; rc_test: WriteZeroByteWithImmData"
        ),
        case!(
            a_write_with_immediate_takes_a_receive_without_elements,
            "specification: receive queue"
        ),
        case!(
            a_write_with_immediate_waits_for_a_receive,
            "specification: receiver not ready"
        ),
        case!(
            a_write_with_immediate_gives_up_without_a_receive,
            "specification: receiver not ready; rc_test: WriteImmDataRnR"
        ),
        case!(
            a_missing_receive_counts_before_a_wrong_key,
            "specification: responder"
        ),
        case!(a_read_sees_the_write_before_it, "specification: ordering"),
        case!(
            a_message_says_that_the_writes_before_it_are_there,
            "specification: visibility"
        ),
        case!(
            of_two_writes_to_a_place_the_later_stays,
            "specification: ordering"
        ),
        case!(
            more_reads_than_may_be_outstanding_wait_their_turn,
            "specification: read depth"
        ),
        case!(
            reads_where_none_may_be_outstanding_are_refused,
            "specification: read depth"
        ),
        case!(
            a_fenced_message_carries_what_the_read_before_it_has_fetched,
            "specification: fence"
        ),
        case!(
            requests_of_all_kinds_complete_in_order_with_their_opcodes,
            "specification: ordering"
        ),
        case!(the_peer_need_not_call_anything, "specification: one-sided"),
        case!(
            a_queue_pair_that_is_connected_to_itself_reaches_its_own_memory,
            "specification: one-sided"
        ),
    ],
};

fn a_write_puts_its_bytes_where_it_says_and_nowhere_else(_: &Device) {
    let (mut left, right) = pair(rc());
    left.fill(0..100, 7);
    let seen = left.run(WorkRequest::write(left.at(0..100), right.remote(1000)));
    assert_eq!((seen.status, seen.opcode), (C::Success, Some(O::RdmaWrite)));
    assert_eq!(seen.qp_num, left.qp.qp_num());
    right.becomes(1000..1100, 7);
    assert!(right.is_all(0..1000, 0) && right.is_all(1100..LEN, 0));
}

fn a_read_fetches_what_it_names_and_nothing_else(_: &Device) {
    let (mut left, right) = pair(rc());
    right.fill(1000..1100, 7);
    right.fill(1100..1200, 8);
    let seen = left.run(WorkRequest::read(left.at(0..100), right.remote(1000)));
    assert_eq!((seen.status, seen.opcode), (C::Success, Some(O::RdmaRead)));
    assert!(left.is_all(0..100, 7) && left.is_all(100..LEN, 0));
}

/// Not a multiple of any packet length.
const LONG: usize = (1 << 20) + 12_345;

fn numbered(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 251) as u8).collect()
}

fn a_write_of_many_packets_arrives_whole(_: &Device) {
    let (mut left, mut right) = pair(rc());
    let (from, to) = (
        left.expose(LONG, everything(), 0),
        right.expose(LONG, everything(), 0),
    );
    from.write(0, &numbered(LONG)).unwrap();
    left.succeed(WorkRequest::write(
        from.element(0..LONG).unwrap(),
        to.remote(0),
    ));
    // A message that is sent after it proves that all of it has arrived.
    right.recv(0..8);
    left.succeed(WorkRequest::send(left.at(0..8)));
    right.expect_recv(C::Success);
    assert!(to.to_vec(0..LONG).unwrap() == numbered(LONG));
}

fn a_read_of_many_packets_arrives_whole(_: &Device) {
    let (mut left, right) = pair(rc());
    let (to, from) = (
        left.expose(LONG, everything(), 0),
        right.expose(LONG, everything(), 0),
    );
    from.write(0, &numbered(LONG)).unwrap();
    left.succeed(WorkRequest::read(
        to.element(0..LONG).unwrap(),
        from.remote(0),
    ));
    assert!(to.to_vec(0..LONG).unwrap() == numbered(LONG));
}

fn a_write_takes_no_receive_and_completes_nothing_at_the_peer(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..64);
    left.succeed(WorkRequest::write(left.at(0..8), right.remote(100)));
    right.assert_quiet();
    left.succeed(WorkRequest::send(left.at(0..64)));
    assert_eq!(right.expect_recv(C::Success).len, 64);
}

fn a_read_takes_no_receive_and_completes_nothing_at_the_peer(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..64);
    left.succeed(WorkRequest::read(left.at(0..8), right.remote(100)));
    right.assert_quiet();
    left.succeed(WorkRequest::send(left.at(0..64)));
    assert_eq!(right.expect_recv(C::Success).len, 64);
}

fn an_unsignaled_write_completes_with_the_next_signaled_one(_: &Device) {
    let (mut left, right) = pair(rc());
    left.fill(0..8, 1);
    left.post(WorkRequest::write(left.at(0..8), right.remote(0)));
    right.becomes(0..8, 1);
    left.assert_quiet();
    left.succeed(WorkRequest::write(left.at(0..8), right.remote(8)));
    assert_eq!(left.qp.send_slots_free(), rc().max_send_wr);
}

fn an_unsignaled_read_completes_with_the_next_signaled_one(_: &Device) {
    let (mut left, right) = pair(rc());
    right.fill(0..8, 1);
    left.post(WorkRequest::read(left.at(0..8), right.remote(0)));
    left.becomes(0..8, 1);
    left.assert_quiet();
    left.succeed(WorkRequest::read(left.at(8..16), right.remote(0)));
    assert!(left.is_all(0..16, 1));
}

fn sq_sig_all_completes_writes_reads_and_atomics(_: &Device) {
    let (mut left, right) = pair(Options {
        sq_sig_all: true,
        ..rc()
    });
    left.post(WorkRequest::write(left.at(0..8), right.remote(0)));
    left.post(WorkRequest::read(left.at(8..16), right.remote(0)));
    left.post(WorkRequest::fetch_and_add(
        left.at(16..24),
        right.remote(0),
        1,
    ));
    let opcodes: Vec<_> = left.wait(3).iter().map(|seen| seen.opcode).collect();
    assert_eq!(
        opcodes,
        [Some(O::RdmaWrite), Some(O::RdmaRead), Some(O::FetchAndAdd)]
    );
}

fn a_write_without_bytes_succeeds(_: &Device) {
    let (mut left, right) = pair(rc());
    left.succeed(WorkRequest::write(left.at(0..0), right.remote(0)));
    left.succeed(WorkRequest::write(vec![], right.remote(0)));
}

fn a_write_without_bytes_is_not_checked(_: &Device) {
    let (mut left, right) = pair(rc());
    for nowhere in super::protection::nowhere(&right) {
        left.succeed(WorkRequest::write(left.at(0..0), nowhere));
    }
}

fn a_read_without_bytes_succeeds(_: &Device) {
    let (mut left, right) = pair(rc());
    left.succeed(WorkRequest::read(left.at(0..0), right.remote(0)));
    left.succeed(WorkRequest::read(vec![], right.remote(0)));
}

fn a_read_without_bytes_is_not_checked(_: &Device) {
    let (mut left, right) = pair(rc());
    for nowhere in super::protection::nowhere(&right) {
        left.succeed(WorkRequest::read(left.at(0..0), nowhere));
    }
}

fn a_write_with_immediate_takes_one_receive_and_leaves_its_bytes_alone(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..64);
    right.recv(64..128);
    right.fill(0..128, 9);
    left.fill(0..32, 7);
    let request = WorkRequest::write_with_imm(left.at(0..32), right.remote(1000), 0x0123_4567);
    assert_eq!(left.run(request).opcode, Some(O::RdmaWrite));
    let seen = right.expect_recv(C::Success);
    assert_eq!(seen.opcode, Some(O::ReceiveRdmaWithImm));
    assert_eq!((seen.imm, seen.len), (Some(0x0123_4567), 32));
    assert!(right.is_all(1000..1032, 7));
    assert!(right.is_all(0..128, 9), "the receive's own bytes");
    right.assert_quiet();
    left.succeed(WorkRequest::send(left.at(0..32)));
    right.expect_recv(C::Success);
    assert!(
        right.is_all(0..64, 9) && right.is_all(64..96, 7),
        "one was taken"
    );
}

fn a_write_with_immediate_and_without_bytes_says_so(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..64);
    left.succeed(WorkRequest::write_with_imm(vec![], right.remote(0), 5));
    let seen = right.expect_recv(C::Success);
    assert_eq!(seen.opcode, Some(O::ReceiveRdmaWithImm));
    assert_eq!((seen.imm, seen.len), (Some(5), 0));
}

fn a_write_with_immediate_takes_a_receive_without_elements(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv_into(vec![]);
    left.fill(0..32, 7);
    left.succeed(WorkRequest::write_with_imm(
        left.at(0..32),
        right.remote(0),
        5,
    ));
    assert_eq!(right.expect_recv(C::Success).imm, Some(5));
    assert!(right.is_all(0..32, 7));
}

fn a_write_with_immediate_waits_for_a_receive(_: &Device) {
    let (mut left, mut right) = pair(rc());
    left.fill(0..8, 7);
    let request = WorkRequest::write_with_imm(left.at(0..8), right.remote(0), 5);
    left.post(request.signaled());
    left.assert_quiet();
    right.recv(64..128);
    assert_eq!(right.expect_recv(C::Success).imm, Some(5));
    assert_eq!(left.one().status, C::Success);
    assert!(right.is_all(0..8, 7));
}

/// Returns options without RNR retries, so a send fails at once.
fn impatient() -> Options {
    Options {
        rnr_retry: RnrRetry::new(0).unwrap(),
        ..rc()
    }
}

fn a_write_with_immediate_gives_up_without_a_receive(_: &Device) {
    let (mut left, right) = pair(impatient());
    let request = WorkRequest::write_with_imm(left.at(0..8), right.remote(0), 5);
    left.expect(request, C::RnrRetryExceeded);
}

fn a_missing_receive_counts_before_a_wrong_key(_: &Device) {
    let (mut left, right) = pair(impatient());
    let [wrong, ..] = super::protection::nowhere(&right);
    let request = WorkRequest::write_with_imm(left.at(0..8), wrong, 5);
    left.expect(request, C::RnrRetryExceeded);
}

fn a_read_sees_the_write_before_it(_: &Device) {
    let (mut left, right) = pair(rc());
    for round in 1..=50 {
        left.fill(0..300, round);
        left.post(WorkRequest::write(left.at(0..300), right.remote(0)));
        left.succeed(WorkRequest::read(left.at(1000..1300), right.remote(0)));
        assert!(left.is_all(1000..1300, round), "{round}");
    }
}

fn a_message_says_that_the_writes_before_it_are_there(_: &Device) {
    let (mut left, mut right) = pair(rc());
    for round in 1..=50 {
        right.recv(0..8);
        left.fill(0..5000, round);
        left.post(WorkRequest::write(left.at(0..3000), right.remote(1000)));
        left.post(WorkRequest::write(left.at(0..5000), right.remote(4000)));
        left.post(WorkRequest::send(left.at(0..8)).signaled());
        right.expect_recv(C::Success);
        assert!(right.is_all(1000..9000, round), "{round}");
        assert_eq!(left.one().status, C::Success);
    }
}

fn of_two_writes_to_a_place_the_later_stays(_: &Device) {
    let (mut left, mut right) = pair(rc());
    left.fill(0..2000, 1);
    left.fill(2000..4000, 2);
    right.recv(0..8);
    left.post(WorkRequest::write(left.at(0..2000), right.remote(1000)));
    left.post(WorkRequest::write(left.at(2000..4000), right.remote(1000)));
    left.succeed(WorkRequest::send(left.at(0..8)));
    right.expect_recv(C::Success);
    assert!(right.is_all(1000..3000, 2));
}

fn more_reads_than_may_be_outstanding_wait_their_turn(_: &Device) {
    let one = Options {
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        ..rc()
    };
    let (mut left, right) = pair(one);
    for number in 0..16 {
        right.fill(number * 100..(number + 1) * 100, number as u8 + 1);
    }
    for number in 0..16 {
        let range = number * 100..(number + 1) * 100;
        let read = WorkRequest::read(left.at(range.clone()), right.remote(range.start));
        left.post(read.signaled());
    }
    assert_eq!(left.statuses(16), [C::Success; 16]);
    assert_eq!(left.bytes(0..1600), right.bytes(0..1600));
}

fn reads_where_none_may_be_outstanding_are_refused(_: &Device) {
    let none = Options {
        max_rd_atomic: 0,
        ..rc()
    };
    let (mut left, right) = pair_of(none, rc());
    let (result, remote) = (|| left.at(0..8), right.remote(0));
    let requests = [
        WorkRequest::read(result(), remote),
        WorkRequest::fetch_and_add(result(), remote, 1),
        WorkRequest::compare_and_swap(result(), remote, 0, 1),
    ];
    for request in requests {
        let reason = left.refused(request);
        assert!(
            matches!(reason, PostErrorReason::NoReads { .. }),
            "{reason}"
        );
    }
    left.succeed(WorkRequest::write(left.at(0..8), right.remote(0)));
}

fn a_fenced_message_carries_what_the_read_before_it_has_fetched(_: &Device) {
    let (mut left, mut right) = pair(rc());
    for round in 1..=50 {
        let len = 20_000;
        right.fill(0..len, round);
        right.recv(30_000..30_000 + len);
        left.post(WorkRequest::read(left.at(0..len), right.remote(0)));
        left.succeed(WorkRequest::send(left.at(0..len)).fenced());
        right.expect_recv(C::Success);
        assert!(right.is_all(30_000..30_000 + len, round), "{round}");
    }
}

fn requests_of_all_kinds_complete_in_order_with_their_opcodes(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..64);
    right.recv(64..128);
    right.recv(128..192);
    let at = |left: &super::end::End| left.at(0..8);
    let remote = right.remote(1000);
    let list = [
        (WorkRequest::send(at(&left)), O::Send),
        (WorkRequest::read(at(&left), remote), O::RdmaRead),
        (WorkRequest::write(at(&left), remote), O::RdmaWrite),
        (WorkRequest::send_with_imm(at(&left), 1), O::Send),
        (
            WorkRequest::fetch_and_add(at(&left), remote, 1),
            O::FetchAndAdd,
        ),
        (
            WorkRequest::write_with_imm(at(&left), remote, 2),
            O::RdmaWrite,
        ),
        (
            WorkRequest::compare_and_swap(at(&left), remote, 1, 2),
            O::CompareAndSwap,
        ),
    ];
    let mut expected = Vec::new();
    for (request, opcode) in list {
        let wr_id = left.post(request.signaled());
        expected.push((wr_id, C::Success, Some(opcode)));
    }
    let seen = left.wait(expected.len());
    let seen: Vec<_> = seen
        .iter()
        .map(|seen| (seen.wr_id, seen.status, seen.opcode))
        .collect();
    assert_eq!(seen, expected);
    let received: Vec<_> = right
        .wait(3)
        .iter()
        .map(|seen| (seen.kind, seen.opcode, seen.imm))
        .collect();
    let receive = WorkKind::Receive;
    assert_eq!(
        received,
        [
            (receive, Some(O::Receive), None),
            (receive, Some(O::Receive), Some(1)),
            (receive, Some(O::ReceiveRdmaWithImm), Some(2)),
        ]
    );
}

/// The peer's application does nothing meanwhile: its device does the work.
fn the_peer_need_not_call_anything(_: &Device) {
    let (mut left, right) = pair(rc());
    for round in 1..=100 {
        left.fill(0..500, round);
        left.succeed(WorkRequest::write(left.at(0..500), right.remote(0)));
        left.succeed(WorkRequest::read(left.at(500..1000), right.remote(0)));
        assert!(left.is_all(500..1000, round));
    }
}

fn a_queue_pair_that_is_connected_to_itself_reaches_its_own_memory(_: &Device) {
    let mut end = super::end::End::new(rc());
    let (own, options) = (end.qp.qp_num(), end.options);
    super::end::init(&mut end.qp, options);
    super::end::rtr(&mut end.qp, own, options);
    super::end::rts(&mut end.qp, options);
    end.fill(0..100, 3);
    end.succeed(WorkRequest::write(end.at(0..100), end.remote(100)));
    end.succeed(WorkRequest::read(end.at(200..300), end.remote(100)));
    assert!(end.is_all(0..300, 3));
}
