//! Serves a chat room, in which each participant has one bidirectional stream. Run it, and then run
//! `chat_client` in several other terminals:
//!
//! ```text
//! cargo run --release -p examples --bin chat_server
//! ```
//!
//! The handlers run on the pollers: tokio's channels and `select!` need no runtime. `--help` lists the
//! arguments.
#![forbid(unsafe_code)]
// The server prints its address for the user.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::BTreeSet;
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clap::Parser;
use proto::chat::{
    Chat, ChatServer, ClientEvent, Enter, Entered, Left, Said, ServerEvent, client_event,
    server_event,
};
use tokio::sync::broadcast::{self, Receiver};
use verbline::{Device, Request, Response, Server, Status, Stream, Streaming, stream};

/// Events that may wait for a participant who does not read. If there are more, the participant has
/// to leave: nobody waits for a slow one.
const WAITING_EVENTS: usize = 256;

struct Room {
    names: Mutex<BTreeSet<String>>,
    events: broadcast::Sender<server_event::Event>,
}

/// A participant, who leaves when this is dropped: at the end of the stream, and also when the client
/// has cancelled the call or its process has died, because the server then drops the handler.
struct Participant<'a> {
    room: &'a Room,
    name: String,
    events: Receiver<server_event::Event>,
}

impl Room {
    fn names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an event to everyone in the room.
    fn tell(&self, event: server_event::Event) {
        // An error says that the room is empty.
        let _ = self.events.send(event);
    }

    /// Returns a new participant, and the names of those in the room.
    fn enter(&self, name: String) -> Result<(Participant<'_>, Vec<String>), Status> {
        // Locked until everyone has been told, so that a name enters before it leaves.
        let mut names = self.names();
        let others = names.iter().cloned().collect();
        if name.is_empty() || !names.insert(name.clone()) {
            let message = format!("the name '{name}' is empty or taken");
            return Err(Status::already_exists(message));
        }
        let participant = Participant {
            room: self,
            name: name.clone(),
            events: self.events.subscribe(),
        };
        self.tell(server_event::Event::Entered(Entered { name }));
        Ok((participant, others))
    }
}

impl Drop for Participant<'_> {
    fn drop(&mut self) {
        let name = std::mem::take(&mut self.name);
        let mut names = self.room.names();
        names.remove(&name);
        self.room.tell(server_event::Event::Left(Left { name }));
    }
}

impl Chat for Room {
    async fn join(
        &self,
        request: Request<Streaming<ClientEvent>>,
    ) -> Result<Response<impl Stream<Item = Result<ServerEvent, Status>>>, Status> {
        let mut requests = request.into_inner();
        Ok(Response::new(stream(async move |mut responses| {
            let first = requests.message().await?.and_then(|first| first.event);
            let Some(client_event::Event::Enter(Enter { name })) = first else {
                return Err(Status::invalid_argument("the first event must be `enter`"));
            };
            let (mut participant, others) = self.enter(name)?;
            for name in others {
                let event = server_event::Event::Entered(Entered { name });
                responses.send(ServerEvent { event: Some(event) }).await?;
            }
            loop {
                tokio::select! {
                    request = requests.message() => match request? {
                        Some(request) => participant.say(request)?,
                        None => return Ok(()),
                    },
                    event = participant.events.recv() => {
                        let event = event.map_err(|_| Status::resource_exhausted("too slow"))?;
                        responses.send(ServerEvent { event: Some(event) }).await?;
                    }
                }
            }
        })))
    }
}

impl Participant<'_> {
    fn say(&self, request: ClientEvent) -> Result<(), Status> {
        let Some(client_event::Event::Say(say)) = request.event else {
            return Err(Status::invalid_argument("only the first event is `enter`"));
        };
        self.room.tell(server_event::Event::Said(Said {
            name: self.name.clone(),
            text: say.text,
        }));
        Ok(())
    }
}

/// Serves a chat room
#[derive(Parser)]
#[command(
    after_help = "Next: enter the room with chat_client, under different names in several terminals"
)]
struct Arguments {
    /// The address to listen at. With port 0, the system chooses a port.
    #[arg(default_value = "127.0.0.1:50051")]
    address: String,
}

fn run(Arguments { address }: Arguments) -> Result<(), Box<dyn Error>> {
    let room = Room {
        names: Mutex::default(),
        events: broadcast::channel(WAITING_EVENTS).0,
    };
    let server = Server::builder(&Device::best()?)
        .add_service(ChatServer::new(room))
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
            eprintln!("chat_server: {error}");
            ExitCode::FAILURE
        }
    }
}
