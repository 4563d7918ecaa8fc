//! Queue pairs that fail because of this side's requests, or because the peer does not answer.

use super::*;

#[test]
fn a_send_that_may_not_be_read_fails_after_those_before_it() {
    in_every_way(|plan| {
        let (mut left, mut right) = connected(plan, plan);
        left.receive(2);
        right.receive(3);
        let other = left.context.alloc_pd().expect("a protection domain");
        let alien = other.expose(64, Access::NONE).expect("a region");
        let alien = alien.element(0..8).expect("inside");
        left.post([
            left.send().signaled(),
            WorkRequest::send(alien),
            left.send().signaled(),
        ]);
        expect([
            (
                &mut left,
                &[
                    "send 1: Success",
                    "send 2: LocalProtection",
                    "send 3: WorkRequestFlushed",
                    "receive 1: WorkRequestFlushed",
                    "receive 2: WorkRequestFlushed",
                ],
            ),
            (&mut right, &["receive 1: Success"]),
        ]);
        assert_eq!(right.state(), QpState::Rts);
    });
}

/// The failure waits for those before it, which the peer is not ready for.
#[test]
fn a_send_that_may_not_be_read_behind_one_that_waits_is_flushed_with_it() {
    in_every_way(|plan| {
        let (mut left, mut right) = connected(plan, plan);
        left.receive(1);
        let other = left.context.alloc_pd().expect("a protection domain");
        let alien = other.expose(64, Access::NONE).expect("a region");
        let alien = alien.element(0..8).expect("inside");
        left.post([left.send(), WorkRequest::send(alien), left.send()]);
        expect([(&mut left, &[]), (&mut right, &[])]);
        left.qp.to_error().expect("ERROR");
        expect([(
            &mut left,
            &[
                "send 1: WorkRequestFlushed",
                "send 2: WorkRequestFlushed",
                "send 3: WorkRequestFlushed",
                "receive 1: WorkRequestFlushed",
            ],
        )]);
    });
}

/// Where the bytes of a READ go is checked when they come. The peer has received what is behind it by then.
#[test]
fn a_read_into_memory_that_may_not_be_written_fails_in_its_place() {
    in_every_way(|plan| {
        let (mut left, mut right) = connected(plan, plan);
        left.receive(1);
        right.receive(3);
        let fixed = left.domain.expose(64, Access::NONE).expect("a region");
        let fixed = fixed.element(0..64).expect("inside");
        let memory = right.memory.remote(0);
        left.post([left.send(), WorkRequest::read(fixed, memory), left.send()]);
        expect([
            (
                &mut left,
                &[
                    "send 2: LocalProtection",
                    "send 3: WorkRequestFlushed",
                    "receive 1: WorkRequestFlushed",
                ],
            ),
            (&mut right, &["receive 1: Success", "receive 2: Success"]),
        ]);
        assert_eq!(right.state(), QpState::Rts);
    });
}

#[test]
fn a_peer_that_is_never_ready_fails_the_oldest_send() {
    in_every_way(|plan| {
        let once = RnrRetry::new(1).expect("a count");
        let plan = Plan {
            rnr_retry: once,
            ..plan
        };
        let (mut left, mut right) = connected(plan, plan);
        left.receive(2);
        right.receive(1);
        left.post([left.send(), left.send(), left.send().signaled()]);
        expect([
            (
                &mut left,
                &[
                    "send 2: RnrRetryExceeded",
                    "send 3: WorkRequestFlushed",
                    "receive 1: WorkRequestFlushed",
                    "receive 2: WorkRequestFlushed",
                ],
            ),
            (&mut right, &["receive 1: Success"]),
        ]);
        assert_eq!(right.state(), QpState::Rts);
    });
}

#[test]
fn a_peer_that_is_gone_fails_the_oldest_send_when_all_retries_are_over() {
    in_every_way(|plan| {
        let (mut left, right) = connected(plan, plan);
        left.receive(2);
        left.post([left.send(), left.send().signaled()]);
        drop(right);
        left.post([left.send()]);
        expect([(
            &mut left,
            &[
                "send 1: RetryExceeded",
                "send 2: WorkRequestFlushed",
                "send 3: WorkRequestFlushed",
                "receive 1: WorkRequestFlushed",
                "receive 2: WorkRequestFlushed",
            ],
        )]);
    });
}

/// A queue pair without requests in flight does not fail because its peer has gone.
#[test]
fn a_peer_that_is_gone_takes_nothing_along_that_only_receives() {
    in_every_way(|plan| {
        let (mut left, right) = connected(plan, plan);
        left.receive(2);
        drop(right);
        expect([(&mut left, &[])]);
        assert_eq!(left.state(), QpState::Rts);
    });
}

/// What was in a completion queue that overruns stays, and nothing is added, not even what is flushed.
#[test]
fn a_completion_queue_that_overruns_says_so_before_its_queue_pair_fails() {
    in_every_way(|plan| {
        let small = Plan {
            cq_depth: 4,
            ..plan
        };
        let (mut left, mut right) = connected(small, plan);
        assert_eq!(left.send_cq.capacity(), 4, "the device's queues are exact");
        left.receive(2);
        right.receive(6);
        left.post([(); 6].map(|()| left.send().signaled()));
        left.wait_for_error();
        let lines = [
            "send 1: Success",
            "send 2: Success",
            "send 3: Success",
            "send 4: Success",
            "event CompletionQueueError",
            "event QpFatal",
            "receive 1: WorkRequestFlushed",
            "receive 2: WorkRequestFlushed",
        ];
        let is_shared = plan.queues == Queues::Shared;
        let lines = &lines[..lines.len() - 2 * usize::from(is_shared)];
        expect([(&mut left, lines)]);
        let polled = left.send_cq.poll(&mut Vec::new(), 1);
        assert!(matches!(
            polled,
            Err(VerbsError::CompletionQueueOverrun { capacity: 4 })
        ));
    });
}
