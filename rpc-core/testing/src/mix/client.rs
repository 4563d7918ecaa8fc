//! The clients of a [`Mix`].

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Instant;

use rpc_core::{
    CallError, Caller, Code, Metadata, MethodKind, Request, Response, Sender, Stream, Streaming,
    sender,
};

use super::handlers::{BOTH, COLLECT, SEND, UNARY, named};
use super::{Mix, MixCall, Order};

/// A stream of request messages, which is pending before every other one.
struct Numbered {
    order: Order,
    next: u32,
    has_waited: bool,
}

impl Stream for Numbered {
    type Item = Vec<u8>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        if self.next == self.order.requests {
            return Poll::Ready(None);
        }
        if self.next % 2 == 1 && !std::mem::replace(&mut self.has_waited, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.has_waited = false;
        self.next += 1;
        Poll::Ready(Some(self.order.request(self.next - 1)))
    }
}

impl Mix {
    /// Makes a call. It begins when it is polled.
    pub fn call<C: Caller + 'static>(
        &self,
        channel: C,
        order: Order,
        deadline: Option<Instant>,
    ) -> MixCall {
        let this = self.clone();
        Box::pin(async move {
            match order.kind {
                MethodKind::Unary => this.unary(&channel, &order, deadline).await,
                MethodKind::ClientStreaming => this.collect(&channel, &order, deadline).await,
                MethodKind::ServerStreaming => this.send(&channel, &order, deadline).await,
                _ => this.both(&channel, &order, deadline).await,
            }
        })
    }

    async fn unary(
        &self,
        channel: &impl Caller,
        order: &Order,
        deadline: Option<Instant>,
    ) -> Result<(), CallError> {
        let request = request(order, deadline, order.request(0));
        let response = channel.unary(&UNARY, request).await?;
        self.check_response(order, 0, &response);
        Ok(())
    }

    async fn collect(
        &self,
        channel: &impl Caller,
        order: &Order,
        deadline: Option<Instant>,
    ) -> Result<(), CallError> {
        let response = if order.has_sender {
            let (sender, messages) = sender();
            let request = request(order, deadline, messages);
            let call = channel.client_streaming(&COLLECT, request);
            both_of(call, feed(order, sender)).await?
        } else {
            let request = request(order, deadline, numbered(order));
            channel.client_streaming(&COLLECT, request).await?
        };
        self.check_response(order, order.requests.min(order.reads), &response);
        Ok(())
    }

    async fn send(
        &self,
        channel: &impl Caller,
        order: &Order,
        deadline: Option<Instant>,
    ) -> Result<(), CallError> {
        let request = request(order, deadline, order.request(0));
        let response = channel.server_streaming(&SEND, request).await?;
        self.read(order, response).await
    }

    async fn both(
        &self,
        channel: &impl Caller,
        order: &Order,
        deadline: Option<Instant>,
    ) -> Result<(), CallError> {
        if order.has_sender {
            let (sender, messages) = sender();
            let read = async {
                let request = request(order, deadline, messages);
                let response = channel.streaming(&BOTH, request).await?;
                self.read(order, response).await
            };
            both_of(read, feed(order, sender)).await
        } else {
            let request = request(order, deadline, numbered(order));
            let response = channel.streaming(&BOTH, request).await?;
            self.read(order, response).await
        }
    }

    /// Checks the only response of a call.
    fn check_response(&self, order: &Order, number: u32, response: &Response<Vec<u8>>) {
        let expected = order.response(number);
        self.check("response", order, response.get_ref(), &expected);
        self.check_metadata(order, "initial", response.metadata());
        self.check_metadata(order, "trailing", response.trailing_metadata());
    }

    fn check_metadata(&self, order: &Order, key: &'static str, metadata: &Metadata) {
        if metadata.get(key) != named(order, key).get(key) {
            self.report(|| format!("{order:?}: {key} metadata {metadata:?}"));
        }
    }

    /// Reads a stream of responses to its end.
    async fn read(
        &self,
        order: &Order,
        response: Response<Streaming<Vec<u8>>>,
    ) -> Result<(), CallError> {
        let initial = response.metadata().clone();
        let mut messages = response.into_inner();
        let mut number = 0;
        let end = loop {
            if number == order.client_waits_at {
                self.wait().await;
            }
            match messages.message().await {
                Ok(Some(message)) => {
                    let expected = order.response(number);
                    self.check("response", order, &message, &expected);
                    number += 1;
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let is_of_handler = match &end {
            Ok(()) => true,
            Err(error) => error.code() == Code::Aborted,
        };
        if number > 0 || end.is_ok() {
            self.check_metadata(order, "initial", &initial);
        }
        if is_of_handler && number != order.expected_responses() {
            self.report(|| format!("{order:?}: ended after {number} responses: {end:?}"));
        }
        end?;
        let trailing = messages.trailers().await?;
        self.check_metadata(order, "trailing", &trailing);
        match messages.message().await {
            Ok(None) => {}
            after => self.report(|| format!("{order:?}: after its end: {after:?}")),
        }
        Ok(())
    }
}

fn request<T>(order: &Order, deadline: Option<Instant>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    *request.metadata_mut() = order.metadata();
    match deadline {
        Some(deadline) => request.with_deadline(deadline),
        None => request,
    }
}

fn numbered(order: &Order) -> Numbered {
    Numbered {
        order: order.clone(),
        next: 0,
        has_waited: false,
    }
}

/// Sends the request messages, until the call ends.
async fn feed(order: &Order, mut sender: Sender<Vec<u8>>) {
    for number in 0..order.requests {
        if sender.send(order.request(number)).await.is_err() {
            return;
        }
    }
}

/// Runs a call and its sender to their ends.
async fn both_of<R>(call: impl Future<Output = R>, feed: impl Future<Output = ()>) -> R {
    let (mut call, mut feed) = (pin!(call), pin!(feed));
    let (mut outcome, mut is_fed) = (None, false);
    poll_fn(|cx| {
        if outcome.is_none()
            && let Poll::Ready(output) = call.as_mut().poll(cx)
        {
            outcome = Some(output);
        }
        is_fed = is_fed || feed.as_mut().poll(cx).is_ready();
        match (outcome.take(), is_fed) {
            (Some(output), true) => Poll::Ready(output),
            (pending, _) => {
                outcome = pending;
                Poll::Pending
            }
        }
    })
    .await
}
