//! The client side: [`Caller`], through which generated clients make calls, and [`LocalChannel`],
//! whose poller is the application's own thread.

pub(crate) mod channel;
pub(crate) mod encode;

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use prost::Message;

use self::channel::ChannelCore;
use self::encode::{RequestLengths, decode, write_request};
use crate::call_error::{CallError, Cause, Execution};
use crate::codec::{Codec, ProstCodec};
use crate::driver::handle::{BeginOutcome, Outgoing, PollOutcome};
use crate::driver::waiters::WaiterKey;
use crate::message::{Request, Response, TimeAllowed};
use crate::method::MethodSpec;
use crate::protocol::frame::CallId;
use crate::status::Code;

/// The interface through which a generated client makes calls. Channels implement it. To mock a
/// client, implement its service trait and serve it in process.
pub trait Caller {
    /// Makes one call of a unary method, with a codec for the request and one for the response.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call returned no response.
    fn unary_with<Q, S, Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Res>, CallError>>
    where
        Q: Codec<Req>,
        S: Codec<Res>;

    /// Makes one call of a unary method, whose messages prost encodes and decodes.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call returned no response.
    fn unary<Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
    ) -> impl Future<Output = Result<Response<Res>, CallError>>
    where
        Req: Message + Default,
        Res: Message + Default,
    {
        self.unary_with(method, request, ProstCodec, ProstCodec)
    }
}

/// A connection to a server, used only from its poller's thread. Cheap to clone. The connection
/// closes when the last clone and the last call on it are dropped.
#[derive(Clone)]
pub struct LocalChannel(pub(crate) Rc<ChannelCore>);

impl Caller for LocalChannel {
    async fn unary_with<Q, S, Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        _: Q,
        _: S,
    ) -> Result<Response<Res>, CallError>
    where
        Q: Codec<Req>,
        S: Codec<Res>,
    {
        LocalCall::<Q, S, Req, Res> {
            channel: &self.0,
            method,
            request,
            deadline: None,
            state: CallState::New,
            method_index: 0,
            began: None,
            codecs: PhantomData,
        }
        .await
    }
}

impl fmt::Debug for LocalChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalChannel({})", self.0.address())
    }
}

/// The future of one call. It may be dropped or leaked in any state, because it owns no device
/// memory: the driver's call table does.
struct LocalCall<'a, Q, S, Req, Res> {
    channel: &'a ChannelCore,
    method: &'static MethodSpec,
    request: Request<Req>,
    deadline: Option<Instant>,
    state: CallState,
    /// Index of the call's counters in the channel, valid once the call has begun.
    method_index: usize,
    /// Start time, if this call is sampled for latency.
    began: Option<Instant>,
    /// `Q` encodes the request, `S` decodes the response.
    codecs: PhantomData<fn(Q, S) -> Res>,
}

#[derive(Clone, Copy, Debug)]
enum CallState {
    New,
    Waiting(WaiterKey),
    InFlight(CallId),
    Done,
}

// No field is structurally pinned: the request is only borrowed.
impl<Q, S, Req, Res> Unpin for LocalCall<'_, Q, S, Req, Res> {}

impl<Q: Codec<Req>, S: Codec<Res>, Req, Res> Future for LocalCall<'_, Q, S, Req, Res> {
    type Output = Result<Response<Res>, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let poller = &*this.channel.poller;
        if let Poll::Ready(outcome) = this.step(cx) {
            return Poll::Ready(outcome);
        }
        if poller.is_turning() {
            return Poll::Pending;
        }
        // The future is polled by an executor that does not run this poller. Take a turn here, and
        // request another poll.
        poller.turn();
        let polled = this.step(cx);
        if polled.is_pending() {
            cx.waker().wake_by_ref();
        }
        polled
    }
}

impl<Q: Codec<Req>, S: Codec<Res>, Req, Res> LocalCall<'_, Q, S, Req, Res> {
    fn step(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<Res>, CallError>> {
        let call = match self.state {
            CallState::InFlight(call) => call,
            CallState::New | CallState::Waiting(_) => {
                let Err(error) = self.begin(cx) else {
                    return Poll::Pending;
                };
                let outcome = Err(error);
                self.end(&outcome);
                return Poll::Ready(outcome);
            }
            // The future was polled after completion. The contract of `Future` permits any result.
            CallState::Done => return Poll::Pending,
        };
        let mut received = None;
        let channel = self.channel;
        let polled = channel.poller.poll_response(
            channel.link,
            call,
            self.deadline,
            cx.waker(),
            &mut |frame| {
                received = Some(decode::<S, Res>(frame));
            },
        );
        let outcome = match polled {
            PollOutcome::Pending => return Poll::Pending,
            PollOutcome::Failed(error) => Err(error),
            PollOutcome::Received => received.unwrap_or_else(|| decode::<S, Res>(&[])),
        };
        self.end(&outcome);
        Poll::Ready(outcome)
    }

    #[inline]
    fn end(&mut self, outcome: &Result<Response<Res>, CallError>) {
        self.state = CallState::Done;
        let counters = self.channel.counters(self.method_index);
        let code = outcome.as_ref().map_or_else(CallError::code, |_| Code::Ok);
        counters.end(code.number());
        if let Some(began) = self.began {
            self.channel.poller.poller_counters().time(&counters, began);
        }
    }

    /// Sends the call, or queues it. Either way the waker is registered.
    fn begin(&mut self, cx: &mut Context<'_>) -> Result<(), CallError> {
        let channel = self.channel;
        let (method_index, method) = channel.resolve(self.method);
        let waiter = match self.state {
            CallState::Waiting(waiter) => Some(waiter),
            _ => {
                self.method_index = method_index;
                if channel.counters(method_index).begin() {
                    self.began = Some(channel.poller.poller_counters().now());
                }
                self.deadline = match self.request.time_allowed() {
                    TimeAllowed::Unlimited => None,
                    TimeAllowed::For(timeout) => channel.poller.deadline_after(timeout),
                    TimeAllowed::Until(deadline) => Some(deadline),
                };
                None
            }
        };
        let Some(method) = method else {
            let cause = Cause::Unimplemented {
                path: self.method.path,
            };
            return Err(CallError::new(cause, Execution::NeverSent));
        };
        let lengths = RequestLengths::new::<Q, Req>(&self.request);
        let outgoing = Outgoing {
            method,
            deadline: self.deadline,
            metadata_len: lengths.metadata,
            message_len: lengths.message,
            write: &mut |out| write_request::<Q, Req>(&self.request, self.method, out),
        };
        let begun = channel
            .poller
            .begin(channel.link, outgoing, cx.waker(), waiter);
        match begun {
            BeginOutcome::Sent(call) => {
                self.state = CallState::InFlight(call);
                channel.counters(method_index).start();
                Ok(())
            }
            BeginOutcome::Waiting(waiter) => {
                self.state = CallState::Waiting(waiter);
                Ok(())
            }
            BeginOutcome::Failed(error) => Err(error),
        }
    }
}

impl<Q, S, Req, Res> Drop for LocalCall<'_, Q, S, Req, Res> {
    fn drop(&mut self) {
        match self.state {
            CallState::New | CallState::Done => return,
            CallState::Waiting(waiter) => self.channel.poller.leave(self.channel.link, waiter),
            CallState::InFlight(call) => self.channel.poller.abandon(self.channel.link, call),
        }
        self.channel.counters(self.method_index).drop_one();
    }
}
