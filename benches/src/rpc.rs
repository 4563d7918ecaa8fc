//! The measured client: a local client on the measuring thread, with a server process.

use std::io;
use std::sync::Arc;

use proto::bench::{BenchClient, StatsReply, StatsRequest};
use rpc_core::transport::{Admission, Fabric, FabricError, Listener};
use rpc_core::{Intents, LocalChannel, LocalPoller};
use rpc_transport_verbs::Device;

use crate::child::Process;
use crate::cores::{self, Cores};
use crate::message::Load;
use crate::service::ServerArgs;
use crate::slices::{Side, Stopwatch, UNRECORDED};
use crate::{Outcome, allocations};

/// Name of the hidden command that runs [`ServerArgs::serve`].
pub const SERVE: &str = "serve-calls";

/// A client on this thread, connected to its own server process.
pub struct Rpc {
    // Declared before the server, so that connections end before their peer does.
    clients: Vec<BenchClient<LocalChannel>>,
    poller: LocalPoller,
    server: Process,
    address: String,
}

impl Rpc {
    /// Starts the server process on `server_core`, and connects once, from a thread that is not
    /// pinned.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start(device: &str, server_core: usize, intents: &Intents) -> Outcome<Self> {
        Self::over(&Device::open(device)?, device, server_core, intents)
    }

    /// Starts the server process, pins the calling thread, and connects once. The thread must not be
    /// pinned before this is called for the first time.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start_pinned(device: &str, cores: Cores, intents: &Intents) -> Outcome<Self> {
        let fabric = OnCore {
            device: Device::open(device)?,
            core: cores.client,
        };
        Self::over(&fabric, device, cores.server, intents)
    }

    fn over<F: Fabric>(
        fabric: &F,
        device: &str,
        server_core: usize,
        intents: &Intents,
    ) -> Outcome<Self> {
        let (server, address) = start_server(device, server_core, intents)?;
        let poller = LocalPoller::builder(fabric)
            .intents(intents.clone())
            .build()?;
        let mut rpc = Self {
            clients: Vec::new(),
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
            let channel = self.poller.connect(&self.address)?;
            self.clients.push(BenchClient::new(channel));
        }
        Ok(())
    }

    /// Returns a client for each connection.
    #[must_use]
    pub fn clients(&self) -> &[BenchClient<LocalChannel>] {
        &self.clients
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

    /// Returns the server's address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the server's counters. The server must not be paused.
    ///
    /// # Errors
    ///
    /// Returns the call's error.
    pub fn stats(&self) -> Outcome<StatsReply> {
        let reply = self.clients[0].stats(StatsRequest {});
        Ok(self.poller.block_on(reply)?.into_inner())
    }
}

/// Pins the thread that opens a transport, as a server does. A poller counts the cores that the
/// process may use before it opens its transport, so the count is not that of the pinned thread; and
/// the transport's memory comes from the core's own NUMA node.
#[derive(Clone)]
pub(crate) struct OnCore {
    pub(crate) device: Device,
    pub(crate) core: usize,
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

/// Starts a server process for the clients of this program, and returns its address.
///
/// # Errors
///
/// Fails if the server cannot be started.
pub fn start_server(device: &str, core: usize, intents: &Intents) -> Outcome<(Process, String)> {
    let mut role = vec![SERVE.to_owned()];
    role.extend(ServerArgs::new(device, core, intents).to_args());
    let mut server = Process::start(&role)?;
    let address = server.read_line()?;
    Ok((server, address))
}

/// Makes one call at a time.
pub struct ClosedLoop {
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
            rpc,
            load,
            calls: 0,
            allocations: 0,
            first: StatsReply::default(),
            allocations_of_a_look: 0,
        };
        this.make_unrecorded_calls(UNRECORDED)?;
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
        self.rpc.server.resume()?;
        let last = self.rpc.stats()?;
        self.rpc.server.pause()?;
        let by_calls =
            (last.allocations - self.first.allocations).saturating_sub(self.allocations_of_a_look);
        // The last reading is itself a call.
        let calls = last.calls - self.first.calls - 1;
        Ok(AllocationsPerCall {
            client: self.allocations as f64 / self.calls as f64,
            server: by_calls as f64 / calls as f64,
        })
    }

    fn make_unrecorded_calls(&mut self, calls: usize) -> Outcome<()> {
        let Self { rpc, load, .. } = self;
        let client = &rpc.clients[0];
        rpc.poller.block_on(async {
            for _ in 0..calls {
                load.exchange(client).await?;
            }
            Ok(())
        })
    }
}

impl Side for ClosedLoop {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        self.rpc.server.resume()?;
        self.make_unrecorded_calls(UNRECORDED)?;
        let Self { rpc, load, .. } = self;
        let client = &rpc.clients[0];
        let allocated = rpc.poller.block_on(async {
            let before = allocations::count();
            stopwatch.start();
            for _ in 0..calls {
                load.exchange(client).await?;
                stopwatch.lap();
            }
            Ok::<_, rpc_core::CallError>(allocations::count() - before)
        })?;
        self.calls += calls as u64;
        self.allocations += allocated;
        self.rpc.server.pause()?;
        Ok(())
    }
}
