//! Many queue pairs on one context.

use std::collections::HashMap;

use std::time::Instant;

use verbline_verbs::{Access, QpNum, QueuePair, WorkCompletion};

use crate::verbs_side::{
    HANG, Plan, Side, address, connected, create_qp, device, endpoint, rtr, rts,
};

/// Creates two contexts with `count` connected queue pairs each, in addition to their first ones.
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
    // Enough empty polls for all but a few rings to become cold.
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
        let mut completed: HashMap<QpNum, usize> = HashMap::new();
        let start = Instant::now();
        while completed.len() < pairs.len() {
            poll_some(&mut right, &mut completions);
            for completion in completions.drain(..) {
                *completed.entry(completion.qp_num()).or_default() += 1;
                let (slot, len) = right.srq.as_ref().unwrap().claim(completion).unwrap();
                assert_eq!((len, slot[0]), (10, round));
                right.slots.push(slot);
            }
            assert!(
                start.elapsed() < HANG,
                "{} of {} were heard",
                completed.len(),
                pairs.len()
            );
        }
        assert!(completed.values().all(|times| *times == 1));
        assert!(
            pairs
                .iter()
                .all(|(_, to_left)| completed.contains_key(&to_left.qp_num()))
        );
        right.post_recv(100);
    }
    // The receiver was notified of messages in cold rings, which is the subject of this test. Other
    // devices have no rings.
    if device() == "soft" {
        assert!(left.context.counters().unwrap().wakes > 0);
    }
}
