//! Enters the room of a running `chat_server`. Says each line of standard input, prints what happens
//! in the room, and leaves at the end of the input:
//!
//! ```text
//! cargo run --release -p examples --bin chat_client -- Ada
//! ```
//!
//! `--help` lists the arguments.
#![forbid(unsafe_code)]
// Printing the responses is the purpose of this program.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::process::ExitCode;
use std::{io, thread};

use clap::Parser;
use proto::chat::server_event::Event;
use proto::chat::{ChatClient, ClientEvent, Enter, Say, client_event};
use verbline::{Channel, Device, Sender, block_on, sender};

/// Says each line of standard input. At its end, the sender is dropped, which half-closes the call.
async fn say_lines(name: String, mut events: Sender<ClientEvent>) -> Result<(), Box<dyn Error>> {
    let enter = Some(client_event::Event::Enter(Enter { name }));
    events.send(ClientEvent { event: enter }).await?;
    for line in io::stdin().lines() {
        let say = Some(client_event::Event::Say(Say { text: line? }));
        events.send(ClientEvent { event: say }).await?;
    }
    Ok(())
}

/// Enters the room of a running chat_server: says the lines of its input, and prints what happens
#[derive(Parser)]
#[command(
    after_help = "Next: a stream that survives a restart of its server: watch_server and watch_client"
)]
struct Arguments {
    /// The name under which to enter.
    #[arg(default_value = "Ada")]
    name: String,
    /// The server's address.
    #[arg(default_value = "127.0.0.1:50051")]
    address: String,
}

fn run(Arguments { name, address }: Arguments) -> Result<(), Box<dyn Error>> {
    // One thread waits for the input, and this one for the room.
    let (events, messages) = sender();
    thread::spawn(move || {
        if let Err(error) = block_on(say_lines(name, events)) {
            eprintln!("chat_client: {error}");
        }
    });
    block_on(async {
        let channel = Channel::connect(&Device::best()?, &address).await?;
        let mut room = ChatClient::new(channel).join(messages).await?.into_inner();
        while let Some(event) = room.message().await? {
            match event.event {
                Some(Event::Entered(entered)) => println!("{} has entered", entered.name),
                Some(Event::Said(said)) => println!("{}: {}", said.name, said.text),
                Some(Event::Left(left)) => println!("{} has left", left.name),
                None => {}
            }
        }
        Ok(())
    })
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chat_client: {error}");
            ExitCode::FAILURE
        }
    }
}
