//! What goes wrong, on which side it is seen, with which status, and what else is lost by it.

mod verbs_side;

use std::time::{Duration, Instant};

use rpc_transport_verbs::verbs::{
    Access, AckTimeout, AsyncEvent, CompletionStatus as C, Psn, QpState, QueuePairConfig, RnrRetry,
    RnrTimer, RtrAttributes, RtsAttributes, SendRequest, VerbsError, WorkKind,
};
use verbs_side::{
    HANG, Plan, SLOT_LEN, Side, address, connected, connected_with, device, failed, flushed,
    is_rxe, received, region, rtr, rts, sent, specified_or_rxe,
};

#[test]
fn a_message_longer_than_its_receive_fails_both_sides() {
    for len in [65, 240, 241, SLOT_LEN] {
        let (mut left, mut right) = connected(Plan::default());
        let mut short = region(&right.domain, 1).into_slots(64);
        short.truncate(1);
        right.qp.post_recv(&mut short, 1).unwrap();
        right.post_recv(1);
        left.send(len, 1);
        left.send_signaled(8, 2);
        let done = right.wait(2);
        let too_long = specified_or_rxe(C::LocalLength, C::LocalQpOperation);
        assert_eq!(done[0], failed(WorkKind::Receive, too_long), "{len}");
        assert_eq!(done[1], flushed(WorkKind::Receive));
        let done = left.wait(2);
        let refused = specified_or_rxe(C::RemoteInvalidRequest, C::RemoteOperation);
        assert_eq!(done[0], failed(WorkKind::Send, refused), "unsignaled");
        assert_eq!(done[1], flushed(WorkKind::Send));
        assert_eq!(
            (left.state(), right.state()),
            (QpState::Error, QpState::Error)
        );
    }
}

#[test]
fn a_receive_that_the_device_may_not_write_fails_both_sides() {
    type Wrong = fn(&Side) -> Vec<rpc_transport_verbs::verbs::Slot>;
    let no_local_write: Wrong = |side| {
        side.domain
            .register(SLOT_LEN, Access::NONE)
            .unwrap()
            .into_slots(SLOT_LEN)
    };
    let another_domain: Wrong =
        |side| region(&side.context.alloc_pd().unwrap(), 1).into_slots(SLOT_LEN);
    let another_context: Wrong = |_| {
        let context = rpc_transport_verbs::verbs::Context::open(device()).unwrap();
        region(&context.alloc_pd().unwrap(), 1).into_slots(SLOT_LEN)
    };
    for wrong in [no_local_write, another_domain, another_context] {
        let (mut left, mut right) = connected(Plan::default());
        let mut slots = wrong(&right);
        right.qp.post_recv(&mut slots, 1).unwrap();
        left.send(10, 1);
        let protected = specified_or_rxe(C::LocalProtection, C::LocalQpOperation);
        assert_eq!(right.wait_one(), failed(WorkKind::Receive, protected));
        assert_eq!(left.wait_one(), failed(WorkKind::Send, C::RemoteOperation));
    }
}

#[test]
fn a_zero_byte_message_touches_nothing_so_nothing_is_checked() {
    let (mut left, mut right) = connected(Plan::default());
    let no_write = right.domain.register(SLOT_LEN, Access::NONE).unwrap();
    right
        .qp
        .post_recv(&mut no_write.into_slots(SLOT_LEN), 1)
        .unwrap();
    left.send_signaled(0, 0);
    assert_eq!(right.wait_one(), received(0, 0));
    assert_eq!(left.wait_one(), sent());
}

#[test]
fn a_send_that_the_device_may_not_read_fails_after_all_before_it_have_completed() {
    let (mut left, mut right) = connected(Plan::default());
    right.post_recv(3);
    let other = region(&left.context.alloc_pd().unwrap(), 1)
        .into_slots(SLOT_LEN)
        .remove(0);
    let first = left.message(10, 1).signaled();
    let third = left.message(10, 3);
    let mut list = vec![first, SendRequest::new(other, 10), third];
    left.post_list(&mut list).unwrap();
    let done = left.wait(3);
    // The good one completes once the peer has taken it, whether or not anybody polls there. Soft-RoCE
    // forgets an acknowledgement that comes after the failure.
    assert!(done[0] == sent() || (is_rxe() && done[0] == flushed(WorkKind::Send)));
    let protected = specified_or_rxe(C::LocalProtection, C::LocalQpOperation);
    assert_eq!(
        done[1..],
        [failed(WorkKind::Send, protected), flushed(WorkKind::Send)]
    );
    assert_eq!(right.wait_one(), received(10, 1));
    right.assert_quiet();
}

