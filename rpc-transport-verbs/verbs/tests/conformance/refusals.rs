//! The consequences of a request that the peer rejects: at both ends, and for the requests posted
//! before and after it.

use verbline_verbs::{Access, AsyncEvent, CompletionStatus as C, QpState, WorkRequest};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::{Device, Kind};
use super::end::{LEN, Options, everything, pair, pair_of, rc};
use super::protection::{Op, nowhere};

pub(crate) const CASES: Section = Section {
    topic: "refusals",
    cases: &[
        case!(
            a_write_with_immediate_and_a_wrong_key_is_refused_at_both_ends,
            "specification: completion statuses"
        ),
        case!(
            a_refused_write_raises_an_access_event_at_the_peer,
            "specification: asynchronous events; async_event_test: WriteRKeyViolation"
        ),
        case!(
            a_refused_read_raises_an_access_event_at_the_peer,
            "specification: asynchronous events; async_event_test: ReadRKeyViolation"
        ),
        case!(
            a_request_that_the_queue_pair_forbids_raises_a_request_event_at_the_peer,
            "specification: asynchronous events"
        ),
        case!(
            what_is_posted_after_a_refused_request_is_flushed_and_not_carried_out,
            "specification: completion statuses; rc_test: RemoteFatalError"
        ),
        case!(
            what_was_posted_before_a_refused_request_has_succeeded,
            "specification: completion statuses"
        ),
        case!(
            a_refused_request_flushes_the_peers_receives,
            "specification: flush order"
        ),
        case!(
            more_reads_than_the_peer_permits_are_refused,
            "specification: read depth"
        ),
        case!(
            one_read_more_than_permitted_is_refused,
            "specification: read depth"
        ),
        case!(
            a_region_that_was_deregistered_is_out_of_reach,
            "specification: deregistration"
        ),
        case!(
            a_region_can_be_deregistered_during_traffic,
            "specification: deregistration"
        ),
    ],
};

fn a_write_with_immediate_and_a_wrong_key_is_refused_at_both_ends(device: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..64);
    right.fill(0..LEN, 2);
    let [wrong, ..] = nowhere(&right);
    left.expect(
        WorkRequest::write_with_imm(left.at(0..8), wrong, 5),
        C::RemoteAccess,
    );
    let status = right.one().status;
    let flushed = C::WorkRequestFlushed;
    let expected = device.deviates(&rxe::WRITE_IMM_STATUS, flushed, C::RemoteAccess);
    // A device that counts the receive as consumed when it checks the key reports this status.
    let is_taken = [C::LocalAccess, C::LocalProtection].contains(&status);
    assert!(
        status == expected || (is_taken && device.kind == Kind::Card),
        "{status}"
    );
    if device.deviates(&rxe::FEW_EVENTS, true, false) {
        let qp_num = right.qp.qp_num();
        assert_eq!(right.event(), AsyncEvent::QpAccessError { qp_num });
    }
    right.assert_no_event();
    right.wait_for_state(QpState::Error);
    assert!(right.is_all(0..LEN, 2));
}

fn access_event(device: &Device, op: Op) {
    let (mut left, right) = pair(rc());
    let [wrong, ..] = nowhere(&right);
    left.expect(op.request(left.at(0..8), wrong), C::RemoteAccess);
    if device.deviates(&rxe::FEW_EVENTS, true, false) {
        let qp_num = right.qp.qp_num();
        assert_eq!(right.event(), AsyncEvent::QpAccessError { qp_num });
    }
    right.assert_no_event();
}

fn a_refused_write_raises_an_access_event_at_the_peer(device: &Device) {
    access_event(device, Op::Write);
}

fn a_refused_read_raises_an_access_event_at_the_peer(device: &Device) {
    access_event(device, Op::Read);
}

fn a_request_that_the_queue_pair_forbids_raises_a_request_event_at_the_peer(device: &Device) {
    let nothing = Options {
        access: Access::NONE,
        ..rc()
    };
    let (mut left, right) = pair_of(rc(), nothing);
    let write = WorkRequest::write(left.at(0..8), right.remote(0));
    left.expect(write, C::RemoteInvalidRequest);
    if device.deviates(&rxe::FEW_EVENTS, true, false) {
        let qp_num = right.qp.qp_num();
        assert_eq!(right.event(), AsyncEvent::QpRequestError { qp_num });
    }
    right.assert_no_event();
}

