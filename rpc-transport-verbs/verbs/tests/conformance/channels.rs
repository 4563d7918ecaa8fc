//! Completion channels: which completions raise events, how many events, and that sleeping threads
//! are always woken.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbline_verbs::{CompletionChannel, CompletionStatus, QueuePairConfig, VerbsError, WorkKind};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::verbs_side::{self, HANG, Plan, SLOT_LEN, Side, connected, received, region, sent};

pub(crate) const CASES: Section = Section {
    topic: "completion channels",
    cases: &[
        case!(
            without_arming_there_is_no_event,
            "specification: arming; comp_channel_test: NoSpuriousEvents"
        ),
        case!(an_arming_is_good_for_one_event, "specification: arming"),
        case!(
            arming_twice_is_arming_once,
            "specification: arming; comp_channel_test: SameQueueMultipleOutstanding"
        ),
        case!(
            what_came_before_the_arming_raises_no_event_and_is_found_by_polling,
            "specification: arming"
        ),
        case!(
            the_completion_of_a_send_raises_an_event,
            "specification: arming"
        ),
        case!(an_error_raises_an_event, "specification: arming"),
        case!(
            a_send_that_fails_long_after_its_sender_fell_asleep_wakes_it,
            "specification: arming"
        ),
        case!(
            armed_for_solicited_completions_it_hears_of_these_and_of_errors,
            "specification: arming; comp_channel_test: RecvSolicitedNofitySolicited, RecvUnsolicitedNofitySolicited"
        ),
        case!(
            armed_for_any_completion_it_hears_of_each,
            "specification: arming; comp_channel_test: RecvSolicitedNofityAny, RecvUnsolicitedNofityAny"
        ),
        case!(
            an_arming_for_any_completion_upgrades_one_for_solicited_ones,
            "specification: arming; comp_channel_test: UpgradeRequest"
        ),
        case!(
            an_arming_for_solicited_completions_does_not_downgrade_one_for_any,
            "specification: arming; comp_channel_test: DowngradeRequest"
        ),
        case!(
            queues_that_share_a_channel_are_told_apart,
            "specification: completion channels; cq_test: ShareChannel"
        ),
        case!(
            a_channel_of_another_context_and_a_queue_without_one_are_refused,
            "specification: completion channels; comp_channel_test: RequestNotificationOnCqWithoutCompChannel"
        ),
        case!(
            events_are_acknowledged_by_the_time_their_queue_is_dropped,
            "specification: acknowledged events"
        ),
        case!(
            events_that_nobody_has_taken_go_with_their_queue,
            "specification: acknowledged events"
        ),
        case!(
            queues_may_be_dropped_while_another_thread_takes_their_events,
            "specification: threads"
        ),
        case!(
            the_file_is_readable_when_there_is_an_event_and_not_before,
            "specification: completion channels"
        ),
        case!(
            sleepers_that_answer_each_other_are_always_woken,
            "specification: arming"
        ),
        case!(
            nothing_that_comes_between_arming_and_sleeping_is_slept_through,
            "specification: arming"
        ),
    ],
};

/// Waits for the next event and returns the number of the queue that raised it.
fn event(channel: &CompletionChannel) -> u32 {
    channel.wait(Some(HANG)).unwrap().expect("an event")
}

/// Checks that no event arrives for a while. If the wait is too short, the test misses a fault, but
/// it never fails wrongly.
fn assert_no_event(channel: &CompletionChannel) {
    let quiet = Some(Duration::from_millis(30));
    assert_eq!(channel.wait(quiet).unwrap(), None);
}

fn is_readable(channel: &CompletionChannel, patience: Duration) -> bool {
    let patience = Timespec::try_from(patience).unwrap();
    let mut files = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
    poll(&mut files, Some(&patience)).unwrap() == 1
}

/// Sends one message from `left`. It has arrived when this returns.
fn deliver(left: &mut Side, len: usize, fill: u8) {
    left.send_signaled(len, fill);
    assert_eq!(left.wait_one(), sent());
}

fn without_arming_there_is_no_event(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    right.post_recv(1);
    deliver(&mut left, 10, 1);
    assert_no_event(&right.channel);
    assert_eq!(right.wait_one(), received(10, 1));
    assert_no_event(&left.channel);
    // Nor is there one for a completion that was polled before the arming.
    right.cq.arm(false).unwrap();
    assert_no_event(&right.channel);
}

