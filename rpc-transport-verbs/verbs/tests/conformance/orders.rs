//! Orders: of completions, and of what requests do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use verbline_verbs::{
    Access, AckTimeout, AsyncEvent, Binding, CompletionOpcode as O, CompletionStatus as C,
    ExposedMemory, QpAttributes, QpState, WindowType, WorkKind, WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::{Device, Kind};
use super::end::{End, LEN, Options, everything, init, pair, rc, rtr, rts, to};
use super::memory_windows::{bound, granted, window, with_window};
use super::seed::Random;
use super::verbs_side;

pub(crate) const CASES: Section = Section {
    topic: "orders",
    cases: &[
        case!(
            sends_are_flushed_in_the_order_of_posting,
            "specification: states"
        ),
        case!(
            what_follows_a_request_that_fails_is_flushed_in_order,
            "specification: completion statuses"
        ),
        case!(
            completions_of_one_queue_pair_come_in_the_order_of_posting,
            "specification: ordering; signaling"
        ),
        case!(
            reads_behind_a_message_that_was_not_ready_are_all_made,
            "specification: read depth"
        ),
        case!(
            a_read_behind_a_message_that_takes_its_key_away_is_refused,
            "specification: ordering; memory windows"
        ),
        case!(
            a_read_that_succeeds_saw_nothing_from_after_its_key,
            "specification: memory windows"
        ),
        case!(nothing_of_any_kind_begins_in_sqd, "specification: states"),
        case!(
            exactly_a_batch_of_messages_is_acknowledged,
            "the project's own"
        ),
    ],
};

/// The kinds of requests that a reliable connection takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Send,
    SendWithImm,
    Write,
    WriteWithImm,
    Read,
    CompareAndSwap,
    FetchAndAdd,
}

impl What {
    const ALL: [Self; 7] = [
        Self::Send,
        Self::SendWithImm,
        Self::Write,
        Self::WriteWithImm,
        Self::Read,
        Self::CompareAndSwap,
        Self::FetchAndAdd,
    ];

    fn takes_a_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendWithImm | Self::WriteWithImm)
    }

    /// Returns the immediate that the peer receives with request `number`.
    fn imm(self, number: usize) -> Option<u32> {
        matches!(self, Self::SendWithImm | Self::WriteWithImm).then_some(number as u32)
    }

    fn opcode(self) -> O {
        match self {
            Self::Send | Self::SendWithImm => O::Send,
            Self::Write | Self::WriteWithImm => O::RdmaWrite,
            Self::Read => O::RdmaRead,
            Self::CompareAndSwap => O::CompareAndSwap,
            Self::FetchAndAdd => O::FetchAndAdd,
        }
    }

    /// Returns request `number`, of `len` bytes at most. Its bytes are at the number's place of
    /// each end.
    fn request(self, left: &End, right: &End, number: usize, len: usize) -> WorkRequest {
        let at = number * PLACE;
        let (local, eight) = (left.at(at..at + len), left.at(at..at + 8));
        let remote = right.remote(LEN / 2 + at);
        match self {
            Self::Send => WorkRequest::send(local),
            Self::SendWithImm => WorkRequest::send_with_imm(local, number as u32),
            Self::Write => WorkRequest::write(local, remote),
            Self::WriteWithImm => WorkRequest::write_with_imm(local, remote, number as u32),
            Self::Read => WorkRequest::read(local, remote),
            Self::CompareAndSwap => WorkRequest::compare_and_swap(eight, remote, 0, 1),
            Self::FetchAndAdd => WorkRequest::fetch_and_add(eight, remote, 1),
        }
    }
}

/// Length of the place of a request in bytes.
const PLACE: usize = 128;

/// Posts two requests of each kind, of which every third is signaled. Returns their numbers.
fn post_all(left: &mut End, right: &End) -> Vec<u64> {
    let twice = What::ALL.into_iter().chain(What::ALL).enumerate();
    let mut posted = Vec::new();
    for (number, what) in twice {
        let request = what.request(left, right, number, 64);
        posted.push(match number % 3 {
            0 => left.post(request.signaled()),
            _ => left.post(request),
        });
    }
    posted
}

/// Checks that these requests are flushed, signaled or not, in this order.
fn assert_flushed(end: &mut End, posted: &[u64]) {
    let seen = end.wait(posted.len());
    let flushed = |wr_id: &u64| (WorkKind::Send, *wr_id, C::WorkRequestFlushed);
    let expected: Vec<_> = posted.iter().map(flushed).collect();
    let seen: Vec<_> = seen
        .iter()
        .map(|seen| (seen.kind, seen.wr_id, seen.status))
        .collect();
    assert_eq!(seen, expected);
    end.assert_quiet();
}

