//! Many threads on one device.

use std::collections::HashMap;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use verbline_verbs::{
    Access, CompletionQueue, CompletionStatus, Context, ProtectionDomain, SendRequest, WindowType,
    WorkKind, WorkRequest,
};

use super::case::{Section, case};
use super::device::Device;
use super::end::{self, End, Options, everything, pair, rc};
use super::verbs_side::{self, HANG, Plan, address, create_qp, endpoint, rtr, rts};

pub(crate) const CASES: Section = Section {
    topic: "threads",
    cases: &[
        case!(
            threads_share_a_context_by_taking_turns,
            "specification: threads"
        ),
        case!(
            domains_come_and_go_in_many_threads,
            "specification: threads; threaded_test: AllocPd, AllocDeallocPd"
        ),
        case!(
            regions_come_and_go_in_many_threads,
            "specification: threads; threaded_test: RegMr, RegDeregMr"
        ),
        case!(
            windows_come_and_go_in_many_threads,
            "specification: threads; threaded_test: AllocMw, AllocDeallocMw"
        ),
        case!(
            completion_queues_come_and_go_in_many_threads,
            "specification: threads; threaded_test: CreateCq, CreateDestroyCq"
        ),
        case!(
            queue_pairs_are_made_read_through_and_destroyed_in_many_threads,
            "specification: threads; threaded_test: QpLifecycle"
        ),
        case!(
            queue_pairs_come_and_go_in_many_threads,
            "specification: threads; threaded_test: CreateQp, CreateDestroyQp"
        ),
        case!(
            shared_receive_queues_come_and_go_in_many_threads,
            "specification: threads; threaded_test: CreateSrq, CreateDestroySrq"
        ),
        case!(
            address_handles_come_and_go_in_many_threads,
            "specification: threads; threaded_test: CreateAh, CreateDestroyAh; ud_test: MultiThreadedAhLifecycle"
        ),
        case!(
            threads_take_turns_at_one_queue_pair,
            "specification: threads"
        ),
        case!(
            ends_of_many_threads_share_one_receive_queue,
            "specification: threads; srq_test: MultiThreadedMultiQpSingleSrq"
        ),
        case!(
            many_shared_receive_queues_serve_as_many_threads,
            "specification: threads; srq_test: MultiThreadedMultiSrq"
        ),
        case!(
            many_queue_pairs_write_small_messages,
            "specification: one-sided"
        ),
    ],
};

const THREADS: usize = 4;

/// The parts of an end that threads share: everything except the queue pair, which one thread uses
/// at a time.
struct Common {
    context: Context,
    domain: ProtectionDomain,
    cq: CompletionQueue,
}

/// Creates objects in many threads at once. Keeps some of them and drops the others.
fn in_many_threads<T: Send>(make: impl Fn(&Common) -> T + Sync) {
    let End {
        context,
        domain,
        cq,
        ..
    } = End::new(rc());
    let common = Common {
        context,
        domain,
        cq,
    };
    let kept: Vec<T> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let mut kept = Vec::new();
                    for round in 0..40 {
                        let made = make(&common);
                        if round % 4 == 0 {
                            kept.push(made);
                        }
                    }
                    kept
                })
            })
            .collect();
        let kept = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap());
        kept.collect()
    });
    assert_eq!(kept.len(), THREADS * 10);
    drop(kept);
    drop(make(&common));
}

fn domains_come_and_go_in_many_threads(_: &Device) {
    in_many_threads(|common| common.context.alloc_pd().unwrap());
}

fn regions_come_and_go_in_many_threads(_: &Device) {
    in_many_threads(|common| common.domain.expose(10_000, everything()).unwrap());
}

fn windows_come_and_go_in_many_threads(_: &Device) {
    in_many_threads(|common| common.domain.alloc_mw(WindowType::Type2).unwrap());
}

fn completion_queues_come_and_go_in_many_threads(_: &Device) {
    in_many_threads(|common| common.context.create_cq(100).unwrap());
}

fn queue_pairs_come_and_go_in_many_threads(_: &Device) {
    in_many_threads(|common| {
        let mut qp = end::create(&common.domain, &common.cq, None, rc());
        let own = qp.qp_num();
        end::init(&mut qp, rc());
        end::rtr(&mut qp, own, rc());
        qp
    });
}

fn shared_receive_queues_come_and_go_in_many_threads(_: &Device) {
    in_many_threads(|common| common.domain.create_srq(16, 1).unwrap());
}

