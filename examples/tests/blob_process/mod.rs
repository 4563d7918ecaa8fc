//! A store of bytes in a separate process, for tests of long messages. Like the other tests'
//! servers, it is another instance of the test program that runs the ignored test `server_process`.

// Each test program uses only parts of this module.
#![allow(dead_code)]

use std::cell::RefCell;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::blobs::blobs_server::LocalBlobs;
use proto::blobs::part::Part as Content;
use proto::blobs::{Blob, BlobsClient, BlobsServer, GetRequest, Header, Part, PutReply};
use rpc_core::stats::{Memory, PollerStats};
use rpc_core::{
    CallError, LocalChannel, LocalPoller, Request, Response, Server, Status, Stream, Streaming,
    stream,
};
use rpc_transport_verbs::{Device, Sizing};

use crate::echo_process;

pub(crate) const KIB: usize = 1 << 10;
pub(crate) const MIB: usize = 1 << 20;

/// Time limit of a wait for an event that has to occur. It bounds failing tests only.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Names of blobs that the server keeps: all of the data, or the digest alone.
pub(crate) const KEEP: &str = "keep";
pub(crate) const KEEP_DIGEST: &str = "keep-digest";
/// Names of blobs that the server drops, in `get` and in `put`.
pub(crate) const DROP: &str = "drop";
/// Names of requests to the server: to return its memory of long messages, and to drop the fields
/// that it keeps.
pub(crate) const MEMORY: &str = "memory";
pub(crate) const FORGET: &str = "forget";

/// Environment variables for the server's process: the numbers of [`Settings`], and whether peers
/// are trusted.
const SETTINGS: &str = "VERBLINE_TEST_SETTINGS";
const TRUSTED: &str = "VERBLINE_TEST_TRUSTED";

/// The settings in which the servers of the tests differ.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) max_message_len: usize,
    pub(crate) message_memory: usize,
    pub(crate) waits: bool,
}

impl Settings {
    /// Messages of 8 MiB and more, and much memory.
    pub(crate) const AMPLE: Self = Self {
        max_message_len: 16 * MIB,
        message_memory: 256 * MIB,
        waits: true,
    };

    /// Starts a server with these settings.
    pub(crate) fn server(self) -> (echo_process::Process, String) {
        let settings = format!(
            "{} {} {}",
            self.max_message_len, self.message_memory, self.waits
        );
        echo_process::Process::listening(&[(SETTINGS, &settings)])
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        Some(Self {
            max_message_len: words.next()?.parse().ok()?,
            message_memory: words.next()?.parse().ok()?,
            waits: words.next()?.parse().ok()?,
        })
    }
}

/// Bytes that do not repeat, of which each message carries the first ones.
static CONTENT: LazyLock<Bytes> = LazyLock::new(|| {
    let words = (0..2 * MIB as u64).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
});

/// Returns the first bytes of [`CONTENT`].
pub(crate) fn content(len: usize) -> Bytes {
    CONTENT.slice(..len)
}

/// Keeps the fields whose message has one of the names above.
struct Keeper(RefCell<Vec<Bytes>>);

impl LocalBlobs for Keeper {
    async fn put(&self, request: Request<Blob>) -> Result<Response<PutReply>, Status> {
        let Blob { header, data } = request.into_inner();
        let Header { name, sha256, .. } = header.unwrap_or_default();
        check(&data)?;
        match &*name {
            KEEP => self.0.borrow_mut().push(data),
            KEEP_DIGEST => self.0.borrow_mut().push(sha256),
            _ => {}
        }
        Ok(Response::new(PutReply::default()))
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<Blob>, Status> {
        let name = request.into_inner().name;
        let mut blob = Blob::default();
        match &*name {
            MEMORY => {
                let poller = LocalPoller::current().expect("a handler runs on a poller");
                blob.data = numbers(&poller.stats().pollers[0].memory).to_vec().into();
            }
            FORGET => self.0.borrow_mut().clear(),
            len => blob.data = content(parse(len)?),
        }
        Ok(Response::new(blob))
    }

    /// Answers when it has read all parts.
    async fn put_parts(
        &self,
        request: Request<Streaming<Part>>,
    ) -> Result<Response<PutReply>, Status> {
        let mut parts = request.into_inner();
        while let Some(Part { part }) = parts.message().await? {
            if let Some(Content::Data(data)) = part {
                check(&data)?;
            }
        }
        Ok(Response::new(PutReply::default()))
    }

    /// Returns eight parts, each of the length that is asked for.
    async fn get_parts(
        &self,
        request: Request<GetRequest>,
    ) -> Result<Response<impl Stream<Item = Result<Part, Status>>>, Status> {
        let data = content(parse(&request.into_inner().name)?);
        Ok(Response::new(stream(async move |mut parts| {
            for _ in 0..PARTS {
                let part = Some(Content::Data(data.clone()));
                parts.send(Part { part }).await?;
            }
            Ok(())
        })))
    }
}

/// Parts of a stream of the server.
pub(crate) const PARTS: usize = 8;

fn check(data: &[u8]) -> Result<(), Status> {
    match data == content(data.len()) {
        true => Ok(()),
        false => Err(Status::data_loss("these are not the bytes that were sent")),
    }
}

fn parse(len: &str) -> Result<usize, Status> {
    len.parse()
        .map_err(|_| Status::invalid_argument(format!("'{len}' is no length")))
}

fn numbers(memory: &Memory) -> [u8; 32] {
    let numbers = [memory.posted, memory.in_flight, memory.held, memory.pinned];
    let mut bytes = [0; 32];
    for (bytes, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
        *bytes = number.to_le_bytes();
    }
    bytes
}

/// Opens the device under test. It trusts its peers if the environment variable is set.
pub(crate) fn device() -> Device {
    let sizing = Sizing {
        trusted_peers: std::env::var_os(TRUSTED).is_some(),
        ..Sizing::default()
    };
    echo_process::device().with_sizing(sizing)
}

/// Runs the server; the body of the test `server_process`.
pub(crate) fn serve() {
    echo_process::run(|| {
        let settings = std::env::var(SETTINGS).expect("the settings");
        let settings = Settings::parse(&settings).expect("three words");
        Server::builder(&device())
            .add_service(BlobsServer::per_poller(|| Keeper(RefCell::default())))
            .max_message_len(settings.max_message_len)
            .message_memory(settings.message_memory as u64)
            .waits_for_memory(settings.waits)
            .bind("127.0.0.1:0")
            .expect("a server on this machine")
    });
}

/// A connection to the server, with a poller of its own.
pub(crate) struct Client {
    pub(crate) poller: LocalPoller,
    pub(crate) blobs: BlobsClient<LocalChannel>,
}

impl Client {
    pub(crate) fn connect(address: &str) -> Self {
        Self::over(&device(), address)
    }

