//! Messages per second of one stream from a server, whose messages all reach the client's code.

use proto::bench::{BenchStreamsClient, Blob, Fixed, SubscribeRequest};
use rpc_core::{CallError, Caller, Response, Streaming, block_on};

use super::message::{Numbered, Reader};
use crate::Outcome;
use crate::in_flight::Period;
use crate::rates::Rated;
use crate::rpc::Rpc;
use crate::shared::Shared;

/// A message that a method of the service streams.
pub trait Subscribed: Numbered {
    /// Subscribes to the method of this message.
    fn subscribe<C: Caller>(
        client: &BenchStreamsClient<C>,
        request: SubscribeRequest,
    ) -> impl Future<Output = Result<Response<Streaming<Self>>, CallError>>;
}

impl Subscribed for Fixed {
    async fn subscribe<C: Caller>(
        client: &BenchStreamsClient<C>,
        request: SubscribeRequest,
    ) -> Result<Response<Streaming<Self>>, CallError> {
        client.subscribe_fixed(request).await
    }
}

impl Subscribed for Blob {
    async fn subscribe<C: Caller>(
        client: &BenchStreamsClient<C>,
        request: SubscribeRequest,
    ) -> Result<Response<Streaming<Self>>, CallError> {
        client.subscribe_blob(request).await
    }
}

/// Returns a request for more messages than will be read.
#[must_use]
pub fn endless(payload_len: usize) -> SubscribeRequest {
    SubscribeRequest {
        count: u64::MAX,
        payload_len: payload_len as u32,
    }
}

/// Messages and frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    /// Messages that the client has read in all turns.
    pub messages: u64,
    /// Frames that the server has sent meanwhile.
    pub frames: u64,
}

impl Sent {
    /// Returns the frames that a message took.
    #[must_use]
    pub fn frames_per_message(&self) -> f64 {
        self.frames as f64 / self.messages as f64
    }
}

/// A stream that a local client reads.
pub struct LocalStream<M> {
    reader: Reader<Streaming<M>>,
    client: Rpc,
    sent: Sent,
}

impl<M: Subscribed> LocalStream<M> {
    /// Opens the stream and pauses the server until the first turn.
    ///
    /// # Errors
    ///
    /// Fails if the stream cannot be opened.
    pub fn open(client: Rpc, payload_len: usize) -> Outcome<Self> {
        let streams = client.streams();
        let opening = M::subscribe(&streams, endless(payload_len));
        let stream = client.poller().block_on(opening)?.into_inner();
        client.server().pause()?;
        Ok(Self {
            reader: Reader::new(stream, payload_len),
            client,
            sent: Sent::default(),
        })
    }

    /// Returns the messages and frames of all turns.
    #[must_use]
    pub fn sent(&self) -> Sent {
        self.sent
    }
}

impl<M: Subscribed> Rated for LocalStream<M> {
    fn take_turn(&mut self) -> Outcome<f64> {
        let Self {
            reader,
            client,
            sent,
        } = self;
        client.server().in_turn(|| {
            let (frames, messages) = (client.stats()?.stream_frames, reader.read_so_far());
            let rate = client.poller().block_on(reader.rate(Period::turn()))?;
            sent.frames += client.stats()?.stream_frames - frames;
            sent.messages += reader.read_so_far() - messages;
            Outcome::Ok(rate)
        })
    }
}

/// A stream that is read through a shared channel, from a thread that is not its poller's.
pub struct SharedStream<M> {
    reader: Reader<Streaming<M>>,
    client: Shared,
}

impl<M: Subscribed> SharedStream<M> {
    /// Opens the stream and pauses the server until the first turn.
    ///
    /// # Errors
    ///
    /// Fails if the stream cannot be opened.
    pub fn open(client: Shared, payload_len: usize) -> Outcome<Self> {
        let stream = block_on(M::subscribe(&client.streams(), endless(payload_len)))?;
        client.server().pause()?;
        Ok(Self {
            reader: Reader::new(stream.into_inner(), payload_len),
            client,
        })
    }
}

impl<M: Subscribed> Rated for SharedStream<M> {
    fn take_turn(&mut self) -> Outcome<f64> {
        let Self { reader, client } = self;
        client
            .server()
            .in_turn(|| block_on(reader.rate(Period::turn())))
    }
}
