//! TCP connections of whoever can reach the port at which a process accepts links.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};

use super::super::greeting::GREETING_TIME;
use super::super::tcp_accept::MAX_NEWCOMERS_OF_HOST;
use super::super::tcp_port::set_up;
use super::*;
use crate::provider::soft::wire::hello::{ANSWER_LEN, Answer, HELLO_LEN, Hello, LinkAddress};

impl Accepting {
    /// A node that accepts connections on loopback, and its GID.
    fn over_tcp() -> (Self, Gid) {
        let this = Self::new();
        let anywhere = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        let gid = this.node.tcp_gid(Some(anywhere)).expect("a port is free");
        (this, gid)
    }

    /// Says something to the node, and returns the connection.
    fn dialed(&mut self, gid: Gid, said: &[u8]) -> TcpStream {
        self.dialed_from(1, gid, said)
    }

    /// Says something to the node from `127.0.0.<host>`.
    fn dialed_from(&mut self, host: u8, gid: Gid, said: &[u8]) -> TcpStream {
        let address = LinkAddress::of_gid(gid).expect("an address").address;
        let socket = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        );
        let socket = socket.expect("a socket");
        let source = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, host), 0);
        bind(&socket, &source).expect("an address of this host");
        connect(&socket, &address).expect("it listens");
        let mut socket = TcpStream::from(socket);
        socket.write_all(said).expect("a new socket has room");
        self.step();
        self.step();
        socket
    }

    /// Steps the engine, and each time this much later, until the connection has ended. Returns what the
    /// node has answered. What one side of a connection does may reach the other some time later.
    fn answer_before_the_end(&mut self, socket: &mut TcpStream, later: Duration) -> Vec<u8> {
        socket.set_nonblocking(true).expect("a socket has the flag");
        let started = Instant::now();
        let mut now = started;
        let mut answer = Vec::new();
        loop {
            match socket.read_to_end(&mut answer) {
                Ok(_) => return answer,
                // Closed before everything was read.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return answer,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            assert!(started.elapsed() < PATIENCE, "open after {answer:?}");
            thread::sleep(Duration::from_millis(1));
            now = now.max(Instant::now()) + later;
            self.step_at(now);
        }
    }
}

/// How long a machine may take to close a connection.
const PATIENCE: Duration = Duration::from_secs(30);

/// The hello of a process that knows this GID, for a queue pair that there is not.
fn hello_to(gid: Gid) -> [u8; HELLO_LEN] {
    let address = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
    let secret = *b"a dialer";
    let hello = Hello {
        from: LinkAddress { address, secret }.to_gid(),
        to: gid,
        from_qp_num: 7,
        to_qp_num: 0x00ab_cdef,
        expected_psn: 100,
    };
    hello.encode()
}

