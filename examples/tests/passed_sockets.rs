//! Servers on a socket that somebody else has bound: systemd, a parent process, a test. In a program of
//! its own, which runs itself as the server's process.

// The server's process prints its address for the test.
#![allow(clippy::print_stdout)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::thread;

use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use rpc_core::{Channel, Request, Response, Server, ServerError, Status, block_on};
use rpc_transport_verbs::Device;
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SocketType, socket};

/// Greets with the number of its process.
struct ByProcess;

impl Greeter for ByProcess {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let name = request.into_inner().name;
        let message = format!("{name} from {}", std::process::id());
        Ok(Response::new(HelloReply { message }))
    }
}

fn device() -> Device {
    Device::best().expect("the software device always exists")
}

fn listen_on(socket: TcpListener) -> Result<Server, ServerError> {
    Server::builder(&device())
        .add_service(GreeterServer::new(ByProcess))
        .listen_on(socket)
}

fn greet(address: &str) -> String {
    let channel = block_on(Channel::connect(&device(), address)).unwrap();
    let name = "Ada".to_owned();
    let reply = block_on(GreeterClient::new(channel).say_hello(HelloRequest { name }));
    reply.unwrap().into_inner().message
}

/// The process of [`start`], which takes its socket from standard input.
#[test]
#[ignore = "a test of this program runs it as a process"]
fn server_process() {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let server = listen_on(TcpListener::from(socket)).unwrap();
    println!("listening at {}", server.local_addr());
    server.run().unwrap();
}

/// Starts a process that serves on this socket, and waits until it does.
fn start(socket: &TcpListener) -> Child {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "server_process", "--ignored", "--nocapture"])
        .stdin(OwnedFd::from(socket.try_clone().unwrap()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let listens = |line: std::io::Result<String>| line.unwrap().contains("listening at ");
    assert!(lines.any(listens), "the server's process has ended");
    // What the process prints later must go somewhere.
    thread::spawn(move || lines.for_each(drop));
    process
}

#[test]
fn clients_wait_in_the_socket_while_a_killed_server_starts_again() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let mut first = start(&socket);
    assert_eq!(greet(&address), format!("Ada from {}", first.id()));
    first.kill().unwrap();
    first.wait().unwrap();
    // Nobody accepts, and nobody refuses.
    let waiting = thread::spawn({
        let address = address.clone();
        move || greet(&address)
    });
    let mut second = start(&socket);
    assert_eq!(
        waiting.join().unwrap(),
        format!("Ada from {}", second.id()),
        "the client waited for the second server"
    );
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn a_server_closes_its_socket_when_it_stops_and_leaves_that_of_others() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let server = listen_on(socket.try_clone().unwrap()).unwrap().spawn();
    assert_eq!(server.local_addr(), address);
    greet(&address.to_string());
    server.shutdown().unwrap();
    TcpStream::connect(address).expect("the test's socket still listens");
    drop(socket);
    TcpStream::connect(address).expect_err("nobody has the socket any more");
}

#[test]
fn a_socket_that_does_not_listen_yet_listens_then() {
    let unbound = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let descriptor = unbound.as_raw_fd();
    let server = listen_on(TcpListener::from(unbound)).unwrap().spawn();
    let port = server.local_addr().port();
    assert_ne!(port, 0, "the system chose one");
    greet(&format!("127.0.0.1:{port}"));
    // Programs that the server starts do not get it.
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).unwrap();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = u32::from_str_radix(flags.unwrap().trim(), 8).unwrap();
    assert_eq!(flags & OFlags::CLOEXEC.bits(), OFlags::CLOEXEC.bits());
}

#[test]
fn what_cannot_listen_is_refused_with_the_reason() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let unix = UnixListener::bind(directory.path().join("socket")).unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (pipe, _) = std::io::pipe().unwrap();
    for (what, socket) in [
        ("a connection", OwnedFd::from(connected)),
        ("a Unix socket", OwnedFd::from(unix)),
        ("a UDP socket", OwnedFd::from(udp)),
        ("a pipe", OwnedFd::from(pipe)),
    ] {
        let Err(error) = listen_on(TcpListener::from(socket)) else {
            panic!("{what} must be refused");
        };
        let sentence = error.to_string();
        assert!(sentence.contains("listen_on"), "{what}: {sentence}");
        assert!(!sentence.contains("free port"), "{what}: {sentence}");
    }
}
