//! Makes exchanges for callgrind to count. Both sides run on one thread and are stepped in turn, so
//! the count is the same in every run, but for some fractions of an instruction: calls to be timed are
//! chosen at random.
//!
//! - `--over call`: calls of 64 bytes over the software device. Covers all that runs in a client and
//!   in a server: stub and handler, encoding and decoding, rpc-core, the transport and the device.
//!   In each call, either side takes one turn that finds something and one that finds nothing.
//! - `--over bytes`: calls with a `bytes` field of `--size` bytes (1024 by default, which is too long
//!   to be sent inline).
//! - `--over burst`: the same calls as `call`, 32 in flight at once.
//! - `--over connections`: the same calls over `--connections` connections in turn: 60 by default, so
//!   many that all their rings are cold. Covers their announcements.
//! - `--over intercepted`, `--over intercepted-thrice`: the same calls with one interceptor on each side,
//!   or three, which do nothing.
//! - `--over tcp`: the same calls over the software device and TCP.
//! - `--over soft`: frames of the same length as a call's frames, over the software device. Covers
//!   all of the transport on both sides, plus the device below it, but no part of rpc-core.
//! - `--over shared`: the same calls through a shared channel. The functions `exchange_caller` and
//!   `exchange_poller` are what the caller's thread and the poller's thread do.
//! - `--over stream`: messages of 64 bytes of one server stream, which share frames. Covers both sides.
//! - `--over ping-pong`: a message there and back on an open stream, like a call.
//! - `--over first-message`: server streams of one message each, opened and ended.
//! - `--serve`, and `--server <address>` with the address that it prints: the calls of one process to
//!   another, each with one side.
//! - `--over idle-client`, `--over idle-server`: turns that find nothing, of a poller with one
//!   connection.
//!
//! ```text
//! make count
//! ```
//!
//! runs most of them under valgrind with two different numbers of exchanges. The difference gives the
//! cost of one exchange.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use benches::Outcome;
use benches::message::{FIXED_SIZE, Load, Shape};
use benches::service::{Echo, intents_for};
use benches::streams::message::{Numbered, Reader};
use benches::streams::rate::endless;
use benches::streams::service::Streams;
use clap::{Parser, ValueEnum};
use prost::Message as _;
use proto::bench::SubscribeRequest;
use proto::bench::{BenchClient, BenchServer, BenchStreamsClient, BenchStreamsServer, Fixed};
use rpc_core::frame::HEADER_LEN;
use rpc_core::intercept::Interceptor;
use rpc_core::transport::{Admission, Admitted, ConnectionId, ConnectionQuota, Event, Refusal};
use rpc_core::transport::{Fabric, Listener, Transport};
use rpc_core::{CallError, Intents, LocalChannel, LocalPoller, Sender, Service, Streaming, sender};
use rpc_core_testing::{Clock, Node, SharedNode, block_on_between_turns};
use rpc_transport_verbs::{Device, VerbsTransport};
use verbline_load::run_all;

/// Makes exchanges on one thread, for callgrind to count
#[derive(Parser)]
struct Cli {
    /// Which layer carries the exchanges
    #[arg(long, value_enum, default_value = "call")]
    over: ExchangeLayer,
    /// Number of exchanges: one message in each direction, or one turn
    #[arg(long, default_value_t = 10_000)]
    calls: usize,
    /// Serve the calls of another process, and print the address
    #[arg(long, conflicts_with = "server")]
    serve: bool,
    /// The address of a process that serves the calls
    #[arg(long, value_name = "ADDRESS")]
    server: Option<String>,
    /// Length in bytes of the field of `--over bytes`
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Number of connections of `--over connections`
    #[arg(long, default_value_t = 60)]
    connections: usize,
    /// One call in this many is timed, on each side
    #[arg(long, default_value_t = Intents::default().latency_sampling)]
    latency_sampling: u32,
    /// Interceptors that do nothing, on the client: 0, but for the layers that have some
    #[arg(long)]
    client_interceptors: Option<usize>,
    /// Interceptors that do nothing, on the server
    #[arg(long)]
    server_interceptors: Option<usize>,
}

