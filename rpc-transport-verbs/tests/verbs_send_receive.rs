//! Messages between two queue pairs of one process: what arrives, in which order, and when the
//! slots come back.

mod verbs_side;

use rpc_transport_verbs::verbs::{PostErrorReason, WorkKind};
use verbs_side::{Plan, SLOT_LEN, Side, connected, received, sent, specified_or_rxe};

#[test]
fn a_message_arrives_and_its_slots_come_back() {
    let (mut left, mut right) = connected(Plan::default());
    let (left_slots, right_slots) = (left.slots.len(), right.slots.len());
    right.post_recv(1);
    left.send_signaled(88, 7);
    assert_eq!(
        left.slots.len(),
        left_slots - 1,
        "not inline: the slot is in flight"
    );
    assert_eq!(right.wait_one(), received(88, 7));
    assert_eq!(left.wait_one(), sent());
    assert_eq!(
        (left.slots.len(), right.slots.len()),
        (left_slots, right_slots)
    );
}

#[test]
fn messages_of_every_length_arrive_whole() {
    let (mut left, mut right) = connected(Plan::default());
    // Around what travels in the ring (240), cache lines and the slot.
    for len in [
        0,
        1,
        47,
        48,
        49,
        63,
        64,
        112,
        113,
        239,
        240,
        241,
        512,
        SLOT_LEN - 1,
        SLOT_LEN,
    ] {
        right.post_recv(1);
        left.send_signaled(len, 0xa5);
        assert_eq!(
            right.wait_one(),
            received(len, if len > 0 { 0xa5 } else { 0 }),
            "{len}"
        );
        assert_eq!(left.wait_one(), sent());
    }
}

#[test]
fn both_directions_keep_their_order_over_many_rounds_of_the_ring() {
    let (mut left, mut right) = connected(Plan::default());
    for round in 0..100_u8 {
        for side in [&mut left, &mut right] {
            side.post_recv(8);
        }
        for (side, offset) in [(&mut left, 0), (&mut right, 100)] {
            for index in 0..8_u8 {
                let len = usize::from(index) * 60;
                let request = side.message(len, (round + index + offset) | 1);
                let request = if index == 7 {
                    request.signaled()
                } else {
                    request
                };
                side.post(request).unwrap();
            }
        }
        for (side, offset) in [(&mut left, 100), (&mut right, 0)] {
            let done = side.wait(9);
            assert_eq!(
                done.iter()
                    .filter(|done| done.kind == WorkKind::Send)
                    .count(),
                1
            );
            let mut receives = done.iter().filter(|done| done.kind == WorkKind::Receive);
            for index in 0..8_u8 {
                let len = usize::from(index) * 60;
                let first = if len == 0 {
                    0
                } else {
                    (round + index + offset) | 1
                };
                assert_eq!(receives.next(), Some(&received(len, first)));
            }
        }
    }
}

#[test]
fn a_list_is_posted_with_one_doorbell() {
    let (mut left, mut right) = connected(Plan::default());
    right.post_recv(4);
    left.send_signaled(1, 1);
    right.wait(1);
    left.wait(1);
    let before = left.context.counters().unwrap();
    let mut list: Vec<_> = (1..=3).map(|fill| left.message(10, fill)).collect();
    left.post_list(&mut list).unwrap();
    assert!(list.is_empty());
    let after = left.context.counters().unwrap();
    assert_eq!(after.sends - before.sends, 3);
    assert_eq!(after.doorbells - before.doorbells, 1);
    let fills: Vec<_> = right.wait(3).iter().map(|done| done.first).collect();
    assert_eq!(fills, [1, 2, 3]);
}

