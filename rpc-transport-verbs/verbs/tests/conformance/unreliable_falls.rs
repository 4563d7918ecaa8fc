//! Failures of unreliable queue pairs, UC and UD: the transitions to SQE, where receives continue,
//! and to ERR, and what happens to posted requests.

use verbline_verbs::{
    Access, AsyncEvent, Binding, CompletionStatus, Element, LocalKey, QpAttributes, QpState,
    QpType, ReceiveRequest, WindowType, WorkKind, WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::{Device, Kind};
use super::unreliable_side::{
    MEMORY_LEN, Making, Party, RECEIVE_OFFSET, Seen, TYPES, assert_arrives, connect, message, pair,
    sent,
};
use super::verbs_side;

pub(crate) const CASES: Section = Section {
    topic: "unreliable falls",
    cases: &[
        case!(
            an_unreliable_send_that_fails_here_leads_to_sqe_and_flushes_what_follows,
            "specification: asynchronous falls"
        ),
        case!(
            each_way_to_fail_here_is_told_apart_on_unreliable_queue_pairs,
            "specification: protection; send queue"
        ),
        case!(
            a_window_that_cannot_be_bound_leads_an_unreliable_connection_to_sqe,
            "specification: memory windows; asynchronous falls"
        ),
        case!(
            an_unreliable_message_longer_than_any_fails_here,
            "specification: status codes"
        ),
        case!(
            a_queue_pair_in_sqe_receives_flushes_and_resumes,
            "specification: states; asynchronous falls"
        ),
        case!(
            a_receive_that_cannot_be_written_brings_an_unreliable_queue_pair_to_error,
            "specification: asynchronous falls"
        ),
        case!(
            unreliable_queue_pairs_flush_in_error_and_forget_in_reset,
            "specification: states; flush order"
        ),
        case!(
            unreliable_messages_that_overrun_a_completion_queue_fail_its_queue_pairs,
            "specification: completion queues"
        ),
    ],
};

fn an_unreliable_send_that_fails_here_leads_to_sqe_and_flushes_what_follows(device: &Device) {
    device.needs(device.kind != Kind::Rxe, &rxe::NO_SQE);
    for qp_type in TYPES {
        let (mut left, mut right) = pair(Making::new(qp_type));
        for _ in 0..3 {
            right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
        }
        let list = vec![
            message(&left, &right, 1).signaled(),
            message(&left, &right, 2),
            // Not signaled, and neither are the two after it.
            left.bad_message(&right),
            message(&left, &right, 3),
            message(&left, &right, 4),
        ];
        left.post_list(list).unwrap();
        let flushed = Seen::flushed(WorkKind::Send);
        let failed = Seen::failed(WorkKind::Send, CompletionStatus::LocalProtection);
        assert_eq!(left.wait(4), [sent(), failed, flushed, flushed]);
        assert_eq!(left.state(), QpState::Sqe);
        assert_eq!(right.wait(2), [right.arrived(10, &left); 2]);
        right.assert_quiet();
        assert_eq!(right.state(), QpState::Rts);
        left.assert_no_event();
    }
}

fn each_way_to_fail_here_is_told_apart_on_unreliable_queue_pairs(device: &Device) {
    device.needs(device.kind != Kind::Rxe, &rxe::NO_SQE);
    for qp_type in TYPES {
        let (mut left, mut right) = pair(Making::new(qp_type));
        right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 2000);
        let foreign = left.context.alloc_pd().unwrap();
        let foreign = foreign.expose(4096, Access::NONE).unwrap();
        let start = left.at(MEMORY_LEN - 10);
        let key = left.memory.local_key();
        let bad = [
            foreign.element(0..10).unwrap(),
            // SAFETY: the range is not entirely inside the region, so the device rejects it and
            // accesses nothing.
            unsafe { Element::from_raw(start, 11, key) },
        ];
        for element in bad {
            // After a valid element.
            let list = vec![left.memory.element(0..10).unwrap(), element];
            let request = left.aim(WorkRequest::send(list), &right);
            left.post(request);
            let failed = Seen::failed(WorkKind::Send, CompletionStatus::LocalProtection);
            assert_eq!(left.wait_one(), failed);
            left.go(QpState::Rts);
        }
        // The device checks the key of neither empty elements nor inline bytes.
        // SAFETY: the element is empty, so the device accesses no byte of it.
        let empty = unsafe { Element::from_raw(start, 0, LocalKey(1)) };
        let list = vec![left.memory.element(0..10).unwrap(), empty];
        let request = left.aim(WorkRequest::send(list).signaled(), &right);
        left.post(request);
        assert_eq!(left.wait_one(), sent());
        assert_eq!(right.wait_one(), right.arrived(10, &left));
        right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
        // SAFETY: the range is inside the memory, which lives until the end of this case.
        let keyless = unsafe { Element::from_raw(start, 10, LocalKey(1)) };
        let request = left.aim(WorkRequest::send(keyless).inline().signaled(), &right);
        left.post(request);
        assert_eq!(left.wait_one(), sent());
        assert_eq!(right.wait_one(), right.arrived(10, &left));
    }
}

