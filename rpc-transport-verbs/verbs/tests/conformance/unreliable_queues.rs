//! The queues of unreliable queue pairs, UC and UD: waiting requests, slots, shared receives,
//! events, threads. All cases apply to both types.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use verbline_verbs::{
    AsyncEvent, CompletionStatus, PostErrorReason, QpAttributes, QpNum, QpState, QpType,
    ReceiveRequest, WorkKind, WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::{Device, Kind};
use super::unreliable_side::{
    Making, Party, QKEY, RECEIVE_OFFSET, TYPES, assert_arrives, connect, message, pair, sent,
};
use super::verbs_side::HANG;

pub(crate) const CASES: Section = Section {
    topic: "unreliable queues",
    cases: &[
        case!(
            what_is_posted_to_unreliable_queue_pairs_in_sqd_waits,
            "specification: states"
        ),
        case!(
            an_unreliable_send_queue_is_drained_at_once,
            "specification: states"
        ),
        case!(
            unreliable_queue_pairs_take_requests_in_the_states_that_do,
            "specification: states"
        ),
        case!(
            an_unreliable_queue_pair_tells_what_its_type_has,
            "specification: states"
        ),
        case!(
            slots_of_an_unreliable_send_queue_are_free_when_polled,
            "specification: send queue slots"
        ),
        case!(
            sq_sig_all_completes_every_unreliable_send,
            "specification: signaling"
        ),
        case!(
            unreliable_queue_pairs_share_receives_and_the_limit_is_told,
            "specification: shared receive queues"
        ),
        case!(
            an_unreliable_queue_pair_says_when_it_has_taken_its_last_shared_receive,
            "specification: asynchronous events"
        ),
        case!(
            unreliable_messages_set_off_what_was_armed_for_them,
            "specification: arming"
        ),
        case!(
            an_unreliable_message_wakes_a_sleeper,
            "specification: completion channels"
        ),
        case!(
            a_fence_on_unreliable_queue_pairs_waits_for_nothing,
            "specification: send queue"
        ),
        case!(
            two_contexts_flood_each_other_with_unreliable_messages,
            "specification: threads"
        ),
        case!(
            receivers_come_and_go_under_a_flood_of_unreliable_messages,
            "specification: threads"
        ),
    ],
};

fn what_is_posted_to_unreliable_queue_pairs_in_sqd_waits(device: &Device) {
    for qp_type in TYPES {
        let (mut left, mut right) = pair(Making::new(qp_type));
        for at in 0..3 {
            let start = RECEIVE_OFFSET + at * 100;
            right.receive(start..start + 100);
        }
        left.go(QpState::Sqd);
        let list = vec![
            message(&left, &right, 1),
            left.aim(left.message(20..30, 2).inline(), &right),
            left.aim(left.message(40..50, 3).signaled(), &right),
        ];
        left.post_list(list).unwrap();
        // The inline request was copied; the others read their bytes when it is their turn.
        left.memory.write(0, &[9; 100]).unwrap();
        left.assert_quiet();
        right.assert_quiet();
        // Receives continue.
        assert_arrives(&mut right, &mut left, 7);
        left.go(QpState::Rts);
        if device.deviates(&rxe::SQD_RESUMES_LATE, false, true) {
            // There is no receive for this message.
            let request = message(&left, &right, 9);
            left.post(request);
        }
        assert_eq!(left.wait_one(), sent());
        assert_eq!(right.wait(3), [right.arrived(10, &left); 3]);
        let header = right.arrived(0, &left).len;
        for (at, fill) in [(0, 9), (1, 2), (2, 9)] {
            let start = RECEIVE_OFFSET + at * 100 + header;
            assert_eq!(right.bytes(start..start + 10), [fill; 10]);
        }
    }
}

fn an_unreliable_send_queue_is_drained_at_once(_: &Device) {
    for qp_type in TYPES {
        let (mut left, right) = pair(Making::new(qp_type));
        let request = message(&left, &right, 1).signaled();
        left.post(request);
        assert_eq!(left.wait_one(), sent());
        let to_sqd = QpAttributes {
            state: Some(QpState::Sqd),
            notify_drained: Some(true),
            ..QpAttributes::default()
        };
        left.qp.modify(&to_sqd).unwrap();
        let qp_num = left.qp.qp_num();
        assert_eq!(left.event(), AsyncEvent::SqDrained { qp_num });
        assert_eq!(left.qp.query().unwrap().sq_draining, Some(false));
        left.go(QpState::Rts);
        left.assert_no_event();
    }
}

