//! Somebody on the way between both hosts, who may change, repeat, hold back and mix up what passes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// Where some bytes are on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// The connection: 0 is that of the first handshake, 1 that for its calls.
    connection: usize,
    to_server: bool,
    /// Bytes that have passed before.
    passed: usize,
}

type Meddle = dyn Fn(Place, &mut Vec<u8>) + Send + Sync;

/// Passes on what comes to its address, as `meddle` leaves it.
fn relay(server: String, meddle: Arc<Meddle>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for (connection, client) in listener.incoming().enumerate() {
            let client = client.unwrap();
            let Ok(server) = TcpStream::connect(&server) else {
                continue;
            };
            for (to_server, from, to) in [(true, &client, &server), (false, &server, &client)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let meddle = Arc::clone(&meddle);
                thread::spawn(move || {
                    let place = Place {
                        connection,
                        to_server,
                        passed: 0,
                    };
                    pass(from, to, place, &*meddle);
                });
            }
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut place: Place, meddle: &Meddle) {
    let mut bytes = vec![0; 32 * 1024];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        let mut some = bytes[..len].to_vec();
        meddle(place, &mut some);
        place.passed += len;
        if to.write_all(&some).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Makes calls with long names until one fails. None has another answer than it should.
fn call_until_it_fails(client: &Device, address: &str) -> Result<(), String> {
    block_on(async {
        let channel = Channel::builder(client, address)
            .connect_timeout(Duration::from_secs(2))
            .connect()
            .await
            .map_err(|error| error.to_string())?;
        let greeter = GreeterClient::new(channel);
        for round in 0..50_usize {
            let name = "abcdefghij".repeat(round * 500 + 1);
            let expected = format!("ada.example: {name}");
            match greeter.say_hello(HelloRequest { name }).await {
                Ok(reply) => assert!(reply.into_inner().message == expected, "another answer"),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    })
}

/// A bit that is flipped, or bytes that are repeated, in any place of either connection and either
/// direction: the connection ends, and what arrives is what was sent.
#[test]
fn what_is_changed_on_the_way_ends_the_connection_and_reaches_no_message() {
    let authority = Authority::new("root");
    let (server, address) = serve(&device("tcp").with_server_tls(server_tls(&authority)));
    let client = device("tcp").with_client_tls(client_tls(&authority));
    // How much passes on each connection in either direction, keepalives left out.
    let passed: Arc<[[AtomicUsize; 2]; 2]> = Arc::default();
    let counted = Arc::clone(&passed);
    let count = move |place: Place, bytes: &mut Vec<u8>| {
        let of = &counted[place.connection][usize::from(place.to_server)];
        of.store(place.passed + bytes.len(), Ordering::SeqCst);
    };
    let untouched = relay(address.clone(), Arc::new(count));
    let greeting = greet(&client, &untouched, 300_000).unwrap();
    assert_eq!(greeting.len(), 300_013);
    thread::scope(|scope| {
        for (connection, to_server) in [(0, true), (0, false), (1, true), (1, false)] {
            let all = passed[connection][usize::from(to_server)].load(Ordering::SeqCst);
            let (client, address) = (&client, &address);
            scope.spawn(move || {
                // A length that is changed after the handshake is waited for, as bytes are that
                // somebody holds back: on the first connection, hardly any follow.
                let all = all - 200;
                for offset in [0, 3, 40, 200, all / 2, all * 3 / 4, all] {
                    for is_repeated in [true, false] {
                        change(
                            (connection, to_server, offset, is_repeated),
                            client,
                            address,
                        );
                    }
                }
            });
        }
    });
    assert_eq!(
        greet(&client, &address, 10).unwrap(),
        "ada.example: xxxxxxxxxx"
    );
    server.shutdown().unwrap();
}

/// Changes what passes in one place, and has calls made until that is noticed.
fn change(
    (connection, to_server, offset, is_repeated): (usize, bool, usize, bool),
    client: &Device,
    address: &str,
) {
    let done = Arc::new(AtomicBool::new(false));
    let is_done = Arc::clone(&done);
    let meddle = move |place: Place, bytes: &mut Vec<u8>| {
        let is_here = (place.connection, place.to_server) == (connection, to_server);
        let end = place.passed + bytes.len();
        if !is_here || end <= offset || is_done.swap(true, Ordering::SeqCst) {
            return;
        }
        let at = offset.saturating_sub(place.passed);
        // Fewer bytes than a header has are waited for.
        match is_repeated && at + 5 <= bytes.len() {
            true => {
                let end = bytes.len().min(at + 50);
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            false => bytes[at] ^= 0x10,
        }
    };
    let address = relay(address.to_owned(), Arc::new(meddle));
    let calls = call_until_it_fails(client, &address);
    assert!(done.load(Ordering::SeqCst), "nothing was changed");
    calls.expect_err(&format!(
        "nobody noticed that byte {offset} of connection {connection} was changed: to the server \
         {to_server}, repeated {is_repeated}"
    ));
}

/// Two clients' connections for calls are exchanged on their way: neither gets the other's.
#[test]
fn connections_that_are_exchanged_on_the_way_end() {
    let authority = Authority::new("root");
    let (server, address) = serve(&device("tcp").with_server_tls(server_tls(&authority)));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = listener.local_addr().unwrap().to_string();
    // The order in which one client after the other connects: handshake, calls, handshake, calls.
    let exchanged = thread::spawn(move || {
        let pairs: Vec<_> = (0..4)
            .map(|_| {
                let (client, _) = listener.accept().unwrap();
                let server = TcpStream::connect(&address).unwrap();
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || copy_while_it_is_quiet(from, to));
                }
                (client, server)
            })
            .collect();
        pairs
    });
    let connect = || {
        let client = device("tcp").with_client_tls(client_tls(&authority));
        let greeter = GreeterClient::new(block_on(Channel::connect(&client, &relay)).unwrap());
        let name = "x".to_owned();
        block_on(greeter.say_hello(HelloRequest { name })).unwrap();
        greeter
    };
    let clients = [connect(), connect()];
    let pairs = exchanged.join().unwrap();
    // From here on, what one sends for its calls goes to where the other's calls went.
    EXCHANGED.store(true, Ordering::SeqCst);
    thread::sleep(2 * LOOK);
    for ((client, _), (_, server)) in [(&pairs[1], &pairs[3]), (&pairs[3], &pairs[1])] {
        for (from, to) in [(client, server), (server, client)] {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            thread::spawn(move || copy(from, to));
        }
    }
    for (greeter, name) in clients.iter().zip(["first", "second"]) {
        let name = name.to_owned();
        let reply = block_on(greeter.say_hello(HelloRequest { name: name.clone() }));
        // A channel that has connected again, past the relay's four, has nothing to say either.
        if let Ok(reply) = reply {
            panic!("'{name}' was answered: {}", reply.into_inner().message);
        }
    }
    server.shutdown().unwrap();
}

/// How long the relay waits for bytes before it looks whether connections are to be exchanged.
const LOOK: Duration = Duration::from_millis(100);

static EXCHANGED: AtomicBool = AtomicBool::new(false);

fn copy_while_it_is_quiet(mut from: TcpStream, mut to: TcpStream) {
    from.set_read_timeout(Some(LOOK)).unwrap();
    let mut bytes = vec![0; 32 * 1024];
    while !EXCHANGED.load(Ordering::SeqCst) {
        match from.read(&mut bytes) {
            Ok(0) => return,
            Ok(len) => to.write_all(&bytes[..len]).unwrap(),
            Err(_) => {}
        }
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    from.set_read_timeout(None).unwrap();
    let _ = std::io::copy(&mut from, &mut to);
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
