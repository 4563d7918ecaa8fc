//! Serves greetings, after asking another server over TCP for the person's title. The handlers of
//! this service wait for sockets, so they run on tokio instead of the pollers. Run it, and then run
//! `greeter_client` in another terminal:
//!
//! ```text
//! cargo run --release -p examples --bin tokio_server
//! ```
//!
//! This program also starts the other server, which answers lines: it answers "Ada" with "Countess
//! Ada". `--help` lists the arguments.
#![forbid(unsafe_code)]
// The server prints its address for the user.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use proto::greeter::{Greeter, GreeterServer, HelloReply, HelloRequest};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use verbline::server::Service;
use verbline::{Device, Request, Response, Server, Status, TokioExecutor};

struct TitledGreeter {
    titles: SocketAddr,
}

impl Greeter for TitledGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let HelloRequest { name } = request.into_inner();
        if name.is_empty() || name.contains('\n') {
            return Err(Status::invalid_argument(
                "a greeting needs a name of one line",
            ));
        }
        // This waits for a tokio socket. If the client's deadline passes or its connection ends
        // first, this future is dropped and the socket is closed.
        let called = self.ask(&name).await.map_err(|error| {
            Status::unavailable(format!("cannot ask title server {}: {error}", self.titles))
        })?;
        let message = format!("Hello, {called}!");
        Ok(Response::new(HelloReply { message }))
    }
}

impl TitledGreeter {
    async fn ask(&self, name: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.titles).await?;
        stream.write_all(format!("{name}\n").as_bytes()).await?;
        let mut called = String::new();
        BufReader::new(stream).read_line(&mut called).await?;
        Ok(called.trim_end().to_owned())
    }
}

/// Runs the other server: answers each line with a line.
async fn serve_titles(listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let mut stream = BufReader::new(stream);
            let mut name = String::new();
            stream.read_line(&mut name).await?;
            let title = match name.trim_end() {
                "Ada" => "Countess ",
                "Grace" => "Rear Admiral ",
                _ => "",
            };
            stream.write_all(format!("{title}{name}").as_bytes()).await
        });
    }
}

/// Creates the greeter's service, whose handlers run on `runtime`.
fn service(runtime: &Runtime) -> io::Result<impl Service> {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let titles = listener.local_addr()?;
    runtime.spawn(serve_titles(listener));
    let executor = TokioExecutor::from(runtime.handle().clone());
    Ok(GreeterServer::new(TitledGreeter { titles }).executor(executor))
}

/// Serves greetings; its handlers wait for sockets, and run on tokio
#[derive(Parser)]
#[command(after_help = "Next: run `greeter_client Ada` in another terminal")]
struct Arguments {
    /// The address to listen at. With port 0, the system chooses a port.
    #[arg(default_value = "127.0.0.1:50051")]
    address: String,
}

fn run(Arguments { address }: Arguments) -> Result<(), Box<dyn Error>> {
    // The runtime's worker threads run next to the pollers and need their own cores.
    let runtime = Runtime::new()?;
    let device = Device::best()?;
    let server = Server::builder(&device)
        .add_service(service(&runtime)?)
        .bind(&address)?;
    println!("listening at {}", server.local_addr());
    Ok(server.run()?)
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tokio_server: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;
    use std::time::Duration;

    use proto::greeter::GreeterClient;
    use verbline::{Code, LocalPoller};

    use super::*;

    #[test]
    fn handlers_wait_for_sockets_many_at_a_time() {
        let runtime = Runtime::new().expect("a runtime");
        let device = Device::open("soft").expect("the software device exists on every machine");
        let server = Server::builder(&device)
            .add_service(service(&runtime).expect("a port is free"))
            .bind("127.0.0.1:0")
            .expect("a port is free")
            .spawn();
        let poller = LocalPoller::new(&device).expect("a poller opens");
        let address = server.local_addr().to_string();
        let channel = poller.connect(&address).expect("the server answers");
        let greeter = GreeterClient::new(channel);
        let greet = |name: &str| greeter.say_hello(HelloRequest { name: name.into() });

        let ada = poller.block_on(greet("Ada")).expect("a reply");
        assert_eq!(ada.into_inner().message, "Hello, Countess Ada!");
        let mut calls: Vec<_> = (0..8).map(|_| Some(Box::pin(greet("Grace")))).collect();
        poller.block_on(poll_fn(|cx| {
            for place in &mut calls {
                if let Some(call) = place
                    && let Poll::Ready(reply) = call.as_mut().poll(cx)
                {
                    let message = reply.expect("a reply").into_inner().message;
                    assert_eq!(message, "Hello, Rear Admiral Grace!");
                    *place = None;
                }
            }
            match calls.iter().flatten().next() {
                Some(_) => Poll::Pending,
                None => Poll::Ready(()),
            }
        }));
        let error = poller.block_on(greet("")).expect_err("a status");
        assert_eq!(error.code(), Code::InvalidArgument);

        // A runtime that shuts down drops its handlers. The call fails with a status.
        runtime.shutdown_timeout(Duration::from_secs(10));
        let error = poller.block_on(greet("Ada")).expect_err("a status");
        assert_eq!(error.code(), Code::Unavailable);
        server.shutdown().expect("no poller panicked");
    }
}