/// What both sides of calls have.
#[derive(Clone, Copy)]
struct Settings {
    latency_sampling: u32,
    client_interceptors: usize,
    server_interceptors: usize,
}

/// An interceptor that does nothing.
struct Idle;

impl Interceptor for Idle {}

#[derive(Clone, Copy, ValueEnum)]
enum ExchangeLayer {
    /// Calls, over the software device
    Call,
    /// The same with an interceptor on each side, which does nothing
    Intercepted,
    /// The same with three on each side
    InterceptedThrice,
    /// Calls, over the software device and TCP
    Tcp,
    /// Calls with a `bytes` field, over the software device
    Bytes,
    /// Calls, 32 in flight, over the software device
    Burst,
    /// Calls over many connections in turn, over the software device
    Connections,
    /// Frames of the same length, over the software device
    Soft,
    /// Calls through a shared channel, whose poller is stepped
    Shared,
    /// Messages of a server stream, over the software device
    Stream,
    /// Messages there and back on an open stream, over the software device
    PingPong,
    /// Server streams with one message each, over the software device
    FirstMessage,
    /// Empty turns of a client with one connection
    IdleClient,
    /// Empty turns of a server with one connection
    IdleServer,
}

/// Calls in flight of `--over burst`.
const IN_FLIGHT: usize = 32;

const DEVICE: &str = "soft";

/// Handshake timeout. It is long because valgrind is slow and runs all threads on one core.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

impl Cli {
    fn run(&self) -> Outcome<()> {
        self.exchange()?;
        // `count` looks for it.
        println!("{} exchanges made", self.calls);
        Ok(())
    }

    fn settings(&self) -> Settings {
        let interceptors = match self.over {
            ExchangeLayer::Intercepted => 1,
            ExchangeLayer::InterceptedThrice => 3,
            _ => 0,
        };
        Settings {
            latency_sampling: self.latency_sampling,
            client_interceptors: self.client_interceptors.unwrap_or(interceptors),
            server_interceptors: self.server_interceptors.unwrap_or(interceptors),
        }
    }