fn a_window_that_cannot_be_bound_leads_an_unreliable_connection_to_sqe(device: &Device) {
    device.needs(device.kind != Kind::Rxe, &rxe::NO_SQE);
    let (mut left, mut right) = pair(Making::new(QpType::UnreliableConnection));
    let foreign = left.context.alloc_pd().unwrap();
    let window = foreign.alloc_mw(WindowType::Type2).unwrap();
    let binding = Binding::new(&left.memory, 0..100, Access::REMOTE_WRITE);
    let request = WorkRequest::bind_window(&window, binding, window.next_key());
    let list = vec![request, message(&left, &right, 1)];
    left.post_list(list).unwrap();
    let failed = Seen::failed(WorkKind::Send, CompletionStatus::MemoryWindowBind);
    let flushed = Seen::flushed(WorkKind::Send);
    assert_eq!(left.wait(2), [failed, flushed]);
    assert_eq!(left.state(), QpState::Sqe);
    left.go(QpState::Rts);
    assert_arrives(&mut left, &mut right, 1);
}

fn an_unreliable_message_longer_than_any_fails_here(device: &Device) {
    device.needs(device.kind != Kind::Rxe, &rxe::NO_SQE);
    let (mut left, mut right) = pair(Making::new(QpType::UnreliableConnection));
    let port = verbs_side::address().port;
    let most = left.context.query_port(port).unwrap().max_msg_len;
    let len = u32::try_from(most + 1).expect("the length of an element");
    // SAFETY: the element is longer than a message and than the region, so the device rejects it
    // and accesses nothing.
    let element = unsafe { Element::from_raw(left.at(0), len, left.memory.local_key()) };
    left.post(WorkRequest::send(element));
    let failed = Seen::failed(WorkKind::Send, CompletionStatus::LocalLength);
    assert_eq!(left.wait_one(), failed);
    assert_eq!(left.state(), QpState::Sqe);
    left.go(QpState::Rts);
    assert_arrives(&mut left, &mut right, 1);
}

fn a_queue_pair_in_sqe_receives_flushes_and_resumes(device: &Device) {
    device.needs(device.kind != Kind::Rxe, &rxe::NO_SQE);
    for qp_type in TYPES {
        let (mut left, mut right) = pair(Making::new(qp_type));
        let request = left.bad_message(&right);
        left.post(request);
        let failed = Seen::failed(WorkKind::Send, CompletionStatus::LocalProtection);
        assert_eq!(left.wait_one(), failed);
        // Receives continue.
        assert_arrives(&mut right, &mut left, 1);
        // Sends are flushed, whether signaled or not.
        let list = vec![message(&left, &right, 1), message(&left, &right, 2)];
        left.post_list(list).unwrap();
        assert_eq!(left.wait(2), [Seen::flushed(WorkKind::Send); 2]);
        right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
        right.assert_quiet();
        // There is no transition from SQE to SQD, only one back to RTS.
        let to_sqd = QpAttributes {
            state: Some(QpState::Sqd),
            ..QpAttributes::default()
        };
        left.qp.modify(&to_sqd).unwrap_err();
        left.go(QpState::Rts);
        let request = message(&left, &right, 3).signaled();
        left.post(request);
        assert_eq!(left.wait_one(), sent());
        assert_eq!(right.wait_one(), right.arrived(10, &left));
    }
}

