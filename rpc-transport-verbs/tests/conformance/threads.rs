//! Many threads, one device.

use std::time::Instant;

use rpc_transport_verbs::verbs::{Access, SendRequest, WorkKind};

use super::case::{Section, case};
use super::device::Device;
use super::verbs_side::{self, HANG, Plan, address, create_qp, endpoint, rtr, rts};

pub(crate) const CASES: Section = Section {
    topic: "threads",
    cases: &[case!(
        threads_share_a_context_by_taking_turns,
        "specification: threads; threaded_test: QpLifecycle"
    )],
};

fn threads_share_a_context_by_taking_turns(_: &Device) {
    const THREADS: usize = 4;
    const MESSAGES: usize = 2_000;
    let plan = Plan {
        cq_depth: 64,
        ..Plan::default()
    };
    let context = rpc_transport_verbs::verbs::Context::open(verbs_side::device()).unwrap();
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
                let mut slots = verbs_side::region(&domain, 4)
                    .into_slots(verbs_side::SLOT_LEN)
                    .unwrap();
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