fn unreliable_queue_pairs_take_requests_in_the_states_that_do(_: &Device) {
    for qp_type in TYPES {
        let mut side = Party::new(Making::new(qp_type));
        let refused = |side: &mut Party, state| {
            let request = message(side, side, 1);
            assert_eq!(
                side.try_post(request),
                Err(PostErrorReason::State { state }),
                "{qp_type}"
            );
        };
        refused(&mut side, QpState::Reset);
        let mut receive = vec![ReceiveRequest::new(side.memory.element(0..10).unwrap())];
        let error = side.qp.post_recv_elements(&mut receive).unwrap_err();
        let state = QpState::Reset;
        assert_eq!(error.reason, PostErrorReason::State { state });
        side.init();
        refused(&mut side, QpState::Init);
        side.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
        side.rtr(side.qp.qp_num());
        refused(&mut side, QpState::Rtr);
        side.rts();
        // A message to itself.
        let request = message(&side, &side, 1);
        side.post(request);
        assert_eq!(side.wait_one(), side.arrived(10, &side));
    }
}

fn an_unreliable_queue_pair_tells_what_its_type_has(_: &Device) {
    for qp_type in TYPES {
        let (left, right) = pair(Making::new(qp_type));
        assert_eq!(left.qp.qp_type(), qp_type);
        let told = left.qp.query().unwrap();
        assert_eq!(told.state, Some(QpState::Rts));
        let is_datagram = qp_type == QpType::UnreliableDatagram;
        assert_eq!(told.qkey, is_datagram.then_some(QKEY));
        let peer = (!is_datagram).then_some(right.qp.qp_num());
        assert_eq!(told.dest_qp_num, peer);
        assert_eq!(told.access, (!is_datagram).then_some(left.making.access));
        assert_eq!(told.address.is_some(), !is_datagram);
        assert!(told.sq_psn.is_some());
        assert_eq!((told.timeout, told.retry_cnt), (None, None));
        assert_eq!((told.rnr_retry, told.max_rd_atomic), (None, None));
        assert_eq!((told.min_rnr_timer, told.max_dest_rd_atomic), (None, None));
    }
}

fn slots_of_an_unreliable_send_queue_are_free_when_polled(_: &Device) {
    for qp_type in TYPES {
        let (mut left, right) = pair(Making::new(qp_type));
        let depth = left.qp.capabilities().max_send_wr;
        for index in 0..depth {
            let request = message(&left, &right, 1);
            let is_last = index + 1 == depth;
            let request = if is_last { request.signaled() } else { request };
            left.post(request);
        }
        let request = message(&left, &right, 1);
        let full = PostErrorReason::QueueFull { capacity: depth };
        assert_eq!(left.try_post(request), Err(full));
        // The completion has arrived, but frees nothing before it is polled.
        assert_eq!(left.wait_one(), sent());
        for _ in 0..depth {
            let request = message(&left, &right, 1);
            left.post(request);
        }
        // Without a signaled request in the queue, it is stuck.
        let request = message(&left, &right, 1);
        assert_eq!(left.try_post(request), Err(full));
        left.assert_quiet();
        let request = message(&left, &right, 1);
        assert_eq!(left.try_post(request), Err(full));
    }
}

fn sq_sig_all_completes_every_unreliable_send(_: &Device) {
    for qp_type in TYPES {
        let (mut left, right) = pair(Making {
            sq_sig_all: true,
            ..Making::new(qp_type)
        });
        let list = (1..4).map(|fill| message(&left, &right, fill)).collect();
        left.post_list(list).unwrap();
        assert_eq!(left.wait(3), [sent(); 3]);
    }
}

