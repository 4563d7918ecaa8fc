//! [`Input`]: the argument of a handler, by the kind of its method.

use std::cell::Cell;
use std::fmt;
use std::future::ready;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::handler::RawRequest;
use crate::codec::LongMessage;
use crate::codec::{Codec, DecodeError};
use crate::message::{Head, Request};
use crate::metadata::Metadata;
use crate::method::MethodKind;
use crate::peer::{Peer, take_reserved};
use crate::status::Status;
use crate::stream::batch::Decode;
use crate::stream::core::StreamCore;
use crate::stream::intercepted::CallMessages;
use crate::stream::responses::Responses;
use crate::stream::streaming::Streaming;

/// Makes a handler's argument from a request.
pub(super) trait Input {
    /// Which sides stream.
    const KIND: MethodKind;
    type Argument: 'static;

    /// Decodes the request.
    fn receive(request: RawRequest<'_>) -> Result<Self::Argument, Status>;

    /// Returns the request without its message.
    fn head(argument: &mut Self::Argument) -> &mut Head;

    /// Lets `messages` count the messages of the call from now on.
    fn count(argument: &mut Self::Argument, messages: &mut CallMessages);

    /// Decodes a request whose message is long, perhaps beside the poller. By default, the message is
    /// none of the argument.
    fn receive_long(
        request: RawRequest<'_>,
        _: &LongMessage,
    ) -> Result<Receiving<Self::Argument>, Status> {
        Ok(Box::pin(ready(Self::receive(request))))
    }
}

/// A handler's argument, of which a message is being decoded.
pub(super) type Receiving<A> = Pin<Box<dyn Future<Output = Result<A, Status>>>>;

/// One message, which the request carries: `Request<Req>`.
pub(super) struct Message<Q, Req>(PhantomData<fn(Q) -> Req>);

/// A stream of messages, which follow the request: `Request<Streaming<Req>>`.
pub(super) struct Messages<Q, Req>(PhantomData<fn(Q) -> Req>);

/// The argument of `I`, and the sender of a stream of responses.
pub(super) struct WithResponses<I, S, Res>(PhantomData<fn(I, S) -> Res>);

impl<Q: Codec<Req>, Req: 'static> Input for Message<Q, Req> {
    const KIND: MethodKind = MethodKind::Unary;
    type Argument = Request<Req>;

    #[inline(always)]
    fn receive(request: RawRequest<'_>) -> Result<Self::Argument, Status> {
        let metadata = metadata(&request)?;
        let len = request.message.len();
        let message = Q::decode(request.message);
        let message = message.map_err(|error| undecodable_message(&error))?;
        let (deadline, peer) = (request.deadline, request.peer.take());
        Ok(Request::received(message, len, metadata, deadline, peer))
    }

    #[inline]
    fn head(argument: &mut Self::Argument) -> &mut Head {
        argument.head_mut()
    }

    #[inline]
    fn count(argument: &mut Self::Argument, messages: &mut CallMessages) {
        messages.request_len = argument.received_len();
    }

    fn receive_long(
        request: RawRequest<'_>,
        long: &LongMessage,
    ) -> Result<Receiving<Self::Argument>, Status> {
        let metadata = metadata(&request)?;
        let decoding = Q::begin_decode(&long.message, long.share_from);
        let (copied_in, len) = (Arc::clone(&long.copied_in), long.message.len());
        let (deadline, peer) = (request.deadline, request.peer.take());
        Ok(Box::pin(async move {
            let decoded = decoding.finish().await;
            let decoded = decoded.map_err(|error| undecodable_message(&error))?;
            // The count publishes nothing else.
            copied_in.fetch_add(decoded.copied_len as u64, Ordering::Relaxed);
            let message = decoded.message;
            Ok(Request::received(message, len, metadata, deadline, peer))
        }))
    }
}

