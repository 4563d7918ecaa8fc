//! The handlers of a [`Mix`].

use rpc_core::{
    Idempotency, Metadata, MethodKind, MethodSpec, Methods, Request, Response, ResponseSender,
    Status, Streaming, stream,
};

use super::{Ending, Mix, Order};

const fn method(path: &'static str, kind: MethodKind) -> MethodSpec {
    MethodSpec::new(path, kind, Idempotency::Unknown, "bytes", "bytes")
}

pub(super) const UNARY: MethodSpec = method("test.Mix/Unary", MethodKind::Unary);
pub(super) const COLLECT: MethodSpec = method("test.Mix/Collect", MethodKind::ClientStreaming);
pub(super) const SEND: MethodSpec = method("test.Mix/Send", MethodKind::ServerStreaming);
pub(super) const BOTH: MethodSpec = method("test.Mix/Both", MethodKind::Streaming);

/// A handler that has begun. It runs until this is dropped.
struct Run {
    mix: Mix,
    order: Order,
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut running = self.mix.0.running.borrow_mut();
        let count = running.entry(self.order.id).or_default();
        *count -= 1;
        if *count == 0 {
            running.remove(&self.order.id);
        }
    }
}

impl Mix {
    /// Registers a method of each kind.
    pub fn register(&self, methods: &mut Methods) {
        methods.set_interceptors(&self.interceptors());
        let this = self.clone();
        methods.unary(&UNARY, move |request: Request<Vec<u8>>| {
            let run = this.run(request.metadata(), MethodKind::Unary);
            async move {
                let run = run?;
                let expected = run.order.request(0);
                run.mix
                    .check("request", &run.order, request.get_ref(), &expected);
                run.wait_before(0).await;
                run.end().await?;
                Ok(run.respond(run.order.response(0)))
            }
        });
        let this = self.clone();
        methods.client_streaming(&COLLECT, move |request: Request<Streaming<Vec<u8>>>| {
            let run = this.run(request.metadata(), MethodKind::ClientStreaming);
            async move {
                let run = run?;
                let count = run.read(request.into_inner(), async |_| Ok(())).await?;
                run.end().await?;
                Ok(run.respond(run.order.response(count)))
            }
        });
        let this = self.clone();
        methods.server_streaming(&SEND, move |request: Request<Vec<u8>>, responses| {
            let run = this.run(request.metadata(), MethodKind::ServerStreaming);
            async move {
                let run = run?;
                let expected = run.order.request(0);
                run.mix
                    .check("request", &run.order, request.get_ref(), &expected);
                let order = run.order.clone();
                let messages = stream(async move |mut sender| run.send(0, &mut sender).await);
                responses.send_all(Ok(respond(&order, messages))).await
            }
        });
        let this = self.clone();
        methods.streaming(
            &BOTH,
            move |request: Request<Streaming<Vec<u8>>>, responses| {
                let run = this.run(request.metadata(), MethodKind::Streaming);
                async move {
                    let run = run?;
                    let order = run.order.clone();
                    let messages = stream(async move |mut sender| {
                        let echo = async |number| sender.send(run.order.response(number)).await;
                        let count = run.read(request.into_inner(), echo).await?;
                        run.send(count, &mut sender).await
                    });
                    responses.send_all(Ok(respond(&order, messages))).await
                }
            },
        );
    }

    fn run(&self, metadata: &Metadata, kind: MethodKind) -> Result<Run, Status> {
        let Some(order) = Order::of(metadata, kind) else {
            self.report(|| format!("a {kind:?} handler without an order: {metadata:?}"));
            return Err(Status::internal("no order"));
        };
        let count = |counts: &std::cell::RefCell<std::collections::HashMap<u64, u32>>| {
            *counts.borrow_mut().entry(order.id).or_default() += 1;
        };
        count(&self.0.started);
        count(&self.0.running);
        Ok(Run {
            mix: self.clone(),
            order,
        })
    }
}

impl Run {
    async fn wait_before(&self, number: u32) {
        if number == self.order.handler_waits_at {
            self.mix.wait().await;
        }
    }

    /// Reads as many messages as ordered. Passes the number of each to `each`. Returns their count.
    async fn read(
        &self,
        mut messages: Streaming<Vec<u8>>,
        mut each: impl AsyncFnMut(u32) -> Result<(), Status>,
    ) -> Result<u32, Status> {
        let order = &self.order;
        for number in 0..order.reads {
            self.wait_before(number).await;
            let Some(message) = messages.message().await? else {
                if number != order.requests {
                    self.mix
                        .report(|| format!("{order:?}: half-closed after {number} messages"));
                }
                return Ok(number);
            };
            let expected = order.request(number);
            self.mix.check("request", order, &message, &expected);
            each(number).await?;
        }
        Ok(order.reads)
    }

    /// Sends as many messages as ordered, the first of which has the number `first`, and ends.
    async fn send(&self, first: u32, sender: &mut ResponseSender<Vec<u8>>) -> Result<(), Status> {
        for number in first..first + self.order.responses {
            self.wait_before(number).await;
            sender.send(self.order.response(number)).await?;
        }
        self.end().await
    }

    /// Ends as ordered.
    async fn end(&self) -> Result<(), Status> {
        match self.order.ending {
            Ending::Succeeds => Ok(()),
            Ending::Fails => Err(Status::aborted("as asked")),
            Ending::Panics => panic!("call {} was asked to panic", self.order.id),
            Ending::Never => std::future::pending().await,
        }
    }

    fn respond<T>(&self, message: T) -> Response<T> {
        respond(&self.order, message)
    }
}

/// Builds a response with metadata that its client checks.
fn respond<T>(order: &Order, message: T) -> Response<T> {
    let mut response = Response::new(message);
    *response.metadata_mut() = named(order, "initial");
    *response.trailing_metadata_mut() = named(order, "trailing");
    response
}

/// Returns the metadata that a response has.
pub(super) fn named(order: &Order, key: &'static str) -> Metadata {
    let mut metadata = Metadata::new();
    metadata
        .insert(key, order.id.to_string())
        .expect("the key is a valid one of metadata");
    metadata
}