fn an_arming_is_good_for_one_event(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    right.post_recv(8);
    for round in 1..=2 {
        right.cq.arm(false).unwrap();
        assert_eq!(right.poll(), []);
        for fill in 1..=3 {
            deliver(&mut left, 10, fill);
        }
        assert_eq!(event(&right.channel), right.cq.number(), "round {round}");
        assert_no_event(&right.channel);
        right.wait(3);
    }
}

fn arming_twice_is_arming_once(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    right.post_recv(4);
    right.cq.arm(false).unwrap();
    right.cq.arm(false).unwrap();
    deliver(&mut left, 10, 1);
    deliver(&mut left, 10, 2);
    assert_eq!(event(&right.channel), right.cq.number());
    assert_no_event(&right.channel);
    right.wait(2);
    // Armed again after each completion, it raises an event for each, though none was taken yet.
    for number in 3..5 {
        right.cq.arm(false).unwrap();
        deliver(&mut left, 10, number);
        assert_eq!(right.wait_one(), received(10, number));
    }
    for _ in 0..2 {
        assert_eq!(event(&right.channel), right.cq.number());
    }
    assert_no_event(&right.channel);
}

fn what_came_before_the_arming_raises_no_event_and_is_found_by_polling(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    right.post_recv(2);
    deliver(&mut left, 10, 1);
    right.cq.arm(false).unwrap();
    assert_no_event(&right.channel);
    assert_eq!(right.poll(), [received(10, 1)]);
    deliver(&mut left, 10, 2);
    assert_eq!(event(&right.channel), right.cq.number());
    assert_eq!(right.poll(), [received(10, 2)]);
}

fn the_completion_of_a_send_raises_an_event(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    right.post_recv(2);
    left.cq.arm(false).unwrap();
    left.send(10, 1);
    left.send_signaled(10, 2);
    // No queue is polled on either side.
    assert_eq!(event(&left.channel), left.cq.number());
    assert_eq!(left.wait_one(), sent());
}

fn an_error_raises_an_event(_: &Device) {
    let (_left, mut right) = connected(Plan::default());
    right.post_recv(2);
    right.cq.arm(false).unwrap();
    right.qp.to_error().unwrap();
    assert_eq!(event(&right.channel), right.cq.number());
    for done in right.wait(2) {
        assert_eq!(done, verbs_side::flushed(WorkKind::Receive));
    }
}

fn a_send_that_fails_long_after_its_sender_fell_asleep_wakes_it(_: &Device) {
    let (mut left, right) = connected(Plan::default());
    left.cq.arm(false).unwrap();
    left.send(10, 1);
    drop(right);
    assert_eq!(event(&left.channel), left.cq.number());
    let done = left.wait_one();
    assert_eq!(done.kind, WorkKind::Send);
    assert_ne!(done.status, CompletionStatus::Success);
}

/// The kind of completion on the right side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Sent,
    Received,
    ReceivedSolicited,
    /// The message is longer than its receive.
    ReceiveFailed,
    ReceiveFlushed,
    /// The peer's queue pair does not respond.
    SendFailed,
}

fn armed_for_solicited_completions_it_hears_of_these_and_of_errors(device: &Device) {
    each_cause(device, &[true], false);
}

fn armed_for_any_completion_it_hears_of_each(device: &Device) {
    each_cause(device, &[false], true);
}

fn an_arming_for_any_completion_upgrades_one_for_solicited_ones(device: &Device) {
    each_cause(device, &[true, false], true);
}

fn an_arming_for_solicited_completions_does_not_downgrade_one_for_any(device: &Device) {
    each_cause(device, &[false, true], true);
}

