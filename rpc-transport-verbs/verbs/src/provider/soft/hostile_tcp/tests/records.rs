//! Links whose bytes travel in records: no file tells of what a stream holds, so what follows is about
//! what could be forgotten.

use super::*;
use crate::for_transport::{BadRecord, LinkBytes, Opened, ReadAhead, RecordLayer};
use crate::provider::soft::context::link_stream::LinkStream;
use crate::provider::soft::context::tcp_link::Phase;
use crate::provider::soft::context::test_records::{END, TestRecords};
use crate::types::LinkRecords;

/// An attack in records.
struct InRecords {
    attack: Attack,
    layer: TestRecords,
    /// Records of the queue pair of which a part is missing.
    arrived: Vec<u8>,
}

impl InRecords {
    fn new() -> Self {
        let (theirs, ours) = UnixStream::pair().expect("a pair of sockets");
        let socket = theirs.into();
        let mut side = Side::on(tcp_context(), false);
        side.connect_to(attacker(), QpNum(ATTACKER));
        let mut attack = Self {
            attack: Attack { side, socket },
            layer: TestRecords::default(),
            arrived: Vec::new(),
        };
        let layer = Box::<TestRecords>::default();
        let stream = LinkStream::sealed(ours.into(), layer, ReadAhead::default());
        let (domain, qp_index) = attack.attack.find();
        let number = attack.attack.side.qp_num();
        let mut state = domain.enter().expect("this process has not forked");
        assert!(state.accept_agreed_link(qp_index as u32, number, stream));
        drop(state);
        let mut answer = Vec::new();
        attack.read_to(&mut answer);
        let answer = answer.try_into().expect("the length of an answer");
        assert!(Answer::parse(&answer).expect("it is one").is_accepted);
        attack
    }

    fn send(&mut self, plain: &[u8]) {
        let mut sealed = Vec::new();
        self.layer.seal(plain, &mut sealed).expect("it seals");
        self.send_raw(&sealed);
    }

    fn send_raw(&self, bytes: &[u8]) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = send(&self.attack.socket, bytes, flags);
        assert_eq!(sent, Ok(bytes.len()), "the socket has room");
    }

    /// Adds all that the queue pair has sent. Returns true at the end of the connection.
    fn read_to(&mut self, plain: &mut Vec<u8>) -> bool {
        let mut bytes = [0; 4096];
        let is_end = loop {
            match recv(&self.attack.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => break true,
                Ok((_, len)) => self.arrived.extend(&bytes[..len]),
                Err(_) => break false,
            }
        };
        while let Some(opened) = self.layer.open(&mut self.arrived).expect("a record") {
            plain.extend(&self.arrived[opened.plain]);
            self.arrived.drain(..opened.len);
        }
        is_end
    }

    /// Requests READs and reads no response, until the socket takes no more. Returns the length of all
    /// responses: the link has sealed all of them, and the socket has not taken the last.
    fn fill_the_socket(&mut self) -> usize {
        let memory = self.attack.side.remote();
        let start = Instant::now();
        let response = header(Message::Response, 4000, PSN, PSN).len() + 4000;
        for read in 0.. {
            self.send(&header(read_request(memory, 4000), 0, PSN + read, PSN));
            while self.attack.link(|link| link.inbound.expected) <= u64::from(PSN + read) {
                assert!(start.elapsed() < PATIENCE, "the socket takes everything");
                self.attack.side.poll();
            }
            if self.attack.link(|link| link.stream.holds_unsent()) {
                let outbound = |link: &TcpLink| {
                    let outbound = &link.outbound;
                    (outbound.responses.len(), outbound.partial.is_some())
                };
                assert_eq!(self.attack.link(outbound), (0, false));
                return response * (read as usize + 1);
            }
        }
        unreachable!("the loop has no end")
    }

    fn holds_unread(&self) -> bool {
        self.attack.link(|link| link.stream.holds_unread())
    }
}

/// A look takes all that the stream has opened, though it makes a limited number of reads, and short
/// ones after a long message: the context may sleep after it.
#[test]
fn a_look_leaves_nothing_opened() {
    let mut attack = InRecords::new();
    attack.attack.sleep();
    // It finds no receive, so all of it goes through the scratch memory.
    let mut message = header(request(RemoteOperation::Send), 150_000, PSN, PSN);
    message.resize(message.len() + 150_000, 7);
    attack.send(&message);
    let start = Instant::now();
    // Sent again, it is the next request still.
    attack.send(&header(request(RemoteOperation::Send), 0, PSN, PSN));
    while attack.attack.link(|link| link.inbound.arriving.is_none()) {
        assert!(start.elapsed() < PATIENCE, "the message does not come");
        attack.attack.progress();
        assert!(!attack.holds_unread());
    }
    while attack.attack.link(|link| link.inbound.arriving.is_some()) {
        assert!(start.elapsed() < PATIENCE, "the message does not end");
        attack.attack.progress();
        assert!(!attack.holds_unread());
    }
    attack.attack.side.end();
}

