//! tonic with the same messages, over a Unix socket and over TCP. Each side runs on a
//! current-thread runtime pinned to its core, which is the fastest setup with one call in flight. The
//! runtime sleeps until a socket is ready, as it does without further settings, or it polls: a task
//! that yields for ever keeps it awake, and it looks at its sockets after each turn of that task.
//!
//! The code that `tonic-prost-build` would generate is written by hand. It is short, and it uses
//! the message types that `rpc-codegen` generated.

use std::convert::Infallible;
use std::future::ready;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use proto::bench::{Blob, Fixed};
use rpc_core::Waiting;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::{Service, StdError, http};
use tonic::server::NamedService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server as TonicServer};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;
use verbline_load::histogram;

use super::{tonic_puts, tonic_streams};
use crate::Outcome;
use crate::child::{self, Process};
use crate::cores::{self, Cores};
use crate::in_flight::Period;
use crate::message::Load;
use crate::role::Role;
#[cfg(feature = "tls")]
use crate::security::Security;
use crate::slices::{Side, Stopwatch, UNRECORDED};

const ECHO_FIXED: &str = "/verbline.Peer/EchoFixed";
/// Path of the method that echoes [`Blob`].
pub const ECHO_BLOB: &str = "/verbline.Peer/EchoBlob";

/// The kind of socket that carries the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Socket {
    /// A Unix socket.
    Unix,
    /// TCP over the loopback interface, without Nagle's delay.
    Tcp,
}

/// What a server process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TonicArgs {
    /// Core to pin to.
    pub core: usize,
    /// Kind of socket to listen on.
    pub socket: Socket,
    /// Whether the runtime polls; otherwise it sleeps until the socket is ready.
    pub busy: bool,
    /// Path of the Unix socket.
    pub path: PathBuf,
    /// How the server proves who it is, if its clients ask.
    #[cfg(feature = "tls")]
    pub tls: Option<crate::security::ServerTexts>,
}

