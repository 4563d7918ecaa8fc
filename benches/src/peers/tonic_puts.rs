//! Uploads through tonic, one at a time and several.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use proto::bulk::{PutReply, PutRequest};
use rpc_core::Waiting;
use rpc_core::codegen::v1::bytes::Bytes;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::http;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::tonic::{Connection, Socket, unary};
use crate::Outcome;
use crate::bandwidth::pattern::{payload, word_of_each_line};
use crate::bandwidth::puts::{puts_in_a_turn, unrecorded_puts};
use crate::cores::Cores;
use crate::slices::{Side, Stopwatch};

/// Path of the method.
pub const PUT: &str = "/verbline.Peer/Put";

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
    pub fn start(socket: Socket, waiting: Waiting, cores: Cores, size: usize) -> Outcome<Self> {
        Ok(Self {
            connection: Connection::start(socket, waiting, cores)?,
            payload: payload(size),
        })
    }

    /// Does the same over TCP with this security.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    #[cfg(feature = "tls")]
    pub fn start_secured(
        security: &crate::security::Security,
        waiting: Waiting,
        cores: Cores,
        size: usize,
    ) -> Outcome<Self> {
        Ok(Self {
            connection: Connection::start_secured(security, waiting, cores)?,
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
        let Self {
            connection,
            payload,
        } = self;
        connection.in_turn(async |client| {
            all(client, payload, at_a_time, at_a_time).await?;
            let start = Instant::now();
            all(client, payload, puts, at_a_time).await?;
            Ok((puts * payload.len()) as f64 / start.elapsed().as_secs_f64())
        })
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
        // A put of a few KiB takes so long that fewer make a turn.
        let puts = puts_in_a_turn(payload.len()).min(calls).min(512);
        connection.in_turn(async |client| {
            let put = async || put(client, payload).await;
            let unrecorded = unrecorded_puts(puts);
            Ok(stopwatch.time_async(unrecorded, puts, put).await?)
        })
    }
}

/// Serves the method.
pub(super) async fn serve(
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Infallible> {
    let codec = ProstCodec::<PutReply, PutRequest>::default();
    let mut grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(LONGEST);
    let method = async |request: Request<PutRequest>| {
        let sum = word_of_each_line(&request.into_inner().data);
        Ok(Response::new(PutReply { sum }))
    };
    Ok(grpc.unary(service_fn(method), request).await)
}
