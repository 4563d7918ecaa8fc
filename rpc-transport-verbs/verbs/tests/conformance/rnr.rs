//! A receiver without posted receives: RNR NAKs, retries, and their timer.

use std::time::{Duration, Instant};

use verbline_verbs::{
    AckTimeout, CompletionStatus as C, QpState, RnrRetry, RnrTimer, RtrAttributes, RtsAttributes,
    WorkKind,
};

use super::case::{Section, case};
use super::device::Device;
use super::verbs_side::{self, HANG, Plan, Side, address, failed, rtr, rts, sent};

pub(crate) const CASES: Section = Section {
    topic: "receiver not ready",
    cases: &[
        case!(
            without_rnr_retries_the_first_refusal_is_the_last,
            "specification: receiver not ready; rc_test: SendRnr"
        ),
        case!(
            one_rnr_retry_waits_for_the_receivers_time_and_then_fails,
            "specification: receiver not ready"
        ),
        case!(
            three_rnr_retries_wait_three_times,
            "specification: receiver not ready"
        ),
        case!(
            rnr_is_retried_for_ever_and_what_waited_arrives_in_order,
            "specification: receiver not ready; rc_test: SendRnrInfiniteRetries"
        ),
        case!(
            progress_gives_the_rnr_retries_back,
            "specification: receiver not ready"
        ),
    ],
};

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
    // Long enough that the acknowledgement timeout does not expire while the receiver is not ready.
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

fn without_rnr_retries_the_first_refusal_is_the_last(_: &Device) {
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

fn one_rnr_retry_waits_for_the_receivers_time_and_then_fails(_: &Device) {
    // Far longer than a device needs to find that time is up.
    retries_wait(1, 28, Duration::from_micros(163_840));
}

fn three_rnr_retries_wait_three_times(_: &Device) {
    retries_wait(3, 25, Duration::from_micros(61_440));
}

/// `time` is what the specification says of the code: the layer's table of them is tested, too.
fn retries_wait(retries: u8, code: u8, time: Duration) {
    let timer = RnrTimer::new(code).unwrap();
    let (mut left, mut right) = slow_to_be_ready(RnrRetry::new(retries).unwrap(), timer);
    let start = Instant::now();
    left.send(10, 1);
    let done = wait_left(&mut left, &mut right);
    let elapsed = start.elapsed();
    assert_eq!(done, failed(WorkKind::Send, C::RnrRetryExceeded));
    assert!(elapsed >= time * u32::from(retries), "{elapsed:?}");
    let naks = u64::from(retries) + 1;
    assert_eq!(right.rnr_naks_sent(), naks);
    let counters = left.context.rnr_counters(address().port).unwrap();
    assert_eq!(counters.nak_received, naks);
}

fn rnr_is_retried_for_ever_and_what_waited_arrives_in_order(_: &Device) {
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

fn progress_gives_the_rnr_retries_back(_: &Device) {
    // Code 24 is 41 ms: enough time to post a receive before the one retry.
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
