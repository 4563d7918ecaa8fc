//! The send queue: when slots become free, which requests complete, inline data, and lists.

use verbline_verbs::PostErrorReason;

use super::case::{Section, case};
use super::device::Device;
use super::verbs_side::{self, Plan, SLOT_LEN, Side, connected, received, sent};

pub(crate) const CASES: Section = Section {
    topic: "send queue",
    cases: &[
        case!(
            an_unsignaled_send_completes_nothing_and_a_later_signaled_one_covers_it,
            "specification: signaling; rc_test: UnsignaledSend"
        ),
        case!(
            sq_sig_all_completes_every_send,
            "specification: signaling; rc_test: QpSigAll"
        ),
        case!(
            an_inline_send_gives_its_slot_back_at_once_and_sends_what_was_in_it,
            "specification: inline; rc_test: SendInlineData"
        ),
        case!(
            an_inline_send_that_has_to_wait_keeps_its_own_bytes,
            "specification: inline"
        ),
        case!(
            one_byte_too_many_inline_is_refused,
            "specification: inline; rc_test: SendExceedMaxInlineData"
        ),
        case!(
            a_list_longer_than_the_send_queue_is_posted_up_to_its_end,
            "specification: send queue; qp_test: OverflowSendWr"
        ),
        case!(
            a_list_that_is_refused_in_the_middle_is_posted_before_and_handed_back_after,
            "specification: lists"
        ),
        case!(
            a_send_queue_full_of_unsignaled_sends_is_stuck_until_it_is_destroyed,
            "specification: send queue slots"
        ),
        case!(
            a_send_queue_with_a_signal_every_half_goes_on_for_ever,
            "specification: send queue slots"
        ),
        case!(
            a_slot_of_the_send_queue_is_free_when_its_completion_has_been_polled_not_before,
            "specification: send queue slots"
        ),
    ],
};

fn an_unsignaled_send_completes_nothing_and_a_later_signaled_one_covers_it(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    let slots = left.slots.len();
    right.post_recv(3);
    left.send(300, 1);
    left.send(300, 2);
    assert_eq!(right.wait(2).len(), 2);
    left.assert_quiet();
    assert_eq!(left.slots.len(), slots - 2);
    left.send_signaled(300, 3);
    assert_eq!(left.wait_one(), sent());
    assert_eq!(left.slots.len(), slots);
    right.wait(1);
}

fn sq_sig_all_completes_every_send(_: &Device) {
    let (mut left, mut right) = connected(Plan {
        sq_sig_all: true,
        ..Plan::default()
    });
    right.post_recv(3);
    for fill in 0..3 {
        left.send(8, fill);
    }
    assert_eq!(left.wait(3), [sent(); 3]);
    right.wait(3);
}

fn an_inline_send_gives_its_slot_back_at_once_and_sends_what_was_in_it(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    let slots = left.slots.len();
    right.post_recv(1);
    let limit = left.qp.capabilities().max_inline_data;
    let request = left.message(limit, 3).signaled().inline();
    left.post(request).unwrap();
    assert_eq!(left.slots.len(), slots);
    for slot in &mut left.slots {
        slot.fill(9);
    }
    assert_eq!(right.wait_one(), received(limit, 3));
    assert_eq!(left.wait_one(), sent());
    assert_eq!(left.slots.len(), slots);
}

fn an_inline_send_that_has_to_wait_keeps_its_own_bytes(_: &Device) {
    // The peer is ready but has posted no receives, so the ring fills up. Further requests wait in
    // the send queue, and their slots are overwritten in the meantime.
    let plan = Plan {
        max_send_wr: 256,
        cq_depth: 600,
        ..Plan::default()
    };
    let (mut left, mut right) = connected(plan);
    let mut slot = left.slots.pop().unwrap();
    for number in 0..200_u8 {
        slot.fill(number);
        let request = verbline_verbs::SendRequest::new(slot, 32).inline();
        left.post(request).unwrap();
        slot = left.slots.pop().unwrap();
    }
    for number in 0..200_u8 {
        right.post_recv(1);
        let start = std::time::Instant::now();
        let done = loop {
            left.poll();
            if let Some(done) = right.poll().first() {
                break *done;
            }
            assert!(start.elapsed() < verbs_side::HANG);
        };
        assert_eq!(done, received(32, number));
    }
}

