//! The service, in memory: what a user of tonic would write first.
#![deny(warnings)]
#![warn(missing_docs, unreachable_pub, unused_qualifications)]

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;
use verbline::error_details::{BadRequest, bad_request::FieldViolation};
use verbline::message::prost_types;
use verbline::{Code, Request, Response, Status, Stream, Streaming, stream};

/// The generated code: packages that use one another, nested like their names.
#[allow(missing_docs)]
pub mod protos {
    verbline::include_protos!("protos.rs");
}

// A glob, as everybody writes it, with all the awkward names.
use protos::acme::kv::v1::*;

/// Keeps entries by key.
pub struct Store {
    entries: Mutex<BTreeMap<String, Entry>>,
    events: broadcast::Sender<Event>,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            entries: Mutex::default(),
            events: broadcast::Sender::new(64),
        }
    }
}

impl Store {
    fn put_entry(&self, entry: Option<Entry>) -> Result<(), Status> {
        let entry = entry.ok_or_else(|| missing("entry"))?;
        if entry.key.is_empty() {
            return Err(missing("entry.key"));
        }
        let event = Event {
            event: Some(event::Event::Put(entry.clone())),
        };
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.insert(entry.key.clone(), entry);
        // Nobody may be watching.
        let _ = self.events.send(event);
        Ok(())
    }
}

fn missing(field: &str) -> Status {
    let violation = FieldViolation {
        field: field.to_owned(),
        description: "is missing".to_owned(),
        ..FieldViolation::default()
    };
    let field_violations = vec![violation];
    let details = BadRequest { field_violations };
    Status::with_error_details(Code::InvalidArgument, "a field is missing", details)
}

impl KeyValue for Store {
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let key = request.into_inner().key;
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get(&key).cloned();
        let entry = entry.ok_or_else(|| Status::not_found(format!("no entry '{key}'")))?;
        Ok(Response::new(GetResponse { entry: Some(entry) }))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<()>, Status> {
        self.put_entry(request.into_inner().entry)?;
        Ok(Response::new(()))
    }

    /// Waits for a timer of tokio, so it needs its runtime. Returns the caller's metadata.
    async fn ping(&self, request: Request<()>) -> Result<Response<()>, Status> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut response = Response::new(());
        for value in request.metadata().get_all("hop") {
            response.metadata_mut().append("hop", value.to_owned())?;
        }
        response.metadata_mut().append("hop", "store")?;
        Ok(response)
    }

    async fn echo(
        &self,
        request: Request<prost_types::Any>,
    ) -> Result<Response<prost_types::Any>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    async fn watch(
        &self,
        request: Request<WatchRequest>,
    ) -> Result<Response<impl Stream<Item = Result<Event, Status>>>, Status> {
        let prefix = request.into_inner().prefix;
        let mut events = self.events.subscribe();
        Ok(Response::new(stream(async move |mut responses| {
            while let Ok(event) = events.recv().await {
                let is_wanted = match &event.event {
                    Some(event::Event::Put(entry)) => entry.key.starts_with(&prefix),
                    Some(event::Event::Removed(key)) => key.starts_with(&prefix),
                    None => false,
                };
                if is_wanted {
                    responses.send(event).await?;
                }
            }
            Ok(())
        })))
    }

    async fn load(&self, request: Request<Streaming<PutRequest>>) -> Result<Response<u64>, Status> {
        let mut requests = request.into_inner();
        let mut count = 0;
        while let Some(request) = requests.message().await? {
            self.put_entry(request.entry)?;
            count += 1;
        }
        Ok(Response::new(count))
    }

    async fn talk(
        &self,
        request: Request<Streaming<Event>>,
    ) -> Result<Response<impl Stream<Item = Result<Event, Status>>>, Status> {
        let mut events = request.into_inner();
        Ok(Response::new(stream(async move |mut responses| {
            while let Some(event) = events.message().await? {
                responses.send(event).await?;
            }
            Ok(())
        })))
    }

    async fn tree(&self, request: Request<Node>) -> Result<Response<Node>, Status> {
        // A handler that calls another method of its own service.
        self.put(Request::new(PutRequest {
            entry: Some(Entry {
                key: "tree".to_owned(),
                ..Entry::default()
            }),
            ..PutRequest::default()
        }))
        .await?;
        Ok(Response::new(request.into_inner()))
    }
}
