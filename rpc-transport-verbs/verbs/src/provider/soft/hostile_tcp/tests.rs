mod ends;
mod records;

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

use super::*;
use crate::QpState;
use crate::provider::soft::context::tcp_link::TcpLink;
use crate::provider::soft::process::node::domain::Domain;

const PATIENCE: Duration = Duration::from_secs(20);

impl Attack {
    /// Attacks through a connection whose socket takes little, and messages in part.
    fn through_a_small_socket() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let theirs = TcpStream::connect(address).expect("a connection");
        let (ours, _) = listener.accept().expect("its other end");
        ours.set_nonblocking(true).expect("a socket has the flag");
        theirs.set_nodelay(true).expect("TCP has the option");
        set_socket_send_buffer_size(&ours, 4096).expect("a socket has a size");
        set_socket_recv_buffer_size(&theirs, 4096).expect("a socket has a size");
        Self::through(tcp_context(), false, theirs.into(), ours.into())
    }

    /// Arms the completion queue for solicited messages: the context sleeps.
    fn sleep(&mut self) {
        self.side.act(11, &mut Script::new(&[]));
    }

    /// Does what a thread does that was woken, or the engine at its tick.
    fn progress(&self) {
        let (domain, _) = self.find();
        let mut state = domain.enter().expect("this process has not forked");
        state.progress();
    }

    fn find(&self) -> (Arc<Domain>, usize) {
        let found = node().find_queue_pair(self.side.qp_num().0);
        let (domain, qp_index) = found.expect("it is there");
        (domain, qp_index as usize)
    }

    fn link<T>(&self, look: impl FnOnce(&TcpLink) -> T) -> T {
        self.link_if_up(look).expect("a link")
    }

    /// Returns nothing if the queue pair has failed: its link is gone. The engine may end it at any time,
    /// so a state that was read before does not tell.
    fn link_if_up<T>(&self, look: impl FnOnce(&TcpLink) -> T) -> Option<T> {
        let (domain, qp_index) = self.find();
        let state = domain.enter().expect("this process has not forked");
        let qp = state.queue_pairs.get(qp_index);
        qp.and_then(|qp| qp.link.tcp()).map(look)
    }

    /// Returns whether the socket takes no more, and whether it has taken a message in part.
    fn is_blocked(&self) -> (bool, bool) {
        self.link(|link| (link.outbound.is_blocked, link.outbound.partial.is_some()))
    }

    /// Requests READs and reads no response, until the socket is full in the middle of one.
    /// Returns the number of READs.
    fn fill_the_socket(&mut self, read: &mut Vec<u8>) -> u32 {
        let memory = self.side.remote();
        let mut reads = 0;
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < PATIENCE, "the socket takes everything");
            match self.is_blocked() {
                (_, true) => return reads,
                (true, false) => self.read_to(read),
                (false, false) => {
                    let message = read_request(memory, 4000);
                    self.send(&header(message, 0, PSN + reads, PSN));
                    reads += 1;
                }
            }
            for _ in 0..8 {
                self.side.poll();
            }
        }
    }

    /// Adds some of what the queue pair has sent.
    fn read_to(&self, read: &mut Vec<u8>) {
        let mut bytes = [0; 4096];
        if let Ok((_, len)) = recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
            read.extend(&bytes[..len]);
        }
    }

    /// Reads until a message is as wanted.
    fn read_until(&mut self, read: &mut Vec<u8>, is_wanted: impl Fn(&Header) -> bool) {
        let start = Instant::now();
        let mut at = 0;
        loop {
            while let Ok(Some((header, len))) = Header::parse(&read[at..])
                && read.len() >= at + len + header.len as usize
            {
                if is_wanted(&header) {
                    return;
                }
                at += len + header.len as usize;
            }
            assert!(start.elapsed() < PATIENCE, "the message does not come");
            self.side.poll();
            self.read_to(read);
        }
    }
}

/// Polls until the queue pair has failed.
fn assert_fails(attack: &mut Attack) {
    let start = Instant::now();
    while attack.side.state() != QpState::Error {
        assert!(start.elapsed() < PATIENCE, "it did not fail");
        attack.side.poll();
    }
}

fn header(message: Message, len: u32, sequence: u32, acked: u32) -> Vec<u8> {
    let header = Header {
        message,
        len,
        sequence,
        acked,
    };
    header.encode().as_bytes().to_vec()
}

