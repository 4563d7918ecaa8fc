//! Invalid input at a handshake port, and clients that connect to something other than a server:
//! each case ends with a reason and affects no other connection.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rpc_core::Intents;
use rpc_core::transport::{CloseReason, ConnectError, Transport, VersionRange};
use rpc_transport_verbs::Sizing;
use rpc_transport_verbs::verbs::{Context, Gid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};

use crate::transport_harness::{PATIENCE, Rig, Side, device, forward_challenge, frame, step_until};

fn rig() -> Rig {
    let intents = Intents {
        connections: 8,
        ..Intents::default()
    };
    Rig::new(&intents, &Sizing::default())
}

/// Sends these bytes to the server and returns what it sends until it closes the socket.
fn answer_to(rig: &Rig, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(rig.address()).unwrap();
    stream.write_all(bytes).unwrap();
    read_to_end(&mut stream)
}

fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

/// Encodes a handshake frame with any contents.
fn handshake_frame(version: u16, message: &[u8]) -> Vec<u8> {
    let mut frame = b"VBLN".to_vec();
    frame.extend(version.to_be_bytes());
    frame.extend((message.len() as u32).to_be_bytes());
    // The oldest and the newest version that the sender speaks.
    frame.extend([version.to_be_bytes(), version.to_be_bytes()].concat());
    frame.extend(message);
    frame
}

fn assert_says(answer: &[u8], words: &str) {
    let text = String::from_utf8_lossy(answer);
    assert!(text.starts_with("VBLN"), "{text:?}");
    assert!(text.contains(words), "{text:?} does not say {words:?}");
}

/// Checks that the server still serves and has kept no state of the failed clients.
fn assert_unharmed(mut rig: Rig) {
    let (client, server) = rig.connect(1)[0];
    rig.client.send(client, b"unharmed").unwrap();
    rig.client.transport.flush();
    rig.step_until("a frame", |server, _| !server.received.is_empty());
    assert_eq!(rig.server.received, [(server, b"unharmed".to_vec())]);
    assert_eq!(rig.admission.connections.load(Ordering::Relaxed), 1);
    assert_eq!(rig.server.accepted.len(), 1);
    rig.server.assert_quiet_pool();
}

