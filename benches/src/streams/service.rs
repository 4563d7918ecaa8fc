//! The streaming service.

use std::pin::Pin;
use std::task::{Context, Poll};

use proto::bench::bench_streams_server::LocalBenchStreams;
use proto::bench::{Blob, CollectReply, Fixed, SubscribeRequest};
use rpc_core::{Request, Response, Status, Stream, Streaming};

use super::message::Numbers;
use crate::drop_time::RecordDrop;

/// Sends and receives streams of numbered messages.
#[derive(Debug, Default)]
pub struct Streams;

impl LocalBenchStreams for Streams {
    async fn subscribe_fixed(
        &self,
        request: Request<SubscribeRequest>,
    ) -> Result<Response<impl Stream<Item = Result<Fixed, Status>>>, Status> {
        Ok(Response::new(numbers(&request.into_inner())))
    }

    async fn subscribe_blob(
        &self,
        request: Request<SubscribeRequest>,
    ) -> Result<Response<impl Stream<Item = Result<Blob, Status>>>, Status> {
        let request = request.into_inner();
        if request.payload_len < 8 {
            return Err(Status::invalid_argument("the number takes 8 bytes"));
        }
        Ok(Response::new(numbers(&request)))
    }

    async fn ping_pong(
        &self,
        request: Request<Streaming<Fixed>>,
    ) -> Result<Response<impl Stream<Item = Result<Fixed, Status>>>, Status> {
        Ok(Response::new(SentBack {
            messages: request.into_inner(),
            _recorded: RecordDrop,
        }))
    }

    async fn collect(
        &self,
        request: Request<Streaming<Fixed>>,
    ) -> Result<Response<CollectReply>, Status> {
        let mut messages = request.into_inner();
        let mut reply = CollectReply::default();
        while let Some(message) = messages.message().await? {
            reply.count += 1;
            reply.sum = reply.sum.wrapping_add(message.a);
        }
        Ok(Response::new(reply))
    }
}

fn numbers<M>(request: &SubscribeRequest) -> Numbers<M> {
    Numbers::new(request.count, request.payload_len as usize)
}

/// The client's messages.
struct SentBack {
    messages: Streaming<Fixed>,
    _recorded: RecordDrop,
}

impl Stream for SentBack {
    type Item = Result<Fixed, Status>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = Pin::new(&mut self.get_mut().messages).poll_next(cx);
        polled.map(|message| message.map(|message| message.map_err(Status::from)))
    }
}