/// Arms with each value in `arming` and checks which completions raise an event. `any`: any
/// completion does.
fn each_cause(device: &Device, arming: &[bool], any: bool) {
    let causes = [
        Cause::Sent,
        Cause::Received,
        Cause::ReceivedSolicited,
        Cause::ReceiveFailed,
        Cause::ReceiveFlushed,
        Cause::SendFailed,
    ];
    for cause in causes {
        let (mut left, mut right) = connected(Plan::default());
        left.post_recv(1);
        let len = if cause == Cause::ReceiveFailed {
            64
        } else {
            SLOT_LEN
        };
        let mut receive = region(&right.domain, 1).into_slots(len).unwrap();
        receive.truncate(1);
        // A failing send would flush the receive.
        if cause != Cause::SendFailed {
            right.qp.post_recv(&mut receive, 1).unwrap();
        }
        for solicited_only in arming {
            right.cq.arm(*solicited_only).unwrap();
        }
        match cause {
            Cause::Sent => right.send_signaled(10, 1),
            Cause::Received => left.send_signaled(10, 1),
            Cause::ReceivedSolicited => {
                let mut request = left.message(10, 1).signaled();
                request.solicited = true;
                left.post(request).unwrap();
            }
            Cause::ReceiveFailed => left.send_signaled(65, 1),
            Cause::ReceiveFlushed => right.qp.to_error().unwrap(),
            Cause::SendFailed => {
                left.qp.to_error().unwrap();
                right.send_signaled(10, 1);
            }
        }
        let is_wanted = any
            || match cause {
                Cause::Sent | Cause::Received => false,
                Cause::ReceivedSolicited | Cause::ReceiveFlushed => true,
                // Soft-RoCE checks only the sender's solicited flag.
                Cause::ReceiveFailed | Cause::SendFailed => {
                    device.deviates(&rxe::SOLICITED_ERRORS, true, false)
                }
            };
        // A wrong event that arrives later than this goes unnoticed.
        let patience = if is_wanted {
            HANG
        } else {
            Duration::from_millis(60)
        };
        let raised = right.channel.wait(Some(patience)).unwrap();
        let expected = is_wanted.then_some(right.cq.number());
        assert_eq!(raised, expected, "{arming:?}, {cause:?}");
        assert!(!right.wait_some().is_empty(), "{arming:?}, {cause:?}");
    }
}

fn queues_that_share_a_channel_are_told_apart(_: &Device) {
    let (mut left, mut right) = (Side::new(Plan::default()), Side::new(Plan::default()));
    let sends = left
        .context
        .create_cq_with_channel(16, &left.channel)
        .unwrap();
    assert_ne!(sends.number(), left.cq.number());
    left.qp = left
        .domain
        .create_qp(QueuePairConfig {
            srq: None,
            max_send_wr: 16,
            max_recv_wr: 16,
            max_inline_data: 64,
            sq_sig_all: false,
            ..QueuePairConfig::new(&sends, &left.cq)
        })
        .unwrap();
    left.init();
    right.init();
    left.rtr(right.endpoint());
    right.rtr(left.endpoint());
    left.rts();
    right.rts();
    left.post_recv(2);
    right.post_recv(2);

    sends.arm(false).unwrap();
    left.cq.arm(false).unwrap();
    right.send_signaled(10, 1);
    assert_eq!(right.wait_one(), sent());
    assert_eq!(event(&left.channel), left.cq.number());
    left.send_signaled(10, 2);
    assert_eq!(event(&left.channel), sends.number());
    assert_no_event(&left.channel);

    // A queue that is not armed does not wake the channel, which it shares with an armed queue.
    assert_eq!(left.poll(), [received(10, 1)]);
    sends.arm(false).unwrap();
    right.send_signaled(10, 3);
    assert_eq!(right.wait(2).len(), 2);
    assert_no_event(&left.channel);
    assert_eq!(left.wait_one(), received(10, 3));
}

fn a_channel_of_another_context_and_a_queue_without_one_are_refused(_: &Device) {
    let (one, other) = (verbs_side::open(), verbs_side::open());
    let channel = one.create_comp_channel().unwrap();
    let refused = other.create_cq_with_channel(16, &channel).unwrap_err();
    assert!(
        matches!(refused, VerbsError::ForeignObject { object, .. } if object.contains("channel")),
        "{refused}"
    );
    let refused = one.create_cq(16).unwrap().arm(false).unwrap_err();
    assert!(
        matches!(refused, VerbsError::NoCompletionChannel),
        "{refused}"
    );
}

fn events_are_acknowledged_by_the_time_their_queue_is_dropped(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    // More events than are acknowledged at a time, and not a multiple of that number.
    for number in 0..150_u32 {
        right.post_recv(1);
        right.cq.arm(false).unwrap();
        left.send_signaled(10, 1);
        assert_eq!(left.wait_one(), sent());
        assert_eq!(event(&right.channel), right.cq.number(), "event {number}");
        assert_eq!(right.wait_one(), received(10, 1));
    }
    // If an event were taken and not acknowledged, this would wait forever.
    drop(right);
}