#[test]
fn garbage_is_answered_with_a_reason() {
    let rig = rig();
    let answer = answer_to(&rig, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n");
    assert_says(&answer, "it began with GET ");
    assert_unharmed(rig);
}

#[test]
fn another_version_is_told_ours() {
    let rig = rig();
    for version in [1, 7] {
        let answer = answer_to(&rig, &handshake_frame(version, b"whatever it says"));
        assert_eq!(answer[10..14], [0, 2, 0, 2], "ours is in the prologue");
        let sentence = format!(
            "the client speaks version {version} of the protocol, the server speaks version 2"
        );
        assert_says(&answer, &sentence);
    }
    assert_unharmed(rig);
}

#[test]
fn a_length_that_lies_is_refused_before_its_bytes_come() {
    let rig = rig();
    let mut frame = handshake_frame(2, b"");
    frame[6..10].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_says(
        &answer_to(&rig, &frame),
        "announced a message of 4294967295",
    );
    assert_unharmed(rig);
}

#[test]
fn a_message_that_does_not_decode_is_refused() {
    let rig = rig();
    let answer = answer_to(&rig, &handshake_frame(2, &[0xff; 40]));
    assert_says(&answer, "cannot be decoded");
    assert_unharmed(rig);
}

#[test]
fn ready_before_a_hello_is_refused() {
    let rig = rig();
    // Field 3, with length 0: `Ready`.
    let answer = answer_to(&rig, &handshake_frame(2, &[0x1a, 0]));
    assert_says(&answer, "sent ready where a hello was expected");
    assert_unharmed(rig);
}

#[test]
fn a_hello_without_a_device_is_told_what_each_side_has() {
    let rig = rig();
    // Field 1, a hello, with field 2, max_frame_len, set to 4096.
    let answer = answer_to(&rig, &handshake_frame(2, &[0x0a, 3, 0x10, 0x80, 0x20]));
    let server = format!("the server has {}", device().name());
    assert_says(&answer, &server);
    assert_says(&answer, "the client offers none");
    assert_unharmed(rig);
}

#[test]
fn a_hello_with_an_impossible_field_is_told_which() {
    let rig = rig();
    // A hello with max_frame_len 1.
    let answer = answer_to(&rig, &handshake_frame(2, &[0x0a, 2, 0x10, 1]));
    assert_says(&answer, "its max_frame_len is 1");
    assert_unharmed(rig);
}

/// Encodes a hello whose queue pair is at this GID of the software device.
fn hello_from(gid: [u8; 16]) -> Vec<u8> {
    hello_of(&[gid])
}

fn hello_of(gids: &[[u8; 16]]) -> Vec<u8> {
    let mut hello = Vec::new();
    for gid in gids {
        let mut endpoint = vec![0x0a, 4];
        endpoint.extend(b"soft");
        endpoint.extend([0x12, 4]);
        endpoint.extend(b"soft");
        endpoint.extend([0x1a, 16]);
        endpoint.extend(gid);
        // mtu 4096, qp_number 5, psn 6
        endpoint.extend([0x20, 0x80, 0x20, 0x28, 5, 0x30, 6]);
        hello.extend([0x0a, endpoint.len() as u8]);
        hello.extend(endpoint);
    }
    hello.extend([0x10, 0x80, 0x20]);
    let mut message = vec![0x0a, hello.len() as u8];
    message.extend(hello);
    handshake_frame(2, &message)
}

#[test]
fn a_hello_from_another_place_is_told_that_there_is_no_way() {
    let rig = rig();
    let answer = answer_to(&rig, &hello_from([0x77; 16]));
    assert_says(
        &answer,
        "no device of the server reaches the client (soft: ",
    );
    assert_says(&answer, "the same host");
    assert_says(&answer, "the server has soft, the client offers soft");
    assert_unharmed(rig);
}

/// A GID is no secret: every user of the host can list those of all processes. The server's own is
/// as good as any other, and so is one that no process has.
#[test]
fn a_gid_that_is_not_proven_takes_no_place_and_ends_in_time() {
    let rig = rig();
    let context = Context::open("soft").unwrap();
    let Gid(own) = context.query_gid(1, 0).unwrap();
    let mut of_nobody = own;
    of_nobody[15] ^= 0x55;
    // More than the server has room for.
    let mut strangers: Vec<_> = (0..20)
        .map(|number| {
            let mut stream = TcpStream::connect(rig.address()).unwrap();
            let gid = if number % 2 == 0 { own } else { of_nobody };
            stream.write_all(&hello_from(gid)).unwrap();
            let mut prologue = [0; 14];
            stream.read_exact(&mut prologue).unwrap();
            stream
        })
        .collect();
    assert_eq!(rig.admission.connections.load(Ordering::Relaxed), 0);
    assert_unharmed(rig);
    let answer = read_to_end(&mut strangers[1]);
    let text = String::from_utf8_lossy(&answer);
    let reason = "the client had to prove that the GID that it offers is its process's";
    assert!(text.contains(reason), "{text:?}");
}

#[test]
fn a_client_with_two_endpoints_to_prove_is_refused() {
    let rig = rig();
    let context = Context::open("soft").unwrap();
    let Gid(gid) = context.query_gid(1, 0).unwrap();
    let mut other = gid;
    other[15] ^= 0x55;
    for gids in [[gid, other], [gid, gid]] {
        let answer = answer_to(&rig, &hello_of(&gids));
        assert_says(&answer, "offers 2 endpoints of the software device");
    }
    assert_unharmed(rig);
}

/// A stranger to which a client connects has the client prove an offer that the client has not
/// made.
#[test]
fn a_proof_of_one_offer_is_none_of_another() {
    let mut rig = rig();
    let context = Context::open("soft").unwrap();
    let Gid(gid) = context.query_gid(1, 0).unwrap();
    let upstream = rig.address();
    let address = served_by(move |mut client| {
        let mut server = TcpStream::connect(upstream).unwrap();
        server.write_all(&hello_from(gid)).unwrap();
        forward_challenge(&mut server, &mut client);
        let refusal = read_to_end(&mut server);
        assert_says(&refusal, "or another queue pair, than was claimed");
        client.write_all(&refusal).unwrap();
    });
    let error = rig
        .client
        .transport
        .connect(&address, b"hello", PATIENCE)
        .unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    assert_unharmed(rig);
}

#[test]
fn half_closed_and_silent_sockets_end_by_themselves() {
    let rig = rig();
    let mut half_closed = TcpStream::connect(rig.address()).unwrap();
    half_closed.write_all(b"VBLN\x00\x02").unwrap();
    half_closed.shutdown(Shutdown::Write).unwrap();
    read_to_end(&mut half_closed);

    // Two clients at the same time: one sends nothing, one stops in the middle of a frame.
    let mut silent = TcpStream::connect(rig.address()).unwrap();
    let mut stuck = TcpStream::connect(rig.address()).unwrap();
    stuck.write_all(b"VBLN\x00\x02\x00\x00\x00").unwrap();
    let waited = "the handshake waited for its client for 5s: the client connected and sent";
    assert_says(&read_to_end(&mut silent), &format!("{waited} nothing"));
    assert_says(&read_to_end(&mut stuck), &format!("{waited} 9 bytes"));
    assert_unharmed(rig);
}

/// Slow clients do not delay others.
#[test]
fn a_client_comes_in_while_a_hundred_others_dawdle() {
    let rig = rig();
    let address = rig.address();
    let dawdlers: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.write_all(b"VB").unwrap();
            stream
        })
        .collect();
    assert_unharmed(rig);
    drop(dawdlers);
}

