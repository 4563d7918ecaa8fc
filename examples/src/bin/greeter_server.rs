//! Serves greetings until it is stopped. Run it, and then run `greeter_client` in another terminal:
//!
//! ```text
//! cargo run --release -p examples --bin greeter_server
//! ```
//!
//! An optional argument sets the listen address; the default is 127.0.0.1:50051. Port 0 lets the
//! system choose a port. The device is the best available one, or the one that the environment
//! variable `VERBLINE_DEVICE` names.
#![forbid(unsafe_code)]
// The server prints its address for the user.
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
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("greeter_server: {error}");
            ExitCode::FAILURE
        }
    }
}
