//! Tests of room for new clients: which handshakes end for them, and which wait.

use std::cell::Cell;

use rpc_core::transport::ConnectionQuota;

use super::*;

thread_local! {
    /// A place of the server of this thread's test has come back.
    static HAS_ROOM: Cell<bool> = const { Cell::new(false) };
}

/// A server whose connections are all taken.
struct Full;

impl Admission for Full {
    fn admit(&self, _: &[u8]) -> Result<Admitted, Refusal> {
        if HAS_ROOM.get() {
            let quota = ConnectionQuota::acquire(&Arc::default());
            return Ok(Admitted::new(0, Vec::new(), Vec::new(), quota));
        }
        Err(Refusal {
            reason: "the server is full".to_owned(),
        })
    }

    fn has_room(&self) -> bool {
        HAS_ROOM.get()
    }
}

/// Connects from `127.0.0.2` and sends a hello.
fn hello_of_another_host(server: SocketAddr) -> TcpStream {
    let mut stream = connect_from(2, server);
    let offer = Offer {
        endpoints: Vec::new(),
        max_frame_len: 4096,
        session: Vec::new(),
    };
    let hello = ClientHandshake::default().hello(offer).unwrap();
    stream.write_all(&hello).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Adds a server with pollers, all of whose connections are taken by clients from `127.0.0.1` that were
/// welcomed. Returns the listener's token and address, and the sockets of these clients with the notices to their
/// poller.
fn full_server(
    sockets: &mut Sockets,
    clients: usize,
    pollers: usize,
) -> (Token, SocketAddr, (Vec<TcpStream>, NoticeReceiver)) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let full = Arc::new(ListenerConfig {
        ports: (0..pollers).map(|_| Port::new(Vec::new())).collect(),
        admission: Arc::new(Full),
        security: None,
        takes_plain: true,
    });
    let Ok(listening) = sockets.add(Source::Listener(listener, Arc::clone(&full))) else {
        panic!("epoll has room");
    };
    let strangers = TcpListener::bind("127.0.0.1:0").unwrap();
    let (notice_sender, notices) = notice_queue(Wakeup::new().unwrap(), Arc::default());
    let mut streams = Vec::new();
    for _ in 0..clients {
        let there = TcpStream::connect(strangers.local_addr().unwrap()).unwrap();
        let (here, from) = strangers.accept().unwrap();
        here.set_nonblocking(true).unwrap();
        let poller = (LivenessKey::next(), notice_sender.clone());
        let mut client = IncomingClient::welcomed(here, Arc::clone(&full), poller);
        client.listener = listening;
        let Ok(token) = sockets.add(Source::Incoming(Box::new(client))) else {
            panic!("epoll has room");
        };
        sockets
            .handshakes
            .enter(token, from.into(), Stage::Incoming);
        sockets.apply(token, NextAction::Wait);
        streams.push(there);
    }
    (listening, address, (streams, notices))
}

#[test]
fn a_client_waits_for_the_connection_of_another_host_and_is_refused_if_it_does_not_come() {
    let (_control, mut sockets) = Control::new().unwrap();
    let (listening, address, (_streams, notices)) = full_server(&mut sockets, 2, 0);
    let_time_pass(&mut sockets);
    let mut client = hello_of_another_host(address);
    sockets.accept(listening);
    let mut present = stages(&sockets);
    present.sort_by_key(|stage| *stage == Stage::Waiting);
    assert_eq!(present, [Stage::Welcomed, Stage::Waiting]);
    assert!(matches!(notices.take(), Some(Notice::Ended(..))));
    // Each host has one by now.
    let mut second = hello_of_another_host(address);
    sockets.accept(listening);
    let told = read_some(&mut second);
    assert!(told.contains("the server is full"), "{told}");
    let mut now = Instant::now();
    for _ in 0..60 {
        now += TICK;
        sockets.handshakes.advance(now);
        sockets.admit_waiting();
    }
    assert!(stages(&sockets).contains(&Stage::Waiting));
    sockets.end_expired_handshakes();
    let told = read_some(&mut client);
    assert!(told.contains("the server is full"), "{told}");
}

/// The connection of a handshake that ended for a client is for the next one if that client leaves.
#[test]
fn clients_that_leave_again_and_again_end_one_handshake_of_another_host() {
    let (_control, mut sockets) = Control::new().unwrap();
    let (listening, address, _strangers) = full_server(&mut sockets, 20, 0);
    let_time_pass(&mut sockets);
    for _ in 0..10 {
        let (left, client) = wait_as_another_host(&mut sockets, listening, address);
        drop(client);
        read_until(&mut sockets, left, None);
        assert_eq!(welcomed(&sockets), 19);
    }
    // A client that stays is the next one, and another one ends the next handshake.
    let _staying = [(); 2].map(|()| wait_as_another_host(&mut sockets, listening, address));
    assert_eq!(welcomed(&sockets), 18);
}

