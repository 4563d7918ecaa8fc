//! Many queue pairs on one context, many threads on few, and messages through the arena.

mod verbs_side;

use std::collections::HashMap;
use std::time::Instant;

use rpc_transport_verbs::verbs::{Access, QpNum, QueuePair, SendRequest, WorkCompletion, WorkKind};
use verbs_side::{
    HANG, Plan, Side, address, connected, create_qp, device, endpoint, received, rtr, rts, sent,
};

/// Two contexts with `count` connected queue pairs each, besides their first ones.
fn crowd(count: usize) -> (Side, Side, Vec<(QueuePair, QueuePair)>) {
    let plan = Plan {
        srq_wr: 128,
        cq_depth: 4096,
        ..Plan::default()
    };
    let (left, right) = connected(plan);
    let pairs = (0..count)
        .map(|_| {
            let make = |side: &Side| create_qp(&side.domain, &side.cq, side.srq.as_ref(), plan);
            let (mut to_right, mut to_left) = (make(&left), make(&right));
            let remotes = (endpoint(&to_left), endpoint(&to_right));
            for (qp, remote) in [(&mut to_right, remotes.0), (&mut to_left, remotes.1)] {
                qp.to_init(address().port, Access::NONE).unwrap();
                qp.to_rtr(rtr(remote)).unwrap();
                qp.to_rts(rts()).unwrap();
            }
            (to_right, to_left)
        })
        .collect();
    (left, right, pairs)
}

fn poll_some(side: &mut Side, out: &mut Vec<WorkCompletion>) {
    side.cq.poll(out, 64).unwrap();
}

#[test]
fn every_ring_of_a_crowd_is_heard_after_it_has_gone_cold() {
    let (mut left, mut right, mut pairs) = crowd(100);
    right.post_recv(128);
    let mut completions = Vec::new();
    // Enough empty polls for all but a few rings to go cold.
    for _ in 0..50_000 {
        poll_some(&mut right, &mut completions);
    }
    assert!(completions.is_empty());
    for round in 1..=3_u8 {
        for (to_right, _) in &mut pairs {
            let request = left.message(10, round).inline();
            to_right
                .post_send(&mut vec![request], &mut |slot| left.slots.push(slot))
                .unwrap();
        }
        let mut heard: HashMap<QpNum, usize> = HashMap::new();
        let start = Instant::now();
        while heard.len() < pairs.len() {
            poll_some(&mut right, &mut completions);
            for completion in completions.drain(..) {
                *heard.entry(completion.qp_num()).or_default() += 1;
                let (slot, len) = right.srq.as_ref().unwrap().claim(completion).unwrap();
                assert_eq!((len, slot[0]), (10, round));
                right.slots.push(slot);
            }
            assert!(
                start.elapsed() < HANG,
                "{} of {} were heard",
                heard.len(),
                pairs.len()
            );
        }
        assert!(heard.values().all(|times| *times == 1));
        assert!(
            pairs
                .iter()
                .all(|(_, to_left)| heard.contains_key(&to_left.qp_num()))
        );
        right.post_recv(100);
    }
    // Cold rings were told of: that is what this test is about. Other devices have no rings.
    if device() == "soft" {
        assert!(left.context.counters().unwrap().wakes > 0);
    }
}

#[test]
fn queue_pairs_come_and_go_beside_a_busy_one() {
    let (mut left, mut right) = connected(Plan::default());
    let mut last = left.qp.qp_num();
    for round in 0..50_u8 {
        let (mut passing, mut other) = connected(Plan::default());
        assert_ne!(
            passing.qp.qp_num(),
            last,
            "numbers are not used again at once"
        );
        last = passing.qp.qp_num();
        other.post_recv(1);
        passing.send_signaled(700, round);
        right.post_recv(1);
        left.send_signaled(700, round);
        assert_eq!(right.wait_one(), received(700, round));
        assert_eq!(other.wait_one(), received(700, round));
        assert_eq!((left.wait_one(), passing.wait_one()), (sent(), sent()));
    }
}

