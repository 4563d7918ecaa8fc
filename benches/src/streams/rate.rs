//! Messages per second of one stream from a server, whose messages all reach the client's code. A shared
//! client's code runs on a thread that is not its poller's.

use proto::bench::{BenchStreamsClient, Blob, Fixed, SubscribeRequest};
use rpc_core::{CallError, Caller, Response, Streaming};

use super::message::{Numbered, Reader};
use crate::Outcome;
use crate::in_flight::Period;
use crate::rates::Rated;
use crate::rpc::Client;

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

/// A stream that a client reads. `messages` counts those that it has read in all turns, and `frames`
/// those that the server has sent meanwhile.
pub struct ServerStream<M, C> {
    reader: Reader<Streaming<M>>,
    client: C,
    messages: u64,
    frames: u64,
}

impl<M: Subscribed, C: Client> ServerStream<M, C> {
    /// Opens the stream and pauses the server until the first turn.
    ///
    /// # Errors
    ///
    /// Fails if the stream cannot be opened.
    pub fn open(client: C, payload_len: usize) -> Outcome<Self> {
        let stream = client.block_on(M::subscribe(&client.streams(), endless(payload_len)))?;
        client.server().pause()?;
        Ok(Self {
            reader: Reader::new(stream.into_inner(), payload_len),
            client,
            messages: 0,
            frames: 0,
        })
    }

    /// Returns the frames that a message took.
    #[must_use]
    pub fn frames_per_message(&self) -> f64 {
        self.frames as f64 / self.messages as f64
    }
}

impl<M: Subscribed, C: Client> Rated for ServerStream<M, C> {
    fn take_turn(&mut self) -> Outcome<f64> {
        let Self { reader, client, .. } = self;
        client.server().in_turn(|| {
            let (frames, messages) = (client.stats()?.stream_frames, reader.read_so_far());
            let rate = client.block_on(reader.rate(Period::turn()))?;
            self.frames += client.stats()?.stream_frames - frames;
            self.messages += reader.read_so_far() - messages;
            Outcome::Ok(rate)
        })
    }
}
