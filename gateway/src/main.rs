//! The program `verbline-gateway`: a gateway beside its server, in a process of its own.
#![forbid(unsafe_code)]
// The program prints its address for the user, and for who has started it.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
#[cfg(feature = "tls")]
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[cfg(feature = "tls")]
use clap::Args;
use clap::Parser;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
#[cfg(feature = "tls")]
use verbline::tls::{ClientAuth, ClientTls, Expect, Identity, Roots, ServerTls, TlsError};
use verbline::{Channel, Device};
use verbline_gateway::Gateway;

const AFTER_HELP: &str = "\
On SIGTERM or Control-C, the gateway takes no further connections and calls, lets the calls in flight \
finish, and exits with 0.

The first line of its output is `listening at ADDRESS`. It logs to standard error, at the level that the \
environment variable RUST_LOG names: `RUST_LOG=verbline_gateway=debug` tells why connections end.

Without --tls-client-ca, clients of the gateway are not authenticated: listen at an address that only \
clients reach who may call the server. Without --tls-cert, HTTP/2 is plain text. The gateway is the \
server's only peer for all of them; a server that trusts it knows their addresses and the names in their \
certificates.

Files of certificates and keys are PEM, and are followed: those that replace them are used some seconds \
later.

Examples:
  verbline-gateway --listen 127.0.0.1:50052 --server 127.0.0.1:50051
  verbline-gateway --listen 0.0.0.0:50052 --server storage-7:50051 --device mlx5_0 --max-age 1800
  verbline-gateway --server storage-7:50051 --tls-cert gateway.pem --tls-key gateway.key \
      --tls-client-ca clients.pem --server-ca servers.pem --server-cert gateway.pem \\
      --server-key gateway.key";

/// Serves HTTP/2 gRPC in front of a Verbline server, so that stock gRPC clients and tools can call it
#[derive(Parser)]
#[command(version, after_help = AFTER_HELP)]
struct Arguments {
    /// The address to listen at. With port 0, the system chooses a port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50052")]
    listen: String,
    /// The Verbline server, as host:port. It need not run yet: the gateway connects when it does
    #[arg(long, value_name = "HOST:PORT")]
    server: String,
    /// The device to the server: soft, tcp, or an RDMA device (mlx5_0, mlx5_0:1:3, @eth0).
    /// Default: the best one, or the one that VERBLINE_DEVICE names
    #[arg(long)]
    device: Option<String>,
    /// Call servers of other hosts, containers and users, too, over TCP, in plain text
    #[arg(long)]
    allow_plaintext: bool,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    clients: ClientsTls,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    upstream: UpstreamTls,
    /// Connections that may be open at a time
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_connections: usize,
    /// Calls that may be open at a time, on all connections
    #[arg(long, value_name = "N", default_value_t = 8192)]
    max_calls: usize,
    /// Bytes of the longest message
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20)]
    max_message_len: usize,
    /// Bytes for messages of 16 KiB and more, of requests; and as many for those of responses
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20)]
    message_memory: u64,
    /// Seconds after which a connection is told to end, ± 10 %, so that clients find new gateways, and
    /// those whose certificates were revoked lose theirs
    #[arg(long, value_name = "SECONDS")]
    max_age: Option<u64>,
    /// Seconds for which calls in flight may go on at the end
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain: u64,
}

/// TLS with the gateway's clients.
#[cfg(feature = "tls")]
#[derive(Args)]
#[command(next_help_heading = "TLS with clients")]
struct ClientsTls {
    /// The gateway's certificate, and those between it and a root. Clients without TLS are refused then
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Take clients with a certificate of these authorities only
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Refuse clients whose certificates are in these revocation lists, or of an authority without one.
    /// Connections that are open stay: see --max-age
    #[arg(long, value_name = "FILE", requires = "tls_client_ca")]
    tls_client_crl: Option<PathBuf>,
    /// Take clients without a certificate, too
    #[arg(long, requires = "tls_client_ca")]
    tls_clients_optional: bool,
}