    pub(crate) fn over(device: &Device, address: &str) -> Self {
        let intents = rpc_core::Intents {
            max_message_len: 16 * MIB,
            ..rpc_core::Intents::default()
        };
        let poller = LocalPoller::builder(device)
            .intents(intents.clone())
            .build()
            .unwrap();
        let channel = poller
            .connect(address)
            .unwrap_or_else(|error| panic!("{error}"));
        Self {
            poller,
            blobs: BlobsClient::new(channel),
        }
    }

    pub(crate) async fn put(&self, name: &str, len: usize) -> Result<(), CallError> {
        self.put_within(name, len, PATIENCE).await
    }

    pub(crate) async fn put_within(
        &self,
        name: &str,
        len: usize,
        timeout: Duration,
    ) -> Result<(), CallError> {
        let header = Header {
            name: name.to_owned(),
            len: len as u64,
            sha256: Bytes::from_static(&[7; 32]),
        };
        let blob = Blob {
            header: Some(header),
            data: content(len),
        };
        let request = Request::new(blob).with_timeout(timeout);
        self.blobs.put(request).await.map(drop)
    }

    /// Gets `len` bytes, and checks them.
    pub(crate) async fn get(&self, len: usize) -> Result<(), CallError> {
        let data = self.ask(&len.to_string()).await?;
        assert!(data == content(len), "{len} bytes");
        Ok(())
    }

    /// Sends parts of `len` bytes each.
    pub(crate) async fn put_parts(&self, len: usize) -> Result<(), CallError> {
        let part = Part {
            part: Some(Content::Data(content(len))),
        };
        let parts = tokio_stream::iter(vec![part; PARTS]);
        self.blobs.put_parts(parts).await.map(drop)
    }

    /// Receives parts of `len` bytes each, and checks them. Returns their number.
    pub(crate) async fn get_parts(&self, len: usize) -> Result<usize, CallError> {
        let name = len.to_string();
        let response = self.blobs.get_parts(GetRequest { name }).await?;
        let (mut parts, mut count) = (response.into_inner(), 0);
        while let Some(Part { part }) = parts.message().await? {
            assert!(part == Some(Content::Data(content(len))), "{len} bytes");
            count += 1;
        }
        Ok(count)
    }

    async fn ask(&self, name: &str) -> Result<Bytes, CallError> {
        let name = name.to_owned();
        let request = Request::new(GetRequest { name }).with_timeout(PATIENCE);
        let response = self.blobs.get(request).await?;
        Ok(response.into_inner().data)
    }

    pub(crate) fn small_call(&self) {
        self.poller.block_on(self.put(DROP, 10)).unwrap();
    }

    pub(crate) fn forget(&self) {
        self.poller.block_on(self.ask(FORGET)).unwrap();
    }

    /// Returns the gauges of the server's memory.
    pub(crate) fn server_memory(&self) -> Memory {
        let bytes = self.poller.block_on(self.ask(MEMORY)).unwrap();
        let mut memory = Memory::default();
        let [posted, in_flight, held, pinned] = std::array::from_fn(|at| {
            u64::from_le_bytes(bytes[at * 8..][..8].try_into().expect("eight bytes"))
        });
        (memory.posted, memory.in_flight) = (posted, in_flight);
        (memory.held, memory.pinned) = (held, pinned);
        memory
    }

    /// Waits until the server has memory for a message that it receives, or sends.
    pub(crate) fn wait_for_message(&self, is_received: bool) {
        if !is_received && self.poller.limits().read_depth == 0 {
            // What is sent in fragments is in slots.
            return;
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let memory = self.server_memory();
            let bytes = match is_received {
                true => memory.posted,
                false => memory.in_flight,
            };
            if bytes > 0 {
                return;
            }
            assert!(Instant::now() < deadline, "{memory:?}");
        }
    }

    /// Waits until neither the server nor this client has memory of a message.
    pub(crate) fn wait_until_all_is_back(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let server = self.server_memory();
            let client = self.stats().memory;
            if is_free(&server) && is_free(&client) {
                return;
            }
            assert!(Instant::now() < deadline, "{server:?}, {client:?}");
        }
    }

    /// Returns the statistics of this side.
    pub(crate) fn stats(&self) -> PollerStats {
        let mut stats = self.poller.stats();
        stats.pollers.remove(0)
    }

    pub(crate) fn turn_until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done() {
            self.poller.turn();
            assert!(Instant::now() < deadline, "{what}");
        }
    }
}

/// Returns true if no message has memory.
pub(crate) fn is_free(memory: &Memory) -> bool {
    memory.posted + memory.in_flight + memory.held + memory.pinned == 0
}
