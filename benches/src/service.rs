//! The benchmark service, and the server process that runs it.

use std::cell::Cell;

use proto::bench::bench_server::LocalBench;
use proto::bench::{BenchServer, BenchStreamsServer, Blob, Fixed, StatsReply, StatsRequest};
use proto::bulk::BulkServer;
use rpc_core::{Intents, LocalPoller, Request, Response, Server, Status};
use rpc_transport_verbs::Device;
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::bandwidth::service::Bulk;
use crate::spin::Spin;
use crate::streams::service::Streams;
use crate::{Outcome, allocations, arguments, child, drop_time};

/// Echoes requests and counts calls.
#[derive(Debug, Default)]
pub struct Echo;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

impl Echo {
    fn count(&self) {
        CALLS.set(CALLS.get() + 1);
    }

    /// Returns the number of calls that services of this thread have answered.
    #[must_use]
    pub fn calls_of_this_thread() -> u64 {
        CALLS.get()
    }
}

impl LocalBench for Echo {
    async fn echo_fixed(&self, request: Request<Fixed>) -> Result<Response<Fixed>, Status> {
        self.count();
        Ok(Response::new(request.into_inner()))
    }

    async fn echo_blob(&self, request: Request<Blob>) -> Result<Response<Blob>, Status> {
        self.count();
        Ok(Response::new(request.into_inner()))
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<StatsReply>, Status> {
        self.count();
        // There is only one poller, so its counters are the server's counters.
        let poller = LocalPoller::current()
            .ok_or_else(|| Status::internal("the handler does not run on a poller's thread"))?;
        let stats = poller.stats().total();
        let (counters, transfers) = (stats.transport, stats.transfers);
        Ok(Response::new(StatsReply {
            allocations: allocations::count(),
            calls: Self::calls_of_this_thread(),
            sends: counters.sends,
            signaled: counters.signaled,
            doorbells: counters.doorbells,
            srq_limit_events: counters.srq_limit_events,
            rnr: counters.rnr,
            stream_frames: stats.streams.frames_sent,
            last_drop_ns: drop_time::last_ns(),
            long_bytes_received: transfers.bytes_received,
            long_bytes_copied: transfers.bytes_fetched
                + transfers.bytes_in_fragments
                + transfers.bytes_copied_in,
        }))
    }
}

/// What a server process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerArgs {
    device: String,
    /// Core to pin the poller to; `None`: it is not pinned.
    pub core: Option<usize>,
    max_message_len: usize,
    connections: u32,
    max_in_flight: u32,
    max_streams: u32,
    waiting: String,
    /// False if each message of a stream has a frame of its own.
    pub coalesces: bool,
    /// True if the server has no service but that of handlers that spin: see [`crate::spin`].
    pub spins: bool,
    /// Number of files that the process may open, if not as many as its parent.
    pub max_files: Option<u64>,
    /// How the server proves who it is, if its clients ask.
    #[cfg(feature = "tls")]
    pub tls: Option<crate::security::ServerTexts>,
}

impl ServerArgs {
    /// Returns arguments that match the client's intents.
    #[must_use]
    pub fn new(device: &str, core: usize, intents: &Intents) -> Self {
        Self {
            device: device.to_owned(),
            core: Some(core),
            max_message_len: intents.max_message_len,
            connections: intents.connections,
            max_in_flight: intents.max_in_flight,
            max_streams: intents.max_streams,
            waiting: intents.waiting.to_string(),
            coalesces: true,
            spins: false,
            max_files: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Does the same for a server whose handlers spin.
    #[must_use]
    pub fn spinning(device: &str, core: usize, intents: &Intents) -> Self {
        Self {
            spins: true,
            ..Self::new(device, core, intents)
        }
    }

    /// Runs the server process: prints its address, and serves until it is killed.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be started.
    pub fn serve(&self) -> Outcome<()> {
        self.serve_on(Device::open)
    }

    /// Does the same on the device that `open` opens by its name.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be started.
    pub fn serve_on<E: Into<Box<dyn std::error::Error>>>(
        &self,
        open: impl FnOnce(&str) -> Result<Device, E>,
    ) -> Outcome<()> {
        child::end_with_parent()?;
        if let Some(files) = self.max_files {
            let limit = Rlimit {
                current: Some(files),
                maximum: Some(files),
            };
            setrlimit(Resource::Nofile, limit)?;
        }
        #[cfg(feature = "stream")]
        if !self.coalesces {
            rpc_core_testing::disable_coalescing();
        }
        let device = open(&self.device).map_err(Into::into)?;
        #[cfg(feature = "tls")]
        let device = match &self.tls {
            Some(texts) => device.with_server_tls(texts.server_tls()?),
            None => device,
        };
        let server = Server::builder(&device)
            .cores(self.core)
            .max_message_len(self.max_message_len)
            .connections(self.connections)
            .max_in_flight(self.max_in_flight)
            .max_streams(self.max_streams)
            .waiting(arguments::waiting_of(&self.waiting));
        let server = if self.spins {
            let service = Spin::of_server_process();
            server.add_service(BenchServer::per_poller(move || service.clone()))
        } else {
            server
                .add_service(BenchServer::per_poller(|| Echo))
                .add_service(BenchStreamsServer::per_poller(Streams::default))
                .add_service(BulkServer::per_poller(Bulk::default))
        };
        let server = server.bind("127.0.0.1:0")?;
        child::write_line_to_parent(&server.local_addr().to_string())?;
        Ok(server.run()?)
    }
}

/// Returns the default intents, with room for a message of `encoded_len` bytes.
#[must_use]
pub fn intents_for(encoded_len: usize) -> Intents {
    let defaults = Intents::default();
    Intents {
        max_message_len: defaults.max_message_len.max(encoded_len),
        ..defaults
    }
}
