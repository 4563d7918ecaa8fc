//! Queue pairs that fail because the responder refuses a request: what both sides see.

use super::*;
use crate::{CompletionStatus, RemoteKey, RemoteMemory};

impl End {
    /// Returns a place whose key grants nothing.
    fn nowhere(&self) -> RemoteMemory {
        let memory = self.memory.remote(0);
        RemoteMemory {
            key: RemoteKey(memory.key.0 ^ 1),
            ..memory
        }
    }
}

/// A request that is refused, the status for its requester, and the responder's event.
type Refused = (
    fn(&End, &End) -> WorkRequest,
    CompletionStatus,
    &'static str,
);

fn refused() -> [Refused; 3] {
    [
        (
            |left, right| WorkRequest::write(left.bytes(8), right.nowhere()),
            CompletionStatus::RemoteAccess,
            "event QpAccessError",
        ),
        (
            |left, right| WorkRequest::read(left.bytes(8), right.nowhere()),
            CompletionStatus::RemoteAccess,
            "event QpAccessError",
        ),
        (
            |left, right| WorkRequest::fetch_and_add(left.bytes(8), right.memory.remote(1), 1),
            CompletionStatus::RemoteInvalidRequest,
            "event QpRequestError",
        ),
    ]
}

#[test]
fn a_refused_request_fails_both_sides_and_flushes_what_is_behind_it() {
    in_every_way(|plan| {
        for (request, status, event) in refused() {
            let (mut left, mut right) = connected(plan, plan);
            left.receive(2);
            right.receive(4);
            left.post([
                left.send().signaled(),
                left.send(),
                request(&left, &right),
                left.send().signaled(),
                left.send(),
            ]);
            expect([
                (
                    &mut left,
                    &[
                        "send 1: Success",
                        &format!("send 3: {status:?}"),
                        "send 4: WorkRequestFlushed",
                        "send 5: WorkRequestFlushed",
                        "receive 1: WorkRequestFlushed",
                        "receive 2: WorkRequestFlushed",
                    ],
                ),
                (
                    &mut right,
                    &[
                        event,
                        "receive 1: Success",
                        "receive 2: Success",
                        "receive 3: WorkRequestFlushed",
                        "receive 4: WorkRequestFlushed",
                    ],
                ),
            ]);
        }
    });
}

/// The responder has requests of its own, for which the requester is not ready: they do not hold up its
/// refusal.
#[test]
fn a_refusal_passes_the_responders_own_requests_which_are_flushed_before_its_receives() {
    in_every_way(|plan| {
        for (request, status, event) in refused() {
            let (mut left, mut right) = connected(plan, plan);
            right.receive(2);
            right.post([right.send().signaled(), right.send()]);
            expect([(&mut left, &[]), (&mut right, &[])]);
            left.post([left.send(), request(&left, &right), left.send()]);
            expect([
                (
                    &mut left,
                    &[&format!("send 2: {status:?}"), "send 3: WorkRequestFlushed"],
                ),
                (
                    &mut right,
                    &[
                        event,
                        "receive 1: Success",
                        "send 1: WorkRequestFlushed",
                        "send 2: WorkRequestFlushed",
                        "receive 2: WorkRequestFlushed",
                    ],
                ),
            ]);
        }
    });
}

#[test]
fn a_send_longer_than_its_receive_fails_both_sides_at_that_receive() {
    in_every_way(|plan| {
        for len in [SLOT_LEN + 1, 1000, LEN] {
            let (mut left, mut right) = connected(plan, plan);
            left.receive(2);
            right.receive(3);
            right.post([right.send()]);
            expect([(&mut left, &["receive 1: Success"]), (&mut right, &[])]);
            left.post([
                left.send().signaled(),
                WorkRequest::send(left.bytes(len)),
                left.send(),
            ]);
            expect([
                (
                    &mut left,
                    &[
                        "send 1: Success",
                        "send 2: RemoteInvalidRequest",
                        "send 3: WorkRequestFlushed",
                        "receive 2: WorkRequestFlushed",
                    ],
                ),
                (
                    &mut right,
                    &[
                        "receive 1: Success",
                        "receive 2: LocalLength",
                        "receive 3: WorkRequestFlushed",
                    ],
                ),
            ]);
        }
    });
}

/// The receive has been taken when the key is found to be wrong.
#[test]
fn a_send_that_invalidates_a_wrong_key_fails_both_sides_at_its_receive() {
    in_every_way(|plan| {
        let (mut left, mut right) = connected(plan, plan);
        left.receive(1);
        right.receive(3);
        let wrong = right.nowhere().key;
        left.post([
            left.send().signaled(),
            WorkRequest::send_with_invalidate(left.bytes(8), wrong),
            left.send(),
        ]);
        expect([
            (
                &mut left,
                &[
                    "send 1: Success",
                    "send 2: RemoteAccess",
                    "send 3: WorkRequestFlushed",
                    "receive 1: WorkRequestFlushed",
                ],
            ),
            (
                &mut right,
                &[
                    "receive 1: Success",
                    "receive 2: LocalAccess",
                    "receive 3: WorkRequestFlushed",
                ],
            ),
        ]);
    });
}

/// The last event is that the queue pair takes no more receives, which stay for others.
#[test]
fn a_refusal_with_a_shared_receive_queue_ends_with_the_event_that_it_takes_no_more() {
    in_every_way(|plan| {
        for (request, status, event) in refused() {
            let (mut left, mut right) = connected(
                plan,
                Plan {
                    is_srq: true,
                    ..plan
                },
            );
            left.receive(1);
            right.receive(4);
            right.srq.as_ref().map(|srq| srq.arm_limit(3));
            left.post([
                left.send(),
                left.send().signaled(),
                request(&left, &right),
                left.send(),
            ]);
            expect([
                (
                    &mut left,
                    &[
                        "send 2: Success",
                        &format!("send 3: {status:?}"),
                        "send 4: WorkRequestFlushed",
                        "receive 1: WorkRequestFlushed",
                    ],
                ),
                (
                    &mut right,
                    &[
                        // The newest receives are taken first.
                        "receive 4: Success",
                        "receive 3: Success",
                        "event SrqLimitReached",
                        event,
                        "event QpLastWqeReached",
                    ],
                ),
            ]);
        }
    });
}

#[test]
fn a_queue_pair_that_fails_before_it_may_send_says_that_a_message_came_and_then_why() {
    in_every_way(|plan| {
        for (request, status, event) in refused() {
            let (mut left, mut right) = (End::new("left", plan), End::new("right", plan));
            let (to_left, to_right) = (
                (left.gid(), left.qp.qp_num()),
                (right.gid(), right.qp.qp_num()),
            );
            left.go_to_rtr(to_right);
            right.go_to_rtr(to_left);
            left.go_to_rts();
            right.receive(3);
            left.post([left.send(), left.send(), request(&left, &right)]);
            expect([
                (&mut left, &[&format!("send 2: {status:?}")]),
                (
                    &mut right,
                    &[
                        "receive 0: Success",
                        "receive 1: Success",
                        "receive 2: WorkRequestFlushed",
                        "event CommunicationEstablished",
                        event,
                    ],
                ),
            ]);
        }
    });
}
