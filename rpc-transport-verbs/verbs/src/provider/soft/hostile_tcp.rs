//! Attacks of a peer on a queue pair that is connected to it over TCP: whatever comes on the link
//! concerns this queue pair alone, and everything that was posted to it comes back.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::context::link::NewTcpLink;
use super::hostile::{PSN, Side, node};
use super::wire::header::{Header, Message, Request};
use super::wire::hello::{ANSWER_LEN, Answer, GreetingError, HELLO_LEN, Hello, LinkAddress};
use crate::testing::Script;
use crate::types::{Gid, RemoteKey, RemoteMemory, RemoteOperation};
use crate::{Context, QpNum, SoftOptions, SoftPath};

/// The attacker's queue pair.
pub(super) const ATTACKER: u32 = 77;

/// The attacker's address: it accepts no connection.
pub(super) fn attacker() -> Gid {
    let address = "0.0.0.0:0".parse().expect("an address");
    let secret = *b"attacker";
    LinkAddress { address, secret }.to_gid()
}

pub(super) fn tcp_context() -> Context {
    let context = Context::open_soft(SoftOptions {
        path: SoftPath::Tcp { accept_at: None },
        ..SoftOptions::default()
    });
    context.expect("a context")
}

/// Hands a queue pair that is connected to the attacker one end of a connection, as if the attacker had
/// dialed. Returns the other end, with the answer read.
pub(super) fn attach(number: QpNum, theirs: OwnedFd, ours: OwnedFd) -> OwnedFd {
    let (domain, qp_index) = node().find_queue_pair(number.0).expect("it is there");
    let link = NewTcpLink {
        gid: attacker(),
        qp_num: ATTACKER,
        socket: ours,
        peer_psn: PSN,
    };
    let mut state = domain.enter().expect("this process has not forked");
    assert!(state.attach_tcp(qp_index, number.0, link));
    drop(state);
    let mut answer = [0; ANSWER_LEN];
    let mut theirs = File::from(theirs);
    theirs.read_exact(&mut answer).expect("the answer");
    let answer = Answer::parse(&answer).expect("it is one");
    assert!(answer.is_accepted && answer.expected_psn == PSN);
    theirs.into()
}

/// A queue pair that is connected to the attacker, and the attacker's end of the link.
struct Attack {
    side: Side,
    socket: OwnedFd,
}

impl Attack {
    fn new(is_shared: bool) -> Self {
        Self::on(tcp_context(), is_shared)
    }

    fn on(context: Context, is_shared: bool) -> Self {
        let (theirs, ours) = UnixStream::pair().expect("a pair of sockets");
        Self::through(context, is_shared, theirs.into(), ours.into())
    }

    /// Attacks through the two ends of a connection.
    fn through(context: Context, is_shared: bool, theirs: OwnedFd, ours: OwnedFd) -> Self {
        let mut side = Side::on(context, is_shared);
        side.connect_to(attacker(), QpNum(ATTACKER));
        let socket = attach(side.qp_num(), theirs, ours);
        Self { side, socket }
    }

    /// Sends bytes; those for which the socket has no room are lost, as with a peer that stops.
    fn send(&self, bytes: &[u8]) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = send(&self.socket, bytes, flags);
    }

    /// Reads what the queue pair has sent.
    fn read(&self) -> usize {
        let mut bytes = [0; 4096];
        let read = recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT);
        read.map_or(0, |(_, len)| len)
    }

    /// Sends a message that is nearly right.
    fn forge(&self, script: &mut Script<'_>) {
        let kind = script.byte();
        let near = |number: u8| PSN.wrapping_add(u32::from(number)).wrapping_sub(2);
        let len = u32::from(script.short());
        let right = self.side.remote();
        let memory = RemoteMemory {
            addr: right.addr.wrapping_add(u64::from(script.byte())),
            key: RemoteKey(right.key.0 ^ u32::from(script.byte() >> 6)),
        };
        let request = |operation| {
            Message::Request(Request {
                operation,
                read_len: len,
                outstanding: kind >> 5,
                is_solicited: kind & 16 != 0,
                is_ack_requested: kind & 8 != 0,
            })
        };
        let message = match kind % 12 {
            0 => request(RemoteOperation::Send),
            1 => request(RemoteOperation::SendWithImm(len)),
            2 => request(RemoteOperation::SendWithInvalidate(memory.key)),
            3 => request(RemoteOperation::Write(memory)),
            4 => request(RemoteOperation::WriteWithImm(memory, len)),
            5 => request(RemoteOperation::Read(memory)),
            6 => request(RemoteOperation::CompareAndSwap {
                remote: memory,
                expected: 0,
                desired: 1,
            }),
            7 => request(RemoteOperation::FetchAndAdd {
                remote: memory,
                addend: 1,
            }),
            8 => Message::Response,
            9 => Message::Ack,
            10 => Message::ReceiverNotReady {
                timer: script.byte(),
            },
            _ => Message::Refused {
                status: script.byte(),
            },
        };
        let header = Header {
            message,
            len: if matches!(kind % 12, 0..=4 | 8) {
                len % 700
            } else {
                0
            },
            sequence: near(script.byte() % 8),
            acked: near(script.byte() % 8),
        };
        self.send(header.encode().as_bytes());
        // All of the payload, some of it, or more.
        let payload = vec![kind; header.len as usize];
        match script.byte() % 4 {
            0 => self.send(&payload[..payload.len() / 2]),
            1 => self.send(&[&payload[..], &[0]].concat()),
            _ => self.send(&payload),
        }
    }
}

/// Parses the first message of each direction of a link: only bytes that this version sends are taken.
pub fn greetings(bytes: &[u8]) {
    let refused = |error: GreetingError| assert!(!error.to_string().is_empty());
    if let Some(bytes) = bytes.first_chunk::<HELLO_LEN>() {
        match Hello::parse(bytes) {
            Ok(hello) => assert_eq!(hello.encode(), *bytes),
            Err(error) => refused(error),
        }
    }
    if let Some(bytes) = bytes.first_chunk::<ANSWER_LEN>() {
        match Answer::parse(bytes) {
            Ok(answer) => assert_eq!(answer.encode(), *bytes),
            Err(error) => refused(error),
        }
    }
}

/// Sends forged messages and garbage to a queue pair, between the steps of its application.
pub fn soft_tcp(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let mut attack = Attack::new(script.byte().is_multiple_of(2));
    while let Some(step) = script.step() {
        match step % 8 {
            0 | 1 => attack.side.act(step >> 3, &mut script),
            2 => attack.side.poll(),
            3 => attack.send(script.piece()),
            4 => drop(attack.read()),
            _ => attack.forge(&mut script),
        }
    }
    attack.side.end();
}

#[cfg(test)]
mod tests;
