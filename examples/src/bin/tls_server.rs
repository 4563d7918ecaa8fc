//! Serves greetings to clients that it knows by their certificates. Run it, and then run `tls_client` in
//! another terminal:
//!
//! ```text
//! cargo run --release -p examples --features tls --bin tls_server -- \
//!     --cert server.pem --key server.key --client-ca ca.pem
//! ```
//!
//! `--help` lists the arguments. The files are PEM. The server follows them: a certificate that replaces
//! its old one is used some seconds later.
#![forbid(unsafe_code)]
// The server prints its address for the user.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use proto::greeter::{Greeter, GreeterServer, HelloReply, HelloRequest};
use verbline::tls::{ClientAuth, Identity, Roots, ServerTls};
use verbline::{Device, Request, Response, Server, Status};

struct MyGreeter;

impl Greeter for MyGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        // Who calls, if the client has shown a certificate.
        let certificate = request.peer().and_then(|peer| peer.certificate());
        let caller = certificate.map_or("unknown".to_owned(), ToString::to_string);
        let name = request.into_inner().name;
        let message = format!("Hello, {name}! You are {caller}.");
        Ok(Response::new(HelloReply { message }))
    }
}

/// Serves greetings to clients that it knows by their certificates
#[derive(Parser)]
#[command(after_help = "Next: run tls_client in another terminal")]
struct Arguments {
    /// The server's certificate, and those that lead from it to a root.
    #[arg(long)]
    cert: PathBuf,
    /// The key of the certificate.
    #[arg(long)]
    key: PathBuf,
    /// The authorities of the clients. Clients without a certificate are then refused.
    #[arg(long)]
    client_ca: Option<PathBuf>,
    /// The device, such as `tcp`, over which calls are encrypted [default: the best available one].
    #[arg(long)]
    device: Option<String>,
    /// The address to listen at. With port 0, the system chooses a port.
    #[arg(default_value = "127.0.0.1:50051")]
    address: String,
}

fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let mut tls = ServerTls::new(Identity::from_files(arguments.cert, arguments.key)?);
    if let Some(authorities) = arguments.client_ca {
        tls = tls.clients(Roots::from_file(authorities)?, ClientAuth::Required);
    }
    let device = match arguments.device {
        Some(name) => Device::open(&name)?,
        None => Device::best()?,
    };
    let server = Server::builder(&device.with_server_tls(tls))
        .add_service(GreeterServer::new(MyGreeter))
        .bind(&arguments.address)?;
    println!("listening at {}", server.local_addr());
    Ok(server.run()?)
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tls_server: {error}");
            ExitCode::FAILURE
        }
    }
}