fn sends_are_flushed_in_the_order_of_posting(_: &Device) {
    let patient = Options {
        timeout: AckTimeout::FOREVER,
        ..rc()
    };
    let (mut left, mut right) = (End::new(patient), End::new(patient));
    init(&mut left.qp, patient);
    init(&mut right.qp, patient);
    // The peer in INIT answers nothing.
    rtr(&mut left.qp, right.qp.qp_num(), patient);
    rts(&mut left.qp, patient);
    let posted = post_all(&mut left, &right);
    left.go(QpState::Error);
    assert_flushed(&mut left, &posted);
}

fn what_follows_a_request_that_fails_is_flushed_in_order(_: &Device) {
    let (mut left, right) = pair(rc());
    let [wrong, ..] = super::protection::nowhere(&right);
    let failing = left.post(WorkRequest::write(left.at(0..8), wrong));
    let posted = post_all(&mut left, &right);
    let seen = left.one();
    assert_eq!((seen.wr_id, seen.status), (failing, C::RemoteAccess));
    assert_flushed(&mut left, &posted);
    assert!(right.is_all(0..LEN, 0), "nothing was carried out");
}

fn completions_of_one_queue_pair_come_in_the_order_of_posting(device: &Device) {
    let count = match device.kind {
        Kind::Soft => 200,
        _ => 60,
    };
    let mut random = Random::new();
    let (mut left, mut right) = pair(rc());
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    let (mut expected_sent, mut expected_received) = (Vec::new(), Vec::new());
    for number in 0..count {
        let what = What::ALL[random.below(What::ALL.len())];
        let len = random.below(PLACE + 1);
        left.fill(number * PLACE..(number + 1) * PLACE, number as u8 + 1);
        if what.takes_a_receive() {
            // Single elements and lists are mixed. Each receive has a place of its own.
            let place = expected_received.len() * PLACE;
            let cut = place + random.below(PLACE);
            right.recv_into(match random.below(2) {
                0 => vec![right.at(place..place + PLACE)],
                _ => vec![right.at(place..cut), right.at(cut..place + PLACE)],
            });
            expected_received.push((what, number, len));
        }
        let request = what.request(&left, &right, number, len);
        // Unsignaled requests need a signaled one behind them to complete.
        if random.below(3) == 0 || number % 8 == 7 || number + 1 == count {
            let wr_id = left.post(request.signaled());
            expected_sent.push((wr_id, C::Success, Some(what.opcode())));
        } else {
            left.post(request);
        }
        while left.qp.send_slots_free() == 0 || expected_received.len() - received.len() == 32 {
            received.extend(right.now());
            sent.extend(left.now());
        }
    }
    received.extend(right.wait(expected_received.len() - received.len()));
    sent.extend(left.wait(expected_sent.len() - sent.len()));
    let sent: Vec<_> = sent
        .iter()
        .map(|seen| (seen.wr_id, seen.status, seen.opcode))
        .collect();
    assert_eq!(sent, expected_sent);
    for (place, (seen, (what, number, len))) in received.iter().zip(&expected_received).enumerate()
    {
        let name = format!("{what:?}, request {number} in receive {place}");
        assert_eq!((seen.status, seen.len), (C::Success, *len), "{name}");
        assert_eq!(seen.imm, what.imm(*number), "{name}");
        let place = place * PLACE;
        if *what != What::WriteWithImm {
            assert!(
                right.is_all(place..place + len, *number as u8 + 1),
                "{name}"
            );
        }
    }
    left.assert_quiet();
    right.assert_quiet();
}

/// The READs are begun before the message is sent again, and may be sent again with it.
fn reads_behind_a_message_that_was_not_ready_are_all_made(_: &Device) {
    let (mut left, mut right) = pair(rc());
    for round in 1..=4 {
        left.fill(0..1024, 0);
        right.fill(LEN / 2..LEN / 2 + 1024, round);
        left.post(WorkRequest::send(left.at(2000..2008)).signaled());
        // Twice as many as may be outstanding.
        for number in 0..8 {
            let request = What::Read.request(&left, &right, number, PLACE);
            left.post(request.signaled());
        }
        if round == 1 {
            // The message has reached the peer by then, if the wait is not too short.
            left.assert_quiet();
        }
        right.recv(0..8);
        right.expect_recv(C::Success);
        assert_eq!(left.statuses(9), [C::Success; 9], "round {round}");
        assert!(left.is_all(0..1024, round), "round {round}");
    }
}

fn a_read_behind_a_message_that_takes_its_key_away_is_refused(_: &Device) {
    for _ in 0..3 {
        let (mut left, mut right, _window, remote) = with_window(WindowType::Type2);
        left.fill(0..8, 1);
        right.recv_into(vec![]);
        let message = WorkRequest::send_with_invalidate(vec![], remote.key).signaled();
        let read = WorkRequest::read(left.at(0..8), remote).signaled();
        left.qp.post(&mut vec![message, read], &mut drop).unwrap();
        let received = right.expect_recv(C::Success);
        assert_eq!(received.invalidated, Some(remote.key));
        assert_eq!(left.statuses(2), [C::Success, C::RemoteAccess]);
        assert!(left.is_all(0..8, 1), "nothing came");
    }
}

