//! Requests many greetings at once from a running `greeter_server`, from tasks of a tokio runtime
//! that share one channel:
//!
//! ```text
//! cargo run --release -p examples --bin shared_client -- 100
//! ```
//!
//! You can stop the server and start it again: the channel reconnects. `--help` lists the arguments.
#![forbid(unsafe_code)]
// Printing the responses is the purpose of this program.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use proto::greeter::{GreeterClient, HelloRequest};
use verbline::{Channel, Device, Request};

/// Requests greetings from a running greeter_server, many at once
#[derive(Parser)]
#[command(after_help = "Next: a client and a server with streams: chat_server and chat_client")]
struct Arguments {
    /// The number of greetings.
    #[arg(default_value_t = 10)]
    count: usize,
    /// The server's address.
    #[arg(default_value = "127.0.0.1:50051")]
    address: String,
}

async fn greet(count: usize, address: &str) -> Result<(), Box<dyn Error>> {
    // The channel is cheap to clone and can be used from any thread. A background thread owns the
    // connection.
    let channel = Channel::connect(&Device::best()?, address).await?;
    let greeter = GreeterClient::new(channel.clone());
    let tasks: Vec<_> = (1..=count)
        .map(|number| {
            let greeter = greeter.clone();
            tokio::spawn(async move {
                let name = format!("Ada the {number}.");
                let request = Request::new(HelloRequest { name })
                    .with_timeout(Duration::from_secs(5))
                    // If the server is down, wait for it up to the timeout instead of failing.
                    .wait_for_ready(true);
                greeter.say_hello(request).await
            })
        })
        .collect();
    for task in tasks {
        println!("{}", task.await??.into_inner().message);
    }
    Ok(())
}

fn run(Arguments { count, address }: Arguments) -> Result<(), Box<dyn Error>> {
    tokio::runtime::Runtime::new()?.block_on(greet(count, &address))
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shared_client: {error}");
            ExitCode::FAILURE
        }
    }
}
