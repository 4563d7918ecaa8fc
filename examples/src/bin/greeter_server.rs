//! Serves greetings until it is stopped. Run it, and then run `greeter_client` in another terminal:
//!
//! ```text
//! cargo run --release -p examples --bin greeter_server
//! ```
//!
//! `--help` lists the arguments. The device is the best available one, or the one that the environment
//! variable `VERBLINE_DEVICE` names.
#![forbid(unsafe_code)]
// The server prints its address for the user.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use proto::greeter::{Greeter, GreeterServer, HelloReply, HelloRequest};
use verbline::health::Health;
use verbline::reflection::Reflection;
use verbline::{Device, Request, Response, Server, Status};

struct MyGreeter;

impl Greeter for MyGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let HelloRequest { name } = request.into_inner();
        if name.is_empty() {
            return Err(Status::invalid_argument("a greeting needs a name"));
        }
        let message = format!("Hello, {name}!");
        Ok(Response::new(HelloReply { message }))
    }
}

/// Serves greetings until it is stopped
#[derive(Parser)]
#[command(after_help = "Next: run greeter_client or shared_client in another terminal")]
struct Arguments {
    /// The address to listen at. With port 0, the system chooses a port.
    #[arg(default_value = "127.0.0.1:50051")]
    address: String,
    /// Take clients of other hosts, containers and users, too, over TCP. Their calls are not
    /// encrypted: docs/deploy.md says how to isolate them.
    #[arg(long)]
    allow_plaintext: bool,
}

fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let mut device = Device::best()?;
    if arguments.allow_plaintext {
        device = device.allow_plaintext();
    }
    let server = Server::builder(&device)
        .add_service(GreeterServer::new(MyGreeter))
        .add_service(Health::new().service())
        .add_service(Reflection::service())
        .bind(&arguments.address)?;
    println!("listening at {}", server.local_addr());
    println!("{}", server.limits());
    println!(
        "Next, in another terminal: cargo run --release -p examples --bin greeter_client -- Ada {}",
        server.local_addr()
    );
    Ok(server.run()?)
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("greeter_server: {error}");
            ExitCode::FAILURE
        }
    }
}