fn events_that_nobody_has_taken_go_with_their_queue(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    for taken in 0..3 {
        right.post_recv(1);
        right.cq.arm(false).unwrap();
        deliver(&mut left, 10, 1);
        if taken == 0 {
            event(&right.channel);
        }
        right.wait_one();
    }
    let Side {
        channel, cq, qp, ..
    } = right;
    drop((cq, qp));
    assert_eq!(channel.wait(Some(Duration::ZERO)).unwrap(), None);
    assert!(!is_readable(&channel, Duration::ZERO));
}

fn queues_may_be_dropped_while_another_thread_takes_their_events(_: &Device) {
    let (left, right) = connected(Plan::default());
    let Side {
        context, channel, ..
    } = right;
    let is_over = AtomicBool::new(false);
    let (channel, context, is_over) = (&channel, &context, &is_over);
    thread::scope(|scope| {
        let taker = scope.spawn(move || {
            let mut taken = 0;
            while !is_over.load(Ordering::Relaxed) {
                taken += usize::from(
                    channel
                        .wait(Some(Duration::from_millis(1)))
                        .unwrap()
                        .is_some(),
                );
            }
            taken
        });
        let mut raised = 0;
        for _ in 0..100 {
            let cq = context.create_cq_with_channel(16, channel).unwrap();
            let domain = context.alloc_pd().unwrap();
            let plan = Plan::default();
            let mut qp = verbs_side::create_qp(&domain, &cq, None, plan);
            let mut slots = region(&domain, 1).into_slots(SLOT_LEN).unwrap();
            qp.to_init(verbs_side::address().port, verbline_verbs::Access::NONE)
                .unwrap();
            qp.to_rtr(verbs_side::rtr(left.endpoint())).unwrap();
            qp.post_recv(&mut slots, 1).unwrap();
            cq.arm(false).unwrap();
            // The flush raises the event while everything is being destroyed.
            qp.to_error().unwrap();
            raised += 1;
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(taker.join().unwrap() <= raised);
    });
}

fn the_file_is_readable_when_there_is_an_event_and_not_before(_: &Device) {
    let (mut left, mut right) = connected(Plan::default());
    right.post_recv(2);
    assert!(!is_readable(&right.channel, Duration::ZERO));
    for fill in 1..=2 {
        right.cq.arm(false).unwrap();
        assert_eq!(right.poll(), []);
        assert!(!is_readable(&right.channel, Duration::from_millis(30)));
        left.send_signaled(10, fill);
        assert!(is_readable(&right.channel, HANG));
        assert_eq!(event(&right.channel), right.cq.number());
        assert_eq!(right.channel.wait(Some(Duration::ZERO)).unwrap(), None);
        assert!(!is_readable(&right.channel, Duration::ZERO));
        assert_eq!(right.poll(), [received(10, fill)]);
        assert_eq!(left.wait_one(), sent());
    }
}

/// Two threads that sleep whenever they have nothing to do, and answer each other.
fn sleepers_that_answer_each_other_are_always_woken(_: &Device) {
    const ROUNDS: usize = 500;
    let (mut left, mut right) = connected(Plan::default());
    left.post_recv(4);
    right.post_recv(4);
    left.send(10, 1);
    thread::scope(|scope| {
        for side in [&mut left, &mut right] {
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let done = loop {
                        side.cq.arm(false).unwrap();
                        if let Some(done) = side
                            .poll()
                            .into_iter()
                            .find(|done| done.kind == WorkKind::Receive)
                        {
                            break done;
                        }
                        event(&side.channel);
                    };
                    assert_eq!(done, received(10, 1));
                    side.post_recv(1);
                    while side.qp.send_slots_free() == 0 {
                        side.poll();
                    }
                    side.send_signaled(10, 1);
                }
            });
        }
    });
}

/// A message may arrive at any time between two armings.
fn nothing_that_comes_between_arming_and_sleeping_is_slept_through(_: &Device) {
    const MESSAGES: usize = 2000;
    let (mut left, mut right) = connected(Plan::default());
    right.post_recv(16);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..MESSAGES {
                for _ in 0..number * 7919 % 4000 {
                    std::hint::spin_loop();
                }
                while left.qp.send_slots_free() == 0 {
                    left.poll();
                }
                left.send_signaled(10, 1);
            }
            while left.qp.send_slots_free() < left.plan.max_send_wr {
                left.poll();
            }
        });
        let mut came = 0;
        while came < MESSAGES {
            right.cq.arm(false).unwrap();
            let done = right.poll().len();
            if done == 0 {
                event(&right.channel);
            }
            right.post_recv(done);
            came += done;
        }
    });
}