/// What the stream has sealed and the socket has not taken follows when the peer has read, although the
/// queue pair has nothing more to say.
#[test]
fn what_was_sealed_follows_when_the_socket_has_room() {
    let mut attack = InRecords::new();
    let all = attack.fill_the_socket();
    let mut read = Vec::new();
    let start = Instant::now();
    while read.len() < all {
        assert!(start.elapsed() < PATIENCE, "{} of {all}", read.len());
        attack.read_to(&mut read);
        attack.attack.side.poll();
    }
    assert_eq!(read.len(), all);
    assert!(!attack.attack.is_blocked().0);
    attack.attack.side.end();
}

/// What was sealed is sent before the end, as far as the socket has room.
#[test]
fn what_was_sealed_is_sent_before_the_end() {
    let mut attack = InRecords::new();
    let all = attack.fill_the_socket();
    let mut read = Vec::new();
    assert!(!attack.read_to(&mut read));
    assert!(read.len() < all);
    let InRecords {
        attack: Attack { side, socket },
        layer,
        arrived,
    } = attack;
    side.end();
    let side = Side::new(false);
    let mut attack = InRecords {
        attack: Attack { side, socket },
        layer,
        arrived,
    };
    assert!(attack.read_to(&mut read), "it is closed");
    assert_eq!(read.len(), all);
    attack.attack.side.end();
}

/// A context that sleeps looks once when it is woken.
#[test]
fn a_sleeping_context_opens_and_acknowledges_at_once() {
    let mut attack = InRecords::new();
    attack.attack.side.post_receives(1);
    attack.attack.sleep();
    attack.send(&header(request(RemoteOperation::Send), 0, PSN, PSN));
    attack.attack.progress();
    let mut read = Vec::new();
    attack.read_to(&mut read);
    let (answer, _) = Header::parse(&read).expect("a header").expect("all of it");
    assert_eq!(answer.acked, PSN + 1);
    attack.attack.side.end();
}

#[derive(Clone, Copy, Debug)]
enum Last {
    /// So many records without bytes.
    Empty(u32),
    Bytes(&'static [u8]),
}

/// A record without bytes is not the end of the link. Many of them are, as is what nobody has sealed.
/// One look is enough, also behind bytes that come before the end.
#[test]
fn a_link_ends_at_its_last_record_or_at_a_wrong_one() {
    let cases = [
        (Last::Empty(1), false),
        (Last::Empty(64), true),
        (Last::Bytes(&END), true),
        (Last::Bytes(&[0, 1, 2, 3, 4, 5, 6]), true),
    ];
    for (last, is_end) in cases {
        let mut attack = InRecords::new();
        attack.attack.sleep();
        let mut bytes = Vec::new();
        // A part of a header.
        attack.layer.seal_one(&[0; 2], &mut bytes);
        match last {
            Last::Empty(count) => {
                (0..count).for_each(|_| attack.layer.seal_one(&[], &mut bytes));
            }
            Last::Bytes(last) => bytes.extend(last),
        }
        attack.send_raw(&bytes);
        attack.attack.progress();
        let has_ended = attack.attack.link(TcpLink::has_ended);
        assert_eq!(has_ended, is_end, "{last:?}");
        assert_eq!(attack.attack.side.state(), QpState::Rts);
        attack.attack.side.end();
    }
}

/// A layer that has sealed as much as it may.
#[derive(Debug, Default)]
struct Exhausted(TestRecords);

impl RecordLayer for Exhausted {
    fn seal_with(
        &mut self,
        _: usize,
        _: &mut dyn FnMut(&mut [u8]),
        _: &mut Vec<u8>,
    ) -> Result<(), BadRecord> {
        Err(BadRecord("no more is sealed"))
    }

    fn seal_end(&mut self, _: &mut Vec<u8>) -> Result<(), BadRecord> {
        Err(BadRecord("no more is sealed"))
    }