impl TonicArgs {
    fn new(socket: Socket, waiting: Waiting, cores: Cores) -> Self {
        Self {
            core: cores.server,
            socket,
            busy: waiting == Waiting::Busy,
            path: PathBuf::new(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Runs the server process: prints its address, and serves until it is killed.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be started.
    pub fn serve(&self) -> Outcome<()> {
        child::end_with_parent()?;
        cores::pin_current_thread(self.core)?;
        runtime(self.busy)?.block_on(async {
            let server = TonicServer::builder();
            #[cfg(feature = "tls")]
            let server = match &self.tls {
                Some(texts) => server.tls_config(texts.of_tonic())?,
                None => server,
            };
            let server = server
                .initial_stream_window_size(tonic_puts::WINDOW)
                .initial_connection_window_size(tonic_puts::WINDOW)
                .add_service(Methods);
            #[cfg(feature = "tls")]
            let scheme = self.tls.as_ref().map_or("http", |_| "https");
            #[cfg(not(feature = "tls"))]
            let scheme = "http";
            match self.socket {
                Socket::Unix => {
                    let listener = UnixListener::bind(&self.path)?;
                    child::write_line_to_parent(&format!("unix:{}", self.path.display()))?;
                    let incoming = UnixListenerStream::new(listener);
                    server.serve_with_incoming(incoming).await?;
                }
                Socket::Tcp => {
                    let listener = TcpListener::bind("127.0.0.1:0").await?;
                    let address = listener.local_addr()?;
                    child::write_line_to_parent(&format!("{scheme}://{address}"))?;
                    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                    server.serve_with_incoming(incoming).await?;
                }
            }
            Ok(())
        })
    }
}

/// A connection of this thread to its own server process.
pub(super) struct Connection {
    runtime: Runtime,
    endpoint: Endpoint,
    client: Grpc<Channel>,
    server: Process,
    // Keeps the directory of the Unix socket.
    _directory: tempfile::TempDir,
}

impl Connection {
    /// Starts the server process, connects, and pauses the server until the first turn. Pin the
    /// calling thread first.
    pub(super) fn start(socket: Socket, waiting: Waiting, cores: Cores) -> Outcome<Self> {
        Self::set_up(TonicArgs::new(socket, waiting, cores), Ok)
    }

    /// Does the same over TCP with this security.
    #[cfg(feature = "tls")]
    pub(super) fn start_secured(
        security: &Security,
        waiting: Waiting,
        cores: Cores,
    ) -> Outcome<Self> {
        let mut args = TonicArgs::new(Socket::Tcp, waiting, cores);
        args.tls.clone_from(&security.server);
        Self::set_up(args, |endpoint| match &security.client {
            Some(texts) => Ok(endpoint.tls_config(texts.of_tonic())?),
            None => Ok(endpoint),
        })
    }

    fn set_up(
        mut args: TonicArgs,
        secure: impl FnOnce(Endpoint) -> Outcome<Endpoint>,
    ) -> Outcome<Self> {
        let directory = tempfile::tempdir()?;
        args.path = directory.path().join("tonic");
        let runtime = runtime(args.busy)?;
        let (server, address) = Process::start(&Role::Tonic(args))?;
        let endpoint = secure(Endpoint::from_shared(address)?.tcp_nodelay(true))?;
        let channel = runtime.block_on(endpoint.connect())?;
        server.pause()?;
        Ok(Self {
            runtime,
            endpoint,
            client: Grpc::new(channel),
            server,
            _directory: directory,
        })
    }

    /// Lets the server continue for the time of `turn`.
    pub(super) fn in_turn<R>(
        &mut self,
        turn: impl AsyncFnOnce(&mut Grpc<Channel>) -> Outcome<R>,
    ) -> Outcome<R> {
        let turn = turn(&mut self.client);
        self.server.in_turn(|| self.runtime.block_on(turn))
    }
}

/// A client on this thread, with its own server process.
pub struct Tonic {
    connection: Connection,
    load: Load,
}

impl Tonic {
    /// Starts the server process, connects, and pauses the server until the first turn. Pin the
    /// calling thread first.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start(socket: Socket, waiting: Waiting, cores: Cores, load: Load) -> Outcome<Self> {
        let connection = Connection::start(socket, waiting, cores)?;
        Ok(Self { connection, load })
    }

    /// Does the same over TCP with this security.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    #[cfg(feature = "tls")]
    pub fn start_secured(
        security: &Security,
        waiting: Waiting,
        cores: Cores,
        load: Load,
    ) -> Outcome<Self> {
        let connection = Connection::start_secured(security, waiting, cores)?;
        Ok(Self { connection, load })
    }

    /// Keeps calls in flight, each in a task of the runtime, and returns the calls per second.
    ///
    /// # Errors
    ///
    /// Returns the error of the first call that fails.
    pub fn rate(&mut self, in_flight: usize) -> Outcome<f64> {
        let Self { connection, load } = self;
        connection.in_turn(async |client| {
            let period = Period::turn();
            let tasks: Vec<_> = (0..in_flight)
                .map(|_| {
                    let (mut client, mut load) = (client.clone(), load.clone());
                    tokio::spawn(async move {
                        let mut counted = histogram();
                        loop {
                            let began = Instant::now();
                            exchange(&mut client, &mut load).await?;
                            if period.add(began, &mut counted) {
                                return Ok::<_, Status>(period.rate(&counted));
                            }
                        }
                    })
                })
                .collect();
            let mut rate = 0.0;
            for task in tasks {
                rate += task.await??;
            }
            Ok(rate)
        })
    }

    /// Connects again and again, and times each connection with its first call.
    ///
    /// # Errors
    ///
    /// Returns the first error of a connection or a call.
    pub fn time_connections(
        &mut self,
        [unrecorded, connections]: [usize; 2],
        stopwatch: &mut Stopwatch,
    ) -> Outcome<()> {
        let Self { connection, load } = self;
        let endpoint = connection.endpoint.clone();
        connection.in_turn(async |_| {
            let connect = async || {
                let mut client = Grpc::new(endpoint.connect().await?);
                Outcome::Ok(exchange(&mut client, load).await?)
            };
            stopwatch.time_async(unrecorded, connections, connect).await
        })
    }
}

/// A call takes fifty times as long as one of Verbline's and more, so fewer make a turn. Turns must
/// be short, because the machine changes its state; with a twentieth of the calls, the first ones
/// after the pause raised the median by a fifth.
const SHARE_OF_CALLS: usize = 4;

impl Side for Tonic {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        let Self { connection, load } = self;
        let calls = calls.div_ceil(SHARE_OF_CALLS);
        connection.in_turn(async |client| {
            let exchange = async || exchange(client, load).await;
            Ok(stopwatch.time_async(UNRECORDED, calls, exchange).await?)
        })
    }
}

fn runtime(busy: bool) -> std::io::Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    builder.enable_all();
    if !busy {
        return builder.build();
    }
    let runtime = builder.event_interval(1).build()?;
    runtime.spawn(async {
        loop {
            tokio::task::yield_now().await;
        }
    });
    Ok(runtime)
}