fn one_byte_too_many_inline_is_refused(_: &Device) {
    let (mut left, _right) = connected(Plan::default());
    let limit = left.qp.capabilities().max_inline_data;
    let request = left.message(limit + 1, 3).inline();
    let error = left.post(request).unwrap_err();
    assert_eq!(
        error.reason,
        PostErrorReason::InlineTooLong {
            len: limit + 1,
            limit
        }
    );
}

fn a_list_longer_than_the_send_queue_is_posted_up_to_its_end(_: &Device) {
    let (mut left, mut right) = connected(Plan {
        max_send_wr: 4,
        ..Plan::default()
    });
    right.post_recv(4);
    let mut list: Vec<_> = (1..=5).map(|fill| left.message(20, fill)).collect();
    let error = left.post_list(&mut list).unwrap_err();
    let full = PostErrorReason::QueueFull { capacity: 4 };
    assert_eq!((error.taken, error.reason), (4, full));
    assert_eq!((list.len(), list[0].slot[0]), (1, 5));
    let fills: Vec<_> = right.wait(4).iter().map(|done| done.first).collect();
    assert_eq!(fills, [1, 2, 3, 4]);
    right.assert_quiet();
}

fn a_list_that_is_refused_in_the_middle_is_posted_before_and_handed_back_after(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    right.post_recv(4);
    let mut list: Vec<_> = (1..=4).map(|fill| left.message(20, fill)).collect();
    list[2].len = SLOT_LEN + 1;
    let error = left.post_list(&mut list).unwrap_err();
    assert_eq!(error.taken, 2);
    assert_eq!(list.len(), 2);
    assert_eq!((list[0].slot[0], list[1].slot[0]), (3, 4));
    let fills: Vec<_> = right.wait(2).iter().map(|done| done.first).collect();
    assert_eq!(fills, [1, 2]);
    right.assert_quiet();
}

fn a_send_queue_full_of_unsignaled_sends_is_stuck_until_it_is_destroyed(_: &Device) {
    let (mut left, mut right) = connected(Plan {
        max_send_wr: 4,
        ..Plan::default()
    });
    let slots = left.slots.len();
    right.post_recv(5);
    for fill in 0..4 {
        left.send(300, fill);
    }
    right.wait(4);
    left.assert_quiet();
    let request = left.message(300, 9);
    let mut list = vec![request];
    let error = left.post_list(&mut list).unwrap_err();
    assert_eq!(
        (error.taken, error.reason),
        (0, PostErrorReason::QueueFull { capacity: 4 })
    );
    left.slots
        .extend(list.into_iter().map(|request| request.slot));
    let Side {
        qp,
        slots: mut back,
        ..
    } = left;
    qp.destroy(&mut |slot| back.push(slot));
    assert_eq!(back.len(), slots);
}

fn a_send_queue_with_a_signal_every_half_goes_on_for_ever(_: &Device) {
    let (mut left, mut right) = connected(Plan {
        max_send_wr: 4,
        ..Plan::default()
    });
    for number in 0..1000_usize {
        right.post_recv(1);
        let request = left.message(10, 1);
        let request = if number % 2 == 1 {
            request.signaled()
        } else {
            request
        };
        left.post(request).unwrap();
        right.wait(1);
        if number % 2 == 1 {
            left.wait(1);
        }
    }
}

fn a_slot_of_the_send_queue_is_free_when_its_completion_has_been_polled_not_before(_: &Device) {
    let (mut left, mut right) = connected(Plan {
        max_send_wr: 2,
        ..Plan::default()
    });
    right.post_recv(3);
    left.send_signaled(10, 1);
    left.send_signaled(10, 2);
    // Both requests have completed, but their completions have not been polled.
    right.wait(2);
    assert_eq!(left.qp.send_slots_free(), 0);
    let request = left.message(10, 3);
    let mut list = vec![request];
    assert!(left.post_list(&mut list).is_err());
    left.wait(2);
    left.post_list(&mut list).unwrap();
    right.wait(1);
}
