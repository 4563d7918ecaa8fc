//! Makes exchanges for callgrind to count, with both sides on one thread and stepped in turn, so
//! that the count is the same in every run:
//!
//! - `--over pair`: calls over the loopback transport of core's tests. All of core, both sides, with
//!   encoding and decoding, and with the loopback that stands in for the device.
//! - `--over soft`: frames as long as those of such a call, over the software device. All of the
//!   transport, both sides, with the device under it, and nothing of core.
//! - `--over verbs`: a raw ping-pong, messages of the same length over the verbs layer alone, signaled, each
//!   into a receive that is posted again.
//!
//! ```text
//! make count
//! ```
//!
//! runs each under valgrind for two numbers of exchanges; the difference is the cost of one.
#![forbid(unsafe_code)]
// A benchmark's product is what it prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread;
use std::time::Duration;

use benches::Outcome;
use benches::message::{FIXED_SIZE, Load, Shape};
use benches::service::{Echo, intents_for};
use clap::{Parser, ValueEnum};
use proto::bench::{BenchClient, BenchServer};
use rpc_core::frame::HEADER_LEN;
use rpc_core::testing::Pair;
use rpc_core::transport::{Admission, Admitted, ConnectionId, Event, Permit, Refusal};
use rpc_core::transport::{Fabric, Listener, Transport};
use rpc_core::{CallError, LocalChannel, Service};
use rpc_transport_verbs::verbs::{
    Access, AddressWish, CompletionQueue, Context, Psn, QueuePair, QueuePairConfig, RemoteEndpoint,
    RtrAttributes, RtsAttributes, SendRequest, Slot, WorkCompletion, WorkKind,
};
use rpc_transport_verbs::{Device, RecvBuf, VerbsTransport};

/// Makes exchanges on one thread, for callgrind to count.
#[derive(Parser)]
struct Cli {
    /// What carries them
    #[arg(long, value_enum, default_value = "pair")]
    over: Over,
    /// Exchanges to make: a message there, and one back
    #[arg(long, default_value_t = 10_000)]
    calls: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum Over {
    /// Calls, over the loopback transport of core's tests
    Pair,
    /// Frames of the same length, over the software device
    Soft,
    /// Raw messages of the same length, over the verbs layer and the software device
    Verbs,
}

/// How long the handshake may take: valgrind runs every thread on one core, and slowly.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

impl Cli {
    fn run(&self) -> Outcome<()> {
        let load = Load::new(Shape::Fixed64, FIXED_SIZE)?;
        match self.over {
            Over::Pair => {
                let pair = Pair::new(|methods| {
                    BenchServer::per_poller(Echo::default).register(methods);
                });
                let client = BenchClient::new(pair.connect());
                exchange_calls(&pair, &client, load, self.calls)?;
            }
            Over::Soft => {
                let mut frames = Frames::open("soft", load.encoded_len())?;
                exchange_frames(&mut frames, self.calls)?;
            }
            Over::Verbs => {
                let mut sides = PingPong::open("soft", HEADER_LEN + load.encoded_len())?;
                exchange_messages(&mut sides, self.calls)?;
            }
        }
        println!("{} exchanges made", self.calls);
        Ok(())
    }
}

// Callgrind counts what runs in these three, by their names, and on the thread that is in them: the
// device's own threads work by the clock, so their share would differ from run to run.

#[inline(never)]
fn exchange_calls(
    pair: &Pair,
    client: &BenchClient<LocalChannel>,
    mut load: Load,
    calls: usize,
) -> Result<(), CallError> {
    pair.run(async {
        for _ in 0..calls {
            load.exchange(client).await?;
        }
        Ok(())
    })
}

#[inline(never)]
fn exchange_frames(frames: &mut Frames, calls: usize) -> Outcome<()> {
    for _ in 0..calls {
        frames.exchange()?;
    }
    Ok(())
}

#[inline(never)]
fn exchange_messages(sides: &mut PingPong, exchanges: usize) -> Outcome<()> {
    for _ in 0..exchanges {
        sides.exchange()?;
    }
    Ok(())
}

/// Two queue pairs of one device, connected.
struct PingPong {
    sides: [Side; 2],
    len: usize,
}

/// One side, with its only queue pair.
struct Side {
    cq: CompletionQueue,
    qp: QueuePair,
    free: Vec<Slot>,
    /// Kept for their memory.
    list: Vec<SendRequest>,
    completions: Vec<WorkCompletion>,
}

impl PingPong {
    fn open(device: &str, len: usize) -> Outcome<Self> {
        let context = Context::open(device)?;
        let address = context.choose_address(AddressWish::default())?;
        let mut sides = [Side::open(&context)?, Side::open(&context)?];
        let psn = Psn::new(1);
        let endpoints = sides.each_ref().map(|side| RemoteEndpoint {
            gid: address.gid,
            lid: address.lid,
            qp_num: side.qp.qp_num(),
            psn,
        });
        for (side, remote) in sides.iter_mut().zip(endpoints.into_iter().rev()) {
            side.qp.to_init(address.port, Access::NONE)?;
            side.qp.to_rtr(RtrAttributes {
                sgid_index: address.gid_index,
                ..RtrAttributes::new(remote)
            })?;
        }
        for side in &mut sides {
            side.qp.to_rts(RtsAttributes::new(psn))?;
            side.qp.post_recv(&mut side.free, 8)?;
        }
        let mut this = Self { sides, len };
        // The device's thread may still be joining the two.
        this.exchange()?;
        Ok(this)
    }

