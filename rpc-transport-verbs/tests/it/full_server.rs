//! A server with as many connections as it takes, and clients that come nevertheless.

use std::error::Error;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rpc_core::{
    Caller, Code, Idempotency, Intents, LocalChannel, LocalPoller, MethodKind, MethodSpec, Methods,
    Request, Response, Server, ServerHandle, Service, Status,
};
use rpc_transport_verbs::Device;

use crate::other_address::connect_from;

const ECHO: MethodSpec = MethodSpec::new(
    "test.Full/Echo",
    MethodKind::Unary,
    Idempotency::Unknown,
    "bytes",
    "bytes",
);

/// The time limit of a client that waits for a connection.
const STAGE: Duration = Duration::from_secs(5);

struct Echo;

impl Service for Echo {
    fn name(&self) -> &'static str {
        "test.Full"
    }

    fn register(&self, methods: &mut Methods) {
        methods.unary(&ECHO, |request: Request<Vec<u8>>| async move {
            Ok::<_, Status>(Response::new(request.into_inner()))
        });
    }
}

fn serve(device: &Device, pollers: usize, connections: u32) -> ServerHandle {
    let intents = Intents {
        connections,
        ..Intents::default()
    };
    let server = Server::builder(device).intents(intents).pollers(pollers);
    let server = server.add_service(Echo).bind("127.0.0.1:0");
    server.unwrap().spawn()
}

struct Client {
    channel: LocalChannel,
    poller: LocalPoller,
}

impl Client {
    fn connect(device: &Device, address: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let poller = LocalPoller::new(device)?;
        let channel = poller.connect(&address.to_string())?;
        Ok(Self { channel, poller })
    }

    fn call(&self) -> Result<Vec<u8>, rpc_core::CallError> {
        let request = Request::new(b"hello".to_vec());
        let reply = self.channel.unary::<Vec<u8>, Vec<u8>>(&ECHO, request);
        self.poller.block_on(reply).map(Response::into_inner)
    }

    fn connect_and_call(device: &Device, address: SocketAddr) -> Self {
        let client = Self::connect(device, address).unwrap();
        assert_eq!(client.call().unwrap(), b"hello");
        client
    }
}

/// Makes calls on a connection until `ends`, and always has one in flight.
fn call_until(ends: &Arc<AtomicBool>, address: SocketAddr) -> thread::JoinHandle<()> {
    let (connected, is_connected) = std::sync::mpsc::channel();
    let ends = Arc::clone(ends);
    let thread = thread::spawn(move || {
        let client = Client::connect_and_call(&Device::open("tcp").unwrap(), address);
        connected.send(()).unwrap();
        while !ends.load(Ordering::Relaxed) {
            client.call().expect("a connection in use is never ended");
        }
    });
    is_connected.recv().unwrap();
    thread
}

/// One poller always has messages in flight. The other one is asked, too, and when it has no connection
/// either, a client is refused before the time limit of its handshake.
#[test]
fn the_silent_connections_of_any_poller_end_and_then_clients_are_refused_at_once() {
    let tcp = Device::open("tcp").unwrap();
    let server = serve(&tcp, 2, 2);
    let address = server.local_addr();
    let ends = Arc::new(AtomicBool::new(false));
    let mut busy = Vec::new();
    let mut silent = Vec::new();
    // Each goes to the poller with fewest.
    for _ in 0..2 {
        busy.push(call_until(&ends, address));
        silent.push(Client::connect(&tcp, address).unwrap());
    }
    for _ in 0..2 {
        busy.push(call_until(&ends, address));
    }
    for _ in 0..3 {
        let began = Instant::now();
        let refusal = Client::connect(&tcp, address).err().unwrap().to_string();
        assert!(refusal.contains("raise `connections`"), "{refusal}");
        assert!(began.elapsed() < STAGE, "it waited until the limit");
    }
    ends.store(true, Ordering::Relaxed);
    for client in busy {
        client.join().unwrap();
    }
    for client in silent {
        let error = client.call().unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert!(error.to_string().contains("a new client"), "{error}");
    }
    server.shutdown().unwrap();
}

/// Returns an address at which connections are forwarded to a server as if from another host.
fn other_host(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            let server = connect_from(2, server);
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || forward(from, to));
            thread::spawn(move || forward(client, server));
        }
    });
    address
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// One call on each connection, and then silence, kept all others out.
#[test]
fn hosts_share_the_connections_that_are_idle() {
    let tcp = Device::open("tcp").unwrap();
    for pollers in [1, 2] {
        let server = serve(&tcp, pollers, 4 / pollers as u32);
        let address = server.local_addr();
        let idle: Vec<_> = (0..4)
            .map(|_| Client::connect_and_call(&tcp, address))
            .collect();
        // The same host has as many already.
        let refusal = Client::connect(&tcp, address).err().unwrap().to_string();
        assert!(refusal.contains("raise `connections`"), "{refusal}");
        let other = other_host(address);
        let others = [(); 2].map(|()| Client::connect_and_call(&tcp, other));
        // Now both have two.
        let refusal = Client::connect(&tcp, other).err().unwrap().to_string();
        assert!(refusal.contains("raise `connections`"), "{refusal}");
        let served = idle.iter().filter(|client| match client.call() {
            Ok(_) => true,
            Err(error) => {
                assert!(error.to_string().contains("a new client"), "{error}");
                false
            }
        });
        assert_eq!(served.count(), 2);
        for client in &others {
            client.call().unwrap();
        }
        drop((idle, others));
        server.shutdown().unwrap();
    }
}