    fn device(&self) -> &'static str {
        match self.over {
            ExchangeLayer::Tcp => "tcp",
            _ => DEVICE,
        }
    }

    fn exchange(&self) -> Outcome<()> {
        let Load::Fixed(message) = Load::new(Shape::Fixed64, FIXED_SIZE)? else {
            return Err("the smallest call has a fixed message".into());
        };
        if self.serve {
            return self.serve(message);
        }
        if let Some(address) = &self.server {
            return self.call(address, message);
        }
        match self.over {
            ExchangeLayer::Call
            | ExchangeLayer::Intercepted
            | ExchangeLayer::InterceptedThrice
            | ExchangeLayer::Tcp => {
                let calls = Calls::open(self.device(), message, self.settings())?;
                let server = calls.server.node.poller();
                let between_turns = || {
                    server.turn();
                };
                exchange_calls(
                    &calls.client,
                    &calls.stub,
                    message,
                    self.calls,
                    between_turns,
                )
            }
            ExchangeLayer::Bytes => {
                let calls = Calls::open(self.device(), message, self.settings())?;
                let blob = Load::new(Shape::Bytes, self.size)?;
                let server = calls.server.node.poller();
                exchange_blobs(&calls.client, &calls.stub, server, blob, self.calls)
            }
            ExchangeLayer::Burst => {
                let calls = Calls::open(self.device(), message, self.settings())?;
                let server = calls.server.node.poller();
                exchange_burst(&calls.client, &calls.stub, server, message, self.calls)
            }
            ExchangeLayer::Connections => {
                let calls = Calls::open(self.device(), message, self.settings())?;
                let stubs = calls.connect(self.connections, message)?;
                let server = calls.server.node.poller();
                exchange_in_turn(&calls.client, &stubs, server, message, self.calls)
            }
            ExchangeLayer::Soft => {
                let mut frames = Frames::open(message.encoded_len())?;
                exchange_frames(&mut frames, self.calls)
            }
            ExchangeLayer::Shared => share(message, self.calls, self.settings()),
            ExchangeLayer::Stream => {
                let calls = Calls::open(self.device(), message, self.settings())?;
                let response = calls.prepare(calls.streams.subscribe_fixed(endless(0)))?;
                let mut reader = Reader::new(response.into_inner(), 0);
                let server = calls.server.node.poller();
                exchange_messages(&calls.client, &mut reader, server, self.calls)
            }
            ExchangeLayer::PingPong => {
                let calls = Calls::open(self.device(), message, self.settings())?;
                let (sender, requests) = sender();
                let response = calls.prepare(calls.streams.ping_pong(requests))?;
                let (messages, server) = (response.into_inner(), calls.server.node.poller());
                exchange_ping_pong(&calls.client, sender, messages, server, self.calls)
            }
            ExchangeLayer::FirstMessage => {
                let calls = Calls::open(self.device(), message, self.settings())?;
                let server = calls.server.node.poller();
                exchange_streams(&calls.client, &calls.streams, server, self.calls)
            }
            ExchangeLayer::IdleClient => {
                exchange_nothing(
                    &Calls::open(self.device(), message, self.settings())?.client,
                    self.calls,
                );
                Ok(())
            }
            ExchangeLayer::IdleServer => {
                exchange_nothing(
                    Calls::open(self.device(), message, self.settings())?
                        .server
                        .node
                        .poller(),
                    self.calls,
                );
                Ok(())
            }
        }
    }
}

impl Cli {
    /// Answers the calls of a process that was started with `--server`, and one more that prepares it.
    fn serve(&self, message: Fixed) -> Outcome<()> {
        let server = Server::open(self.device(), message, self.settings())?;
        println!("{}", server.address());
        let poller = server.node.poller();
        let wait_for = |calls: usize| {
            while Echo::calls_of_this_thread() < calls as u64 {
                server.node.step();
                thread::yield_now();
            }
        };
        wait_for(1);
        exchange_requests(poller, 1 + self.calls);
        // The last response leaves, and the client has it before it closes the connection.
        while poller.stats().total().connections.open() > 0 {
            server.node.step();
            thread::yield_now();
        }
        Ok(())
    }

    /// Makes calls to a process that was started with `--serve`.
    fn call(&self, address: &str, message: Fixed) -> Outcome<()> {
        let client = LocalPoller::builder(&Device::open(self.device())?)
            .intents(intents_for(message.encoded_len()))
            .connect_timeout(CONNECT_TIMEOUT)
            .build()?;
        let stub = BenchClient::new(client.connect(address)?);
        block_on_between_turns(&client, stub.echo_fixed(message), thread::yield_now)??;
        exchange_calls(&client, &stub, message, self.calls, thread::yield_now)
    }
}

// Callgrind selects these functions by name and counts only the thread that runs them. The device's
// own threads work by the clock, so their share would differ from run to run.

#[inline(never)]
fn exchange_calls(
    client: &LocalPoller,
    stub: &BenchClient<LocalChannel>,
    mut message: Fixed,
    calls: usize,
    between_turns: impl FnMut(),
) -> Outcome<()> {
    let exchanges = async {
        for _ in 0..calls {
            // Each call sends a different message.
            message.a = message.a.wrapping_add(2);
            let answer = stub.echo_fixed(message).await?.into_inner();
            assert_eq!(answer, message, "the server must echo the request");
        }
        Ok(())
    };
    block_on_between_turns(client, exchanges, between_turns)?
}