    /// A message there, and one back.
    #[inline]
    fn exchange(&mut self) -> Outcome<()> {
        let [client, server] = &mut self.sides;
        client.send(self.len)?;
        server.receive(self.len)?;
        server.send(self.len)?;
        client.receive(self.len)
    }
}

impl Side {
    fn open(context: &Context) -> Outcome<Self> {
        let domain = context.alloc_pd()?;
        let cq = context.create_cq(64)?;
        let qp = domain.create_qp(QueuePairConfig::new(&cq, &cq))?;
        let free = domain
            .register(64 * 256, Access::LOCAL_WRITE)?
            .into_slots(256);
        Ok(Self {
            cq,
            qp,
            free,
            list: Vec::new(),
            completions: Vec::new(),
        })
    }

    #[inline]
    fn send(&mut self, len: usize) -> Outcome<()> {
        let slot = self.free.pop().ok_or("no slot is free")?;
        self.list.push(SendRequest::new(slot, len).signaled());
        let free = &mut self.free;
        self.qp
            .post_send(&mut self.list, &mut |slot| free.push(slot))?;
        Ok(())
    }

    /// Polls until a message has come, and posts its receive again; sends that have completed meanwhile give
    /// their slots back.
    #[inline]
    fn receive(&mut self, len: usize) -> Outcome<()> {
        loop {
            self.cq.poll(&mut self.completions, 8)?;
            let mut has_come = false;
            for completion in self.completions.drain(..) {
                if completion.wr_id().kind() == Some(WorkKind::Send) {
                    let free = &mut self.free;
                    self.qp
                        .complete_send(completion, &mut |slot| free.push(slot))?;
                    continue;
                }
                let (slot, came) = self.qp.claim_recv(completion)?;
                if came != len {
                    return Err(format!("{came} bytes came instead of {len}").into());
                }
                self.free.push(slot);
                self.qp.post_recv(&mut self.free, 1)?;
                has_come = true;
            }
            if has_come {
                return Ok(());
            }
            // Valgrind lets one thread run at a time.
            thread::yield_now();
        }
    }
}

/// Two transports of one device, connected.
struct Frames {
    client: End,
    server: End,
    frame: Vec<u8>,
    /// Holds the address open.
    _listener: Box<dyn Listener>,
}

/// One side: a transport with its only connection.
struct End {
    transport: VerbsTransport,
    connection: ConnectionId,
    /// Kept for its memory.
    events: Vec<Event<RecvBuf>>,
}

impl Frames {
    fn open(device: &str, encoded_len: usize) -> Outcome<Self> {
        let device = Device::open(device)?;
        let intents = intents_for(encoded_len);
        let mut server = device.open(&intents)?;
        let ports = vec![device.port(&server)];
        let listener = device.listen("127.0.0.1:0", ports, Arc::new(LetEverybodyIn))?;
        let mut client = device.open(&intents)?;
        let address = listener.local_addr().to_string();
        let connected = client.connect(&address, b"", CONNECT_TIMEOUT)?;
        let accepted = accept(&mut server)?;
        let mut this = Self {
            client: End::new(client, connected.connection),
            server: End::new(server, accepted),
            frame: vec![0x5a; HEADER_LEN + encoded_len],
            _listener: listener,
        };
        // The device's thread may still be joining the two: the first frames may have to wait for it.
        this.exchange()?;
        Ok(this)
    }

    /// A frame there, and one back.
    #[inline]
    fn exchange(&mut self) -> Outcome<()> {
        self.client.send(&self.frame)?;
        self.server.receive(&self.frame)?;
        self.server.send(&self.frame)?;
        self.client.receive(&self.frame)
    }
}

fn accept(server: &mut VerbsTransport) -> Outcome<ConnectionId> {
    let mut events = Vec::new();
    loop {
        server.poll(&mut events);
        match events.pop() {
            Some(Event::Accepted { connection, .. }) => return Ok(connection),
            Some(event) => return Err(format!("{event:?} came before a connection").into()),
            None => thread::yield_now(),
        }
    }
}

impl End {
    fn new(transport: VerbsTransport, connection: ConnectionId) -> Self {
        Self {
            transport,
            connection,
            events: Vec::new(),
        }
    }

    #[inline]
    fn send(&mut self, frame: &[u8]) -> Outcome<()> {
        let mut buf = self.transport.reserve(self.connection, frame.len())?;
        buf.as_mut().copy_from_slice(frame);
        self.transport.send(self.connection, buf)?;
        self.transport.flush();
        Ok(())
    }

    /// Polls until a frame has come, and checks that it is this one.
    #[inline]
    fn receive(&mut self, frame: &[u8]) -> Outcome<()> {
        loop {
            self.transport.poll(&mut self.events);
            match self.events.pop() {
                Some(Event::Received { buf, .. }) if buf.as_ref() == frame => {
                    self.transport.release(buf);
                    return Ok(());
                }
                Some(event) => return Err(format!("{event:?} came instead of the frame").into()),
                // Valgrind lets one thread run at a time.
                None => thread::yield_now(),
            }
        }
    }
}

struct LetEverybodyIn;

impl Admission for LetEverybodyIn {
    fn admit(&self, session: &[u8]) -> Result<Admitted, Refusal> {
        Ok(Admitted {
            poller: 0,
            client_session: session.to_vec(),
            server_session: Vec::new(),
            permit: Permit::of(&Arc::new(AtomicUsize::new(0))),
        })
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