fn unreliable_queue_pairs_share_receives_and_the_limit_is_told(_: &Device) {
    for qp_type in TYPES {
        let (mut left, mut right) = pair(Making {
            srq_wr: 8,
            ..Making::new(qp_type)
        });
        for at in 0..4 {
            let start = RECEIVE_OFFSET + at * 100;
            right.receive(start..start + 100);
        }
        let srq = right.srq.as_ref().unwrap();
        srq.arm_limit(3).unwrap();
        let number = srq.number();
        let send = |left: &mut Party, right: &mut Party| {
            let request = message(left, right, 1).signaled();
            left.post(request);
            assert_eq!(left.wait_one(), sent());
            assert_eq!(right.wait_one(), right.arrived(10, left));
        };
        send(&mut left, &mut right);
        right.assert_no_event();
        send(&mut left, &mut right);
        assert_eq!(right.event(), AsyncEvent::SrqLimitReached { srq: number });
        send(&mut left, &mut right);
        right.assert_no_event();
    }
}

fn an_unreliable_queue_pair_says_when_it_has_taken_its_last_shared_receive(device: &Device) {
    device.needs(device.kind != Kind::Rxe, &rxe::FEW_EVENTS);
    for qp_type in TYPES {
        let (mut left, mut right) = pair(Making {
            srq_wr: 8,
            ..Making::new(qp_type)
        });
        right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
        right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
        let request = message(&left, &right, 1);
        left.post(request);
        right.go(QpState::Error);
        let qp_num = right.qp.qp_num();
        assert_eq!(right.event(), AsyncEvent::QpLastWqeReached { qp_num });
        assert_eq!(right.wait_one(), right.arrived(10, &left));
        // The other queue pair is not flushed.
        right.assert_quiet();
    }
}

fn unreliable_messages_set_off_what_was_armed_for_them(_: &Device) {
    let short = Some(Duration::from_millis(30));
    for (qp_type, is_write) in [
        (QpType::UnreliableConnection, false),
        (QpType::UnreliableConnection, true),
        (QpType::UnreliableDatagram, false),
    ] {
        let (mut left, mut right) = pair(Making::new(qp_type));
        let number = right.cq.number();
        let mut send = |right: &mut Party, solicited: bool| {
            right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
            let request = match is_write {
                true => {
                    let bytes = left.memory.element(0..8).unwrap();
                    WorkRequest::write_with_imm(bytes, right.memory.remote(0), 5)
                }
                false => message(&left, right, 1),
            };
            let request = if solicited {
                request.solicited()
            } else {
                request
            };
            left.post(request.signaled());
            assert_eq!(left.wait_one().status, CompletionStatus::Success);
        };
        // Not armed.
        send(&mut right, true);
        assert_eq!(right.channel.wait(short).unwrap(), None);
        // Armed for any completion.
        right.cq.arm(false).unwrap();
        send(&mut right, false);
        assert_eq!(right.channel.wait(Some(HANG)).unwrap(), Some(number));
        send(&mut right, false);
        assert_eq!(right.channel.wait(short).unwrap(), None);
        // Armed for solicited completions.
        right.cq.arm(true).unwrap();
        send(&mut right, false);
        assert_eq!(right.channel.wait(short).unwrap(), None);
        send(&mut right, true);
        assert_eq!(right.channel.wait(Some(HANG)).unwrap(), Some(number));
        assert_eq!(right.wait(5).len(), 5);
        // A completion of its own send raises the event as well.
        right.cq.arm(false).unwrap();
        let request = message(&right, &left, 1).signaled();
        right.post(request);
        assert_eq!(right.channel.wait(Some(HANG)).unwrap(), Some(number));
        assert_eq!(right.wait_one(), sent());
    }
}

fn an_unreliable_message_wakes_a_sleeper(_: &Device) {
    for qp_type in TYPES {
        let (mut left, mut right) = pair(Making::new(qp_type));
        right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
        right.cq.arm(false).unwrap();
        assert_eq!(right.poll(), []);
        let expected = right.arrived(10, &left);
        let request = message(&left, &right, 1);
        let sleeper = thread::spawn(move || {
            let woken = right.channel.wait(Some(HANG)).unwrap();
            assert_eq!(woken, Some(right.cq.number()));
            assert_eq!(right.wait_one(), expected);
        });
        // By now the other thread is almost always asleep.
        thread::sleep(Duration::from_millis(5));
        left.post(request);
        sleeper.join().unwrap();
    }
}

