//! Messages that are posted with their bytes, without a request ([`QueuePair::post_inline`]): the
//! way of short calls, which devices may take beside that of lists.
//!
//! [`QueuePair::post_inline`]: verbline_verbs::QueuePair::post_inline

use verbline_verbs::{
    AsyncEvent, CompletionStatus as C, PostErrorReason, QpAttributes, QpState, WorkKind,
    WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::Device;
use super::end::{End, Options, pair, rc, to};
use super::lengths::{Places, message};
use super::seed::Random;

pub(crate) const CASES: Section = Section {
    topic: "messages posted inline",
    cases: &[
        case!(
            messages_posted_inline_of_every_length_arrive_whole,
            "the project's own"
        ),
        case!(
            messages_posted_inline_keep_their_place_among_other_requests,
            "specification: ordering"
        ),
        case!(
            a_message_posted_inline_waits_in_sqd_and_is_flushed_in_error,
            "specification: states"
        ),
        case!(
            a_full_send_queue_takes_no_message_inline,
            "specification: send queue slots"
        ),
    ],
};

fn post_inline(end: &mut End, bytes: &[u8]) {
    end.qp.post_inline(bytes, true).unwrap();
    end.qp.ring_doorbell().unwrap();
}

fn messages_posted_inline_of_every_length_arrive_whole(_: &Device) {
    let mut random = Random::new();
    let (mut left, mut right) = pair(rc());
    let limit = left.qp.capabilities().max_inline_data;
    let memory = right.memory.clone();
    for len in 0..=limit {
        let what = format!("{len} bytes");
        let mut bytes = message(len, &mut random);
        let expected = bytes.clone();
        let place = Places::new(&memory, len % 8, &[len]);
        place.clear();
        right.recv_into(place.elements());
        post_inline(&mut left, &bytes);
        bytes.fill(0);
        assert_eq!(right.expect_recv(C::Success).len, len);
        place.check(&expected, &what);
        let sent = left.one();
        assert_eq!((sent.kind, sent.status), (WorkKind::Send, C::Success));
    }
    let len = limit + 1;
    let refused = left.qp.post_inline(&vec![0; len], true);
    assert_eq!(refused, Err(PostErrorReason::InlineTooLong { len, limit }));
    left.assert_quiet();
    right.assert_quiet();
}

/// Room for a message in bytes.
const ROOM: usize = 240;

/// Only one atomic may be outstanding, so what is posted behind a second one has to wait.
fn messages_posted_inline_keep_their_place_among_other_requests(_: &Device) {
    let mut random = Random::new();
    let (mut left, mut right) = pair(Options {
        max_rd_atomic: 1,
        ..rc()
    });
    let longest = left.qp.capabilities().max_inline_data.min(ROOM);
    for round in 0..10 {
        let mut fills = Vec::new();
        for number in 1..=24_u8 {
            let at = usize::from(number) * 8..usize::from(number) * 8 + 8;
            left.fill(at.clone(), number);
            if number % 3 == 0 {
                let zero = right.remote(4096);
                left.post(WorkRequest::fetch_and_add(left.at(4096..4104), zero, 1));
                continue;
            }
            match random.below(2) {
                0 => {
                    let len = random.below(longest) + 1;
                    fills.push((number, len));
                    left.qp.post_inline(&vec![number; len], false).unwrap();
                }
                _ => {
                    fills.push((number, 8));
                    left.post(WorkRequest::send(left.at(at)));
                }
            }
        }
        post_inline(&mut left, &vec![25; longest]);
        fills.push((25, longest));
        for place in 0..fills.len() {
            right.recv(place * ROOM..(place + 1) * ROOM);
        }
        for (place, (fill, len)) in fills.into_iter().enumerate() {
            let what = format!("round {round}, message {place}");
            assert_eq!(right.expect_recv(C::Success).len, len, "{what}");
            let start = place * ROOM;
            assert!(right.is_all(start..start + len, fill), "{what}: {fill}");
        }
        assert_eq!(left.one().status, C::Success);
    }
}

fn a_message_posted_inline_waits_in_sqd_and_is_flushed_in_error(device: &Device) {
    let (mut left, mut right) = pair(rc());
    // The first one may go another way than those behind it.
    right.recv(0..8);
    post_inline(&mut left, &[6; 8]);
    right.expect_recv(C::Success);
    assert_eq!(left.one().status, C::Success);
    right.recv(0..8);
    let drained = QpAttributes {
        notify_drained: Some(true),
        ..to(QpState::Sqd)
    };
    let qp_num = left.qp.qp_num();
    left.qp.modify(&drained).unwrap();
    assert_eq!(left.event(), AsyncEvent::SqDrained { qp_num });
    post_inline(&mut left, &[7; 8]);
    right.assert_quiet();
    assert_eq!(left.now(), []);
    left.go(QpState::Rts);
    if !device.deviates(&rxe::SQD_RESUMES_LATE, true, false) {
        left.post(WorkRequest::write(vec![], right.remote(0)));
    }
    right.expect_recv(C::Success);
    assert!(right.is_all(0..8, 7));
    assert_eq!(left.one().status, C::Success);
    left.go(QpState::Error);
    post_inline(&mut left, &[8; 8]);
    let seen = left.one();
    assert_eq!(
        (seen.kind, seen.status),
        (WorkKind::Send, C::WorkRequestFlushed)
    );
    right.assert_quiet();
}

fn a_full_send_queue_takes_no_message_inline(_: &Device) {
    let (mut left, mut right) = pair(rc());
    let capacity = left.qp.send_slots_free();
    for number in 0..capacity {
        let is_last = number + 1 == capacity;
        left.qp.post_inline(&[1; 8], is_last).unwrap();
    }
    let full = Err(PostErrorReason::QueueFull { capacity });
    assert_eq!(left.qp.post_inline(&[2; 8], true), full);
    left.qp.ring_doorbell().unwrap();
    for _ in 0..capacity {
        right.recv(0..8);
        right.expect_recv(C::Success);
        assert!(right.is_all(0..8, 1));
    }
    assert_eq!(left.qp.post_inline(&[2; 8], true), full, "not polled yet");
    assert_eq!(left.one().status, C::Success);
    right.recv(0..8);
    post_inline(&mut left, &[2; 8]);
    right.expect_recv(C::Success);
    assert!(right.is_all(0..8, 2));
}
