//! Links that end, and peers that leave something undone: each request ends, with the status that says
//! why.

use std::time::Duration;

use rustix::net::Shutdown;

use super::*;
use crate::CompletionStatus;
use crate::hooks;
use crate::provider::soft::context::check::check_state;
use crate::provider::soft::context::state::State;
use crate::provider::soft::context::tcp_link::TcpLink;

/// A signaled SEND of no bytes, and a signaled READ of 64 bytes: steps of the application.
const SEND: (u8, &[u8]) = (8, &[0]);
const READ: (u8, &[u8]) = (32 | 8, &[4, 64, 0, 0, 0]);

impl Attack {
    /// Posts a request, and reads it as the peer.
    fn receive_request(&mut self, (step, script): (u8, &[u8])) {
        self.side.act(step, &mut Script::new(script));
        let mut read = Vec::new();
        self.read_until(&mut read, |header| {
            matches!(header.message, Message::Request(_))
        });
    }

    /// Posts WRITEs until the socket is full in the middle of one.
    fn fill_the_socket_with_writes(&mut self) {
        let start = Instant::now();
        while self.is_blocked() != (true, true) {
            assert!(start.elapsed() < PATIENCE, "the socket takes everything");
            self.side.write_from_raw_memory(4000);
            self.side.poll();
        }
    }

    /// Polls until the queue pair has failed, and returns the status of the request that failed.
    fn failure(&mut self) -> Option<CompletionStatus> {
        assert_fails(self);
        self.side.poll();
        self.side.failed()
    }

    /// Reads until this side has closed the connection.
    fn assert_closed(&mut self) {
        let start = Instant::now();
        let mut bytes = [0; 4096];
        loop {
            match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return,
                Ok(_) => {}
                Err(_) => self.side.poll(),
            }
            assert!(start.elapsed() < PATIENCE, "it stays open");
        }
    }

    fn expire_timers(&self, now: Instant) {
        let (domain, _) = self.find();
        let mut state = domain.enter().expect("this process has not forked");
        state.expire_timers(now);
    }
}

/// Whether a peer stops in the middle of an answer, or its connection ends there.
#[test]
fn an_answer_may_stop_or_be_cut_anywhere() {
    let refused = CompletionStatus::RemoteAccess.code() as u8;
    let answers = [
        (READ, Message::Response, 64),
        (SEND, Message::ReceiverNotReady { timer: 1 }, 0),
        (SEND, Message::Refused { status: refused }, 0),
        (SEND, Message::Ack, 0),
    ];
    let context = tcp_context();
    for (request, answer, len) in answers {
        let mut bytes = header(answer, len, PSN, PSN);
        bytes.resize(bytes.len() + len as usize, 7);
        for at in (0..bytes.len()).step_by(5) {
            let mut attack = Attack::on(context.clone(), false);
            attack.receive_request(request);
            attack.send(&bytes[..at]);
            for _ in 0..3 {
                attack.side.poll();
            }
            assert_eq!(attack.side.state(), QpState::Rts, "{answer:?}, {at} bytes");
            let _ = rustix::net::shutdown(&attack.socket, Shutdown::Both);
            let failure = attack.failure();
            assert_eq!(failure, Some(CompletionStatus::RetryExceeded), "{at} bytes");
            attack.side.end();
        }
    }
}

/// The connection ends in the middle of a WRITE, or of any other request: the queue pair fails when it
/// sends something, and what the request had begun to use comes back.
#[test]
fn a_request_may_be_cut_anywhere() {
    let context = tcp_context();
    for kind in 0..8 {
        for at in (0..).step_by(9) {
            let mut attack = Attack::on(context.clone(), at % 2 == 0);
            attack.side.post_receives(4);
            let bytes = message_of_kind(kind, attack.side.remote());
            attack.send(&bytes[..at.min(bytes.len())]);
            for _ in 0..3 {
                attack.side.poll();
            }
            let _ = rustix::net::shutdown(&attack.socket, Shutdown::Both);
            attack.side.act(SEND.0, &mut Script::new(SEND.1));
            let failure = attack.failure();
            assert_eq!(
                failure,
                Some(CompletionStatus::RetryExceeded),
                "kind {kind}"
            );
            attack.side.end();
            if at >= bytes.len() {
                // All of it was sent.
                break;
            }
        }
    }
}