#[test]
fn bytes_after_the_handshake_end_the_connection_with_a_reason() {
    // A client does not expose its socket, so this test puts a server in between that sends a byte
    // too many.
    let mut rig = rig();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let upstream = rig.address();
    // Forwards the handshake to the real server, and then sends a byte.
    let meddler = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(upstream).unwrap();
        let mut bytes = [0; 4096];
        let len = client.read(&mut bytes).unwrap();
        server.write_all(&bytes[..len]).unwrap();
        forward_challenge(&mut server, &mut client);
        let len = server.read(&mut bytes).unwrap();
        client.write_all(&bytes[..len]).unwrap();
        let len = client.read(&mut bytes).unwrap();
        server.write_all(&bytes[..len]).unwrap();
        client.write_all(b"!").unwrap();
        // Read until the client closes the connection.
        while client.read(&mut bytes).is_ok_and(|len| len > 0) {}
    });
    let id = rig.client.connect(&address).connection;
    rig.step_until("the end on both sides", |server, client| {
        !client.closed.is_empty() && !server.closed.is_empty()
    });
    let (closed, reason) = &rig.client.closed[0];
    assert_eq!(*closed, id);
    assert!(matches!(reason, CloseReason::Failed(_)), "{reason}");
    assert!(
        reason.to_string().contains("other than keepalives"),
        "{reason}"
    );
    meddler.join().unwrap();
    rig.client.assert_quiet_pool();
    rig.server.assert_quiet_pool();
}

/// A client that disconnects between the welcome and its `Ready` leaves nothing behind.
#[test]
fn a_client_that_vanishes_in_the_middle_leaves_nothing_behind() {
    let mut rig = rig();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let upstream = rig.address();
    let middle = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(upstream).unwrap();
        let mut bytes = [0; 4096];
        let len = client.read(&mut bytes).unwrap();
        server.write_all(&bytes[..len]).unwrap();
        forward_challenge(&mut server, &mut client);
        let len = server.read(&mut bytes).unwrap();
        assert!(len > 10, "the server had let it in");
        // Neither side receives anything from the other any more.
    });
    let error = rig
        .client
        .transport
        .connect(&address, b"hello", PATIENCE)
        .unwrap_err();
    assert!(matches!(error, ConnectError::NotVerbline { .. }), "{error}");
    middle.join().unwrap();
    let admission = rig.admission.clone();
    rig.step_until("its place is free again", |_, _| {
        admission.connections.load(Ordering::Relaxed) == 0
    });
    assert!(rig.server.accepted.is_empty());
    assert!(rig.server.closed.is_empty(), "nobody had heard of it");
    assert_unharmed(rig);
}

