//! Strangers at the port of a server with TLS: what they say before, in and after a handshake ends their
//! own connection, and nothing else.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::panic;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use tls_testing::sealer::{HANDSHAKE, Sealer, header};
use tls_testing::side::Side;
use verbline_tls::Handshake;

use super::*;

/// A stranger: what it is called, and what it does.
type Stranger = (
    &'static str,
    fn(&mut TcpStream, &ClientTls) -> io::Result<()>,
);

const BEFORE: [Stranger; 4] = [
    ("random bytes", |socket, _| socket.write_all(&random(4096))),
    ("garbage after the first byte of TLS", |socket, _| {
        socket.write_all(&[&[0x16][..], &random(4096)].concat())
    }),
    ("a hello of TLS 1.2", |socket, _| {
        socket.write_all(&hello_of_tls_1_2())
    }),
    ("HTTP/1.1", |socket, _| {
        socket.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    }),
];

const IN: [Stranger; 8] = [
    ("half of a hello, then garbage", |socket, tls| {
        let hello = client_hello(tls);
        socket.write_all(&[&hello[..hello.len() / 2], &random(4096)].concat())
    }),
    ("half of a hello, then silence", |socket, tls| {
        let hello = client_hello(tls);
        socket.write_all(&hello[..hello.len() / 2])
    }),
    ("half of a hello, then the end", |socket, tls| {
        let hello = client_hello(tls);
        socket.write_all(&hello[..hello.len() / 2])?;
        socket.shutdown(std::net::Shutdown::Write)
    }),
    ("a hello, then garbage", |socket, tls| {
        socket.write_all(&[client_hello(tls), random(4096)].concat())
    }),
    ("a hello, then silence", |socket, tls| {
        socket.write_all(&client_hello(tls))
    }),
    ("a hello, then the end", |socket, tls| {
        socket.write_all(&client_hello(tls))?;
        socket.shutdown(std::net::Shutdown::Write)
    }),
    ("a hello twice", |socket, tls| {
        socket.write_all(&[client_hello(tls), client_hello(tls)].concat())
    }),
    ("a hello byte by byte, too slowly", |socket, tls| {
        drip(socket, client_hello(tls).into_iter())
    }),
];

const AFTER: [Stranger; 9] = [
    ("garbage", |socket, tls| {
        shake(socket, tls)?;
        socket.write_all(&random(4096))
    }),
    ("silence", |socket, tls| shake(socket, tls).map(drop)),
    ("a record in the clear", |socket, tls| {
        shake(socket, tls)?;
        socket.write_all(&[&header(23, 100)[..], &random(100)].concat())
    }),
    ("an alert in the clear", |socket, tls| {
        shake(socket, tls)?;
        socket.write_all(&[&header(21, 2)[..], &[1, 0]].concat())
    }),
    ("another hello than Verbline's", |socket, tls| {
        let mut sealer = shake(socket, tls)?;
        socket.write_all(&sealer.seal(23, &random(4096)))
    }),
    ("empty records", |socket, tls| {
        let mut sealer = shake(socket, tls)?;
        (0..100).try_for_each(|_| socket.write_all(&sealer.seal(23, &[])))
    }),
    ("changes of the key", |socket, tls| {
        let mut sealer = shake(socket, tls)?;
        (0..1000).try_for_each(|_| socket.write_all(&sealer.seal_key_update(true)))
    }),
    ("a record byte by byte, without an end", |socket, tls| {
        shake(socket, tls)?;
        drip(
            socket,
            header(23, 16_000).into_iter().chain(std::iter::repeat(7)),
        )
    }),
    (
        "a hello of Verbline byte by byte, each in a record",
        |socket, tls| {
            let mut sealer = shake(socket, tls)?;
            // Of the longest length.
            let hello = b"VBLN\0\x02\0\0\x0f\xff".iter().copied();
            for byte in hello.chain(std::iter::repeat(0)) {
                socket.write_all(&sealer.seal(23, &[byte]))?;
                thread::sleep(DROP);
            }
            Ok(())
        },
    ),
];

/// The pause between two bytes of a stranger that is slow.
const DROP: Duration = Duration::from_millis(30);

fn drip(socket: &mut TcpStream, bytes: impl Iterator<Item = u8>) -> io::Result<()> {
    for byte in bytes {
        socket.write_all(&[byte])?;
        thread::sleep(DROP);
    }
    Ok(())
}

fn shake(socket: &TcpStream, tls: &ClientTls) -> io::Result<Sealer> {
    let side = Side::connect(tls, "127.0.0.1", socket)?;
    Ok(side.sealer)
}

fn client_hello(tls: &ClientTls) -> Vec<u8> {
    let mut hello = Vec::new();
    let handshake = Handshake::of_client(tls, "127.0.0.1").unwrap();
    handshake.advance(&mut Vec::new(), &mut hello).unwrap();
    assert_eq!(hello.first(), Some(&0x16));
    hello
}

fn hello_of_tls_1_2() -> Vec<u8> {
    let extensions = [
        // Groups: x25519 and P-256.
        &[0, 10, 0, 6, 0, 4, 0, 29, 0, 23][..],
        // The format of points.
        &[0, 11, 0, 2, 1, 0],
        // Signatures: ECDSA and RSA-PSS with SHA-256.
        &[0, 13, 0, 6, 0, 4, 4, 3, 8, 4],
    ]
    .concat();
    // The version, no session, and ECDHE suites with AES-128-GCM.
    let mut body = [
        &[3, 3][..],
        &random(32),
        &[0, 0, 4, 0xc0, 0x2b, 0xc0, 0x2f, 1, 0],
    ]
    .concat();
    body.extend([0, extensions.len() as u8]);
    body.extend(extensions);
    let message = [&[1, 0, 0, body.len() as u8][..], &body].concat();
    [&header(HANDSHAKE, message.len())[..], &message].concat()
}

