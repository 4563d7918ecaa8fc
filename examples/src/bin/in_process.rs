//! A server and its client in one program, and how to test a service this way:
//!
//! ```text
//! cargo run --release -p examples --bin in_process
//! cargo test -p examples --bin in_process
//! ```
//!
//! Nothing is mocked: calls use the software device, which exists on every machine. To mock the
//! server of a client, implement its trait and serve it in process in the same way.
#![forbid(unsafe_code)]
// Printing the responses is the purpose of this program.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::Cell;
use std::error::Error;
use std::process::ExitCode;

use proto::greeter::greeter_server::LocalGreeter;
use proto::greeter::{GreeterClient, GreeterServer, HelloReply, HelloRequest};
use rpc_core::{LocalPoller, Request, Response, Server, Status};
use rpc_transport_verbs::Device;

/// Counts its greetings. It stays on one poller, so a `Cell` is enough.
#[derive(Default)]
struct CountingGreeter {
    greeted: Cell<u64>,
}

impl LocalGreeter for CountingGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let HelloRequest { name } = request.into_inner();
        if name.is_empty() {
            return Err(Status::invalid_argument("a greeting needs a name"));
        }
        self.greeted.set(self.greeted.get() + 1);
        let message = format!("Hello, {name}! You are number {}.", self.greeted.get());
        Ok(Response::new(HelloReply { message }))
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let device = Device::best()?;
    let server = Server::builder(&device)
        .add_service(GreeterServer::per_poller(CountingGreeter::default))
        .bind("127.0.0.1:0")?
        .spawn();

    let poller = LocalPoller::new(&device)?;
    let greeter = GreeterClient::new(poller.connect(&server.local_addr().to_string())?);
    for name in ["Ada", "Grace", "Barbara"] {
        let request = HelloRequest { name: name.into() };
        let reply = poller.block_on(greeter.say_hello(request))?;
        println!("{}", reply.into_inner().message);
    }
    Ok(server.shutdown()?)
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("in_process: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpc_core::{Code, LocalChannel, ServerHandle};

    /// Starts a separate server for each test, on its own port.
    fn start() -> (ServerHandle, LocalPoller, GreeterClient<LocalChannel>) {
        let device = Device::open("soft").expect("the software device exists on every machine");
        let server = Server::builder(&device)
            .add_service(GreeterServer::per_poller(CountingGreeter::default))
            .bind("127.0.0.1:0")
            .expect("a port is free")
            .spawn();
        let poller = LocalPoller::new(&device).expect("a poller opens");
        let address = server.local_addr().to_string();
        let channel = poller.connect(&address).expect("the server answers");
        (server, poller, GreeterClient::new(channel))
    }

    #[test]
    fn every_greeting_is_counted() {
        let (_server, poller, greeter) = start();
        for number in 1..=3 {
            let request = HelloRequest { name: "Ada".into() };
            let reply = poller
                .block_on(greeter.say_hello(request))
                .expect("a reply");
            let expected = format!("Hello, Ada! You are number {number}.");
            assert_eq!(reply.into_inner().message, expected);
        }
    }

    #[test]
    fn nobody_is_not_greeted() {
        let (_server, poller, greeter) = start();
        let request = HelloRequest::default();
        let error = poller
            .block_on(greeter.say_hello(request))
            .expect_err("a status");
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains("needs a name"), "{error}");
    }
}
