//! The measured clients: what a local and a shared one have in common, and the local client on the
//! measuring thread.

use std::cell::Cell;
use std::error::Error;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Instant;

use proto::bench::{BenchClient, BenchStreamsClient, StatsReply, StatsRequest};
use proto::bulk::BulkClient;
use rpc_core::{CallError, Caller, Intents, LocalChannel, LocalPoller};
use rpc_transport_verbs::Device;
use rustix::process::getpid;

use crate::child::{Process, resident};
use crate::cores::Cores;
use crate::message::Load;
use crate::role::Role;
use crate::service::ServerArgs;
use crate::slices::{Side, Stopwatch, UNRECORDED};
use crate::{Outcome, allocations};

/// A client with its own server process. This thread waits for its responses.
pub trait Client {
    /// What carries the calls.
    type Channel: Caller + Clone;

    /// Returns the channel of the first connection.
    fn channel(&self) -> Self::Channel;

    /// Returns the server's process.
    fn server(&self) -> &Process;

    /// Returns the server's process, to talk with it.
    fn server_mut(&mut self) -> &mut Process;

    /// Waits for a future on this thread.
    fn block_on<F: Future>(&self, future: F) -> F::Output;

    /// Waits for a future that is also to be polled at the times in `due`.
    fn block_on_due<F: Future>(&self, due: &Cell<Option<Instant>>, future: F) -> F::Output;

    /// Returns a client of the unary methods.
    fn client(&self) -> BenchClient<Self::Channel> {
        BenchClient::new(self.channel())
    }

    /// Returns a client of the streaming methods.
    fn streams(&self) -> BenchStreamsClient<Self::Channel> {
        BenchStreamsClient::new(self.channel())
    }

    /// Lets the server continue until a future is ready.
    ///
    /// # Errors
    ///
    /// Returns the error of the future, or fails if the server has ended.
    fn in_turn<T, E>(&self, turn: impl Future<Output = Result<T, E>>) -> Outcome<T>
    where
        Box<dyn Error>: From<E>,
    {
        self.server().in_turn(|| self.block_on(turn))
    }

    /// Returns the server's counters. The server must not be paused.
    ///
    /// # Errors
    ///
    /// Returns the call's error.
    fn stats(&self) -> Outcome<StatsReply> {
        let client = self.client();
        Ok(self.block_on(client.stats(StatsRequest {}))?.into_inner())
    }

    /// Returns the resident memory of this process and of the server's, in bytes.
    ///
    /// # Errors
    ///
    /// Fails if the system does not report it.
    fn resident(&self) -> Outcome<[u64; 2]> {
        Ok([resident(getpid())?, resident(self.server().pid())?])
    }

    /// Returns the growth of the memory of both since an earlier reading, for each of `count` things.
    ///
    /// # Errors
    ///
    /// Fails if the system does not report it.
    fn growth_per(&self, earlier: [u64; 2], count: usize) -> Outcome<[u64; 2]> {
        let now = self.resident()?;
        Ok([0, 1].map(|side| now[side].saturating_sub(earlier[side]) / count.max(1) as u64))
    }
}

/// A client on this thread, connected to its own server process.
pub struct Rpc {
    // Declared before the server, so that connections end before their peer does.
    channels: Vec<LocalChannel>,
    poller: LocalPoller,
    server: Process,
    address: String,
}

impl Client for Rpc {
    type Channel = LocalChannel;

    fn channel(&self) -> LocalChannel {
        self.channels[0].clone()
    }

    fn server(&self) -> &Process {
        &self.server
    }

    fn server_mut(&mut self) -> &mut Process {
        &mut self.server
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.poller.block_on(future)
    }

    /// Polls the future in each turn of the poller.
    fn block_on_due<F: Future>(&self, _: &Cell<Option<Instant>>, future: F) -> F::Output {
        let mut future = pin!(future);
        self.poller.block_on(poll_fn(|cx| {
            cx.waker().wake_by_ref();
            future.as_mut().poll(cx)
        }))
    }
}