/// A peer that reads everything and acknowledges nothing would keep what was sent to it for ever.
#[test]
fn a_peer_that_acknowledges_nothing_is_silent_after_a_minute() {
    let mut attack = Attack::new(false);
    attack.receive_request(SEND);
    let start = hooks::now();
    let tick = |attack: &Attack, seconds: std::ops::RangeInclusive<u64>| {
        for second in seconds {
            attack.expire_timers(start + Duration::from_secs(second));
        }
    };
    tick(&attack, 0..=55);
    assert_eq!(attack.side.state(), QpState::Rts);
    // An acknowledgement of another request starts the time anew.
    attack.receive_request(SEND);
    attack.send(&header(Message::Ack, 0, 0, PSN + 1));
    attack.side.poll();
    tick(&attack, 56..=111);
    assert_eq!(attack.side.state(), QpState::Rts);
    // While this process was stopped, the answer may have come.
    tick(&attack, 1_000..=1_000);
    assert_eq!(attack.side.state(), QpState::Rts);
    tick(&attack, 1_001..=1_010);
    assert_eq!(attack.failure(), Some(CompletionStatus::RetryExceeded));
    attack.side.end();
}

/// A peer cannot acknowledge anything in the middle of a message, which may take longer than a minute
/// over a slow link.
#[test]
fn a_peer_in_the_middle_of_a_message_is_not_silent() {
    let mut attack = Attack::new(false);
    attack.receive_request(SEND);
    let memory = attack.side.remote();
    let write = request(RemoteOperation::Write(memory));
    attack.send(&header(write, 64, PSN, PSN));
    let start = hooks::now();
    for second in 0..200 {
        if second % 50 == 0 {
            attack.send(&[7]);
            attack.side.poll();
        }
        attack.expire_timers(start + Duration::from_secs(second));
    }
    assert_eq!(attack.side.state(), QpState::Rts);
    for second in 200..=215 {
        attack.expire_timers(start + Duration::from_secs(second));
    }
    assert_eq!(attack.failure(), Some(CompletionStatus::RetryExceeded));
    attack.side.end();
}

/// A peer that has nothing to acknowledge may be silent for as long as it likes.
#[test]
fn a_peer_that_owes_nothing_may_be_silent() {
    let mut attack = Attack::new(false);
    attack.receive_request(SEND);
    attack.send(&header(Message::Ack, 0, 0, PSN + 1));
    attack.side.poll();
    let start = hooks::now();
    for second in 0..200 {
        attack.expire_timers(start + Duration::from_secs(second));
    }
    assert_eq!(attack.side.state(), QpState::Rts);
    attack.side.end();
}

/// The memory of a READ is deregistered when some of a message with its bytes has been sent: the rest
/// of the message cannot follow, so the connection ends there.
#[test]
fn a_response_that_cannot_go_on_ends_the_connection() {
    let mut attack = Attack::through_a_small_socket();
    attack.fill_the_socket(&mut Vec::new());
    attack.side.withdraw();
    attack.assert_closed();
    assert_fails(&mut attack);
    attack.side.end();
}

/// The memory of a WRITE is deregistered when some of its bytes have been sent, and the SEND before it
/// found no receive. It cannot be sent again behind a part of the WRITE, so the queue pair fails at
/// once.
#[test]
fn a_request_that_cannot_go_on_fails_those_that_are_to_be_sent_again_behind_it() {
    for is_noticed_first in [true, false] {
        let mut attack = Attack::through_a_small_socket();
        attack.receive_request(SEND);
        attack.fill_the_socket_with_writes();
        let start = Instant::now();
        attack.side.withdraw();
        let refusal = Message::ReceiverNotReady { timer: 1 };
        let refusal = header(refusal, 0, PSN, PSN);
        if !is_noticed_first {
            attack.send(&refusal);
            attack.side.poll();
        }
        let mut read = Vec::new();
        while attack.link_if_up(|link| link.outbound.is_blocked) == Some(true) {
            assert!(start.elapsed() < PATIENCE, "the socket takes nothing");
            attack.read_to(&mut read);
            attack.side.poll();
        }
        if is_noticed_first {
            attack.send(&refusal);
        }
        assert_eq!(attack.failure(), Some(CompletionStatus::LocalProtection));
        attack.side.end();
    }
}