// ---- receiver not ready ----

fn slow_to_be_ready(rnr_retry: RnrRetry, timer: RnrTimer) -> (Side, Side) {
    let (mut left, mut right) = (Side::new(Plan::default()), Side::new(Plan::default()));
    left.init();
    right.init();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    left.rtr(to_right);
    let attributes = RtrAttributes {
        min_rnr_timer: timer,
        ..rtr(to_left)
    };
    right.qp.to_rtr(attributes).unwrap();
    // Long enough that no acknowledgement is missed while the receiver is waited for.
    let attributes = RtsAttributes {
        rnr_retry,
        timeout: AckTimeout::new(16).unwrap(),
        ..rts()
    };
    left.qp.to_rts(attributes).unwrap();
    right.rts();
    (left, right)
}

/// Polls both sides until the left one has a completion.
fn wait_left(left: &mut Side, right: &mut Side) -> verbs_side::Done {
    let start = Instant::now();
    loop {
        assert_eq!(right.poll(), []);
        if let Some(done) = left.poll().first() {
            return *done;
        }
        assert!(start.elapsed() < HANG);
        std::thread::yield_now();
    }
}

#[test]
fn without_rnr_retries_the_first_refusal_is_the_last() {
    let (mut left, mut right) =
        slow_to_be_ready(RnrRetry::new(0).unwrap(), RnrTimer::new(1).unwrap());
    left.send(10, 1);
    let status = C::RnrRetryExceeded;
    assert_eq!(
        wait_left(&mut left, &mut right),
        failed(WorkKind::Send, status)
    );
    assert_eq!(right.rnr_naks_sent(), 1);
    assert_eq!(
        (left.state(), right.state()),
        (QpState::Error, QpState::Rts)
    );
}

#[test]
fn one_rnr_retry_waits_for_the_receivers_time_and_then_fails() {
    // Code 18 is 5.12 ms.
    let timer = RnrTimer::new(18).unwrap();
    let (mut left, mut right) = slow_to_be_ready(RnrRetry::new(1).unwrap(), timer);
    let start = Instant::now();
    left.send(10, 1);
    wait_left(&mut left, &mut right);
    assert!(start.elapsed() >= timer.duration(), "{:?}", start.elapsed());
    assert_eq!(right.rnr_naks_sent(), 2);
    let counters = left.context.rnr_counters(address().port).unwrap();
    assert_eq!(counters.nak_received, 2);
}

#[test]
fn rnr_is_retried_for_ever_and_what_waited_arrives_in_order() {
    let (mut left, mut right) = slow_to_be_ready(RnrRetry::FOREVER, RnrTimer::new(1).unwrap());
    for fill in 1..4 {
        left.send(10, fill);
    }
    left.send_signaled(10, 4);
    let start = Instant::now();
    while right.rnr_naks_sent() < 20 {
        assert_eq!((left.poll(), right.poll()), (vec![], vec![]));
        assert!(start.elapsed() < HANG);
    }
    right.post_recv(4);
    let start = Instant::now();
    let mut fills = Vec::new();
    let mut sends = 0;
    while fills.len() < 4 || sends < 1 {
        sends += left.poll().len();
        fills.extend(right.poll().iter().map(|done| done.first));
        assert!(start.elapsed() < HANG);
    }
    assert_eq!(fills, [1, 2, 3, 4]);
}

#[test]
fn progress_gives_the_rnr_retries_back() {
    // Code 24 is 41 ms: time to post before the one retry.
    let (mut left, mut right) =
        slow_to_be_ready(RnrRetry::new(1).unwrap(), RnrTimer::new(24).unwrap());
    for fill in 1..=5 {
        let naks = right.rnr_naks_sent();
        left.send_signaled(10, fill);
        while right.rnr_naks_sent() == naks {
            right.poll();
        }
        right.post_recv(1);
        let start = Instant::now();
        let (mut receives, mut sends) = (0, Vec::new());
        while receives + sends.len() < 2 {
            receives += right.poll().len();
            sends.extend(left.poll());
            assert!(start.elapsed() < HANG);
        }
        assert_eq!(
            sends,
            [sent()],
            "retry {fill}: the one before does not count"
        );
    }
}

// ---- silent peers ----