fn address_handles_come_and_go_in_many_threads(_: &Device) {
    in_many_threads(|common| common.domain.create_ah(end::own_port()).unwrap());
}

/// The types make threads take turns at posting and polling. The device sees calls from different
/// threads.
fn threads_take_turns_at_one_queue_pair(_: &Device) {
    let (left, right) = pair(rc());
    let place = right.remote(0);
    let left = Mutex::new(left);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..100 {
                    let mut left = left.lock().unwrap();
                    let result = left.at(0..8);
                    left.succeed(WorkRequest::fetch_and_add(result, place, 1));
                }
            });
        }
    });
    let sum = (THREADS * 100) as u64;
    assert_eq!(right.bytes(0..8), sum.to_ne_bytes());
}

/// Several threads send, each from its own end, and one thread receives everything from one queue.
fn into_one_queue(threads: usize, messages: usize) {
    let shared = Options { srq_wr: 64, ..rc() };
    let mut hub = End::new(shared);
    let ends: Vec<_> = (0..threads)
        .map(|_| {
            let (mut end, mut qp) = (End::new(rc()), hub.another());
            end::connect((&mut end.qp, rc()), (&mut qp, shared));
            hub.others.push(qp);
            end
        })
        .collect();
    for index in 0..64 {
        hub.recv(index * 8..index * 8 + 8);
    }
    thread::scope(|scope| {
        for mut end in ends {
            scope.spawn(move || {
                for number in 0..messages {
                    end.succeed(WorkRequest::send_with_imm(end.at(0..8), number as u32));
                }
            });
        }
        let mut next = HashMap::new();
        for index in 0..threads * messages {
            let seen = hub.expect_recv(CompletionStatus::Success);
            let number: &mut u32 = next.entry(seen.qp_num).or_default();
            assert_eq!(seen.imm, Some(*number), "of each sender in order");
            *number += 1;
            hub.recv(index % 64 * 8..index % 64 * 8 + 8);
        }
        assert_eq!(next.len(), threads);
    });
}

fn ends_of_many_threads_share_one_receive_queue(_: &Device) {
    into_one_queue(THREADS, 200);
}

fn many_shared_receive_queues_serve_as_many_threads(_: &Device) {
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| into_one_queue(2, 100));
        }
    });
}

fn queue_pairs_are_made_read_through_and_destroyed_in_many_threads(_: &Device) {
    const ROUNDS: usize = 10;
    let context = verbs_side::open();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let context = context.clone();
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let ends = [(); 2].map(|()| End::of(context.clone(), rc()));
                    let [mut left, mut right] = ends;
                    end::connect((&mut left.qp, rc()), (&mut right.qp, rc()));
                    right.fill(0..64, 7);
                    left.succeed(WorkRequest::read(left.at(0..64), right.remote(0)));
                    assert!(left.is_all(0..64, 7));
                }
            });
        }
    });
}

fn many_queue_pairs_write_small_messages(_: &Device) {
    const QUEUE_PAIRS: usize = 20;
    const WRITES: usize = 200;
    let (mut left, mut right) = (End::new(rc()), End::new(rc()));
    for _ in 0..QUEUE_PAIRS {
        let (mut qp, mut other) = (left.another(), right.another());
        end::connect((&mut qp, rc()), (&mut other, rc()));
        left.others.push(qp);
        right.others.push(other);
    }
    left.fill(0..32, 7);
    for round in 0..WRITES {
        for (index, qp) in left.others.iter_mut().enumerate() {
            let from = left.memory.element(0..32).unwrap();
            let write = WorkRequest::write(from, right.memory.remote(index * 1000 + round));
            qp.post_one(write.signaled()).unwrap();
        }
        for seen in left.wait(QUEUE_PAIRS) {
            assert_eq!(seen.status, CompletionStatus::Success);
        }
    }
    for index in 0..QUEUE_PAIRS {
        let start = index * 1000;
        right.becomes(start..start + WRITES + 31, 7);
        assert!(right.is_all(start + WRITES + 31..start + 1000, 0));
    }
}

fn threads_share_a_context_by_taking_turns(_: &Device) {
    const MESSAGES: usize = 1_000;
    let plan = Plan {
        cq_depth: 64,
        ..Plan::default()
    };
    let context = verbs_side::open();
    let domain = context.alloc_pd().unwrap();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let (context, domain) = (context.clone(), domain.clone());
            scope.spawn(move || {
                // Each thread has a queue pair that is connected to itself. All of them share one
                // lock.
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
                        thread::yield_now();
                    }
                }
            });
        }
    });
}