#[inline(never)]
fn exchange_in_turn(
    client: &LocalPoller,
    stubs: &[BenchClient<LocalChannel>],
    server: &LocalPoller,
    mut message: Fixed,
    calls: usize,
) -> Outcome<()> {
    let exchanges = async {
        for stub in stubs.iter().cycle().take(calls) {
            message.a = message.a.wrapping_add(2);
            let answer = stub.echo_fixed(message).await?.into_inner();
            assert_eq!(answer, message, "the server must echo the request");
        }
        Ok(())
    };
    block_on_between_turns(client, exchanges, || {
        server.turn();
    })?
}

#[inline(never)]
fn exchange_burst(
    client: &LocalPoller,
    stub: &BenchClient<LocalChannel>,
    server: &LocalPoller,
    message: Fixed,
    calls: usize,
) -> Outcome<()> {
    let left = Cell::new(calls);
    let callers = (0..IN_FLIGHT).map(|_| async {
        while let Some(fewer) = left.get().checked_sub(1) {
            left.set(fewer);
            let answer = stub.echo_fixed(message).await?.into_inner();
            assert_eq!(answer, message, "the server must echo the request");
        }
        Ok::<_, CallError>(())
    });
    let callers = run_all(callers);
    block_on_between_turns(client, callers, || {
        server.turn();
    })??;
    Ok(())
}

#[inline(never)]
fn exchange_requests(server: &LocalPoller, calls: usize) {
    while Echo::calls_of_this_thread() < calls as u64 {
        server.turn();
        // The client's process needs the core.
        thread::yield_now();
    }
}

#[inline(never)]
fn exchange_blobs(
    client: &LocalPoller,
    stub: &BenchClient<LocalChannel>,
    server: &LocalPoller,
    mut blob: Load,
    calls: usize,
) -> Outcome<()> {
    let exchanges = async {
        for _ in 0..calls {
            blob.exchange(stub).await?;
        }
        Ok(())
    };
    block_on_between_turns(client, exchanges, || {
        server.turn();
    })?
}

#[inline(never)]
fn exchange_messages(
    client: &LocalPoller,
    reader: &mut Reader<Streaming<Fixed>>,
    server: &LocalPoller,
    messages: usize,
) -> Outcome<()> {
    let exchanges = async {
        for _ in 0..messages {
            reader.read().await?;
        }
        Ok(())
    };
    block_on_between_turns(client, exchanges, || {
        server.turn();
    })?
}

#[inline(never)]
fn exchange_ping_pong(
    client: &LocalPoller,
    mut sender: Sender<Fixed>,
    mut messages: Streaming<Fixed>,
    server: &LocalPoller,
    count: usize,
) -> Outcome<()> {
    let exchanges = async {
        for number in 0..count as u64 {
            let message = Fixed::numbered(number, 0);
            sender.send(message).await?;
            let answer = messages.message().await?;
            assert_eq!(answer, Some(message), "the server must send it back");
        }
        Ok(())
    };
    block_on_between_turns(client, exchanges, || {
        server.turn();
    })?
}

#[inline(never)]
fn exchange_streams(
    client: &LocalPoller,
    stub: &BenchStreamsClient<LocalChannel>,
    server: &LocalPoller,
    streams: usize,
) -> Outcome<()> {
    let request = SubscribeRequest {
        count: 1,
        payload_len: 0,
    };
    let exchanges = async {
        for _ in 0..streams {
            let mut messages = stub.subscribe_fixed(request).await?.into_inner();
            assert!(messages.message().await?.is_some(), "there is one message");
            assert!(messages.message().await?.is_none(), "the stream must end");
        }
        Ok(())
    };
    block_on_between_turns(client, exchanges, || {
        server.turn();
    })?
}

#[inline(never)]
fn exchange_nothing(poller: &LocalPoller, turns: usize) {
    for _ in 0..turns {
        poller.turn();
    }
}