/// The request behind the one that was not ready is being written: it is sent again, and the peer has not
/// executed it.
#[test]
fn what_is_behind_a_refused_request_is_not_acknowledged() {
    let mut attack = Attack::through_a_small_socket();
    attack.receive_request(SEND);
    attack.fill_the_socket_with_writes();
    let refusal = Message::ReceiverNotReady { timer: 1 };
    attack.send(&header(refusal, 0, PSN, PSN));
    attack.send(&header(Message::Ack, 0, 0, PSN + 1));
    assert_eq!(attack.failure(), Some(CompletionStatus::BadResponse));
    attack.side.end();
}

/// The same before any of its bytes was sent: the READ is refused, and says so.
#[test]
fn a_read_that_is_refused_after_a_part_of_it_fails_with_its_reason() {
    let mut attack = Attack::new(false);
    attack.receive_request(READ);
    // This part acknowledges the READ already.
    let mut part = header(Message::Response, 32, PSN, PSN);
    part.resize(part.len() + 32, 7);
    attack.send(&part);
    let status = CompletionStatus::RemoteAccess.code() as u8;
    attack.send(&header(Message::Refused { status }, 0, PSN, PSN));
    assert_eq!(attack.failure(), Some(CompletionStatus::RemoteAccess));
    attack.side.end();
}

/// The refusal of a READ acknowledges what was sent before it.
#[test]
fn a_refusal_is_of_its_request_and_acknowledges_those_before() {
    let mut attack = Attack::new(false);
    attack.receive_request(SEND);
    attack.receive_request(READ);
    let status = CompletionStatus::RemoteAccess.code() as u8;
    attack.send(&header(Message::Refused { status }, 0, PSN + 1, PSN));
    assert_eq!(attack.failure(), Some(CompletionStatus::RemoteAccess));
    assert_eq!(attack.side.sent(), 1);
    attack.side.end();
}

/// A peer refuses with the statuses of responders only.
#[test]
fn a_refusal_has_a_status_of_a_responder() {
    for status in [
        CompletionStatus::WorkRequestFlushed,
        CompletionStatus::LocalProtection,
        CompletionStatus::Unknown(200),
    ] {
        let mut attack = Attack::new(false);
        attack.receive_request(SEND);
        let status = status.code() as u8;
        attack.send(&header(Message::Refused { status }, 0, PSN, PSN));
        assert_eq!(attack.failure(), Some(CompletionStatus::BadResponse));
        attack.side.end();
    }
}

/// An application that has completions to poll mostly posts more: what it posts is put off until then, but
/// not if nothing looks at the link any more.
#[test]
fn what_is_posted_to_a_link_that_has_ended_is_not_put_off() {
    let mut attack = Attack::new(false);
    attack.side.post_receives(2);
    for sequence in [PSN, PSN + 1] {
        attack.send(&header(request(RemoteOperation::Send), 0, sequence, PSN));
    }
    rustix::net::shutdown(&attack.socket, Shutdown::Both).expect("it is connected");
    let (domain, qp_index) = attack.find();
    let mut state = domain.enter().expect("this process has not forked");
    let start = Instant::now();
    while !has_ended(&mut state, qp_index as u32) {
        assert!(start.elapsed() < PATIENCE, "its end is not noticed");
        state.progress();
    }
    let (qp, common) = state.split(qp_index as u32);
    assert!(!common.completion_queues.queue(qp.core.recv_cq).is_empty());
    let posted = qp.post_inline_in_order(common, crate::types::WrId::from_raw(1), b"late", false);
    posted.expect("there is room");
    qp.ring_doorbell(common);
    assert!(common.tcp.deferred.is_empty());
    check_state(&state);
}

fn has_ended(state: &mut State, qp_index: u32) -> bool {
    let (qp, _) = state.split(qp_index);
    qp.link.tcp().is_some_and(TcpLink::has_ended)
}

/// What was executed is acknowledged, though the queue pair is destroyed at once.
#[test]
fn the_last_acknowledgement_is_sent_before_the_end() {
    let mut attack = Attack::new(false);
    attack.side.post_receives(1);
    attack.send(&header(request(RemoteOperation::Send), 0, PSN, PSN));
    let start = Instant::now();
    while attack.side.received() == 0 {
        assert!(start.elapsed() < PATIENCE, "it is not received");
        attack.side.poll();
    }
    let Attack { side, socket } = attack;
    side.end();
    let mut bytes = [0; 64];
    let (_, len) = recv(&socket, &mut bytes, RecvFlags::DONTWAIT).expect("it is there");
    let (last, _) = Header::parse(&bytes[..len])
        .expect("a header")
        .expect("all of it");
    assert_eq!((last.message, last.acked), (Message::Ack, PSN + 1));
}