/// Returns true if the connection is open and the node has said nothing.
fn is_silent(socket: &mut TcpStream) -> bool {
    socket.set_nonblocking(true).expect("a socket has the flag");
    let read = socket.read(&mut [0]);
    read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn who_does_not_know_the_gid_is_told_nothing() {
    let (mut node, gid) = Accepting::over_tcp();
    let right = hello_to(gid);
    let mut cases = vec![[b'G'; HELLO_LEN]];
    // The magic, and each byte of the GID, also of another version.
    for at in [0].into_iter().chain(8..24) {
        let mut wrong = right;
        wrong[at] ^= 1;
        cases.push(wrong);
        wrong[4] ^= 1;
        cases.push(wrong);
    }
    for wrong in cases {
        let mut socket = node.dialed(gid, &wrong);
        let answer = node.answer_before_the_end(&mut socket, Duration::ZERO);
        assert_eq!(answer, b"", "{wrong:?}");
    }
}

#[test]
fn who_knows_the_gid_and_speaks_another_version_is_told_this_version() {
    let (mut node, gid) = Accepting::over_tcp();
    for version in [0, 2, u16::MAX] {
        let mut hello = hello_to(gid);
        hello[4..6].copy_from_slice(&version.to_le_bytes());
        let mut socket = node.dialed(gid, &hello);
        let answer = node.answer_before_the_end(&mut socket, Duration::ZERO);
        assert_eq!(answer, b"VBLT\x01\0\0\0\0\0\0\0");
    }
}

#[test]
fn a_queue_pair_that_there_is_not_is_refused() {
    let (mut node, gid) = Accepting::over_tcp();
    let mut socket = node.dialed(gid, &hello_to(gid));
    let answer = node.answer_before_the_end(&mut socket, Duration::ZERO);
    let answer = answer.first_chunk::<ANSWER_LEN>().expect("an answer");
    let answer = Answer::parse(answer).expect("an answer");
    assert!(!answer.is_accepted);
}

#[test]
fn a_hello_in_part_is_waited_for_and_not_for_ever() {
    let (mut node, gid) = Accepting::over_tcp();
    let right = hello_to(gid);
    let mut late: Vec<_> = [0, 1, 40, HELLO_LEN - 1]
        .map(|len| node.dialed(gid, &right[..len]))
        .into();
    let mut ended = node.dialed(gid, &right[..10]);
    ended
        .shutdown(std::net::Shutdown::Write)
        .expect("it is open");
    assert_eq!(node.answer_before_the_end(&mut ended, Duration::ZERO), b"");
    assert!(late.iter_mut().all(is_silent));
    for socket in &mut late {
        assert_eq!(node.answer_before_the_end(socket, GREETING_TIME), b"");
    }
}

/// The oldest of many silent connections makes room for a new one.
#[test]
fn silent_connections_keep_nobody_out() {
    let (mut node, gid) = Accepting::over_tcp();
    let mut silent: Vec<_> = (0..MAX_NEWCOMERS_OF_HOST + 10)
        .map(|_| node.dialed(gid, b""))
        .collect();
    for socket in &mut silent[..10] {
        assert_eq!(node.answer_before_the_end(socket, Duration::ZERO), b"");
    }
    assert!(silent[10..].iter_mut().all(is_silent));
    let mut late = node.dialed(gid, &hello_to(gid));
    assert_ne!(node.answer_before_the_end(&mut late, Duration::ZERO), b"");
}

/// Half of a hello is as little as nothing.
#[test]
fn a_flood_of_one_host_ends_no_connection_of_another() {
    let (mut node, gid) = Accepting::over_tcp();
    let mut others = [b"".as_slice(), &hello_to(gid)[..HELLO_LEN / 2]]
        .map(|said| node.dialed_from(2, gid, said));
    let mut flood: Vec<_> = (0..3 * MAX_NEWCOMERS_OF_HOST)
        .map(|_| node.dialed_from(1, gid, b""))
        .collect();
    let (ended, open) = flood.split_at_mut(2 * MAX_NEWCOMERS_OF_HOST);
    for socket in ended {
        assert_eq!(node.answer_before_the_end(socket, Duration::ZERO), b"");
    }
    assert!(open.iter_mut().chain(&mut others).all(is_silent));
    // The rest of its hello comes late, and is heard.
    let [_, other] = &mut others;
    let rest = &hello_to(gid)[HELLO_LEN / 2..];
    other.write_all(rest).expect("it is open");
    assert_ne!(node.answer_before_the_end(other, Duration::ZERO), b"");
}

#[test]
fn a_link_sends_at_once_and_notices_a_host_that_is_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let socket = TcpStream::connect(listener.local_addr().expect("an address"));
    let socket = socket.expect("it listens");
    set_up(&socket).expect("TCP has the options");
    assert!(socket.nodelay().expect("TCP has the option"));
    assert!(sockopt::socket_keepalive(&socket).expect("a socket has the option"));
    let timeout = sockopt::tcp_user_timeout(&socket).expect("TCP has the option");
    assert_eq!(timeout, 60_000);
    for time in [
        sockopt::tcp_keepidle(&socket).expect("TCP has the option"),
        sockopt::tcp_keepintvl(&socket).expect("TCP has the option"),
    ] {
        assert_eq!(time, Duration::from_secs(15));
    }
}