fn a_fence_on_unreliable_queue_pairs_waits_for_nothing(_: &Device) {
    for qp_type in TYPES {
        let (mut left, mut right) = pair(Making::new(qp_type));
        right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
        let request = message(&left, &right, 1).fenced().signaled();
        left.post(request);
        assert_eq!(left.wait_one(), sent());
        assert_eq!(right.wait_one(), right.arrived(10, &left));
    }
}

/// Number of messages that each side of a flood sends.
const FLOOD: u32 = 3000;

/// Sends this many numbered messages in short lists, and receives as many.
fn flood(side: &mut Party, to: QpNum, begin: &Barrier) {
    for _ in 0..FLOOD {
        // All receives use the same bytes, because only the message's number counts.
        side.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    }
    begin.wait();
    let start = Instant::now();
    let (mut posted, mut completed, mut received) = (0, 0, 0);
    while completed < FLOOD || received < FLOOD {
        if completed + 100 >= posted {
            let list = (posted..FLOOD).take(10).map(|number| {
                let request =
                    WorkRequest::send_with_imm(side.memory.element(0..50).unwrap(), number);
                side.aim_at(request.signaled(), to)
            });
            let list: Vec<_> = list.collect();
            posted += list.len() as u32;
            side.post_list(list).unwrap();
        }
        for seen in side.poll() {
            assert_eq!(seen.status, CompletionStatus::Success);
            match seen.kind {
                WorkKind::Send => completed += 1,
                WorkKind::Receive => {
                    assert_eq!(seen.imm, Some(received), "in their order");
                    received += 1;
                }
            }
        }
        assert!(
            start.elapsed() < HANG,
            "{posted} posted, {completed} completed, {received} received"
        );
    }
    assert_eq!((completed, received), (FLOOD, FLOOD));
}

/// Each side sends in its own thread into the other's context, while the other thread is using it:
/// there is no deadlock, and no message is lost or duplicated.
fn two_contexts_flood_each_other_with_unreliable_messages(device: &Device) {
    device.needs(device.kind == Kind::Soft, &rxe::MAY_LOSE);
    for qp_type in TYPES {
        let making = Making {
            depth: FLOOD as usize,
            cq_depth: 2 * FLOOD as usize,
            ..Making::new(qp_type)
        };
        flood_each_other(&mut pair(making));
        // Or a single context, which the threads share.
        let left = Party::new(making);
        let right = Party::in_context(left.context.clone(), making);
        let mut sides = (left, right);
        connect(&mut sides.0, &mut sides.1);
        flood_each_other(&mut sides);
    }
}

fn flood_each_other((left, right): &mut (Party, Party)) {
    let (left_num, right_num) = (left.qp.qp_num(), right.qp.qp_num());
    let begin = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| flood(left, right_num, &begin));
        scope.spawn(|| flood(right, left_num, &begin));
    });
}

fn receivers_come_and_go_under_a_flood_of_unreliable_messages(_: &Device) {
    const FOR: Duration = Duration::from_millis(200);
    let making = Making::new(QpType::UnreliableDatagram);
    let (mut left, right) = pair(making);
    let target = AtomicU32::new(right.qp.qp_num().0);
    let is_over = AtomicBool::new(false);
    let from = left.qp.qp_num();
    thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            let mut received = 0;
            while start.elapsed() < FOR || received == 0 {
                assert!(start.elapsed() < HANG, "nothing has come");
                let mut side = Party::in_context(right.context.clone(), making);
                side.init();
                for _ in 0..making.depth {
                    side.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
                }
                side.rtr(side.qp.qp_num());
                target.store(side.qp.qp_num().0, Ordering::Release);
                let born = Instant::now();
                let mut came = 0;
                while came < 4 && born.elapsed() < Duration::from_millis(20) {
                    for seen in side.poll() {
                        assert_eq!((seen.len, seen.src_qp), (50, Some(from)));
                        came += 1;
                    }
                }
                received += came;
                // Dropped while messages arrive.
            }
            is_over.store(true, Ordering::Release);
        });
        let start = Instant::now();
        while !is_over.load(Ordering::Acquire) {
            assert!(start.elapsed() < 2 * HANG, "the other thread has not ended");
            let to = QpNum(target.load(Ordering::Acquire));
            let request = left.aim_at(left.message(0..10, 1).signaled(), to);
            left.post(request);
            assert_eq!(left.wait_one(), sent());
        }
    });
}