impl Rpc {
    /// Starts the server process on the server's core, and connects once, from a thread that is not
    /// pinned.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start(device: &Device, cores: Cores, intents: &Intents) -> Outcome<Self> {
        let args = ServerArgs::new(device.name(), cores.server, intents);
        Self::start_with(device, args, intents)
    }

    /// Starts the server process, pins the calling thread, and connects once. The thread must not be
    /// pinned before this is called for the first time.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start_pinned(device: &Device, cores: Cores, intents: &Intents) -> Outcome<Self> {
        let args = ServerArgs::new(device.name(), cores.server, intents);
        Self::start_with(device, args, &cores.on_client_core(intents))
    }

    /// Does the same with a server that is told something else than the client's intents, which say
    /// whether the thread is pinned.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start_with(device: &Device, args: ServerArgs, intents: &Intents) -> Outcome<Self> {
        let (server, address) = Process::start(&Role::Calls(args))?;
        let poller = LocalPoller::builder(device)
            .intents(intents.clone())
            .build()?;
        let mut rpc = Self {
            channels: Vec::new(),
            poller,
            server,
            address,
        };
        rpc.connect(1)?;
        Ok(rpc)
    }

    /// Opens more connections.
    ///
    /// # Errors
    ///
    /// Fails if the server rejects one.
    pub fn connect(&mut self, count: usize) -> Outcome<()> {
        for _ in 0..count {
            self.channels.push(self.poller.connect(&self.address)?);
        }
        Ok(())
    }

    /// Returns a client of the unary methods for each connection.
    #[must_use]
    pub fn clients(&self) -> Vec<BenchClient<LocalChannel>> {
        let channels = self.channels.iter().cloned();
        channels.map(BenchClient::new).collect()
    }

    /// Returns a client of messages of any size, over a new connection.
    ///
    /// # Errors
    ///
    /// Fails if the server rejects the connection.
    pub fn bulk(&self) -> Outcome<BulkClient<LocalChannel>> {
        Ok(BulkClient::new(self.poller.connect(&self.address)?))
    }

    /// Returns the server's address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns this thread's poller.
    #[must_use]
    pub fn poller(&self) -> &LocalPoller {
        &self.poller
    }
}

/// Makes one call at a time.
pub struct ClosedLoop {
    client: BenchClient<LocalChannel>,
    rpc: Rpc,
    load: Load,
    /// Number of recorded calls. `allocations` counts the allocations of this process during them.
    calls: u64,
    allocations: u64,
    /// The server's counters before the first recorded call. `allocations_of_a_look` is the cost of
    /// reading them.
    first: StatsReply,
    allocations_of_a_look: u64,
}

impl ClosedLoop {
    /// Warms up both sides and pauses the server until the first turn.
    ///
    /// # Errors
    ///
    /// Returns the error of the first call that fails.
    pub fn new(rpc: Rpc, mut load: Load) -> Outcome<Self> {
        let client = rpc.client();
        let exchange = async || load.exchange(&client).await;
        rpc.block_on(Stopwatch::new(0).time_async(UNRECORDED, 0, exchange))?;
        // The first readings allocate buffers that later ones reuse. Two more readings, with
        // nothing between them, differ by the cost of one reading.
        for _ in 0..UNRECORDED {
            rpc.stats()?;
        }
        let before = rpc.stats()?;
        let first = rpc.stats()?;
        rpc.server.pause()?;
        Ok(Self {
            allocations_of_a_look: first.allocations - before.allocations,
            first,
            client,
            rpc,
            load,
            calls: 0,
            allocations: 0,
        })
    }

    /// Returns the heap allocations per call of the client's and of the server's process, over all
    /// turns. The server's count covers all of its calls, including the unrecorded ones at the
    /// beginning of each turn.
    ///
    /// # Errors
    ///
    /// Fails if the server's counters cannot be read.
    pub fn allocations_per_call(&self) -> Outcome<[f64; 2]> {
        let last = self.rpc.server.in_turn(|| self.rpc.stats())?;
        let by_calls =
            (last.allocations - self.first.allocations).saturating_sub(self.allocations_of_a_look);
        // The last reading is itself a call.
        let calls = last.calls - self.first.calls - 1;
        Ok([
            self.allocations as f64 / self.calls as f64,
            by_calls as f64 / calls as f64,
        ])
    }
}

impl Side for ClosedLoop {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        let Self {
            rpc, client, load, ..
        } = self;
        let mut exchange = async || load.exchange(client).await;
        self.allocations += rpc.in_turn(async {
            stopwatch.time_async(UNRECORDED, 0, &mut exchange).await?;
            let before = allocations::count();
            stopwatch.time_async(0, calls, &mut exchange).await?;
            Ok::<_, CallError>(allocations::count() - before)
        })?;
        self.calls += calls as u64;
        Ok(())
    }
}
