//! The measured client: a local client on the measuring thread, with a server process.

use std::io;
use std::sync::Arc;

use proto::bench::{BenchClient, BenchStreamsClient, StatsReply, StatsRequest};
use proto::bulk::BulkClient;
use rpc_core::transport::{Admission, Fabric, FabricError, Listener};
use rpc_core::{CallError, Intents, LocalChannel, LocalPoller};
use rpc_transport_verbs::Device;

use crate::child::Process;
use crate::cores::{self, Cores};
use crate::message::Load;
use crate::role::Role;
use crate::service::ServerArgs;
use crate::slices::{Side, Stopwatch, UNRECORDED};
use crate::{Outcome, allocations};

/// A client on this thread, connected to its own server process.
pub struct Rpc {
    // Declared before the server, so that connections end before their peer does.
    channels: Vec<LocalChannel>,
    poller: LocalPoller,
    server: Process,
    address: String,
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
        Self::over(device, args, intents)
    }

    /// Starts the server process, pins the calling thread, and connects once. The thread must not be
    /// pinned before this is called for the first time.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start_pinned(device: &Device, cores: Cores, intents: &Intents) -> Outcome<Self> {
        let args = ServerArgs::new(device.name(), cores.server, intents);
        Self::start_pinned_with(device, cores, args, intents)
    }

    /// Does the same with a server that is told something else than the client's intents.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start_pinned_with(
        device: &Device,
        cores: Cores,
        args: ServerArgs,
        intents: &Intents,
    ) -> Outcome<Self> {
        let device = device.clone();
        let core = cores.client;
        Self::over(&OnCore { device, core }, args, intents)
    }

    fn over<F: Fabric>(fabric: &F, args: ServerArgs, intents: &Intents) -> Outcome<Self> {
        let (server, address) = Process::start(&Role::Calls(args))?;
        let poller = LocalPoller::builder(fabric)
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

    /// Returns a client of the unary methods, over the first connection.
    #[must_use]
    pub fn client(&self) -> BenchClient<LocalChannel> {
        BenchClient::new(self.channels[0].clone())
    }

    /// Returns a client of the streaming methods, over the first connection.
    #[must_use]
    pub fn streams(&self) -> BenchStreamsClient<LocalChannel> {
        BenchStreamsClient::new(self.channels[0].clone())
    }

    /// Returns a client of messages of any size, over a new connection.
    ///
    /// # Errors
    ///
    /// Fails if the server rejects the connection.
    pub fn bulk(&self) -> Outcome<BulkClient<LocalChannel>> {
        Ok(BulkClient::new(self.poller.connect(&self.address)?))
    }

    /// Returns this thread's poller.
    #[must_use]
    pub fn poller(&self) -> &LocalPoller {
        &self.poller
    }

    /// Returns the server's process.
    #[must_use]
    pub fn server(&self) -> &Process {
        &self.server
    }

    /// Returns the server's counters. The server must not be paused.
    ///
    /// # Errors
    ///
    /// Returns the call's error.
    pub fn stats(&self) -> Outcome<StatsReply> {
        let client = self.client();
        let reply = client.stats(StatsRequest {});
        Ok(self.poller.block_on(reply)?.into_inner())
    }
}

/// Pins the thread that opens a transport, as a server does. A poller counts the cores that the
/// process may use before it opens its transport, so the count is not that of the pinned thread; and
/// the transport's memory comes from the core's own NUMA node.
#[derive(Clone)]
struct OnCore {
    device: Device,
    core: usize,
}

impl Fabric for OnCore {
    type Transport = <Device as Fabric>::Transport;
    type Port = <Device as Fabric>::Port;

    fn open(&self, intents: &Intents) -> Result<Self::Transport, FabricError> {
        cores::pin_current_thread(self.core).map_err(|error| FabricError::Device {
            device: self.device.name().to_owned(),
            action: format!("cannot be used from core {}", self.core),
            source: error.into(),
        })?;
        self.device.open(intents)
    }

    fn port(&self, transport: &Self::Transport) -> Self::Port {
        self.device.port(transport)
    }

    fn listen(
        &self,
        address: &str,
        ports: Vec<Self::Port>,
        admission: Arc<dyn Admission>,
    ) -> Result<Box<dyn Listener>, FabricError> {
        self.device.listen(address, ports, admission)
    }

    fn check_address(&self, address: &str) -> io::Result<()> {
        self.device.check_address(address)
    }

    fn allowed_cores(&self) -> Vec<usize> {
        self.device.allowed_cores()
    }

    fn pin_current_thread(&self, core: usize) -> Result<(), io::Error> {
        self.device.pin_current_thread(core)
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

/// Heap allocations per call.
#[derive(Clone, Copy, Debug)]
pub struct AllocationsPerCall {
    /// In the client's process.
    pub client: f64,
    /// In the server's process.
    pub server: f64,
}

impl ClosedLoop {
    /// Warms up both sides and pauses the server until the first turn.
    ///
    /// # Errors
    ///
    /// Returns the error of the first call that fails.
    pub fn new(rpc: Rpc, load: Load) -> Outcome<Self> {
        let mut this = Self {
            client: rpc.client(),
            rpc,
            load,
            calls: 0,
            allocations: 0,
            first: StatsReply::default(),
            allocations_of_a_look: 0,
        };
        let Self {
            rpc, client, load, ..
        } = &mut this;
        let mut stopwatch = Stopwatch::new(0);
        let exchange = async || load.exchange(client).await;
        rpc.poller
            .block_on(stopwatch.time_async(UNRECORDED, 0, exchange))?;
        // The first readings allocate buffers that later ones reuse. Two more readings, with
        // nothing between them, differ by the cost of one reading.
        for _ in 0..UNRECORDED {
            this.rpc.stats()?;
        }
        let before = this.rpc.stats()?;
        this.first = this.rpc.stats()?;
        this.allocations_of_a_look = this.first.allocations - before.allocations;
        this.rpc.server.pause()?;
        Ok(this)
    }

    /// Returns the allocations per call over all turns. The server's count covers all of its calls,
    /// including the unrecorded ones at the beginning of each turn.
    ///
    /// # Errors
    ///
    /// Fails if the server's counters cannot be read.
    pub fn allocations_per_call(&self) -> Outcome<AllocationsPerCall> {
        let last = self.rpc.server.in_turn(|| self.rpc.stats())?;
        let by_calls =
            (last.allocations - self.first.allocations).saturating_sub(self.allocations_of_a_look);
        // The last reading is itself a call.
        let calls = last.calls - self.first.calls - 1;
        Ok(AllocationsPerCall {
            client: self.allocations as f64 / self.calls as f64,
            server: by_calls as f64 / calls as f64,
        })
    }
}

impl Side for ClosedLoop {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        let Self {
            rpc, client, load, ..
        } = self;
        let mut exchange = async || load.exchange(client).await;
        let allocated = rpc.server.in_turn(|| {
            rpc.poller.block_on(async {
                stopwatch.time_async(UNRECORDED, 0, &mut exchange).await?;
                let before = allocations::count();
                stopwatch.time_async(0, calls, &mut exchange).await?;
                Ok::<_, CallError>(allocations::count() - before)
            })
        })?;
        self.calls += calls as u64;
        self.allocations += allocated;
        Ok(())
    }
}