    fn open(&mut self, sealed: &mut [u8]) -> Result<Option<Opened>, BadRecord> {
        self.0.open(sealed)
    }
}

#[test]
fn a_link_whose_layer_seals_no_more_ends() {
    let mut attack = InRecords::new();
    let (mut theirs, ours) = UnixStream::pair().expect("a pair of sockets");
    let mut bytes = Vec::new();
    attack.layer = TestRecords::default();
    attack.layer.seal(&answer(), &mut bytes).expect("it seals");
    theirs.write_all(&bytes).expect("the socket has room");
    let stream = LinkStream::sealed(
        ours.into(),
        Box::<Exhausted>::default(),
        ReadAhead::default(),
    );
    let (domain, qp_index) = attack.attack.find();
    let mut state = domain.enter().expect("this process has not forked");
    state.adopt_agreed_link(qp_index as u32, stream);
    drop(state);
    attack.attack.side.poll();
    assert!(attack.attack.link(TcpLink::is_open));
    attack.attack.side.act(8, &mut Script::new(&[0]));
    assert!(attack.attack.link(TcpLink::has_ended));
    assert_fails(&mut attack.attack);
    attack.attack.side.end();
}

fn answer() -> [u8; ANSWER_LEN] {
    let answer = Answer {
        is_accepted: true,
        expected_psn: PSN,
    };
    answer.encode()
}

/// Who has set up the records may have read further than to their first one, up to any byte. What it
/// has read is handed over with the socket, and executed without anything else to come.
#[test]
fn what_was_read_ahead_is_handed_over_with_the_socket() {
    let context = tcp_context();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    for is_dialed in [true, false] {
        let mut plain = Vec::new();
        if is_dialed {
            plain.extend(answer());
        }
        for sequence in [PSN, PSN + 1] {
            plain.extend(header(request(RemoteOperation::Send), 20, sequence, PSN));
            plain.extend([7; 20]);
        }
        let mut sealed = Vec::new();
        TestRecords::default()
            .seal(&plain, &mut sealed)
            .expect("it seals");
        for cut in 0..=sealed.len() {
            let (ahead, later) = sealed.split_at(cut);
            let mut theirs = TcpStream::connect(address).expect("a connection");
            let (ours, _) = listener.accept().expect("its other end");
            let mut side = Side::on(context.clone(), false);
            side.connect_to(attacker(), QpNum(ATTACKER));
            side.post_receives(2);
            let layer = Box::<TestRecords>::default();
            let read_ahead = ReadAhead {
                sealed: ahead.to_vec(),
                ..ReadAhead::default()
            };
            let bytes = LinkBytes::in_records(ours, layer, read_ahead);
            match is_dialed {
                true => side.qp.adopt_link(bytes).expect("a socket"),
                false => {
                    let target = side.qp.link_target().expect("it has no link");
                    assert!(target.attach(bytes).expect("a socket"));
                }
            }
            let mut attack = Attack {
                side,
                socket: OwnedFd::from(theirs.try_clone().expect("a copy")),
            };
            if later.is_empty() {
                let expected = attack.link(|link| link.inbound.expected);
                assert_eq!(expected, u64::from(PSN + 2), "before any look");
            }
            theirs.write_all(later).expect("the socket has room");
            let start = Instant::now();
            while attack.side.received() < 2 {
                assert!(start.elapsed() < PATIENCE, "cut at {cut}");
                attack.side.poll();
            }
            attack.side.end();
        }
    }
}

/// The hello of a link comes before its records, and the answer is in them: so a side that dials says
/// hello to any other, and understands only one that has the same layer.
#[test]
fn records_begin_behind_the_hello() {
    let side = |path| {
        let options = SoftOptions {
            path,
            link_records: Some(LinkRecords(|_, _| Box::<TestRecords>::default())),
            ..SoftOptions::default()
        };
        Side::on(Context::open_soft(options).expect("a context"), false)
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let SocketAddr::V4(address) = listener.local_addr().expect("an address") else {
        panic!("it was bound to an IPv4 address");
    };
    let secret = *b"attacker";
    for is_sealed in [true, false] {
        let mut dialer = side(SoftPath::Tcp { accept_at: None });
        dialer.connect_to(LinkAddress { address, secret }.to_gid(), QpNum(ATTACKER));
        let (mut socket, _) = listener.accept().expect("it dials");
        let mut hello = [0; HELLO_LEN];
        socket.read_exact(&mut hello).expect("its hello");
        assert!(Hello::parse(&hello).is_ok());
        let mut bytes = Vec::new();
        let mut layer = TestRecords::default();
        match is_sealed {
            true => layer.seal(&answer(), &mut bytes).expect("it seals"),
            false => bytes.extend(answer()),
        }
        socket.write_all(&bytes).expect("it is connected");
        let mut attack = Attack {
            side: dialer,
            socket: socket.into(),
        };
        let start = Instant::now();
        while attack.link(|link| link.phase == Phase::Dialed) {
            assert!(start.elapsed() < PATIENCE, "it does not open the answer");
            attack.side.poll();
        }
        assert_eq!(attack.link(TcpLink::is_open), is_sealed);
        attack.side.end();
    }

    let mut accepter = side(SoftPath::TCP_OVER_LOOPBACK);
    accepter.connect_to(attacker(), QpNum(ATTACKER));
    let to = accepter.gid();
    let address = LinkAddress::of_gid(to).expect("its address").address;
    let mut socket = TcpStream::connect(address).expect("it accepts");
    let hello = Hello {
        from: attacker(),
        to,
        from_qp_num: ATTACKER,
        to_qp_num: accepter.qp_num().0,
        expected_psn: PSN,
    };
    socket.write_all(&hello.encode()).expect("it is connected");
    let mut records = Vec::new();
    TestRecords::default()
        .seal(&answer(), &mut records)
        .expect("it seals");
    let mut arrived = vec![0; records.len()];
    socket.set_read_timeout(Some(PATIENCE)).expect("a time");
    socket.read_exact(&mut arrived).expect("its answer");
    assert_eq!(arrived, records);
    accepter.end();
}