#[test]
fn an_unsignaled_send_completes_nothing_and_a_later_signaled_one_covers_it() {
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

#[test]
fn sq_sig_all_completes_every_send() {
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

#[test]
fn an_inline_send_gives_its_slot_back_at_once_and_sends_what_was_in_it() {
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

#[test]
fn an_inline_send_that_has_to_wait_keeps_its_own_bytes() {
    // The peer is ready but has posted nothing, and the ring fills up: what follows waits in the
    // send queue, and its slots are overwritten meanwhile.
    let plan = Plan {
        max_send_wr: 256,
        cq_depth: 600,
        ..Plan::default()
    };
    let (mut left, mut right) = connected(plan);
    let mut slot = left.slots.pop().unwrap();
    for number in 0..200_u8 {
        slot.fill(number);
        let request = rpc_transport_verbs::verbs::SendRequest::new(slot, 32).inline();
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

#[test]
fn one_byte_too_many_inline_is_refused() {
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

#[test]
fn one_byte_more_than_the_slot_is_refused() {
    let (mut left, _right) = connected(Plan::default());
    let mut request = left.message(1, 3);
    request.len = SLOT_LEN + 1;
    let error = left.post(request).unwrap_err();
    assert_eq!(
        error.reason,
        PostErrorReason::TooLong {
            len: SLOT_LEN + 1,
            slot_len: SLOT_LEN
        }
    );
}

#[test]
fn a_list_that_is_refused_in_the_middle_is_posted_before_and_handed_back_after() {
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

#[test]
fn a_send_queue_full_of_unsignaled_sends_is_stuck_until_it_is_destroyed() {
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

#[test]
fn a_send_queue_with_a_signal_every_half_goes_on_for_ever() {
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

#[test]
fn a_slot_of_the_send_queue_is_free_when_its_completion_has_been_polled_not_before() {
    let (mut left, mut right) = connected(Plan {
        max_send_wr: 2,
        ..Plan::default()
    });
    right.post_recv(3);
    left.send_signaled(10, 1);
    left.send_signaled(10, 2);
    // Both have been carried out, but nothing has been polled.
    right.wait(2);
    assert_eq!(left.qp.send_slots_free(), 0);
    let request = left.message(10, 3);
    let mut list = vec![request];
    assert!(left.post_list(&mut list).is_err());
    left.wait(2);
    left.post_list(&mut list).unwrap();
    right.wait(1);
}

#[test]
fn a_receive_queue_takes_what_it_has_room_for() {
    let (mut left, _right) = connected(Plan {
        max_recv_wr: 4,
        ..Plan::default()
    });
    let capacity = left.receive_capacity();
    let slots = left.slots.len();
    let error = left.try_post_recv(2 * capacity + 1).unwrap_err();
    // Soft-RoCE has room for one less than a power of two, and does not say so.
    let room = specified_or_rxe(capacity, (capacity + 1).next_power_of_two() - 1);
    assert_eq!(
        (error.taken, error.reason),
        (room, PostErrorReason::QueueFull { capacity })
    );
    assert_eq!(left.slots.len(), slots - room);
}

#[test]
fn a_completion_claims_nothing_of_another_queue() {
    let (mut left, mut right) = connected(Plan {
        sq_sig_all: true,
        ..Plan::default()
    });
    left.post_recv(1);
    right.post_recv(1);
    left.send(10, 1);
    right.wait(1);
    let mut completions = Vec::new();
    while left.cq.poll(&mut completions, 1).unwrap() == 0 {}
    let completion = completions.pop().unwrap();
    let error = right.qp.complete_send(completion, &mut drop).unwrap_err();
    assert_eq!(error.qp_num, left.qp.qp_num());
    assert_eq!(
        left.qp.send_slots_free(),
        15,
        "the send stays in flight: its completion is lost"
    );
}

#[test]
fn destroying_a_queue_pair_hands_everything_back() {
    let (mut left, mut right) = connected(Plan::default());
    let slots = left.slots.len();
    left.post_recv(5);
    right.post_recv(1);
    left.send(500, 1);
    left.send(500, 2);
    right.wait(1);
    let Side {
        qp,
        slots: mut back,
        ..
    } = left;
    qp.destroy(&mut |slot| back.push(slot));
    assert_eq!(back.len(), slots);
}
