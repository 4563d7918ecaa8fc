//! The streaming service, and the server process that runs it beside the unary one.

use std::pin::Pin;
use std::task::{Context, Poll};

use clap::Args;
use proto::bench::bench_streams_server::LocalBenchStreams;
use proto::bench::{BenchServer, BenchStreamsServer, Blob, CollectReply, Fixed, SubscribeRequest};
use rpc_core::{Intents, Request, Response, Server, Status, Stream, Streaming};
use rpc_transport_verbs::Device;

use super::message::Numbers;
use crate::drop_time::RecordDrop;
use crate::service::{Echo, ServerArgs};
use crate::{Outcome, child};

/// Name of the hidden command that runs [`StreamServerArgs::serve`].
pub const SERVE: &str = "serve-streams";

/// Sends and receives streams of numbered messages.
#[derive(Debug, Default)]
pub struct Streams;

impl LocalBenchStreams for Streams {
    async fn subscribe_fixed(
        &self,
        request: Request<SubscribeRequest>,
    ) -> Result<Response<impl Stream<Item = Result<Fixed, Status>>>, Status> {
        Ok(Response::new(numbers(&request.into_inner())))
    }

    async fn subscribe_blob(
        &self,
        request: Request<SubscribeRequest>,
    ) -> Result<Response<impl Stream<Item = Result<Blob, Status>>>, Status> {
        let request = request.into_inner();
        if request.payload_len < 8 {
            return Err(Status::invalid_argument("the number takes 8 bytes"));
        }
        Ok(Response::new(numbers(&request)))
    }

    async fn ping_pong(
        &self,
        request: Request<Streaming<Fixed>>,
    ) -> Result<Response<impl Stream<Item = Result<Fixed, Status>>>, Status> {
        Ok(Response::new(SentBack {
            messages: request.into_inner(),
            _recorded: RecordDrop,
        }))
    }

    async fn collect(
        &self,
        request: Request<Streaming<Fixed>>,
    ) -> Result<Response<CollectReply>, Status> {
        let mut messages = request.into_inner();
        let mut reply = CollectReply::default();
        while let Some(message) = messages.message().await? {
            reply.count += 1;
            reply.sum = reply.sum.wrapping_add(message.a);
        }
        Ok(Response::new(reply))
    }
}

fn numbers<M>(request: &SubscribeRequest) -> Numbers<M> {
    Numbers::new(request.count, request.payload_len as usize)
}

/// The client's messages.
struct SentBack {
    messages: Streaming<Fixed>,
    _recorded: RecordDrop,
}

impl Stream for SentBack {
    type Item = Result<Fixed, Status>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = Pin::new(&mut self.get_mut().messages).poll_next(cx);
        polled.map(|message| message.map(|message| message.map_err(Status::from)))
    }
}

/// The command-line arguments of a server process.
#[derive(Clone, Debug, Args)]
pub struct StreamServerArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Number of streams per connection to prepare for
    #[arg(long)]
    max_streams: u32,
    /// Send each message in a frame of its own
    #[arg(long)]
    pub no_coalescing: bool,
}

impl StreamServerArgs {
    /// Returns arguments that match the client's intents.
    #[must_use]
    pub fn new(device: &str, core: usize, intents: &Intents) -> Self {
        Self {
            server: ServerArgs::new(device, core, intents),
            max_streams: intents.max_streams,
            no_coalescing: false,
        }
    }

    /// Returns the arguments as they appear on the command line.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let mut args = self.server.to_args();
        args.extend(["--max-streams".to_owned(), self.max_streams.to_string()]);
        args.extend(self.no_coalescing.then(|| "--no-coalescing".to_owned()));
        args
    }

    /// Runs the server process: prints its address, and serves until it is killed.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be started.
    pub fn serve(&self) -> Outcome<()> {
        child::end_with_parent()?;
        let args = &self.server;
        let server = Server::builder(&Device::open(&args.device)?)
            .add_service(BenchServer::per_poller(Echo::default))
            .add_service(BenchStreamsServer::per_poller(Streams::default))
            .cores([args.core])
            .max_message_len(args.max_message_len)
            .connections(args.connections)
            .max_in_flight(args.max_in_flight)
            .max_streams(self.max_streams)
            .waiting(args.waiting)
            .bind("127.0.0.1:0")?;
        child::write_line_to_parent(&server.local_addr().to_string())?;
        Ok(server.run()?)
    }
}