#[cfg(feature = "tls")]
impl ClientsTls {
    fn open(&self) -> Result<Option<ServerTls>, TlsError> {
        let (Some(certificates), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok(None);
        };
        let tls = ServerTls::new(Identity::from_files(certificates, key)?);
        let auth = match self.tls_clients_optional {
            true => ClientAuth::Optional,
            false => ClientAuth::Required,
        };
        let Some(roots) = &self.tls_client_ca else {
            return Ok(Some(tls));
        };
        let mut roots = Roots::from_file(roots)?;
        if let Some(list) = &self.tls_client_crl {
            roots = roots.with_crl_file(list)?;
        }
        Ok(Some(tls.clients(roots, auth)))
    }
}

/// TLS with the Verbline server.
#[cfg(feature = "tls")]
#[derive(Args)]
#[command(next_help_heading = "TLS with the server")]
struct UpstreamTls {
    /// Connect with TLS, to a server of an authority that the system knows. The other --server options
    /// below imply it
    #[arg(long)]
    server_tls: bool,
    /// The authorities of the server's certificate. Default: those of the system
    #[arg(long, value_name = "FILE")]
    server_ca: Option<PathBuf>,
    /// The name that the server's certificate is for. Default: the host of --server
    #[arg(long, value_name = "NAME", conflicts_with = "server_spiffe")]
    server_name: Option<String>,
    /// The SPIFFE id that the server's certificate is for
    #[arg(long, value_name = "ID")]
    server_spiffe: Option<String>,
    /// The certificate that the gateway shows to the server
    #[arg(long, value_name = "FILE", requires = "server_key")]
    server_cert: Option<PathBuf>,
    /// The private key of that certificate
    #[arg(long, value_name = "FILE", requires = "server_cert")]
    server_key: Option<PathBuf>,
}

#[cfg(feature = "tls")]
impl UpstreamTls {
    fn open(&self) -> Result<Option<ClientTls>, TlsError> {
        let name = self.server_name.clone().map(Expect::Name);
        let expected = name.or(self.server_spiffe.clone().map(Expect::Spiffe));
        let pair = self.server_cert.as_ref().zip(self.server_key.as_ref());
        let is_asked_for = self.server_tls || self.server_ca.is_some();
        if !is_asked_for && expected.is_none() && pair.is_none() {
            return Ok(None);
        }
        let mut tls = ClientTls::new(match &self.server_ca {
            Some(roots) => Roots::from_file(roots)?,
            None => Roots::system()?,
        });
        if let Some((certificates, key)) = pair {
            tls = tls.identity(Identity::from_files(certificates, key)?);
        }
        Ok(Some(match expected {
            Some(expected) => tls.server(expected)?,
            None => tls,
        }))
    }
}

async fn serve(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    // Before the address is printed: who reads it may send a signal.
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut device = match &arguments.device {
        Some(name) => Device::open(name)?,
        None => Device::best()?,
    };
    if arguments.allow_plaintext {
        device = device.allow_plaintext();
    }
    #[cfg(feature = "tls")]
    if let Some(tls) = arguments.upstream.open()? {
        device = device.with_client_tls(tls);
    }
    let channel = Channel::builder(&device, &arguments.server)
        .max_message_len(arguments.max_message_len)
        .message_memory(arguments.message_memory)
        .connect_lazy()?;
    let drain_time = Duration::from_secs(arguments.drain);
    let mut gateway = Gateway::builder(channel)
        .max_connections(arguments.max_connections)
        .max_calls(arguments.max_calls)
        .max_message_len(arguments.max_message_len)
        .message_memory(arguments.message_memory)
        .drain_time(drain_time);
    #[cfg(feature = "tls")]
    if let Some(tls) = arguments.clients.open()? {
        gateway = gateway.tls(tls);
    }
    if let Some(age) = arguments.max_age {
        gateway = gateway.max_connection_age(Duration::from_secs(age), drain_time);
    }
    let listener = TcpListener::bind(&arguments.listen)
        .await
        .map_err(|error| format!("cannot listen at {}: {error}", arguments.listen))?;
    println!("listening at {}", listener.local_addr()?);
    println!("{}", gateway.limits());
    let shutdown = async {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
        tracing::info!("shutting down");
    };
    gateway.serve_on(listener, shutdown).await;
    Ok(())
}

fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(arguments))
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::builder()
                .with_default_directive(tracing_subscriber::filter::LevelFilter::INFO.into())
                .from_env_lossy(),
        )
        .with_writer(std::io::stderr)
        .init();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("verbline-gateway: {error}");
            ExitCode::FAILURE
        }
    }
}
