//! The shared client on an application thread, with a server process.

use std::fmt;

use proto::bench::BenchClient;
use rpc_core::{CallError, Channel, Intents, block_on};
use rpc_transport_verbs::Device;
use tokio::runtime::{self, Runtime};

use crate::Outcome;
use crate::child::Process;
use crate::message::Load;
use crate::rpc::start_server;
use crate::slices::{Side, Stopwatch, UNRECORDED};

/// A shared channel, connected to its own server process.
pub struct Shared {
    // Declared before the server, so that connections end before their peer does.
    channel: Channel,
    server: Process,
}

impl Shared {
    /// Starts the server process on `server_core`, and connects. Do not pin the calling thread: the
    /// channel's pollers would inherit its core.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start(
        device: &str,
        server_core: usize,
        intents: &Intents,
        pollers: usize,
    ) -> Outcome<Self> {
        let (server, address) = start_server(device, server_core, intents)?;
        let channel = Channel::builder(&Device::open(device)?, &address)
            .max_message_len(intents.max_message_len)
            .max_in_flight(intents.max_in_flight)
            .waiting(intents.waiting)
            .pollers(pollers)
            .connect();
        Ok(Self {
            channel: block_on(channel)?,
            server,
        })
    }

    /// Returns a client. Any number of clients share the channel.
    #[must_use]
    pub fn client(&self) -> BenchClient<Channel> {
        BenchClient::new(self.channel.clone())
    }

    /// Returns the channel.
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Returns the server's process.
    #[must_use]
    pub fn server(&self) -> &Process {
        &self.server
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

    /// Makes calls one after the other, and calls `after_each` after each.
    ///
    /// # Errors
    ///
    /// Returns the error of the first call that fails.
    pub fn make_calls(
        &self,
        client: &BenchClient<Channel>,
        load: &mut Load,
        calls: usize,
        mut after_each: impl FnMut(),
    ) -> Result<(), CallError> {
        match self {
            Self::Tokio(runtime) => runtime.block_on(async {
                for _ in 0..calls {
                    load.exchange(client).await?;
                    after_each();
                }
                Ok(())
            }),
            Self::Blocking => {
                for _ in 0..calls {
                    block_on(load.exchange(client))?;
                    after_each();
                }
                Ok(())
            }
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

/// Makes one call at a time through a shared channel.
pub struct SharedLoop<'a> {
    shared: &'a Shared,
    client: BenchClient<Channel>,
    waiter: Waiter,
    load: Load,
}

impl<'a> SharedLoop<'a> {
    /// Warms up both sides and pauses the server until the first turn.
    ///
    /// # Errors
    ///
    /// Returns the error of the first call that fails.
    pub fn new(shared: &'a Shared, waiter: Waiter, load: Load) -> Outcome<Self> {
        let mut this = Self {
            client: shared.client(),
            shared,
            waiter,
            load,
        };
        shared.server.resume()?;
        this.make_calls(UNRECORDED, || ())?;
        shared.server.pause()?;
        Ok(this)
    }

    fn make_calls(&mut self, calls: usize, after_each: impl FnMut()) -> Result<(), CallError> {
        let Self { client, load, .. } = self;
        self.waiter.make_calls(client, load, calls, after_each)
    }
}

impl Side for SharedLoop<'_> {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        self.shared.server.resume()?;
        self.make_calls(UNRECORDED, || ())?;
        stopwatch.start();
        self.make_calls(calls, || stopwatch.lap())?;
        self.shared.server.pause()?;
        Ok(())
    }
}