#[inline(never)]
fn exchange_frames(frames: &mut Frames, calls: usize) -> Outcome<()> {
    for _ in 0..calls {
        frames.exchange()?;
    }
    Ok(())
}

#[inline(never)]
fn exchange_caller<F: Future>(call: Pin<&mut F>) -> Poll<F::Output> {
    call.poll(&mut Context::from_waker(Waker::noop()))
}

#[inline(never)]
fn exchange_poller(node: &SharedNode<VerbsTransport>) {
    node.step();
}

/// A server of the software device, which is stepped on this thread.
struct Server {
    device: Device,
    intents: Intents,
    node: Node<VerbsTransport>,
    listener: Box<dyn Listener>,
}

impl Server {
    fn open(device: &str, message: Fixed, settings: Settings) -> Outcome<Self> {
        let device = Device::open(device)?;
        let intents = Intents {
            latency_sampling: settings.latency_sampling,
            ..intents_for(message.encoded_len())
        };
        let transport = device.open(&intents)?;
        let ports = vec![device.port(&transport)];
        let node = Node::over(transport, &Clock::system(), |methods| {
            let idle = (0..settings.server_interceptors).map(|_| Idle);
            let server = BenchServer::per_poller(|| Echo);
            idle.fold(server, BenchServer::interceptor)
                .register(methods);
            BenchStreamsServer::per_poller(Streams::default).register(methods);
        });
        let listener = device.listen(
            device.bind("127.0.0.1:0")?,
            ports,
            Arc::clone(node.admission()),
        )?;
        Ok(Self {
            device,
            intents,
            node,
            listener,
        })
    }

    fn address(&self) -> String {
        self.listener.local_addr().to_string()
    }
}

/// A client and a server.
struct Calls {
    client: LocalPoller,
    server: Server,
    stub: BenchClient<LocalChannel>,
    streams: BenchStreamsClient<LocalChannel>,
}

impl Calls {
    fn open(device: &str, message: Fixed, settings: Settings) -> Outcome<Self> {
        let server = Server::open(device, message, settings)?;
        let client = LocalPoller::builder(&server.device)
            .intents(server.intents.clone())
            .connect_timeout(CONNECT_TIMEOUT)
            .build()?;
        let channel = client.connect(&server.address())?;
        let idle = (0..settings.client_interceptors).map(|_| Idle);
        let channel = idle.fold(channel, |channel, idle| channel.with_interceptor(idle));
        let this = Self {
            client,
            server,
            stub: BenchClient::new(channel.clone()),
            streams: BenchStreamsClient::new(channel),
        };
        this.prepare(this.stub.echo_fixed(message))?;
        Ok(this)
    }

    /// Connects so often, with a call over each connection that is not counted.
    fn connect(&self, count: usize, message: Fixed) -> Outcome<Vec<BenchClient<LocalChannel>>> {
        let connect = |_| -> Outcome<_> {
            let channel = self.client.connect(&self.server.address())?;
            let stub = BenchClient::new(channel);
            self.prepare(stub.echo_fixed(message))?;
            Ok(stub)
        };
        (0..count).map(connect).collect()
    }

    /// Makes a call that is not counted.
    fn prepare<R>(&self, call: impl Future<Output = Result<R, CallError>>) -> Outcome<R> {
        // The device's thread may still be connecting the two sides, so the first call may have to
        // wait for it.
        Ok(block_on_between_turns(&self.client, call, || {
            self.server.node.step();
            // Valgrind runs one thread at a time.
            thread::yield_now();
        })??)
    }
}