#[test]
fn a_region_that_is_registered_later_can_be_sent_from() {
    let (mut left, mut right) = connected(Plan::default());
    let long = 3 << 20;
    let mut send = left
        .domain
        .register(long, Default::default())
        .unwrap()
        .into_slots(long);
    let write = Access::LOCAL_WRITE;
    let mut receive = right.domain.register(long, write).unwrap().into_slots(long);
    right.qp.post_recv(&mut receive, 1).unwrap();
    let mut slot = send.remove(0);
    for (index, byte) in slot.iter_mut().enumerate() {
        *byte = (index / 4093) as u8;
    }
    left.post(SendRequest::new(slot, long).signaled()).unwrap();
    let mut completions = Vec::new();
    let start = Instant::now();
    while right.cq.poll(&mut completions, 1).unwrap() == 0 {
        assert!(start.elapsed() < HANG);
    }
    let (slot, len) = right.qp.claim_recv(completions.remove(0)).unwrap();
    assert_eq!(len, long);
    assert!(
        slot.iter()
            .enumerate()
            .all(|(index, byte)| *byte == (index / 4093) as u8)
    );
    assert_eq!(left.wait_one(), sent());
}

#[test]
fn regions_that_go_while_others_are_in_use_take_nothing_along() {
    let (mut left, mut right) = connected(Plan::default());
    for round in 0..30_u8 {
        let mut slots = verbs_side::region(&left.domain, 1).into_slots(verbs_side::SLOT_LEN);
        right.post_recv(1);
        let mut slot = slots.swap_remove(0);
        drop(slots);
        slot.fill(round);
        left.post(SendRequest::new(slot, 1000).signaled()).unwrap();
        assert_eq!(right.wait_one(), received(1000, round));
        // Claiming pushes the slot of the short-lived region; dropping it ends the region.
        assert_eq!(left.wait_one(), sent());
        drop(left.slots.pop());
    }
}

#[test]
fn threads_share_a_context_by_taking_turns() {
    const THREADS: usize = 4;
    const MESSAGES: usize = 2_000;
    let plan = Plan {
        cq_depth: 64,
        ..Plan::default()
    };
    let context = rpc_transport_verbs::verbs::Context::open(device()).unwrap();
    let domain = context.alloc_pd().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let (context, domain) = (context.clone(), domain.clone());
            scope.spawn(move || {
                // One queue pair connected to itself per thread, all behind the same owner word.
                let mut cq = context.create_cq(plan.cq_depth).unwrap();
                let mut qp = create_qp(&domain, &cq, None, plan);
                qp.to_init(address().port, Access::NONE).unwrap();
                qp.to_rtr(rtr(endpoint(&qp))).unwrap();
                qp.to_rts(rts()).unwrap();
                let mut slots = verbs_side::region(&domain, 4).into_slots(verbs_side::SLOT_LEN);
                let mut completions = Vec::new();
                for number in 0..MESSAGES {
                    qp.post_recv(&mut slots, 1).unwrap();
                    let mut slot = slots.pop().unwrap();
                    let len = 1 + number % 1000;
                    slot[..len].fill(number as u8);
                    let mut list = vec![SendRequest::new(slot, len).signaled()];
                    qp.post_send(&mut list, &mut drop).unwrap();
                    let start = Instant::now();
                    let mut done = 0;
                    while done < 2 {
                        cq.poll(&mut completions, 4).unwrap();
                        for completion in completions.drain(..) {
                            assert!(completion.is_success(), "{}", completion.status());
                            done += 1;
                            if completion.wr_id().kind() == Some(WorkKind::Send) {
                                qp.complete_send(completion, &mut |slot| slots.push(slot))
                                    .unwrap();
                            } else {
                                let (slot, came) = qp.claim_recv(completion).unwrap();
                                assert_eq!(came, len);
                                assert!(slot[..len].iter().all(|byte| *byte == number as u8));
                                slots.push(slot);
                            }
                        }
                        assert!(start.elapsed() < HANG);
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
}