/// Makes one call, in the same way as [`Load::exchange`].
async fn exchange(client: &mut Grpc<Channel>, load: &mut Load) -> Result<(), Status> {
    match load {
        Load::Fixed(message) => {
            message.a = message.a.wrapping_add(2);
            let answer: Fixed = unary(client, ECHO_FIXED, *message).await?;
            assert_eq!(answer, *message, "the server must echo the request");
        }
        Load::Blob(message) => {
            let len = message.payload.len();
            *message = unary(client, ECHO_BLOB, std::mem::take(message)).await?;
            assert_eq!(
                message.payload.len(),
                len,
                "the server must echo the request"
            );
        }
    }
    Ok(())
}

/// Makes one call with these messages.
///
/// # Errors
///
/// Returns the status of a call that fails.
pub async fn unary<M, R>(
    client: &mut Grpc<Channel>,
    path: &'static str,
    message: M,
) -> Result<R, Status>
where
    M: prost::Message + 'static,
    R: prost::Message + Default + 'static,
{
    client
        .ready()
        .await
        .map_err(|error| Status::unknown(StdError::from(error).to_string()))?;
    let path = http::uri::PathAndQuery::from_static(path);
    let codec = ProstCodec::<M, R>::default();
    let response = client.unary(Request::new(message), path, codec).await?;
    Ok(response.into_inner())
}

/// All methods, as tonic's generator would write them.
#[derive(Clone, Debug)]
pub struct Methods;

impl NamedService for Methods {
    const NAME: &'static str = "verbline.Peer";
}

impl Service<http::Request<Body>> for Methods {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match request.uri().path() {
            ECHO_FIXED => Box::pin(echo::<Fixed>(request)),
            ECHO_BLOB => Box::pin(echo::<Blob>(request)),
            tonic_streams::SUBSCRIBE_FIXED => Box::pin(tonic_streams::serve::<Fixed>(request)),
            tonic_streams::SUBSCRIBE_BLOB => Box::pin(tonic_streams::serve::<Blob>(request)),
            tonic_puts::PUT => Box::pin(tonic_puts::serve(request)),
            path => {
                let status = Status::unimplemented(format!("no method {path}"));
                Box::pin(ready(Ok(status.into_http())))
            }
        }
    }
}

async fn echo<M>(request: http::Request<Body>) -> Result<http::Response<Body>, Infallible>
where
    M: prost::Message + Default + 'static,
{
    let mut grpc = tonic::server::Grpc::new(ProstCodec::<M, M>::default());
    let method = async |request: Request<M>| Ok(Response::new(request.into_inner()));
    Ok(grpc.unary(service_fn(method), request).await)
}