/// A request; one of 64 bytes, if it is a READ.
fn request(operation: RemoteOperation) -> Message {
    request_of(operation, 64)
}

fn read_request(memory: RemoteMemory, len: u32) -> Message {
    request_of(RemoteOperation::Read(memory), len)
}

fn request_of(operation: RemoteOperation, read_len: u32) -> Message {
    Message::Request(Request {
        operation,
        read_len,
        outstanding: 1,
        is_solicited: false,
        is_ack_requested: true,
    })
}

/// A peer that is dialed and refuses, because it has no such queue pair, or speaks another version.
#[test]
fn a_link_that_is_refused_fails_the_queue_pair() {
    for refusal in [b"VBLT\x01\0\0\0\0\0\0\0", b"VBLT\x02\0\0\0\0\0\0\0"] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let SocketAddr::V4(address) = listener.local_addr().expect("an address") else {
            panic!("it was bound to an IPv4 address");
        };
        let secret = *b"attacker";
        let mut side = Side::on(tcp_context(), false);
        side.connect_to(LinkAddress { address, secret }.to_gid(), QpNum(ATTACKER));
        let (mut socket, _) = listener.accept().expect("it dials");
        socket.read_exact(&mut [0; HELLO_LEN]).expect("its hello");
        socket.write_all(refusal).expect("it is connected");
        let mut attack = Attack {
            side,
            socket: socket.into(),
        };
        assert_fails(&mut attack);
    }
}