impl<Q: Codec<Req>, Req: 'static> Input for Messages<Q, Req> {
    const KIND: MethodKind = MethodKind::ClientStreaming;
    type Argument = Request<Streaming<Req>>;

    fn receive(request: RawRequest<'_>) -> Result<Self::Argument, Status> {
        let metadata = metadata(&request)?;
        let messages = Streaming::of_client(stream_of(request)?, Decode::with::<Q>());
        let (deadline, peer) = (request.deadline, request.peer.take());
        Ok(Request::received(messages, 0, metadata, deadline, peer))
    }

    fn head(argument: &mut Self::Argument) -> &mut Head {
        argument.head_mut()
    }

    fn count(argument: &mut Self::Argument, messages: &mut CallMessages) {
        messages.stream = Some(argument.get_mut().count());
    }
}

impl<I: Input, S: Codec<Res>, Res: 'static> Input for WithResponses<I, S, Res> {
    const KIND: MethodKind = if I::KIND.client_streams() {
        MethodKind::Streaming
    } else {
        MethodKind::ServerStreaming
    };
    type Argument = (I::Argument, Responses<S, Res>);

    fn receive(request: RawRequest<'_>) -> Result<Self::Argument, Status> {
        let argument = I::receive(request)?;
        Ok((argument, Responses::new(stream_of(request)?)))
    }

    fn head((argument, _): &mut Self::Argument) -> &mut Head {
        I::head(argument)
    }

    fn count((argument, responses): &mut Self::Argument, messages: &mut CallMessages) {
        I::count(argument, messages);
        messages.stream = Some(Arc::clone(responses.core()));
    }

    fn receive_long(
        request: RawRequest<'_>,
        long: &LongMessage,
    ) -> Result<Receiving<Self::Argument>, Status> {
        let argument = I::receive_long(request, long)?;
        let responses = Responses::new(stream_of(request)?);
        Ok(Box::pin(async move { Ok((argument.await?, responses)) }))
    }
}

#[inline(always)]
fn metadata(request: &RawRequest<'_>) -> Result<Metadata, Status> {
    match request.metadata.is_empty() {
        true => Ok(Metadata::new()),
        false => decode_metadata(request.metadata, request.peer),
    }
}

/// Decodes the metadata of a request, and takes out of it what is not the application's. The parts of
/// the request are passed one by one: a reference to it would keep all of it in memory.
#[inline(never)]
fn decode_metadata(bytes: &[u8], peer: &Cell<Option<Arc<Peer>>>) -> Result<Metadata, Status> {
    let metadata = Metadata::decode(bytes);
    let mut metadata = metadata.map_err(|error| undecodable(&error))?;
    let mut taken_peer = peer.take();
    let taken = take_reserved(&mut metadata, &mut taken_peer);
    peer.set(taken_peer);
    taken.map_err(|error| undecodable(&error))?;
    Ok(metadata)
}

fn stream_of(request: RawRequest<'_>) -> Result<Arc<StreamCore>, Status> {
    let stream = request.stream.map(Arc::clone);
    stream.ok_or_else(|| {
        Status::unimplemented("the method streams, and the client called it as a unary method")
    })
}

#[cold]
fn undecodable(error: &dyn fmt::Display) -> Status {
    Status::internal(format!("cannot decode the request: {error}"))
}

#[cold]
fn undecodable_message(error: &DecodeError) -> Status {
    match error.is_over_budget() {
        true => Status::resource_exhausted(format!("cannot decode the request: {error}")),
        false => undecodable(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::ProstCodec;
    use crate::status::Code;

    #[test]
    fn a_request_over_its_budget_exhausts_resources() {
        let code = |bytes: &[u8]| {
            let error = <ProstCodec as Codec<u64>>::decode(bytes).unwrap_err();
            undecodable_message(&error).code()
        };
        assert_eq!(code(&[10, 0].repeat(500_000)), Code::ResourceExhausted);
        assert_eq!(code(&[8]), Code::Internal);
    }
}
