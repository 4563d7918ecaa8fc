//! A thief at the port of a server that has ended: it gets no call, and no byte that is worth having.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use super::*;

/// Accepts connections, says `answer` to each, and returns what each has said.
fn thief(listener: TcpListener, answer: &'static [u8]) -> Receiver<Vec<u8>> {
    let (sender, heard) = channel();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket: TcpStream = socket.unwrap();
            socket
                .set_read_timeout(Some(Duration::from_millis(300)))
                .unwrap();
            let mut said = vec![0; 65536];
            let len = socket.read(&mut said).unwrap_or(0);
            let _ = socket.write_all(answer);
            said.truncate(len);
            let mut rest = Vec::new();
            let _ = socket.read_to_end(&mut rest);
            said.extend(rest);
            if sender.send(said).is_err() {
                return;
            }
        }
    });
    heard
}

/// A channel that was connected with TLS connects again with TLS or not at all, on each device: a thief
/// who listens where the server was hears a hello of TLS, and no other byte of Verbline or of a call.
#[test]
fn a_thief_hears_a_hello_of_tls_and_nothing_else() {
    let authority = Authority::new("root");
    for (name, answer) in [
        ("soft", &b"VBLN\0\x02"[..]),
        ("tcp", b""),
        ("soft,tcp", b"\x15\x03\x03\0\x02\x02\x28"),
    ] {
        let (server, address) = serve(&device(name).with_server_tls(server_tls(&authority)));
        let client = device(name)
            .allow_plaintext()
            .with_client_tls(client_tls(&authority));
        let channel = block_on(Channel::connect(&client, &address)).unwrap();
        let greeter = GreeterClient::new(channel);
        let secret = "a name that nobody else may hear";
        let hello = || HelloRequest {
            name: secret.to_owned(),
        };
        block_on(greeter.say_hello(hello())).unwrap();
        server.shutdown().unwrap();
        let heard = thief(TcpListener::bind(&*address).unwrap(), answer);
        let start = Instant::now();
        let mut attempts = 0;
        while attempts < 3 {
            assert!(start.elapsed() < PATIENCE);
            let call = block_on(greeter.say_hello(hello()));
            call.expect_err("the thief cannot answer it");
            while let Ok(said) = heard.try_recv() {
                attempts += 1;
                assert_eq!(said.first(), Some(&0x16), "{name}: {}", said.escape_ascii());
                for word in [secret.as_bytes(), b"VBLN", b"VBLK", b"Greeter"] {
                    assert!(!said.windows(word.len()).any(|part| part == word));
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}