/// The owner takes the key away while the bytes are read, and then changes the last of them.
fn a_read_that_succeeds_saw_nothing_from_after_its_key(device: &Device) {
    let mut random = Random::new();
    let (len, rounds) = match device.kind {
        Kind::Soft => (8 << 20, 12),
        _ => (256 << 10, 2),
    };
    let may_be_silent = device.deviates(&rxe::KEY_GONE_MIDWAY, false, true);
    for round in 0..rounds {
        let (mut left, mut right) = pair(rc());
        let into = left.domain.expose(len, everything()).unwrap();
        let access = everything() | Access::MW_BIND;
        let region = right.domain.expose(len, access).unwrap();
        let window = window(&right, WindowType::Type2);
        let binding = Binding::new(&region, 0..len, granted());
        let remote = bound(&mut right, &window, &binding);
        let last = |memory: &ExposedMemory, value| {
            let cell = memory.atomic(len - 8).unwrap();
            cell.swap(value, Ordering::SeqCst)
        };
        last(&region, 1);
        let has_begun = AtomicBool::new(false);
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                loop {
                    let read = WorkRequest::read(into.element(0..len).unwrap(), remote);
                    let status = left.run(read).status;
                    has_begun.store(true, Ordering::SeqCst);
                    if status != C::Success {
                        let is_silence = may_be_silent && status == C::RetryExceeded;
                        assert!(status == C::RemoteAccess || is_silence, "{status}");
                        break;
                    }
                    assert_eq!(last(&into, 0), 1, "round {round}");
                }
            });
            while !has_begun.load(Ordering::SeqCst) && !reader.is_finished() {
                thread::yield_now();
            }
            thread::sleep(Duration::from_micros(random.below(2000) as u64));
            let status = right.run(WorkRequest::local_invalidate(remote.key)).status;
            // The READ that is refused brings this end to ERROR, on rxe before the invalidate completes.
            let is_flushed = may_be_silent && status == C::WorkRequestFlushed;
            assert!(status == C::Success || is_flushed, "{status}");
            last(&region, 2);
        });
    }
}

/// Each kind is the first that is posted in SQD: nothing before it holds it up.
fn nothing_of_any_kind_begins_in_sqd(device: &Device) {
    let (mut left, mut right) = pair(rc());
    let drained = QpAttributes {
        notify_drained: Some(true),
        ..to(QpState::Sqd)
    };
    let qp_num = left.qp.qp_num();
    for what in What::ALL {
        left.fill(0..PLACE, 1);
        right.fill(0..LEN, 2);
        if what.takes_a_receive() {
            right.recv(0..PLACE);
        }
        left.qp.modify(&drained).unwrap();
        assert_eq!(left.event(), AsyncEvent::SqDrained { qp_num });
        let request = what.request(&left, &right, 0, PLACE);
        let wr_id = left.post(request.signaled());
        right.assert_quiet();
        assert_eq!(left.now(), [], "{what:?}");
        let is_unchanged = left.is_all(0..PLACE, 1) && right.is_all(0..LEN, 2);
        assert!(is_unchanged, "{what:?}");
        left.go(QpState::Rts);
        if !device.deviates(&rxe::SQD_RESUMES_LATE, true, false) {
            left.post(WorkRequest::write(vec![], right.remote(0)));
        }
        if what.takes_a_receive() {
            right.expect_recv(C::Success);
        }
        let seen = left.one();
        assert_eq!((seen.wr_id, seen.status), (wr_id, C::Success), "{what:?}");
    }
}

/// `soft` takes up to 64 messages with an immediate at once, and acknowledges them together before
/// it returns their completions.
fn exactly_a_batch_of_messages_is_acknowledged(_: &Device) {
    let options = Options {
        max_send_wr: 64,
        max_recv_wr: 64,
        ..rc()
    };
    let is_at_once = verbs_side::device() == "soft";
    let (mut left, mut right) = pair(options);
    for count in [63, 64, 64, 64, 1] {
        for _ in 0..count {
            right.recv(0..8);
        }
        for _ in 0..count {
            left.post(WorkRequest::send_with_imm(left.at(0..8), 5).signaled());
        }
        let received = right.wait(count);
        assert!(received.iter().all(|seen| seen.status == C::Success));
        // The receiver is not polled again.
        let sent = match is_at_once {
            true => left.now(),
            false => left.wait(count),
        };
        assert_eq!(sent.len(), count);
        assert!(sent.iter().all(|seen| seen.status == C::Success));
    }
}
