//! The shared client on an application thread, with a server process.

use std::cell::Cell;
use std::fmt;
use std::time::Instant;

use proto::bench::BenchClient;
use rpc_core::{CallError, Channel, Intents, block_on};
use rpc_transport_verbs::Device;
use tokio::runtime::{self, Runtime};

use crate::Outcome;
use crate::child::Process;
use crate::cores::Cores;
use crate::due::run_when_due;
use crate::message::Load;
use crate::role::Role;
use crate::rpc::Client;
use crate::service::ServerArgs;
use crate::slices::{Side, Stopwatch, UNRECORDED};

/// A shared channel, connected to its own server process.
pub struct Shared {
    // Declared before the server, so that connections end before their peer does.
    channel: Channel,
    server: Process,
}

impl Shared {
    /// Starts the server process on the server's core, and connects. Do not pin the calling thread: the
    /// channel's pollers would inherit its core.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start(
        device: &Device,
        cores: Cores,
        intents: &Intents,
        pollers: usize,
    ) -> Outcome<Self> {
        let args = ServerArgs::new(device.name(), cores.server, intents);
        Self::start_with(device, args, intents, pollers)
    }

    /// Does the same with a server that is told something else than the client's intents.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start_with(
        device: &Device,
        args: ServerArgs,
        intents: &Intents,
        pollers: usize,
    ) -> Outcome<Self> {
        let (server, address) = Process::start(&Role::Calls(args))?;
        let channel = Channel::builder(device, &address)
            .max_message_len(intents.max_message_len)
            .max_in_flight(intents.max_in_flight)
            .max_streams(intents.max_streams)
            .waiting(intents.waiting)
            .pollers(pollers)
            .connect();
        Ok(Self {
            channel: block_on(channel)?,
            server,
        })
    }
}

impl Client for Shared {
    type Channel = Channel;

    /// Any number of clients share the channel.
    fn channel(&self) -> Channel {
        self.channel.clone()
    }

    fn server(&self) -> &Process {
        &self.server
    }

    fn server_mut(&mut self) -> &mut Process {
        &mut self.server
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        block_on(future)
    }

    /// Sleeps while nothing is due: the pollers may need this core.
    fn block_on_due<F: Future>(&self, due: &Cell<Option<Instant>>, future: F) -> F::Output {
        run_when_due(due, future)
    }
}

/// How an application thread waits for the responses of a shared client.
pub enum Waiter {
    /// Awaits them on tokio's single-threaded executor, a common setup with its own way to sleep.
    Tokio(Runtime),
    /// Calls [`block_on`] for each call: a thread without an executor.
    Blocking,
}

impl Waiter {
    /// Creates a waiter that uses tokio.
    ///
    /// # Errors
    ///
    /// Fails if the runtime cannot be created.
    pub fn tokio() -> Outcome<Self> {
        Ok(Self::Tokio(runtime::Builder::new_current_thread().build()?))
    }

    /// Makes calls one after the other, and times those after the first `unrecorded` ones.
    ///
    /// # Errors
    ///
    /// Returns the error of the first call that fails.
    pub fn make_calls(
        &self,
        client: &BenchClient<Channel>,
        load: &mut Load,
        [unrecorded, calls]: [usize; 2],
        stopwatch: &mut Stopwatch,
    ) -> Result<(), CallError> {
        let mut exchange = async || load.exchange(client).await;
        match self {
            Self::Tokio(runtime) => {
                runtime.block_on(stopwatch.time_async(unrecorded, calls, exchange))
            }
            Self::Blocking => stopwatch.time(unrecorded, calls, || block_on(exchange())),
        }
    }
}

impl fmt::Display for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tokio(_) => "shared, async",
            Self::Blocking => "shared, blocking",
        })
    }
}

/// Returns a side that makes one call at a time through a shared channel. Warms up both processes and
/// pauses the server until the first turn.
///
/// # Errors
///
/// Returns the error of the first call that fails.
pub fn closed_loop(shared: &Shared, waiter: Waiter, mut load: Load) -> Outcome<impl Side> {
    let client = shared.client();
    let mut side = move |calls: usize, stopwatch: &mut Stopwatch| {
        let turn = || waiter.make_calls(&client, &mut load, [UNRECORDED, calls], stopwatch);
        shared.server.in_turn(turn)
    };
    side(0, &mut Stopwatch::new(0))?;
    Ok(side)
}
