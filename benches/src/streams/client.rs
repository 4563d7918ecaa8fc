//! A local client with its own server process.

use proto::bench::{BenchClient, BenchStreamsClient, StatsReply, StatsRequest};
use rpc_core::{Channel, Intents, LocalChannel, LocalPoller, block_on};
use rpc_transport_verbs::Device;

use super::service::{SERVE, StreamServerArgs};
use crate::Outcome;
use crate::child::Process;
use crate::cores::Cores;
use crate::rpc::OnCore;

/// Starts the server process for a client of this program, and returns its address.
fn start_server(args: &StreamServerArgs) -> Outcome<(Process, String)> {
    let mut role = vec![SERVE.to_owned()];
    role.extend(args.to_args());
    let mut server = Process::start(&role)?;
    let address = server.read_line()?;
    Ok((server, address))
}

/// A client on this thread, connected to its own server process.
pub struct StreamClient {
    // Declared before the server, so that connections end before their peer does.
    channels: Vec<LocalChannel>,
    poller: LocalPoller,
    server: Process,
    address: String,
}

impl StreamClient {
    /// Starts the server process, pins the calling thread, and connects once. The thread must not be
    /// pinned before this is called for the first time.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start(device: &str, cores: Cores, intents: &Intents, coalesces: bool) -> Outcome<Self> {
        let mut args = StreamServerArgs::new(device, cores.server, intents);
        args.no_coalescing = !coalesces;
        let (server, address) = start_server(&args)?;
        let fabric = OnCore {
            device: Device::open(device)?,
            core: cores.client,
        };
        let mut this = Self {
            channels: Vec::new(),
            poller: LocalPoller::builder(&fabric)
                .intents(intents.clone())
                .build()?,
            server,
            address,
        };
        this.connect(1)?;
        Ok(this)
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

    /// Returns a client of the unary methods, over the first connection.
    #[must_use]
    pub fn calls(&self) -> BenchClient<LocalChannel> {
        BenchClient::new(self.channels[0].clone())
    }

    /// Returns a client of the streaming methods, over the first connection.
    #[must_use]
    pub fn streams(&self) -> BenchStreamsClient<LocalChannel> {
        BenchStreamsClient::new(self.channels[0].clone())
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
        let calls = self.calls();
        let reply = calls.stats(StatsRequest {});
        Ok(self.poller.block_on(reply)?.into_inner())
    }
}

/// A shared channel, connected to its own server process.
pub struct SharedStreamClient {
    // Declared before the server, so that connections end before their peer does.
    channel: Channel,
    server: Process,
}

impl SharedStreamClient {
    /// Starts the server process, and connects. Do not pin the calling thread: the channel's poller
    /// would inherit its core.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start(device: &str, cores: Cores, intents: &Intents) -> Outcome<Self> {
        let args = StreamServerArgs::new(device, cores.server, intents);
        let (server, address) = start_server(&args)?;
        let channel = Channel::builder(&Device::open(device)?, &address)
            .max_message_len(intents.max_message_len)
            .max_in_flight(intents.max_in_flight)
            .max_streams(intents.max_streams)
            .waiting(intents.waiting)
            .pollers(1)
            .connect();
        Ok(Self {
            channel: block_on(channel)?,
            server,
        })
    }

    /// Returns a client of the streaming methods.
    #[must_use]
    pub fn streams(&self) -> BenchStreamsClient<Channel> {
        BenchStreamsClient::new(self.channel.clone())
    }

    /// Returns the server's process.
    #[must_use]
    pub fn server(&self) -> &Process {
        &self.server
    }
}
