//! [`Upstream`]: the channel to the Verbline server, its methods, and what all calls share.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use verbline::client::{Idempotency, MethodKind, MethodSpec, RemoteMethods, SendCaller};
use verbline::message::BytesCodec;
use verbline::message::bytes::Bytes;
use verbline::{Channel, Code, Request};

use crate::client::Client;
use crate::grpc_status::GrpcStatus;
use crate::limits::GatewayLimits;
use crate::memory::MessageMemory;
use crate::request_body::MessageLimits;

/// A method that no server has. Its calls only connect the channel.
static CONNECT: MethodSpec = MethodSpec::new(
    "verbline.gateway.Connect/Connect",
    MethodKind::Unary,
    Idempotency::NoSideEffects,
    "",
    "",
);

/// The server behind the gateway.
pub(crate) struct Upstream {
    channel: Channel,
    limits: GatewayLimits,
    memory: MessageMemory,
    calls: Arc<Semaphore>,
}

impl Upstream {
    pub(crate) fn new(channel: Channel, limits: &GatewayLimits) -> Self {
        let max_calls = limits.max_calls.min(Semaphore::MAX_PERMITS);
        Self {
            channel,
            memory: MessageMemory::new(limits.message_memory, limits.max_message_len),
            calls: Arc::new(Semaphore::new(max_calls)),
            limits: limits.clone(),
        }
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }

    pub(crate) fn memory(&self) -> &MessageMemory {
        &self.memory
    }

    /// Returns the limits of the messages of one request.
    pub(crate) fn message_limits(&self, client: &Client) -> MessageLimits {
        MessageLimits {
            max_len: self.limits.max_message_len,
            time: self.limits.message_time,
            memory: client.memory().clone(),
        }
    }

    /// Admits one call more, for as long as the permit lives.
    pub(crate) fn admit(&self) -> Result<OwnedSemaphorePermit, GrpcStatus> {
        let permit = Arc::clone(&self.calls).try_acquire_owned();
        permit.map_err(|_| {
            let limit = self.limits.max_calls;
            let message = format!("the gateway has {limit} calls in flight, as many as it may");
            GrpcStatus::never_sent(Code::ResourceExhausted, message)
        })
    }

    /// Returns the server's method of this name. It is looked up among those that the server has
    /// named: nothing is kept of what a client asks for.
    pub(crate) async fn method(
        &self,
        path: &str,
        deadline: Option<Instant>,
    ) -> Result<&'static MethodSpec, GrpcStatus> {
        let methods = match self.channel.methods() {
            Some(methods) => methods,
            None => self.connect(deadline).await?,
        };
        methods.get(path).ok_or_else(|| {
            GrpcStatus::never_sent(Code::Unimplemented, "the server has no such method")
        })
    }

    /// Connects a channel that has never been connected: its first call does.
    async fn connect(&self, deadline: Option<Instant>) -> Result<RemoteMethods, GrpcStatus> {
        let mut request = Request::new(Bytes::new());
        if let Some(deadline) = deadline {
            request = request.with_deadline(deadline);
        }
        let call = SendCaller::unary_with(&self.channel, &CONNECT, request, BytesCodec, BytesCodec);
        let outcome = call.await;
        match (self.channel.methods(), outcome) {
            (Some(methods), _) => Ok(methods),
            (None, Err(error)) => Err(GrpcStatus::from_error(&error)),
            (None, Ok(_)) => Err(GrpcStatus::never_sent(
                Code::Unavailable,
                "the gateway does not know the methods of its server",
            )),
        }
    }
}