#[test]
fn every_lie_fails_the_queue_pair_and_nothing_else() {
    let send = request(RemoteOperation::Send);
    let nowhere = RemoteMemory {
        addr: 0,
        key: RemoteKey(0x1234_5678),
    };
    let cases: [(&str, Vec<u8>); 11] = [
        ("garbage", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("an opcode that there is not", vec![200; 64]),
        ("a request too far ahead", header(send, 0, PSN + 1, PSN)),
        ("a request again", header(send, 0, PSN.wrapping_sub(1), PSN)),
        (
            "an acknowledgement of what was not sent",
            header(Message::Ack, 0, 0, PSN + 1),
        ),
        (
            "an acknowledgement taken back",
            header(Message::Ack, 0, 0, PSN - 1),
        ),
        (
            "a response that nobody awaits",
            header(Message::Response, 8, PSN, PSN),
        ),
        (
            "an RNR NAK for nothing",
            header(Message::ReceiverNotReady { timer: 1 }, 0, PSN, PSN),
        ),
        (
            "a key that there is not",
            header(request(RemoteOperation::Write(nowhere)), 8, PSN, PSN),
        ),
        (
            "more READs than were agreed on",
            header(
                Message::Request(Request {
                    operation: RemoteOperation::Read(nowhere),
                    read_len: 8,
                    outstanding: 200,
                    is_solicited: false,
                    is_ack_requested: false,
                }),
                0,
                PSN,
                PSN,
            ),
        ),
        (
            "a success as a refusal",
            header(Message::Refused { status: 0 }, 0, PSN, PSN),
        ),
    ];
    let mut bystander = Attack::new(false);
    for (name, bytes) in cases {
        let mut attack = Attack::new(false);
        attack.send(&bytes);
        assert_fails(&mut attack);
        attack.side.end();
        bystander.side.poll();
        assert_eq!(bystander.side.state(), QpState::Rts, "{name}");
    }
    bystander.side.end();
}

/// A peer that stops in the middle of any message keeps nothing but its own queue pair, which can
/// be ended: the receive that the message had begun to fill comes back.
#[test]
fn a_peer_may_stop_anywhere_in_a_message() {
    let context = tcp_context();
    for kind in 0..8 {
        let whole = {
            let attack = Attack::on(context.clone(), true);
            let bytes = message_of_kind(kind, attack.side.remote());
            attack.side.end();
            bytes.len()
        };
        for at in (0..whole).step_by(7) {
            let mut attack = Attack::on(context.clone(), true);
            attack.side.post_receives(4);
            let bytes = message_of_kind(kind, attack.side.remote());
            attack.send(&bytes[..at]);
            for _ in 0..3 {
                attack.side.poll();
            }
            assert_eq!(attack.side.state(), QpState::Rts, "kind {kind}, {at} bytes");
            attack.side.end();
        }
    }
}

fn message_of_kind(kind: u8, memory: RemoteMemory) -> Vec<u8> {
    let operation = match kind {
        0 => RemoteOperation::Send,
        1 => RemoteOperation::SendWithImm(1),
        2 => RemoteOperation::Write(memory),
        3 => RemoteOperation::WriteWithImm(memory, 1),
        4 => RemoteOperation::Read(memory),
        5 => RemoteOperation::CompareAndSwap {
            remote: memory,
            expected: 0,
            desired: 1,
        },
        6 => RemoteOperation::FetchAndAdd {
            remote: memory,
            addend: 1,
        },
        _ => return header(Message::Ack, 0, 0, PSN),
    };
    let len = if kind < 4 { 64 } else { 0 };
    let mut bytes = header(request(operation), len, PSN, PSN);
    bytes.resize(bytes.len() + len as usize, 7);
    bytes
}

/// A peer that sends READ requests and reads no responses: what is kept for it is bounded.
#[test]
fn a_peer_that_reads_nothing_is_kept_a_bounded_number_of_responses() {
    let mut attack = Attack::new(false);
    let memory = attack.side.remote();
    for number in 0..2000 {
        let read = read_request(memory, 4096);
        attack.send(&header(read, 0, PSN + number, PSN));
        attack.side.poll();
    }
    assert_fails(&mut attack);
    attack.side.end();
}

/// An acknowledgement falls due while the socket is full. It follows when the peer has read.
#[test]
fn an_acknowledgement_waits_for_a_full_socket() {
    let mut attack = Attack::through_a_small_socket();
    attack.side.post_receives(1);
    let mut read = Vec::new();
    let reads = attack.fill_the_socket(&mut read);
    attack.send(&header(request(RemoteOperation::Send), 0, PSN + reads, PSN));
    let start = Instant::now();
    while attack.side.received() == 0 {
        assert!(start.elapsed() < PATIENCE, "it is not received");
        attack.side.poll();
    }
    for _ in 0..100 {
        attack.side.poll();
    }
    assert!(attack.is_blocked().0);
    attack.read_until(&mut read, |header| header.acked == PSN + reads + 1);
    attack.side.end();
}

/// A context that sleeps looks once when it is woken.
#[test]
fn a_sleeping_context_acknowledges_at_once() {
    let mut attack = Attack::new(false);
    attack.side.post_receives(1);
    attack.sleep();
    attack.send(&header(request(RemoteOperation::Send), 0, PSN, PSN));
    attack.progress();
    let mut read = Vec::new();
    attack.read_to(&mut read);
    let (answer, _) = Header::parse(&read).expect("a header").expect("all of it");
    assert_eq!(answer.acked, PSN + 1);
    attack.side.end();
}

/// However often a context looks while it sleeps, the next message wakes it.
#[test]
fn a_sleeping_context_is_told_of_its_only_link() {
    let mut attack = Attack::new(false);
    attack.sleep();
    for _ in 0..3000 {
        attack.progress();
    }
    assert!(!attack.link(|link| link.is_silent));
    attack.side.end();
}

/// A request that found no receive is sent again, also if a response was being written when that
/// became known.
#[test]
fn a_request_is_sent_again_behind_a_response_in_part() {
    let mut attack = Attack::through_a_small_socket();
    // A signaled SEND of no bytes.
    attack.side.act(8, &mut Script::new(&[0; 4]));
    let is_send = |header: &Header| matches!(header.message, Message::Request(_));
    let mut read = Vec::new();
    attack.read_until(&mut read, is_send);
    let mut read = Vec::new();
    attack.fill_the_socket(&mut read);
    let refusal = Message::ReceiverNotReady { timer: 1 };
    attack.send(&header(refusal, 0, PSN, PSN));
    for _ in 0..100 {
        attack.side.poll();
    }
    attack.read_until(&mut read, is_send);
    attack.side.end();
}

/// A message without a receive is answered by one RNR NAK, however often it is repeated, and its
/// bytes are discarded.
#[test]
fn what_finds_no_receive_is_discarded() {
    let mut attack = Attack::new(false);
    let message = [
        &header(request(RemoteOperation::Send), 300, PSN, PSN)[..],
        &[7; 300],
    ]
    .concat();
    for _ in 0..1000 {
        attack.send(&message);
        attack.side.poll();
    }
    assert_eq!(attack.side.state(), QpState::Rts);
    attack.side.post_receives(1);
    attack.send(&message);
    let start = Instant::now();
    while attack.side.received() == 0 {
        assert!(start.elapsed() < PATIENCE);
        attack.side.poll();
        attack.read();
    }
    attack.side.end();
}