fn a_receive_that_cannot_be_written_brings_an_unreliable_queue_pair_to_error(device: &Device) {
    for qp_type in TYPES {
        let (mut left, mut right) = pair(Making::new(qp_type));
        let access = Access::REMOTE_READ;
        let read_only = right.domain.expose(4096, access).unwrap();
        right.receive_into(ReceiveRequest::new(read_only.element(0..100).unwrap()));
        right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
        let list = vec![
            message(&left, &right, 1).signaled(),
            message(&left, &right, 2).signaled(),
        ];
        left.post_list(list).unwrap();
        assert_eq!(left.wait(2), [sent(); 2]);
        let status = device.deviates(
            &rxe::RECEIVE_STATUSES,
            CompletionStatus::LocalProtection,
            CompletionStatus::LocalQpOperation,
        );
        let failed = Seen::failed(WorkKind::Receive, status);
        let flushed = Seen::flushed(WorkKind::Receive);
        assert_eq!(right.wait(2), [failed, flushed]);
        assert_eq!(right.state(), QpState::Error);
        assert_eq!(left.state(), QpState::Rts);
        assert_eq!(read_only.to_vec(0..100).unwrap(), [0; 100]);
    }
}

fn unreliable_queue_pairs_flush_in_error_and_forget_in_reset(device: &Device) {
    for qp_type in TYPES {
        let (mut left, right) = pair(Making::new(qp_type));
        for _ in 0..2 {
            left.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
        }
        left.go(QpState::Sqd);
        let list = vec![message(&left, &right, 1), message(&left, &right, 2)];
        left.post_list(list).unwrap();
        left.go(QpState::Error);
        let seen = left.wait(4);
        let of = |kind| {
            seen.iter()
                .filter(|seen| **seen == Seen::flushed(kind))
                .count()
        };
        assert_eq!((of(WorkKind::Send), of(WorkKind::Receive)), (2, 2));
        // Requests that are posted now are flushed too.
        let request = message(&left, &right, 3);
        left.post(request);
        assert_eq!(left.wait_one(), Seen::flushed(WorkKind::Send));
        if device.deviates(&rxe::RECEIVES_STAY_IN_ERROR, true, false) {
            left.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
            assert_eq!(left.wait_one(), Seen::flushed(WorkKind::Receive));
        }

        left.go(QpState::Reset);
        let mut right = Party::new(Making::new(qp_type));
        connect(&mut left, &mut right);
        left.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
        left.go(QpState::Sqd);
        let request = message(&left, &right, 4).signaled();
        left.post(request);
        left.qp.reclaim(&mut drop).unwrap();
        left.assert_quiet();
        right.assert_quiet();
    }
}

fn unreliable_messages_that_overrun_a_completion_queue_fail_its_queue_pairs(device: &Device) {
    device.needs(device.kind != Kind::Rxe, &rxe::OVERRUN_GOES_ON);
    for qp_type in TYPES {
        let (mut left, mut right) = pair(Making {
            cq_depth: 4,
            ..Making::new(qp_type)
        });
        let capacity = right.cq.capacity();
        for _ in 0..=capacity {
            right.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
        }
        for _ in 0..=capacity {
            let request = message(&left, &right, 1).signaled();
            left.post(request);
            assert_eq!(left.wait_one(), sent());
        }
        let cq = right.cq.number();
        assert_eq!(right.event(), AsyncEvent::CompletionQueueError { cq });
        let qp_num = right.qp.qp_num();
        assert_eq!(right.event(), AsyncEvent::QpFatal { qp_num });
        assert_eq!(right.state(), QpState::Error);
        assert_eq!(left.state(), QpState::Rts);

        // The sender's own completion queue.
        let (mut left, right) = pair(Making {
            cq_depth: 4,
            ..Making::new(qp_type)
        });
        let count = left.cq.capacity() + 1;
        assert!(count <= left.making.depth);
        let list = (0..count).map(|_| message(&left, &right, 1).signaled());
        left.post_list(list.collect()).unwrap();
        let cq = left.cq.number();
        assert_eq!(left.event(), AsyncEvent::CompletionQueueError { cq });
        assert_eq!(left.state(), QpState::Error);
    }
}
