//! Errors: which side sees them, with which status, and which other requests fail with them.

use verbline_verbs::{Access, CompletionStatus as C, QpState, SendRequest, Slot, WorkKind};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::verbs_side::{
    self, Plan, SLOT_LEN, Side, connected, failed, flushed, received, region, sent,
};

pub(crate) const CASES: Section = Section {
    topic: "errors",
    cases: &[
        case!(
            a_message_longer_than_its_receive_fails_both_sides,
            "specification: completion statuses; rc_test: SendWithTooSmallRecv"
        ),
        case!(
            a_receive_into_memory_without_local_write_fails_both_sides,
            "specification: protection checks; access_test: MissingDstLocalWrite"
        ),
        case!(
            a_receive_into_memory_of_another_domain_fails_both_sides,
            "specification: protection checks; pd_test: SendMrOtherPdRemote"
        ),
        case!(
            a_receive_into_memory_of_another_context_fails_both_sides,
            "specification: protection checks"
        ),
        case!(
            a_zero_byte_message_touches_nothing_so_nothing_is_checked,
            "specification: protection checks; buffer_test: SendZeroByte"
        ),
        case!(
            a_send_that_the_device_may_not_read_fails_after_all_before_it_have_completed,
            "specification: requester; pd_test: SendMrOtherPdLocal"
        ),
    ],
};

fn a_message_longer_than_its_receive_fails_both_sides(device: &Device) {
    for len in [65, 240, 241, SLOT_LEN] {
        let (mut left, mut right) = connected(Plan::default());
        let mut short = region(&right.domain, 1).into_slots(64).unwrap();
        short.truncate(1);
        right.qp.post_recv(&mut short, 1).unwrap();
        right.post_recv(1);
        left.send(len, 1);
        left.send_signaled(8, 2);
        let done = right.wait(2);
        let too_long = device.deviates(&rxe::RECEIVE_STATUSES, C::LocalLength, C::LocalQpOperation);
        assert_eq!(done[0], failed(WorkKind::Receive, too_long), "{len}");
        assert_eq!(done[1], flushed(WorkKind::Receive));
        let done = left.wait(2);
        let refused = device.deviates(
            &rxe::RECEIVE_STATUSES,
            C::RemoteInvalidRequest,
            C::RemoteOperation,
        );
        assert_eq!(done[0], failed(WorkKind::Send, refused), "unsignaled");
        assert_eq!(done[1], flushed(WorkKind::Send));
        assert_eq!(
            (left.state(), right.state()),
            (QpState::Error, QpState::Error)
        );
    }
}

fn a_receive_into_memory_without_local_write_fails_both_sides(device: &Device) {
    unwritable_receive(device, |side| {
        let region = side.domain.register(SLOT_LEN, Access::NONE).unwrap();
        region.into_slots(SLOT_LEN).unwrap()
    });
}

fn a_receive_into_memory_of_another_domain_fails_both_sides(device: &Device) {
    unwritable_receive(device, |side| {
        region(&side.context.alloc_pd().unwrap(), 1)
            .into_slots(SLOT_LEN)
            .unwrap()
    });
}

fn a_receive_into_memory_of_another_context_fails_both_sides(device: &Device) {
    unwritable_receive(device, |_| {
        let context = verbs_side::open();
        region(&context.alloc_pd().unwrap(), 1)
            .into_slots(SLOT_LEN)
            .unwrap()
    });
}

fn unwritable_receive(device: &Device, wrong: fn(&Side) -> Vec<Slot>) {
    let (mut left, mut right) = connected(Plan::default());
    let mut slots = wrong(&right);
    right.qp.post_recv(&mut slots, 1).unwrap();
    left.send(10, 1);
    let protected = device.deviates(
        &rxe::RECEIVE_STATUSES,
        C::LocalProtection,
        C::LocalQpOperation,
    );
    assert_eq!(right.wait_one(), failed(WorkKind::Receive, protected));
    assert_eq!(left.wait_one(), failed(WorkKind::Send, C::RemoteOperation));
}

fn a_zero_byte_message_touches_nothing_so_nothing_is_checked(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    let no_write = right.domain.register(SLOT_LEN, Access::NONE).unwrap();
    right
        .qp
        .post_recv(&mut no_write.into_slots(SLOT_LEN).unwrap(), 1)
        .unwrap();
    left.send_signaled(0, 0);
    assert_eq!(right.wait_one(), received(0, 0));
    assert_eq!(left.wait_one(), sent());
}

fn a_send_that_the_device_may_not_read_fails_after_all_before_it_have_completed(device: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    right.post_recv(3);
    let other = region(&left.context.alloc_pd().unwrap(), 1)
        .into_slots(SLOT_LEN)
        .unwrap()
        .remove(0);
    let first = left.message(10, 1).signaled();
    let third = left.message(10, 3);
    let mut list = vec![first, SendRequest::new(other, 10), third];
    left.post_list(&mut list).unwrap();
    let done = left.wait(3);
    // The good request completes once the peer has received it, even if the peer does not poll.
    // Soft-RoCE drops an acknowledgement that arrives after the failure.
    assert!(
        done[0] == sent()
            || (device.deviates(&rxe::SEND_STATUS, false, true)
                && done[0] == flushed(WorkKind::Send))
    );
    let protected = device.deviates(&rxe::SEND_STATUS, C::LocalProtection, C::LocalQpOperation);
    assert_eq!(
        done[1..],
        [failed(WorkKind::Send, protected), flushed(WorkKind::Send)]
    );
    assert_eq!(right.wait_one(), received(10, 1));
    right.assert_quiet();
}