/// Returns bytes of a sequence that differs from call to call, and that the seed repeats.
pub(super) fn random(len: usize) -> Vec<u8> {
    static NEXT: AtomicU64 = AtomicU64::new(0x5eed_0001);
    let seed = NEXT.fetch_add(1, Ordering::Relaxed);
    // Of a test that fails.
    #[allow(clippy::print_stdout)]
    {
        println!("seed {seed:#x} for {len} bytes");
    }
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let bytes = (0..len).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    });
    bytes.collect()
}

/// The panics of the library's threads.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

pub(super) fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let thread = thread::current();
            let name = thread.name().unwrap_or_default();
            let text = info.to_string();
            // Another test of this program panics in the decision about a client, by intention.
            if name.starts_with("verbline") && !text.contains("a fault of the program") {
                let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
                panics.push(format!("{name}: {text}"));
            }
            before(info);
        }));
    });
}

pub(super) fn assert_no_panics() {
    let panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(panics.is_empty(), "{panics:?}");
}

/// Returns true if the server ends the connection in time.
fn has_ended(socket: &mut TcpStream) -> bool {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = [0; 4096];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => {
                return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            }
        }
    }
}

/// Runs `strangers` against a server while a good client calls it. Neither notices the other. The server
/// accepts this many of their connections.
pub(super) fn while_another_calls(
    name: &str,
    authority: &Authority,
    accepted: u64,
    strangers: impl FnOnce(&str, &ClientTls),
) {
    note_panics();
    let tls = client_tls(authority);
    let (server, address) = serve(&device(name).with_server_tls(server_tls(authority)));
    let client = device(name).with_client_tls(tls.clone());
    let channel = block_on(Channel::connect(&client, &address)).unwrap();
    let stops = AtomicBool::new(false);
    let greeter = GreeterClient::new(channel);
    let calls = thread::scope(|scope| {
        let good = scope.spawn(|| {
            let mut calls = 0_u64;
            while !stops.load(Ordering::Relaxed) {
                let name = "x".repeat(1 + calls as usize % 2000);
                let expected = format!("ada.example: {name}");
                let reply = block_on(greeter.say_hello(HelloRequest { name })).unwrap();
                assert_eq!(reply.into_inner().message, expected);
                calls += 1;
            }
            calls
        });
        // A stranger that is not ended is a panic, and the good client has to stop all the same.
        let outcome = panic::catch_unwind(panic::AssertUnwindSafe(|| strangers(&address, &tls)));
        stops.store(true, Ordering::Relaxed);
        let calls = good.join().unwrap();
        outcome.unwrap_or_else(|panic| panic::resume_unwind(panic));
        calls
    });
    assert!(calls > 0, "the good client made no call meanwhile");
    let later = greet(&client, &address, 10).unwrap();
    assert_eq!(later, "ada.example: xxxxxxxxxx");
    let connections = server.stats().total().connections;
    assert_eq!(connections.accepted, 2 + accepted, "no other was accepted");
    server.shutdown().unwrap();
    assert_no_panics();
}

#[test]
fn each_stranger_ends_its_own_connection_and_nothing_else() {
    in_each_device(|name| {
        let authority = Authority::new("root");
        while_another_calls(name, &authority, 0, |address, tls| {
            thread::scope(|scope| {
                for (what, act) in BEFORE.iter().chain(&IN).chain(&AFTER) {
                    scope.spawn(move || {
                        let mut socket = TcpStream::connect(address).unwrap();
                        socket.set_nodelay(true).unwrap();
                        // The server may have closed it in the middle.
                        let acted = act(&mut socket, tls);
                        assert!(
                            has_ended(&mut socket),
                            "{name}: the server has not ended the connection of {what} ({acted:?})"
                        );
                    });
                }
            });
        });
    });
}

/// Connections of one host that stop in the middle of the first message do not keep its others out.
#[test]
fn good_clients_connect_while_others_of_their_host_have_stopped_in_the_middle() {
    in_each_device(|name| {
        let authority = Authority::new("root");
        let (server, address) = serve(&device(name).with_server_tls(server_tls(&authority)));
        let tls = client_tls(&authority);
        let hello = client_hello(&tls);
        let client = device(name).with_client_tls(tls);
        let half_open = |number: usize| {
            let len = [0, hello.len() / 2, hello.len()][number % 3];
            let mut socket = TcpStream::connect(&address).unwrap();
            socket.write_all(&hello[..len]).unwrap();
            socket
        };
        let mut held: Vec<_> = (0..200).map(half_open).collect();
        for _ in 0..10 {
            assert_eq!(greet(&client, &address, 1).unwrap(), "ada.example: x");
        }
        assert!(held.iter_mut().all(has_ended), "{name}");
        server.shutdown().unwrap();
    });
}

/// Runs a test on all devices at a time: it waits most of its time.
fn in_each_device(test: impl Fn(&str) + Sync) {
    thread::scope(|scope| {
        for name in DEVICES {
            let test = &test;
            scope.spawn(move || test(name));
        }
    });
}
