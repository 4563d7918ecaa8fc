//! The benchmark service, and the server process that runs it.

use std::cell::Cell;

use clap::Args;
use proto::bench::bench_server::LocalBench;
use proto::bench::{BenchServer, Blob, Fixed, StatsReply, StatsRequest};
use proto::bulk::BulkServer;
use rpc_core::stats::Transfers;
use rpc_core::{Intents, LocalPoller, Request, Response, Server, Status, Waiting};
use rpc_transport_verbs::Device;

use crate::bandwidth::service::Bulk;
use crate::{Outcome, allocations, arguments, child, drop_time};

/// Echoes requests and counts calls.
#[derive(Debug, Default)]
pub struct Echo {
    calls: Cell<u64>,
}

impl Echo {
    fn count(&self) {
        self.calls.set(self.calls.get() + 1);
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
        let counters = poller.stats().total().transport;
        let stats = poller.stats().total();
        Ok(Response::new(StatsReply {
            allocations: allocations::count(),
            calls: self.calls.get(),
            sends: counters.sends,
            signaled: counters.signaled,
            doorbells: counters.doorbells,
            srq_limit_events: counters.srq_limit_events,
            rnr: counters.rnr,
            stream_frames: stats.streams.frames_sent,
            last_drop_ns: drop_time::last_ns(),
            long_bytes_received: stats.transfers.bytes_received,
            long_bytes_copied: copied_by_receiver(&stats.transfers),
        }))
    }
}

/// Returns the bytes of long messages that their receiver has copied.
fn copied_by_receiver(transfers: &Transfers) -> u64 {
    transfers.bytes_fetched + transfers.bytes_in_fragments + transfers.bytes_copied_in
}

/// The command-line arguments of a server process.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// Device name
    #[arg(long)]
    pub device: String,
    /// Core to pin the poller to
    #[arg(long)]
    pub core: usize,
    /// Maximum message length in bytes
    #[arg(long)]
    pub max_message_len: usize,
    /// Number of connections to prepare for
    #[arg(long)]
    pub connections: u32,
    /// Number of calls in flight per connection to prepare for
    #[arg(long)]
    pub max_in_flight: u32,
    /// What the poller does while idle
    #[arg(long, value_parser = arguments::waiting())]
    pub waiting: Waiting,
}

impl ServerArgs {
    /// Returns arguments that match the client's intents.
    #[must_use]
    pub fn new(device: &str, core: usize, intents: &Intents) -> Self {
        Self {
            device: device.to_owned(),
            core,
            max_message_len: intents.max_message_len,
            connections: intents.connections,
            max_in_flight: intents.max_in_flight,
            waiting: intents.waiting,
        }
    }

    /// Returns the arguments as they appear on the command line.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        vec![
            "--device".to_owned(),
            self.device.clone(),
            "--core".to_owned(),
            self.core.to_string(),
            "--max-message-len".to_owned(),
            self.max_message_len.to_string(),
            "--connections".to_owned(),
            self.connections.to_string(),
            "--max-in-flight".to_owned(),
            self.max_in_flight.to_string(),
            "--waiting".to_owned(),
            self.waiting.to_string(),
        ]
    }

    /// Runs the server process: prints its address, and serves until it is killed.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be started.
    pub fn serve(&self) -> Outcome<()> {
        child::end_with_parent()?;
        let server = Server::builder(&Device::open(&self.device)?)
            .add_service(BenchServer::per_poller(Echo::default))
            .add_service(BulkServer::per_poller(Bulk::default))
            .cores([self.core])
            .max_message_len(self.max_message_len)
            .connections(self.connections)
            .max_in_flight(self.max_in_flight)
            .waiting(self.waiting)
            .bind("127.0.0.1:0")?;
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