/// A client may send as soon as it has sent `Ready`, and the server's poller receives the frames.
/// Closing the listener before the `Ready` is read does not end the connection.
#[test]
fn a_client_that_was_welcomed_comes_in_though_the_listener_is_closed() {
    let Rig {
        mut server,
        mut client,
        listener,
        ..
    } = rig();
    let upstream = listener.local_addr();
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = between.local_addr().unwrap().to_string();
    let (closed, closes) = std::sync::mpsc::channel();
    let middle = thread::spawn(move || {
        let (mut client, _) = between.accept().unwrap();
        let mut server = TcpStream::connect(upstream).unwrap();
        let mut bytes = [0; 4096];
        let len = client.read(&mut bytes).unwrap();
        server.write_all(&bytes[..len]).unwrap();
        forward_challenge(&mut server, &mut client);
        let len = server.read(&mut bytes).unwrap();
        client.write_all(&bytes[..len]).unwrap();
        let len = client.read(&mut bytes).unwrap();
        closes.recv().unwrap();
        server.write_all(&bytes[..len]).unwrap();
        // Forward until the end.
        while server.read(&mut bytes).is_ok_and(|len| len > 0) {}
    });
    let id = client.connect(&address).connection;
    drop(listener);
    closed.send(()).unwrap();
    client.send(id, &frame(1, 100)).unwrap();
    client.transport.flush();
    step_until(&mut [&mut server, &mut client], "the frame", |sides| {
        sides[0].received.len() == 1
    });
    assert!(server.closed.is_empty() && client.closed.is_empty());
    // The last reference to the socket is gone, so it is closed.
    drop((server, client));
    middle.join().unwrap();
}

/// Clients that disconnect, or that do not wait, while their queue pairs are created.
#[test]
fn clients_that_do_not_wait_for_the_welcome_leave_nothing_behind() {
    let mut rig = rig();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let listening = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut hello = vec![0; 4096];
        let len = client.read(&mut hello).unwrap();
        hello.truncate(len);
        hello
    });
    rig.client
        .transport
        .connect(&address, b"hello", PATIENCE)
        .unwrap_err();
    let hello = listening.join().unwrap();
    let ready = handshake_frame(2, &[0x1a, 0]);
    // More clients than the server has room for.
    for number in 0..100 {
        let mut stream = TcpStream::connect(rig.address()).unwrap();
        stream.write_all(&hello).unwrap();
        if number % 2 == 0 {
            stream.write_all(&ready).unwrap();
        }
        drop(stream);
        rig.server.turn();
    }
    // The client is rejected while the server cleans up after the others.
    let address = rig.address();
    let started = Instant::now();
    let client = loop {
        match rig.client.transport.connect(&address, b"hello", PATIENCE) {
            Ok(connected) => break connected.connection,
            Err(ConnectError::Refused { reason, .. }) => {
                assert!(reason.contains("8 connections already"), "{reason}");
                assert!(started.elapsed() < PATIENCE, "{reason}");
                rig.server.turn();
            }
            Err(error) => panic!("{error}"),
        }
    };
    rig.client.send(client, b"unharmed").unwrap();
    rig.client.transport.flush();
    let admission = rig.admission.clone();
    rig.step_until("nobody else is there", |server, _| {
        // Some clients had sent `Ready` late enough to be admitted; each of them has a permit.
        server
            .accepted
            .retain(|(id, _)| server.closed.iter().all(|(closed, _)| closed != id));
        !server.received.is_empty() && admission.connections.load(Ordering::Relaxed) == 1
    });
    assert_eq!(rig.server.received[0].1, b"unharmed");
    rig.server.assert_quiet_pool();
}