/// Makes calls one by one through a shared channel: the caller's thread and the poller's take turns.
fn share(mut message: Fixed, calls: usize, settings: Settings) -> Outcome<()> {
    let server = Server::open(DEVICE, message, settings)?;
    let transport = server.device.open(&server.intents)?;
    let client = SharedNode::over(transport, &Clock::system(), &server.address(), 1);
    let idle = (0..settings.client_interceptors).map(|_| Idle);
    let channel = client.channel().clone();
    let channel = idle.fold(channel, |channel, idle| channel.with_interceptor(idle));
    let stub = BenchClient::new(channel);
    for _ in 0..calls {
        message.a = message.a.wrapping_add(2);
        let mut call = pin!(stub.echo_fixed(message));
        let answer = loop {
            if let Poll::Ready(answer) = exchange_caller(call.as_mut()) {
                break answer?.into_inner();
            }
            exchange_poller(&client);
            server.node.step();
            exchange_poller(&client);
            // The device's thread may still be connecting the two sides.
            thread::yield_now();
        };
        assert_eq!(answer, message, "the server must echo the request");
    }
    Ok(())
}

/// Two connected transports of one device.
struct Frames {
    client: End,
    server: End,
    frame: Vec<u8>,
    /// Keeps the address open.
    _listener: Box<dyn Listener>,
}

/// One side: a transport with a single connection.
struct End {
    transport: VerbsTransport,
    connection: ConnectionId,
}

impl Frames {
    fn open(encoded_len: usize) -> Outcome<Self> {
        let device = Device::open(DEVICE)?;
        let intents = intents_for(encoded_len);
        let mut server = device.open(&intents)?;
        let ports = vec![device.port(&server)];
        let listener = device.listen(device.bind("127.0.0.1:0")?, ports, Arc::new(AdmitAll))?;
        let mut client = device.open(&intents)?;
        let address = listener.local_addr().to_string();
        let connected = client.connect(&address, b"", CONNECT_TIMEOUT)?;
        let accepted = accept(&mut server)?;
        let end = |transport, connection| End {
            transport,
            connection,
        };
        let mut this = Self {
            client: end(client, connected.connection),
            server: end(server, accepted),
            frame: vec![0x5a; HEADER_LEN + encoded_len],
            _listener: listener,
        };
        // The device's thread may still be connecting the two sides, so the first frames may have
        // to wait for it.
        this.exchange()?;
        Ok(this)
    }

    /// Sends one frame in each direction.
    #[inline]
    fn exchange(&mut self) -> Outcome<()> {
        self.client.send(&mut self.frame)?;
        self.server.receive(&self.frame)?;
        self.server.send(&mut self.frame)?;
        self.client.receive(&self.frame)
    }
}

fn accept(server: &mut VerbsTransport) -> Outcome<ConnectionId> {
    loop {
        match server.poll() {
            Some(Event::Accepted { connection, .. }) => return Ok(connection),
            Some(event) => return Err(format!("got {event:?} before a connection").into()),
            None => thread::yield_now(),
        }
    }
}

impl End {
    #[inline]
    fn send(&mut self, frame: &mut [u8]) -> Outcome<()> {
        let complete = |_: &mut [u8]| Some(());
        self.transport
            .send_inline(self.connection, frame, complete)?;
        self.transport.flush();
        Ok(())
    }

    /// Polls until a frame arrives, and checks that it equals `frame`.
    #[inline]
    fn receive(&mut self, frame: &[u8]) -> Outcome<()> {
        loop {
            match self.transport.poll() {
                Some(Event::Received { buf, .. }) if buf.as_ref() == frame => {
                    self.transport.release(buf);
                    return Ok(());
                }
                Some(event) => return Err(format!("got {event:?} instead of the frame").into()),
                // Valgrind runs one thread at a time.
                None => thread::yield_now(),
            }
        }
    }
}

struct AdmitAll;

impl Admission for AdmitAll {
    fn admit(&self, session: &[u8]) -> Result<Admitted, Refusal> {
        let quota = ConnectionQuota::acquire(&Arc::new(AtomicUsize::new(0)));
        Ok(Admitted::new(0, session.to_vec(), Vec::new(), quota))
    }
}

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}