/// Clients that were welcomed just now may be about to answer: a new client waits for them to, or to take
/// too long, although no poller has a connection for it.
#[test]
fn a_client_that_was_just_welcomed_is_not_ended_for_another_one_which_waits() {
    let (_control, mut sockets) = Control::new().unwrap();
    let (listening, address, _strangers) = full_server(&mut sockets, 2, 1);
    let _client = wait_as_another_host(&mut sockets, listening, address);
    for _ in 0..3 {
        answer(&mut sockets, listening, NONE);
        assert_eq!(welcomed(&sockets), 2);
        assert!(stages(&sockets).contains(&Stage::Waiting));
    }
    let_time_pass(&mut sockets);
    await_stages(&mut sockets, "one of them ends", |sockets| {
        welcomed(sockets) == 1
    });
    assert!(stages(&sockets).contains(&Stage::Waiting));
}

/// Lets the time pass that a client has for its answer.
fn let_time_pass(sockets: &mut Sockets) {
    let now = Instant::now();
    sockets.handshakes.advance(now);
    sockets.handshakes.advance(now + TICK);
}

fn welcomed(sockets: &Sockets) -> usize {
    let stages = stages(sockets).into_iter();
    stages.filter(|stage| *stage == Stage::Welcomed).count()
}

/// Has the control thread try to admit the clients that wait, until something is so.
fn await_stages(sockets: &mut Sockets, what: &str, is_so: impl Fn(&Sockets) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so(sockets) {
        assert!(Instant::now() < deadline, "{what}");
        sockets.admit_waiting();
    }
}

const NONE: RoomMade = RoomMade {
    ended: 0,
    may_follow: false,
};
const SOON: RoomMade = RoomMade {
    ended: 0,
    may_follow: true,
};
const ONE: RoomMade = RoomMade {
    ended: 1,
    may_follow: false,
};

/// Returns the poller that has been asked for connections. The pollers of these tests have ended, so
/// each answers at once; the tests answer in their place.
fn asked(sockets: &Sockets) -> Option<usize> {
    match sockets.commands.try_recv() {
        Ok(Command::RoomMade(_, port, _)) => Some(port),
        _ => None,
    }
}

/// Waits until a poller is asked, in the next round or when another one has not answered.
fn await_question(sockets: &mut Sockets) -> usize {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(port) = asked(sockets) {
            return port;
        }
        assert!(Instant::now() < deadline, "nobody is asked");
        sockets.admit_waiting();
    }
}

/// Answers in the place of the poller that is asked next.
fn answer(sockets: &mut Sockets, listening: Token, made: RoomMade) {
    let port = await_question(sockets);
    answer_of(sockets, listening, port, made);
}

/// Does what a poller does, and then the control thread with its answer.
fn answer_of(sockets: &mut Sockets, listening: Token, port: usize, made: RoomMade) {
    sockets.returning_to(listening).add(made.ended);
    sockets.room_made(listening, port, made);
}

/// The poller gives the place back, and the control thread gives it to the client that waits, before the
/// answer arrives: the answer tells of no further place.
#[test]
fn a_place_that_comes_back_before_the_answer_of_its_poller_is_given_once() {
    let (_control, mut sockets) = Control::new().unwrap();
    let (listening, address, _) = full_server(&mut sockets, 0, 1);
    let (_, _client) = wait_as_another_host(&mut sockets, listening, address);
    let port = await_question(&mut sockets);
    sockets.returning_to(listening).add(ONE.ended);
    HAS_ROOM.set(true);
    sockets.admit_waiting();
    HAS_ROOM.set(false);
    assert!(sockets.waiting.is_empty(), "it has the place");
    sockets.room_made(listening, port, ONE);
    // So somebody is asked for the next one.
    let _next = wait_as_another_host(&mut sockets, listening, address);
    await_question(&mut sockets);
}

/// A place comes back while the client that waits for it is not the one that is decided about.
#[test]
fn a_place_that_another_client_has_got_is_asked_for_again() {
    let (_control, mut sockets) = Control::new().unwrap();
    let (listening, address, _) = full_server(&mut sockets, 0, 1);
    let (_, _first) = wait_as_another_host(&mut sockets, listening, address);
    answer(&mut sockets, listening, ONE);
    let (_, _second) = wait_as_another_host(&mut sockets, listening, address);
    let port = await_question(&mut sockets);
    HAS_ROOM.set(true);
    answer_of(&mut sockets, listening, port, NONE);
    HAS_ROOM.set(false);
    assert_eq!(sockets.waiting.len(), 1, "the second has the place");
    await_question(&mut sockets);
}

