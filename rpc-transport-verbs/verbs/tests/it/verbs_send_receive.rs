//! What the verbs layer adds to sends and receives: slots that are returned, completions that are
//! claimed once, and lists posted with one doorbell. The conformance suite covers the sends and
//! receives themselves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use verbline_verbs::PostErrorReason;

use crate::verbs_side::{HANG, Plan, SLOT_LEN, Side, connected, device, received, sent};

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
fn inline_messages_and_lists_keep_their_order() {
    let (mut left, mut right) = connected(Plan::default());
    right.post_recv(5);
    left.qp.post_inline(&[1; 8], false).unwrap();
    left.qp.post_inline(&[2; 8], false).unwrap();
    let mut list = vec![left.message(8, 3), left.message(8, 4)];
    left.post_list(&mut list).unwrap();
    left.qp.post_inline(&[5; 8], true).unwrap();
    left.qp.ring_doorbell().unwrap();
    left.qp.ring_doorbell().unwrap();
    assert_eq!(left.qp.send_slots_free(), 11);
    let fills: Vec<_> = right.wait(5).iter().map(|done| done.first).collect();
    assert_eq!(fills, [1, 2, 3, 4, 5]);
    assert_eq!(left.wait_one(), sent());
    assert_eq!(left.qp.send_slots_free(), 16, "one completion covers all");
}

#[test]
fn an_inline_message_that_does_not_fit_is_refused() {
    let (mut left, mut right) = connected(Plan::default());
    let limit = left.qp.capabilities().max_inline_data;
    let len = limit + 1;
    let refused = left.qp.post_inline(&vec![0; len], true).unwrap_err();
    assert_eq!(refused, PostErrorReason::InlineTooLong { len, limit });
    assert_eq!(left.qp.send_slots_free(), 16, "it uses no entry");
    right.post_recv(16);
    for number in 0..16 {
        left.qp.post_inline(&[number; 1], number == 15).unwrap();
    }
    let refused = left.qp.post_inline(&[16; 1], true).unwrap_err();
    assert_eq!(refused, PostErrorReason::QueueFull { capacity: 16 });
    left.qp.ring_doorbell().unwrap();
    right.wait(16);
    left.wait(1);
    assert_eq!(left.qp.send_slots_free(), 16);
}

#[test]
fn completions_come_one_by_one_in_the_same_order() {
    let (mut left, mut right) = connected(Plan {
        sq_sig_all: true,
        ..Plan::default()
    });
    right.post_recv(6);
    for fill in 1..=6 {
        left.send(10, fill);
    }
    right.wait(6);
    let mut ids = Vec::new();
    let mut completions = Vec::new();
    while ids.len() < 6 {
        if let Some(completion) = left.cq.poll_one().unwrap() {
            ids.push(completion.wr_id().number());
        }
        // Both ways of polling take from the same queue.
        if ids.len() == 2 && left.cq.poll(&mut completions, 2).unwrap() == 2 {
            ids.extend(completions.drain(..).map(|it| it.wr_id().number()));
        }
    }
    let first = ids[0];
    assert_eq!(ids, (first..first + 6).collect::<Vec<_>>());
    assert!(left.cq.poll_one().unwrap().is_none());
}

#[test]
fn a_poll_leaves_no_ring_hot_in_a_context_that_sleeps() {
    if device() != "soft" {
        // It has no rings.
        return;
    }
    let (mut left, mut right) = connected(Plan::default());
    right.post_recv(1);
    left.send(8, 0);
    right.wait(1);
    let other = right.context.create_cq_with_channel(1, &right.channel);
    other.as_ref().unwrap().arm(false).unwrap();
    right.post_recv(3);
    for count in 1..=3 {
        let before = left.context.counters().unwrap().wakes;
        left.send(8, count);
        let after = left.context.counters().unwrap().wakes;
        assert_eq!(after, before + 1, "message {count} notifies the sleeper");
        let start = Instant::now();
        let completion = loop {
            if let Some(completion) = right.cq.poll_one().unwrap() {
                break completion;
            }
            assert!(start.elapsed() < HANG);
        };
        let (slot, len) = right.qp.claim_recv(completion).unwrap();
        assert_eq!((len, slot[0]), (8, count));
        right.slots.push(slot);
    }
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

/// The callback that takes slots back may panic: no slot is returned twice, and requests in flight
/// remain recorded.
#[test]
fn a_panic_of_who_takes_slots_back_leaves_everything_owned_once() {
    let (mut left, mut right) = connected(Plan::default());
    right.post_recv(3);
    let mut list = vec![
        left.message(8, 1).inline(),
        left.message(8, 2),
        left.message(8, 3).signaled(),
    ];
    let qp = &mut left.qp;
    let posted = catch_unwind(AssertUnwindSafe(|| {
        qp.post_send(&mut list, &mut |_| panic!("not today"))
    }));
    assert!(posted.is_err());
    assert_eq!(left.qp.send_slots_free(), 13, "all three are in flight");
    assert_eq!(left.wait_one(), sent());
    assert_eq!(left.qp.send_slots_free(), 16);
    assert_eq!(right.wait(3).len(), 3);
    // Destroying a queue pair returns the posted slots, each once.
    let mut slots: Vec<_> = right.slots.drain(..4).collect();
    let kept = slots.split_off(2);
    right.qp.post_recv(&mut slots, 2).unwrap();
    let Side { qp, .. } = right;
    let ended = catch_unwind(AssertUnwindSafe(|| {
        qp.destroy(&mut |slot| {
            drop(slot);
            panic!("not today");
        });
    }));
    assert!(ended.is_err());
    drop(kept);
}
