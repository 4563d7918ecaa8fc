//! Uploads through tonic, one at a time and several.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use proto::bulk::{PutReply, PutRequest};
use rpc_core::codegen::v1::bytes::Bytes;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::{Service, http};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::tonic::{Connection, Socket, unary, unimplemented};
use crate::Outcome;
use crate::bandwidth::pattern::{payload, word_of_each_line};
use crate::bandwidth::puts::{puts_in_a_turn, unrecorded_puts};
use crate::cores::Cores;
use crate::slices::{Side, Stopwatch};

const PUT: &str = "/verbline.bulk.Bulk/Put";

/// Bytes that a server takes before it has read any. With HTTP/2's default of 64 KiB, every upload
/// would wait for the server many times.
pub(super) const WINDOW: u32 = 16 << 20;

/// Longest message that the server takes, in bytes.
const LONGEST: usize = 65 << 20;

/// Puts payloads of one size.
pub struct TonicPuts {
    connection: Connection,
    payload: Bytes,
}

impl TonicPuts {
    /// Starts the server process, connects, and pauses the server until the first turn. Pin the
    /// calling thread first.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start(socket: Socket, cores: Cores, size: usize) -> Outcome<Self> {
        let connection = Connection::start(socket, cores)?;
        connection.server.pause()?;
        Ok(Self {
            connection,
            payload: payload(size),
        })
    }

    /// Makes `puts` puts, `at_a_time` at a time, after as many unrecorded ones. Returns the bytes per
    /// second.
    ///
    /// # Errors
    ///
    /// Returns the error of the first put that fails.
    pub fn rate(&mut self, puts: usize, at_a_time: usize) -> Outcome<f64> {
        let Connection {
            runtime,
            client,
            server,
            ..
        } = &self.connection;
        server.resume()?;
        let start = runtime.block_on(async {
            all(client, &self.payload, at_a_time, at_a_time).await?;
            let start = Instant::now();
            all(client, &self.payload, puts, at_a_time).await?;
            Outcome::Ok(start)
        })?;
        let elapsed = start.elapsed();
        server.pause()?;
        Ok((puts * self.payload.len()) as f64 / elapsed.as_secs_f64())
    }
}

/// Makes puts in as many tasks of the runtime as puts are in flight.
async fn all(
    client: &Grpc<Channel>,
    payload: &Bytes,
    puts: usize,
    at_a_time: usize,
) -> Outcome<()> {
    let begun = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..at_a_time)
        .map(|_| {
            let (mut client, payload) = (client.clone(), payload.clone());
            let begun = Arc::clone(&begun);
            tokio::spawn(async move {
                // Relaxed: all tasks run on one thread.
                while begun.fetch_add(1, Ordering::Relaxed) < puts {
                    put(&mut client, &payload).await?;
                }
                Ok::<_, Status>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn put(client: &mut Grpc<Channel>, payload: &Bytes) -> Result<(), Status> {
    let data = payload.clone();
    let reply: PutReply = unary(client, PUT, PutRequest { data }).await?;
    std::hint::black_box(reply.sum);
    Ok(())
}

impl Side for TonicPuts {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        let Self {
            connection,
            payload,
        } = self;
        let Connection {
            runtime,
            client,
            server,
            ..
        } = connection;
        // A put of a few KiB takes so long that fewer make a turn.
        let puts = puts_in_a_turn(payload.len()).min(calls).min(512);
        server.resume()?;
        runtime.block_on(async {
            for _ in 0..unrecorded_puts(puts) {
                put(client, payload).await?;
            }
            stopwatch.start();
            for _ in 0..puts {
                put(client, payload).await?;
                stopwatch.lap();
            }
            Ok::<_, Status>(())
        })?;
        Ok(server.pause()?)
    }
}

/// The service, as tonic's generator would write it.
#[derive(Clone)]
pub(super) struct Bulk;

impl NamedService for Bulk {
    const NAME: &'static str = "verbline.bulk.Bulk";
}

struct Put;

impl UnaryService<PutRequest> for Put {
    type Response = PutReply;
    type Future = Ready<Result<Response<PutReply>, Status>>;

    fn call(&mut self, request: Request<PutRequest>) -> Self::Future {
        let sum = word_of_each_line(&request.into_inner().data);
        ready(Ok(Response::new(PutReply { sum })))
    }
}

impl Service<http::Request<Body>> for Bulk {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != PUT {
            return Box::pin(ready(Ok(unimplemented(request.uri().path()))));
        }
        Box::pin(async {
            let codec = ProstCodec::<PutReply, PutRequest>::default();
            let mut grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(LONGEST);
            Ok(grpc.unary(Put, request).await)
        })
    }
}