#[test]
fn a_peer_that_is_not_ready_is_silent_until_the_retries_are_used_up() {
    for peer_state in [QpState::Reset, QpState::Init, QpState::Error] {
        let (mut left, mut right) = (Side::new(Plan::default()), Side::new(Plan::default()));
        left.init();
        if peer_state != QpState::Reset {
            right.init();
        }
        if peer_state == QpState::Error {
            let to_left = left.endpoint();
            right.rtr(to_left);
            right.go(QpState::Error);
        }
        let to_right = right.endpoint();
        left.rtr(to_right);
        left.rts();
        let start = Instant::now();
        left.send(10, 1);
        left.send_signaled(10, 2);
        let done = left.wait(2);
        // 4.096 µs × 2^10 × (2 + 1).
        assert!(
            start.elapsed() >= Duration::from_micros(12_583),
            "{:?}",
            start.elapsed()
        );
        assert_eq!(
            done[0],
            failed(WorkKind::Send, C::RetryExceeded),
            "{peer_state}"
        );
        assert_eq!(done[1], flushed(WorkKind::Send));
    }
}

#[test]
fn a_peer_that_was_destroyed_is_silent() {
    let (mut left, mut right) = connected(Plan::default());
    right.post_recv(1);
    left.send_signaled(10, 1);
    left.wait(1);
    drop(right);
    left.send(10, 2);
    assert_eq!(left.wait_one(), failed(WorkKind::Send, C::RetryExceeded));
}

#[test]
fn without_a_timeout_a_silent_peer_is_waited_for_for_ever() {
    let (mut left, mut right) = (Side::new(Plan::default()), Side::new(Plan::default()));
    left.init();
    right.init();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    left.rtr(to_right);
    left.qp
        .to_rts(RtsAttributes {
            timeout: AckTimeout::FOREVER,
            ..rts()
        })
        .unwrap();
    left.send_signaled(10, 1);
    for _ in 0..3 {
        left.assert_quiet();
    }
    right.rtr(to_left);
    right.post_recv(2);
    if is_rxe() {
        // Without a timer nothing is repeated, until a later message shows the peer that one is missing.
        right.assert_quiet();
        left.send(10, 2);
        let fills: Vec<_> = right.wait(2).iter().map(|done| done.first).collect();
        assert_eq!(fills, [1, 2]);
    } else {
        assert_eq!(right.wait_one(), received(10, 1));
    }
    assert_eq!(left.wait_one(), sent());
}

#[test]
fn a_peer_that_becomes_ready_in_time_gets_what_was_sent_before() {
    let (mut left, mut right) = (Side::new(Plan::default()), Side::new(Plan::default()));
    left.init();
    right.init();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    left.rtr(to_right);
    left.qp.to_rts(RtsAttributes::new(rts().psn)).unwrap();
    left.send_signaled(10, 1);
    right.rtr(to_left);
    right.post_recv(1);
    assert_eq!(right.wait_one(), received(10, 1));
    assert_eq!(left.wait_one(), sent());
}

#[test]
fn a_peer_that_expects_other_sequence_numbers_drops_everything_silently() {
    let (mut left, mut right) = (Side::new(Plan::default()), Side::new(Plan::default()));
    left.init();
    right.init();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    left.rtr(to_right);
    right.rtr(to_left);
    left.qp
        .to_rts(RtsAttributes {
            psn: Psn::new(1),
            ..rts()
        })
        .unwrap();
    right.post_recv(1);
    left.send(10, 1);
    assert_eq!(left.wait_one(), failed(WorkKind::Send, C::RetryExceeded));
    right.assert_quiet();
    assert_eq!(right.state(), QpState::Rtr);
}

// ---- completion queues ----

#[test]
fn a_completion_queue_that_overruns_is_dead_and_takes_its_queue_pairs_along() {
    let small = Plan {
        cq_depth: 2,
        max_recv_wr: 1024,
        ..Plan::default()
    };
    let (mut left, mut right) = connected_with(Plan::default(), small);
    // As many as were asked for, or more.
    let capacity = right.cq.capacity();
    right.add_slots(capacity);
    right.post_recv(capacity + 1);
    // Nobody polls there: the device itself takes the messages.
    for fill in 0..capacity {
        left.send_signaled(10, fill as u8);
        assert_eq!(left.wait_one(), sent());
    }
    right.assert_no_event();
    left.send(10, 0);
    let cq = right.cq.number();
    assert_eq!(right.event(), AsyncEvent::CompletionQueueError { cq });
    right.wait_for_state(QpState::Error);
    if !is_rxe() {
        assert_eq!(
            right.event(),
            AsyncEvent::QpFatal {
                qp_num: right.qp.qp_num()
            }
        );
    }
    let mut held = Vec::new();
    while held.len() < capacity {
        held.extend(right.poll());
    }
    for (number, done) in held.iter().enumerate() {
        assert_eq!(*done, received(10, number as u8), "what was in it stays");
    }
    let after = right.cq.poll(&mut Vec::new(), 1);
    if is_rxe() {
        // It goes on as if nothing had been lost.
        assert!(matches!(after, Ok(0)), "{after:?}");
    } else {
        assert!(
            matches!(after, Err(VerbsError::CompletionQueueOverrun { capacity: c }) if c == capacity),
            "{after:?}"
        );
    }
}

