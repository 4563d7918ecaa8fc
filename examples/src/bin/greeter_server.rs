//! Greets whoever calls, until it is stopped. Run it, and then `greeter_client` beside it:
//!
//! ```text
//! cargo run --release -p examples --bin greeter_server
//! ```
//!
//! An address other than 127.0.0.1:50051 can be given as its argument; port 0 lets the system
//! choose. The device is the best there is, or the one named by the environment variable
//! `VERBLINE_DEVICE`.
#![forbid(unsafe_code)]
// It tells its user where it listens: printing is what it is for.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::process::ExitCode;

use proto::greeter::{Greeter, GreeterServer, HelloReply, HelloRequest};
use rpc_core::{Request, Response, Server, Status};
use rpc_transport_verbs::Device;

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

fn run() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:50051");

    let device = Device::best()?;
    let server = Server::builder(&device)
        .add_service(GreeterServer::new(MyGreeter))
        .bind(address)?;
    println!("listening at {}", server.local_addr());
    println!("{}", server.limits());
    Ok(server.run()?)
}

fn main() -> ExitCode {
    // What the library has to say, at the level that the variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("greeter_server: {error}");
            ExitCode::FAILURE
        }
    }
}