#[test]
fn each_poller_is_asked_in_each_round_and_a_client_is_refused_when_none_has_a_connection() {
    let (_control, mut sockets) = Control::new().unwrap();
    let (listening, address, _) = full_server(&mut sockets, 0, 3);
    let (_, mut client) = wait_as_another_host(&mut sockets, listening, address);
    // One always says that it may have one soon, and the others are asked all the same.
    for round in 0..3 {
        for made in [SOON, NONE, NONE] {
            answer(&mut sockets, listening, made);
        }
        assert_eq!(
            asked(&sockets),
            None,
            "there is a pause after round {round}"
        );
    }
    for _ in 0..2 {
        answer(&mut sockets, listening, NONE);
    }
    // Another client has come meanwhile. The first pollers have not been asked for it.
    let (_, mut other) = wait_as_another_host(&mut sockets, listening, address);
    answer(&mut sockets, listening, NONE);
    let told = read_some(&mut client);
    assert!(told.contains("the server is full"), "{told}");
    assert_eq!(
        stages(&sockets)
            .iter()
            .filter(|it| **it == Stage::Waiting)
            .count(),
        1
    );
    for _ in 0..3 {
        answer(&mut sockets, listening, NONE);
    }
    let told = read_some(&mut other);
    assert!(told.contains("the server is full"), "{told}");
}

/// It is in a long handler, for example.
#[test]
fn the_others_do_not_wait_for_a_poller_that_does_not_answer() {
    let (_control, mut sockets) = Control::new().unwrap();
    let (listening, address, _) = full_server(&mut sockets, 0, 3);
    let (_, _client) = wait_as_another_host(&mut sockets, listening, address);
    let silent = await_question(&mut sockets);
    for round in 0..3 {
        for _ in 0..2 {
            let port = await_question(&mut sockets);
            assert_ne!(port, silent, "it is asked again in round {round}");
            answer_of(&mut sockets, listening, port, NONE);
        }
    }
    assert_eq!(stages(&sockets), [Stage::Waiting], "it may have one");
    // The connection that it ends in the end counts.
    answer_of(&mut sockets, listening, silent, ONE);
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        sockets.admit_waiting();
        assert_eq!(asked(&sockets), None);
    }
}

#[test]
fn pollers_are_not_asked_again_for_a_connection_that_is_on_its_way() {
    let (_control, mut sockets) = Control::new().unwrap();
    let (listening, address, _) = full_server(&mut sockets, 0, 2);
    let (_, mut client) = wait_as_another_host(&mut sockets, listening, address);
    answer(&mut sockets, listening, ONE);
    let until = Instant::now() + Duration::from_millis(100);
    while Instant::now() < until {
        sockets.admit_waiting();
        assert_eq!(asked(&sockets), None);
    }
    // It never comes. The client is refused at the time limit of its handshake, and the next one does
    // not wait for it.
    let mut now = Instant::now();
    for _ in 0..60 {
        now += TICK;
        sockets.handshakes.advance(now);
        sockets.admit_waiting();
    }
    sockets.end_expired_handshakes();
    let told = read_some(&mut client);
    assert!(told.contains("the server is full"), "{told}");
    let _next = wait_as_another_host(&mut sockets, listening, address);
    await_question(&mut sockets);
}

/// Connects from `127.0.0.2` to a full server, and reads the hello. Returns the client's token and
/// socket.
fn wait_as_another_host(
    sockets: &mut Sockets,
    listening: Token,
    address: SocketAddr,
) -> (Token, TcpStream) {
    let (before, client) = (sockets.last_token, hello_of_another_host(address));
    // The system may deliver the connection and its bytes a little later.
    let deadline = Instant::now() + PATIENCE;
    while sockets.last_token == before {
        assert!(Instant::now() < deadline, "nobody has connected");
        sockets.accept(listening);
    }
    let token = sockets.last_token;
    read_until(sockets, token, Some(Stage::Waiting));
    (token, client)
}

/// Reads what a client sends until its handshake is in this stage, or has ended.
fn read_until(sockets: &mut Sockets, token: Token, wanted: Option<Stage>) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let stage = match sockets.sources.get(&token) {
            Some(Source::Incoming(client)) => Some(client.stage()),
            _ => None,
        };
        if stage == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{stage:?}, not {wanted:?}");
        sockets.handle_event(token, EventFlags::IN);
    }
}

fn read_some(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 256];
    let len = stream.read(&mut bytes).expect("it was told something");
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}