fn what_is_posted_after_a_refused_request_is_flushed_and_not_carried_out(device: &Device) {
    let (mut left, right) = pair(rc());
    left.fill(0..8, 1);
    let [wrong, ..] = nowhere(&right);
    left.post(WorkRequest::write(left.at(0..8), wrong));
    left.post(WorkRequest::write(left.at(0..8), right.remote(0)));
    left.post(WorkRequest::read(left.at(8..16), right.remote(0)));
    let flushed = C::WorkRequestFlushed;
    assert_eq!(left.statuses(3), [C::RemoteAccess, flushed, flushed]);
    left.post(WorkRequest::write(left.at(0..8), right.remote(0)));
    assert_eq!(left.one().status, flushed);
    assert!(right.is_all(0..LEN, 0));
    if device.deviates(&rxe::UNALIGNED_AT_POST, true, false) {
        let (mut left, mut right) = pair(rc());
        left.fill(0..8, 1);
        let unaligned = WorkRequest::compare_and_swap(left.at(0..8), right.remote(1), 0, 1);
        left.expect(unaligned, C::RemoteInvalidRequest);
        left.wait_for_state(QpState::Error);
        right.wait_for_state(QpState::Error);
        left.expect(WorkRequest::write(left.at(0..8), right.remote(0)), flushed);
        left.assert_quiet();
        right.assert_quiet();
        assert!(left.is_all(0..8, 1) && right.is_all(0..LEN, 0));
    }
}

/// The peer takes all of them at one look: it may have acknowledged none when it refuses one.
fn what_was_posted_before_a_refused_request_has_succeeded(_: &Device) {
    let (mut left, mut right) = pair(rc());
    left.fill(0..8, 1);
    let [wrong, ..] = nowhere(&right);
    right.recv(64..72);
    right.recv(72..80);
    let mut list = vec![
        WorkRequest::write(left.at(0..8), right.remote(0)),
        WorkRequest::send(left.at(0..8)),
        WorkRequest::write(left.at(0..8), right.remote(8)),
        WorkRequest::send_with_imm(left.at(0..8), 5),
        WorkRequest::write(left.at(0..8), wrong),
        WorkRequest::write(left.at(0..8), right.remote(16)),
    ];
    list = list.into_iter().map(WorkRequest::signaled).collect();
    left.qp.post(&mut list, &mut drop).unwrap();
    assert_eq!(right.statuses(2), [C::Success; 2]);
    assert_eq!(left.statuses(4), [C::Success; 4]);
    assert_eq!(left.statuses(2), [C::RemoteAccess, C::WorkRequestFlushed]);
    assert!(right.is_all(0..16, 1) && right.is_all(16..64, 0) && right.is_all(64..80, 1));
}

fn a_refused_request_flushes_the_peers_receives(_: &Device) {
    let (mut left, mut right) = pair(rc());
    right.recv(0..8);
    right.recv(8..16);
    let [wrong, ..] = nowhere(&right);
    left.expect(WorkRequest::write(left.at(0..8), wrong), C::RemoteAccess);
    assert_eq!(right.statuses(2), [C::WorkRequestFlushed; 2]);
}

fn more_reads_than_the_peer_permits_are_refused(_: &Device) {
    let none = Options {
        max_dest_rd_atomic: 0,
        ..rc()
    };
    let (mut left, right) = pair_of(rc(), none);
    let read = WorkRequest::read(left.at(0..8), right.remote(0));
    left.expect(read, C::RemoteInvalidRequest);
}

/// The message that waits for a receive keeps the READs behind it outstanding.
fn one_read_more_than_permitted_is_refused(device: &Device) {
    device.needs_soft(&rxe::SOFT_OPTION);
    for (permitted, expected) in [(4, C::Success), (3, C::RemoteInvalidRequest)] {
        let fewer = Options {
            max_dest_rd_atomic: permitted,
            ..rc()
        };
        let (mut left, mut right) = pair_of(rc(), fewer);
        left.post(WorkRequest::send(left.at(0..8)).signaled());
        for number in 0..4 {
            let at = number * 8..number * 8 + 8;
            left.post(WorkRequest::read(left.at(at), right.remote(0)).signaled());
        }
        right.assert_quiet();
        right.recv(0..8);
        right.expect_recv(C::Success);
        let success = C::Success;
        let all = [success, success, success, success, expected];
        assert_eq!(left.statuses(5), all, "{permitted} are permitted");
    }
}

fn a_region_that_was_deregistered_is_out_of_reach(_: &Device) {
    for op in Op::ALL {
        let (mut left, right) = pair(rc());
        let region = right.expose(4096, everything(), 2);
        let place = region.remote(0);
        left.succeed(op.request(left.at(0..8), place));
        region.deregister().unwrap();
        left.expect(op.request(left.at(0..8), place), C::RemoteAccess);
    }
}

fn a_region_can_be_deregistered_during_traffic(_: &Device) {
    let (mut left, right) = pair(rc());
    let region = right.expose(1 << 16, everything(), 2);
    let place = region.remote(0);
    let mut region = Some(region);
    for number in 0.. {
        while left.qp.send_slots_free() > 0 {
            left.post(WorkRequest::write(left.at(0..20_000), place).signaled());
        }
        let status = left.one().status;
        if number == 20 {
            region.take().unwrap().deregister().unwrap();
        }
        if status != C::Success {
            assert!(number >= 20, "{number}");
            assert_eq!(status, C::RemoteAccess);
            return;
        }
    }
}