#[test]
fn a_refusal_reaches_the_client_in_the_servers_words() {
    let mut rig = rig();
    let address = rig.address();
    let error = rig
        .client
        .transport
        .connect(&address, b"no", PATIENCE)
        .unwrap_err();
    match error {
        ConnectError::Refused { reason, .. } => {
            assert_eq!(reason, "clients that say no are not admitted");
        }
        other => panic!("{other}"),
    }
    assert_unharmed(rig);
}

#[test]
fn a_session_that_is_too_long_is_refused_here() {
    let mut rig = rig();
    let address = rig.address();
    let error = rig
        .client
        .transport
        .connect(&address, &[0; 70_000], PATIENCE)
        .unwrap_err();
    assert!(matches!(error, ConnectError::Device { .. }), "{error}");
    assert_unharmed(rig);
}

/// Returns the address of a port that responds with something else.
fn served_by(answer: impl FnOnce(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || answer(listener.accept().unwrap().0));
    address
}

fn error_from(address: &str, timeout: Duration) -> ConnectError {
    let mut side = Side::open(&device(), &Intents::default());
    let error = side
        .transport
        .connect(address, b"hello", timeout)
        .unwrap_err();
    side.assert_quiet_pool();
    error
}

#[test]
fn a_client_says_what_it_met() {
    let error = error_from("no port here", PATIENCE);
    assert!(matches!(error, ConnectError::Address { .. }), "{error}");

    // The resolver asks nobody for a name with so long a part.
    let error = error_from(&format!("{}:50051", "a".repeat(64)), PATIENCE);
    let is_unresolved = matches!(error, ConnectError::Unresolved { .. });
    assert!(is_unresolved, "{error}");

    // Bound and closed again: nothing listens there.
    let vacant = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = vacant.local_addr().unwrap().to_string();
    drop(vacant);
    let error = error_from(&address, PATIENCE);
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");

    let address = served_by(|mut stream| {
        stream.write_all(b"220 mail.example.org ESMTP\r\n").unwrap();
        read_to_end(&mut stream);
    });
    let error = error_from(&address, PATIENCE);
    assert!(matches!(error, ConnectError::NotVerbline { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("220"), "{text}");
    // The advice comes once.
    let count = text.to_lowercase().matches("check that").count();
    assert_eq!(count, 1, "{text}");

    let address = served_by(|mut stream| {
        stream.write_all(&handshake_frame(3, b"")).unwrap();
        read_to_end(&mut stream);
    });
    let error = error_from(&address, PATIENCE);
    match error {
        ConnectError::Version { local, remote, .. } => {
            assert_eq!(local, VersionRange::only(2));
            assert_eq!(remote, VersionRange::only(3));
        }
        other => panic!("{other}"),
    }

    let address = served_by(drop);
    let error = error_from(&address, PATIENCE);
    assert!(matches!(error, ConnectError::NotVerbline { .. }), "{error}");

    let address = served_by(|mut stream| {
        read_to_end(&mut stream);
    });
    let error = error_from(&address, Duration::from_millis(100));
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
}

/// The time of a dial covers the link over which the client proves its GID.
#[test]
fn a_server_whose_process_accepts_no_link_is_waited_for_as_long_as_the_dial_may_take() {
    let context = Context::open("soft").unwrap();
    let Gid(mut gid) = context.query_gid(1, 0).unwrap();
    gid[15] ^= 0x55;
    let digits: String = gid.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = SocketAddrUnix::new_abstract_name(format!("verbline-soft-{digits}").as_bytes());
    let silent = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    bind(&silent, &name.unwrap()).unwrap();
    listen(&silent, 8).unwrap();
    let address = served_by(move |mut stream| {
        // A message of field 5: the GID, and a number of 16 bytes.
        let mut challenge = vec![0x2a, 36, 0x0a, 16];
        challenge.extend(gid);
        challenge.extend([0x12, 16]);
        challenge.extend([7; 16]);
        stream.write_all(&handshake_frame(2, &challenge)).unwrap();
        read_to_end(&mut stream);
    });
    let started = Instant::now();
    let error = error_from(&address, Duration::from_millis(100));
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains("prove its GID"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(3), "{error}");
}
