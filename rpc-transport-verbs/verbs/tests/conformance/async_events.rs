//! Asynchronous events: which events are raised, why, how often, and for which object.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use verbline_verbs::{AsyncEvent, CompletionStatus as C, QpAttributes, QpState, WorkRequest};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::end::{End, Options, pair, pair_of, rc, to};

pub(crate) const CASES: Section = Section {
    topic: "asynchronous events",
    cases: &[
        case!(
            nothing_has_happened_in_a_new_context,
            "specification: asynchronous events"
        ),
        case!(
            what_waits_for_events_can_be_woken_without_one,
            "specification: asynchronous events"
        ),
        case!(
            each_event_is_given_to_one_reader,
            "specification: asynchronous events"
        ),
        case!(
            a_send_queue_is_drained_without_a_word_unless_asked,
            "specification: send queue drained"
        ),
        case!(
            a_send_queue_says_once_that_it_is_drained,
            "specification: send queue drained"
        ),
        case!(
            ordinary_failures_of_the_sender_raise_no_event,
            "specification: asynchronous events"
        ),
        case!(
            events_of_a_queue_pair_that_is_gone_are_gone_or_name_it,
            "specification: asynchronous events"
        ),
        case!(
            a_shared_receive_queue_says_that_it_is_low_once_for_each_arming,
            "specification: shared receive queues"
        ),
        case!(
            the_last_receive_of_each_of_two_queue_pairs_is_told,
            "specification: asynchronous events"
        ),
    ],
};

fn nothing_has_happened_in_a_new_context(_: &Device) {
    let (left, right) = pair(rc());
    left.assert_no_event();
    right.assert_no_event();
}

fn what_waits_for_events_can_be_woken_without_one(_: &Device) {
    let (left, _right) = pair(rc());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| left.context.get_async_event(None).unwrap());
        thread::sleep(Duration::from_millis(10));
        left.context.interrupt_async_events();
        assert_eq!(waiter.join().unwrap(), None);
    });
}

/// Moves the queue pair to SQD, and may request an event when the send queue is drained.
fn drain(end: &mut End, notify: Option<bool>) {
    let attributes = QpAttributes {
        notify_drained: notify,
        ..to(QpState::Sqd)
    };
    end.qp.modify(&attributes).unwrap();
}

fn back(end: &mut End) {
    let start = Instant::now();
    while end.qp.modify(&to(QpState::Rts)).is_err() {
        assert!(start.elapsed() < super::verbs_side::HANG);
    }
}

fn each_event_is_given_to_one_reader(_: &Device) {
    const EVENTS: usize = 20;
    let (mut left, _right) = pair(rc());
    let context = left.context.clone();
    let taken = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let start = Instant::now();
                while taken.load(Ordering::SeqCst) < EVENTS {
                    let event = context.get_async_event(Some(Duration::from_millis(5)));
                    taken.fetch_add(event.unwrap().iter().count(), Ordering::SeqCst);
                    assert!(start.elapsed() < super::verbs_side::HANG);
                }
            });
        }
        for _ in 0..EVENTS {
            drain(&mut left, Some(true));
            back(&mut left);
        }
    });
    assert_eq!(taken.into_inner(), EVENTS);
    left.assert_no_event();
}

fn a_send_queue_is_drained_without_a_word_unless_asked(device: &Device) {
    let (mut left, _right) = pair(rc());
    for notify in [None, Some(false)] {
        drain(&mut left, notify);
        if device.deviates(&rxe::DRAINED_UNASKED, false, true) {
            let qp_num = left.qp.qp_num();
            assert_eq!(left.event(), AsyncEvent::SqDrained { qp_num });
        }
        left.assert_no_event();
        back(&mut left);
    }
}

fn a_send_queue_says_once_that_it_is_drained(_: &Device) {
    let (mut left, right) = pair(rc());
    left.post(WorkRequest::write(left.at(0..20_000), right.remote(0)));
    drain(&mut left, Some(true));
    let qp_num = left.qp.qp_num();
    assert_eq!(left.event(), AsyncEvent::SqDrained { qp_num });
    left.assert_no_event();
    assert_eq!(left.qp.query().unwrap().sq_draining, Some(false));
    back(&mut left);
    drain(&mut left, Some(true));
    assert_eq!(left.event(), AsyncEvent::SqDrained { qp_num });
}

fn ordinary_failures_of_the_sender_raise_no_event(_: &Device) {
    let (mut left, right) = pair(rc());
    let other = left.context.alloc_pd().unwrap();
    let elsewhere = other.expose(4096, super::end::everything()).unwrap();
    let status = left.run(WorkRequest::read(
        elsewhere.element(0..8).unwrap(),
        right.remote(0),
    ));
    assert_eq!(status.status, C::LocalProtection);
    left.assert_no_event();
    right.assert_no_event();
}

fn events_of_a_queue_pair_that_is_gone_are_gone_or_name_it(_: &Device) {
    let (mut left, _right) = pair(rc());
    drain(&mut left, Some(true));
    thread::sleep(Duration::from_millis(20));
    let qp_num = left.qp.qp_num();
    let End { qp, context, .. } = left;
    qp.destroy(&mut drop);
    match context.get_async_event(Some(Duration::ZERO)).unwrap() {
        None => {}
        Some(event) => assert_eq!(event, AsyncEvent::SqDrained { qp_num }),
    }
}

fn a_shared_receive_queue_says_that_it_is_low_once_for_each_arming(_: &Device) {
    let shared = Options { srq_wr: 16, ..rc() };
    let (mut left, mut right) = pair_of(rc(), shared);
    let srq = right.srq.clone().unwrap();
    let event = AsyncEvent::SrqLimitReached { srq: srq.number() };
    for _ in 0..3 {
        for index in 0..4 {
            right.recv(index * 64..index * 64 + 64);
        }
        srq.arm_limit(3).unwrap();
        for taken in 1..=4 {
            left.succeed(WorkRequest::send(left.at(0..8)));
            right.expect_recv(C::Success);
            if taken == 2 {
                assert_eq!(right.event(), event);
            }
        }
        right.assert_no_event();
    }
}

fn the_last_receive_of_each_of_two_queue_pairs_is_told(device: &Device) {
    let shared = Options { srq_wr: 16, ..rc() };
    let (_left, mut right) = pair_of(rc(), shared);
    let mut other = right.another();
    let mut others_peer = End::new(rc());
    super::end::connect((&mut others_peer.qp, rc()), (&mut other, shared));
    right.recv(0..64);
    right.go(QpState::Error);
    other.to_error().unwrap();
    if device.deviates(&rxe::FEW_EVENTS, true, false) {
        let mut qp_nums = [right.qp.qp_num(), other.qp_num()];
        let mut told: Vec<_> = (0..2)
            .map(|_| match right.event() {
                AsyncEvent::QpLastWqeReached { qp_num } => qp_num,
                other => panic!("{other:?}"),
            })
            .collect();
        told.sort();
        qp_nums.sort();
        assert_eq!(told, qp_nums);
    }
    right.assert_no_event();
}
