//! Changes a key of a running `watch_server`, or prints the changes of all keys with a prefix. You can
//! stop the server and start it again: the client resumes after the last change that it has printed,
//! so it misses none and repeats none.
//!
//! ```text
//! cargo run --release -p examples --bin watch_client -- watch color
//! cargo run --release -p examples --bin watch_client -- put color/sky blue
//! ```
#![forbid(unsafe_code)]
// Printing the responses is the purpose of this program.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use proto::watch::{PutRequest, StoreClient, WatchRequest};
use verbline::{CallError, Channel, Code, Device, block_on};

/// Changes a key of a store, or prints changes.
#[derive(Parser)]
#[command(
    after_help = "Next: put and watch, then stop the server and start it again: the watcher continues"
)]
struct Arguments {
    /// The server's address.
    #[arg(long, default_value = "127.0.0.1:50051")]
    address: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Sets the value of a key.
    Put {
        /// The key: any text.
        key: String,
        /// Its new value.
        value: String,
    },
    /// Prints all changes of the keys that begin with a prefix, the past ones first.
    Watch {
        /// What the keys begin with. Empty for all keys.
        key_prefix: String,
    },
}

async fn put(store: &StoreClient, key: String, value: String) -> Result<(), CallError> {
    let value = value.into_bytes();
    let reply = store.put(PutRequest { key, value }).await?.into_inner();
    println!("revision {}", reply.revision);
    Ok(())
}

/// Prints changes, and moves `revision` to the last one that it has printed. The stream has no end,
/// so it only returns an error.
async fn watch(store: &StoreClient, key_prefix: &str, revision: &mut u64) -> Result<(), CallError> {
    let request = WatchRequest {
        key_prefix: key_prefix.to_owned(),
        after_revision: *revision,
    };
    let mut events = store.watch(request).await?.into_inner();
    while let Some(event) = events.message().await? {
        let value = String::from_utf8_lossy(&event.value);
        println!("{}: {} = {value}", event.revision, event.key);
        *revision = event.revision;
    }
    Ok(())
}

async fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let device = Device::best()?;
    let key_prefix = match arguments.command {
        Command::Put { key, value } => {
            let channel = Channel::connect(&device, &arguments.address).await?;
            return Ok(put(&StoreClient::new(channel), key, value).await?);
        }
        Command::Watch { key_prefix } => key_prefix,
    };
    // The channel reconnects by itself. `wait_for_ready`: a call waits for the connection.
    let channel = Channel::builder(&device, &arguments.address)
        .wait_for_ready(true)
        .connect_lazy()?;
    let store = StoreClient::new(channel);
    let mut revision = 0;
    loop {
        eprintln!(
            "watch_client: waits for {}, for the changes after revision {revision}",
            arguments.address
        );
        match watch(&store, &key_prefix, &mut revision).await {
            Ok(()) => eprintln!("watch_client: the server has ended the stream"),
            // The server's process has died, or it shuts down. Any other error would come again.
            Err(error) if error.code() == Code::Unavailable => eprintln!("watch_client: {error}"),
            Err(error) => return Err(error.into()),
        }
    }
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match block_on(run(Arguments::parse())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("watch_client: {error}");
            ExitCode::FAILURE
        }
    }
}