#[test]
fn a_queue_pair_on_a_shared_receive_queue_says_when_it_has_taken_its_last() {
    let plan = Plan {
        srq_wr: 8,
        ..Plan::default()
    };
    let (mut left, mut right) = connected(plan);
    right.post_recv(4);
    left.send(10, 1);
    right.wait(1);
    right.go(QpState::Error);
    if !is_rxe() {
        assert_eq!(
            right.event(),
            AsyncEvent::QpLastWqeReached {
                qp_num: right.qp.qp_num()
            }
        );
    }
    right.assert_quiet();
    right.go(QpState::Error);
    right.assert_no_event();
}

// ---- limits at creation ----

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    let side = Side::new(Plan::default());
    let limits = side.context.query_device();
    let named = |result: Result<(), VerbsError>, name: &str| match result {
        Err(VerbsError::OutOfRange { parameter, .. }) => assert_eq!(parameter, name),
        other => panic!("{name}: {other:?}"),
    };
    named(side.context.create_cq(0).map(drop), "depth");
    named(
        side.context.create_cq(limits.max_cqe + 1).map(drop),
        "depth",
    );
    named(side.domain.create_srq(0, 1).map(drop), "max_wr");
    named(
        side.domain.create_srq(limits.max_srq_wr + 1, 1).map(drop),
        "max_wr",
    );
    named(
        side.domain.create_srq(1, limits.max_sge + 1).map(drop),
        "max_sge",
    );
    named(side.domain.register(0, Access::NONE).map(drop), "len");
    // A device may say that it has no limit.
    if let Some(len) = limits.max_mr_len.checked_add(1) {
        named(side.domain.register(len, Access::NONE).map(drop), "len");
    }
    let no_port = limits.port_count + 1;
    named(side.context.query_port(no_port).map(drop), "port");
    named(side.context.query_gid(no_port, 0).map(drop), "port");
    let gid = side.context.query_gid(1, 255);
    if side.context.query_port(1).unwrap().gid_count > 255 {
        assert_eq!(gid.unwrap().0, [0; 16], "an empty entry");
    } else {
        named(gid.map(drop), "index");
    }
    let queue_pair = |max_send_wr, max_recv_wr| {
        let config = QueuePairConfig {
            srq: None,
            max_send_wr,
            max_recv_wr,
            max_inline_data: 0,
            sq_sig_all: false,
            ..QueuePairConfig::new(&side.cq, &side.cq)
        };
        side.domain.create_qp(config).map(drop)
    };
    named(queue_pair(0, 1), "max_send_wr");
    named(queue_pair(limits.max_qp_wr + 1, 1), "max_send_wr");
    named(queue_pair(1, limits.max_qp_wr + 1), "max_recv_wr");
    assert!(matches!(
        side.domain.expose(1, Access::REMOTE_WRITE),
        Err(VerbsError::RemoteWithoutLocalWrite)
    ));
    assert!(matches!(
        side.domain.register(1, Access::REMOTE_READ),
        Err(VerbsError::ExposedSlots { access }) if access == Access::REMOTE_READ
    ));
}

#[test]
fn objects_of_two_contexts_do_not_mix() {
    let (side, other) = (Side::new(Plan::default()), Side::new(Plan::default()));
    let config = QueuePairConfig {
        srq: None,
        max_send_wr: 1,
        max_recv_wr: 1,
        max_inline_data: 0,
        sq_sig_all: false,
        ..QueuePairConfig::new(&side.cq, &other.cq)
    };
    let error = side.domain.create_qp(config).unwrap_err();
    assert!(
        matches!(
            error,
            VerbsError::ForeignObject {
                object: "recv_cq",
                ..
            }
        ),
        "{error}"
    );
}
