//! How much strangers can write to a server's log at the level INFO. A program of its own, because it
//! sets the process's subscriber.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rpc_core::{Channel, LocalPoller, Server, block_on};
use rpc_transport_verbs::Device;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType, connect, send, sockopt};

/// Strangers of each kind on each device: 10,000 in all.
const STRANGERS: usize = 625;

/// Strangers that connect by the rules, and then break them.
const CONNECTED: usize = 200;

/// The most bytes that they may leave together.
const MOST: u64 = 100 << 10;

static BYTES: AtomicU64 = AtomicU64::new(0);
static TEXT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Counts what is logged, and keeps it for the message of a failure.
struct Counted;

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        BYTES.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let mut text = TEXT.lock().unwrap();
        if text.len() < 1 << 20 {
            text.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn dial(server: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(server).unwrap();
    let patience = Some(Duration::from_secs(30));
    stream.set_read_timeout(patience).unwrap();
    stream
}

/// Says something, and waits until the server has closed the connection.
fn say(server: SocketAddr, said: &[u8]) {
    let mut stream = dial(server);
    // The server may close it in the middle.
    let _ = stream.write_all(said);
    let _ = stream.read_to_end(&mut Vec::new());
}

fn connect_and_reset(server: SocketAddr) {
    sockopt::set_socket_linger(dial(server), Some(Duration::ZERO)).unwrap();
}

fn say_half_a_hello(server: SocketAddr) {
    let mut stream = dial(server);
    let _ = stream.write_all(b"VBLN\0\x02\0\0\x01");
}

/// Says hello to a socket of the software device, in another version of its greeting.
fn greet_wrongly(_: SocketAddr) {
    const PREFIX: &str = "@verbline-soft-";
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let id = format!("{:08x}", std::process::id());
    let mut own = table.lines().filter_map(|line| {
        let digits = line.split_once(PREFIX)?.1.trim_end();
        (digits[12..20] == id).then_some(digits)
    });
    let digits = own.next_back().expect("the server listens");
    let name = format!("{}{digits}", &PREFIX[1..]);
    let socket: OwnedFd =
        rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    if connect(&socket, &address).is_ok() {
        let _ = send(&socket, &[0xee; 40], SendFlags::NOSIGNAL);
        sockopt::set_socket_timeout(
            &socket,
            sockopt::Timeout::Recv,
            Some(Duration::from_secs(10)),
        )
        .unwrap();
        let _ = rustix::net::recv(&socket, &mut [0; 64], rustix::net::RecvFlags::empty());
    }
}

/// Connects clients by the rules, each of which then says garbage on the connection for its calls.
fn say_garbage_instead_of_calls(server: SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let between = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let mut server = dial(server);
            let mut hello = [0; 24];
            client.read_exact(&mut hello).unwrap();
            server.write_all(&hello).unwrap();
            if hello.starts_with(b"VBLK") {
                server.write_all(&[0xee; 64]).unwrap();
            }
            let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || forward(from, to));
            thread::spawn(move || forward(client, server));
        }
    });
    let poller = LocalPoller::new(&Device::open("tcp").unwrap()).unwrap();
    for _ in 0..CONNECTED {
        // The server may have ended the connection before the handshake is complete.
        drop(poller.connect(&between));
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

type Stranger = (&'static str, fn(SocketAddr));

const KINDS: [Stranger; 8] = [
    ("connects and resets", connect_and_reset),
    ("says garbage", |server| say(server, &[0xee; 64])),
    ("says half a hello and leaves", say_half_a_hello),
    ("speaks another version", |server| {
        say(server, b"VBLN\0\x63\0\0\0\x02\0\x63\0\x63\x0a\0");
    }),
    ("says a hello that is none", |server| {
        say(server, b"VBLN\0\x02\0\0\0\x02\0\x02\0\x02\x0a\0");
    }),
    ("guesses the secret of a connection for calls", |server| {
        say(server, b"VBLK\0\x01\0\0guessed secrets!");
    }),
    (
        "speaks another version on a connection for calls",
        |server| {
            say(server, b"VBLK\0\x63\0\0guessed secrets!");
        },
    ),
    ("greets the software device in another way", greet_wrongly),
];

fn count_log() {
    let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO);
    // The other test may have done it.
    let _ = lines.with_writer(|| Counted).try_init();
}

/// Whoever opens the channel gets the error, and nothing is tried again.
#[test]
fn a_channel_that_is_not_opened_is_not_said_to_be_retried() {
    count_log();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap().to_string();
    drop(closed);
    let device = Device::open("soft").unwrap();
    let opened = block_on(Channel::connect(&device, &address));
    assert!(opened.is_err());
    let text = TEXT.lock().unwrap();
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines();
    let line = lines.find(|line| line.contains("cannot connect") && line.contains(&address));
    let line = line.expect("it is logged");
    assert!(
        line.contains("the channel is not opened") && !line.contains("retrying"),
        "{line}"
    );
}

#[test]
fn strangers_leave_a_short_log_and_no_error() {
    count_log();
    for device in ["tcp", "soft"] {
        let server = Server::builder(&Device::open(device).unwrap());
        let server = server.bind("127.0.0.1:0").unwrap().spawn();
        for (what, stranger) in KINDS {
            for _ in 0..STRANGERS {
                stranger(server.local_addr());
            }
            let bytes = BYTES.load(Ordering::Relaxed);
            assert!(
                bytes < MOST,
                "{bytes} bytes after {STRANGERS} that each {what}, on {device}"
            );
        }
        if device == "tcp" {
            say_garbage_instead_of_calls(server.local_addr());
        }
        server.shutdown().unwrap();
    }
    let bytes = BYTES.load(Ordering::Relaxed);
    let text = TEXT.lock().unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(
        bytes < MOST,
        "{bytes} bytes: {}",
        &text[..text.len().min(4096)]
    );
    assert!(bytes > 0, "nothing was logged");
    let errors: Vec<&str> = text.lines().filter(|line| line.contains("ERROR")).collect();
    assert!(errors.is_empty(), "{errors:?}");
}
