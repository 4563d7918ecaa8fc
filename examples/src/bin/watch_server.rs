//! Serves a store of keys and values whose changes can be watched. Run it, and then run
//! `watch_client` in other terminals:
//!
//! ```text
//! cargo run --release -p examples --bin watch_server -- store.jsonl
//! ```
//!
//! The argument is the file that keeps the changes, so a server that is started again continues with
//! the next revision. `--help` lists the arguments.
#![forbid(unsafe_code)]
// The server prints its address for the user.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clap::Parser;
use proto::watch::{Event, PutReply, PutRequest, Store, StoreServer, WatchRequest};
use serde_json::json;
use tokio::sync::watch;
use verbline::{Device, Request, Response, Server, Status, Stream, stream};

/// Events that a watcher copies at a time, while it has locked the store.
const BATCH: usize = 64;

struct FileStore {
    changes: Mutex<Changes>,
    /// The latest revision. Watchers wait for it to change.
    latest: watch::Sender<u64>,
}

/// All changes: the event with revision `n` is at index `n - 1`.
struct Changes {
    events: Vec<Event>,
    file: File,
}

impl FileStore {
    fn open(path: &Path) -> Result<Self, Box<dyn Error>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).open(path)?;
        let mut events = Vec::new();
        for line in BufReader::new(&file).lines() {
            let (key, value): (String, Vec<u8>) = serde_json::from_str(&line?)?;
            let revision = events.len() as u64 + 1;
            events.push(Event {
                revision,
                key,
                value,
            });
        }
        Ok(Self {
            latest: watch::Sender::new(events.len() as u64),
            changes: Mutex::new(Changes { events, file }),
        })
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next changes after a revision, and the last revision that was examined.
    fn after(&self, revision: u64, key_prefix: &str) -> (Vec<Event>, u64) {
        let changes = self.changes();
        let next = changes.events.iter().skip(revision as usize).take(BATCH);
        let examined = revision + next.len() as u64;
        let wanted = next.filter(|event| event.key.starts_with(key_prefix));
        (wanted.cloned().collect(), examined)
    }
}

impl Store for FileStore {
    // Writes to the page cache, which is quick enough for a poller's thread.
    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutReply>, Status> {
        let PutRequest { key, value } = request.into_inner();
        let mut changes = self.changes();
        writeln!(changes.file, "{}", json!([key, value]))
            .map_err(|error| Status::internal(format!("cannot write the store: {error}")))?;
        let revision = changes.events.len() as u64 + 1;
        changes.events.push(Event {
            revision,
            key,
            value,
        });
        // While the store is locked, so that revisions are announced in order.
        self.latest.send_replace(revision);
        Ok(Response::new(PutReply { revision }))
    }

    async fn watch(
        &self,
        request: Request<WatchRequest>,
    ) -> Result<Response<impl Stream<Item = Result<Event, Status>>>, Status> {
        let WatchRequest {
            key_prefix,
            after_revision,
        } = request.into_inner();
        let mut latest = self.latest.subscribe();
        if after_revision > *latest.borrow() {
            let message = format!("there is no revision {after_revision} yet");
            return Err(Status::out_of_range(message));
        }
        Ok(Response::new(stream(async move |mut responses| {
            let mut revision = after_revision;
            loop {
                // Waits while the client does not read. The events wait in the store, not here.
                let (events, examined) = self.after(revision, &key_prefix);
                for event in events {
                    responses.send(event).await?;
                }
                revision = examined;
                // The store, which has the other end, outlives this.
                let newer = latest.wait_for(|&latest| latest > revision).await;
                newer.map_err(|_| Status::unavailable("the store is closed"))?;
            }
        })))
    }
}

/// Serves a store of keys and values whose changes can be watched
#[derive(Parser)]
#[command(
    after_help = "Next: run `watch_client watch \"\"` and `watch_client put color/sky blue` in other terminals"
)]
struct Arguments {
    /// The file that keeps the changes. It is created if there is none.
    file: PathBuf,
    /// The address to listen at. With port 0, the system chooses a port.
    #[arg(default_value = "127.0.0.1:50051", value_parser = host_and_port)]
    address: String,
}

/// Accepts `host:port`, so that swapped arguments are an error before anything is created.
fn host_and_port(text: &str) -> Result<String, &'static str> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(text.to_owned())
        }
        _ => Err("expected host:port, such as 127.0.0.1:50051"),
    }
}

fn run(Arguments { file, address }: Arguments) -> Result<(), Box<dyn Error>> {
    let store = FileStore::open(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let server = Server::builder(&Device::best()?)
        .add_service(StoreServer::new(store))
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
            eprintln!("watch_server: {error}");
            ExitCode::FAILURE
        }
    }
}
