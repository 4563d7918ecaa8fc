//! Makes one call: `cargo run --bin client -- --help`.

use std::error::Error;
use std::io;
use std::time::Duration;

use clap::Parser;
use tracing::level_filters::LevelFilter;
use @CRATE@::greeter::{GreeterClient, HelloRequest};
use verbline::{Channel, Device, Request};

/// Asks a server for a greeting
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Whom to greet
    #[arg(default_value = "Ada")]
    name: String,
    /// The server's address
    #[arg(default_value = "127.0.0.1:50051")]
    address: String,
    /// Seconds that the call may take
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    timeout: u64,
    /// The least important events to log: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log: LevelFilter,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_max_level(arguments.log)
        .with_writer(io::stderr)
        .init();
    // A program keeps its channel: it connects again by itself, and many tasks share it.
    let channel = Channel::connect(&Device::best()?, &arguments.address).await?;
    let greeter = GreeterClient::new(channel);
    let request = Request::new(HelloRequest {
        name: arguments.name,
    })
    .with_timeout(Duration::from_secs(arguments.timeout));
    let reply = greeter.say_hello(request).await?;
    println!("{}", reply.into_inner().message);
    Ok(())
}
