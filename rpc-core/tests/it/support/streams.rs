//! Methods that stream, and what their handlers have done.

use std::cell::Cell;
use std::rc::Rc;

use rpc_core::{
    Idempotency, MethodKind, MethodSpec, Methods, Request, Response, ResponseSender, Streaming,
    stream,
};

const fn spec(path: &'static str, kind: MethodKind) -> MethodSpec {
    MethodSpec::new(path, kind, Idempotency::Unknown, "u64", "u64")
}

pub(crate) const ECHO: MethodSpec = spec("test.Streams/Echo", MethodKind::Unary);
pub(crate) const SUM: MethodSpec = spec("test.Streams/Sum", MethodKind::ClientStreaming);
pub(crate) const COUNT: MethodSpec = spec("test.Streams/Count", MethodKind::ServerStreaming);
pub(crate) const DOUBLE: MethodSpec = spec("test.Streams/Double", MethodKind::Streaming);
/// Never reads, never sends, and never ends.
pub(crate) const IDLE: MethodSpec = spec("test.Streams/Idle", MethodKind::Streaming);

/// All methods, in the order of their numbers.
pub(crate) const METHODS: [&MethodSpec; 5] = [&ECHO, &SUM, &COUNT, &DOUBLE, &IDLE];

/// What the handlers have done.
#[derive(Clone, Default)]
pub(crate) struct Probe(Rc<Counts>);

#[derive(Default)]
struct Counts {
    started: Cell<u32>,
    running: Cell<u32>,
    sent: Cell<u64>,
}

/// A handler that runs, until it is dropped.
struct Running(Probe);

impl Drop for Running {
    fn drop(&mut self) {
        let Probe(counts) = &self.0;
        counts.running.set(counts.running.get() - 1);
    }
}

impl Probe {
    fn run(&self) -> Running {
        let Self(counts) = self;
        counts.started.set(counts.started.get() + 1);
        counts.running.set(counts.running.get() + 1);
        Running(self.clone())
    }

    /// Returns the number of handlers that have begun.
    pub(crate) fn started(&self) -> u32 {
        self.0.started.get()
    }

    /// Returns the number of handlers that have begun and have not been dropped.
    pub(crate) fn running(&self) -> u32 {
        self.0.running.get()
    }

    /// Returns the number of messages that handlers have sent.
    pub(crate) fn sent(&self) -> u64 {
        self.0.sent.get()
    }

    fn count_message(&self) {
        self.0.sent.set(self.0.sent.get() + 1);
    }
}

/// Registers [`METHODS`].
pub(crate) fn register_streams(methods: &mut Methods, probe: &Probe) {
    methods.unary(&ECHO, |request: Request<u64>| async {
        Ok(Response::new(request.into_inner()))
    });
    let all = probe.clone();
    methods.client_streaming(&SUM, move |request: Request<Streaming<u64>>| {
        let running = all.run();
        async move {
            let _running = running;
            let mut numbers = request.into_inner();
            let mut sum = 0u64;
            while let Some(number) = numbers.message().await? {
                sum = sum.wrapping_add(number);
            }
            Ok(Response::new(sum))
        }
    });
    let all = probe.clone();
    methods.server_streaming(&COUNT, move |request: Request<u64>, responses| {
        let running = all.run();
        async move {
            let count = request.into_inner();
            let numbers = stream(async move |mut responses| {
                for number in 0..count {
                    responses.send(number).await?;
                    running.0.count_message();
                }
                Ok(())
            });
            responses.send_all(Ok(Response::new(numbers))).await
        }
    });
    let all = probe.clone();
    methods.streaming(
        &DOUBLE,
        move |request: Request<Streaming<u64>>, responses| {
            let running = all.run();
            async move {
                let mut numbers = request.into_inner();
                let doubled = stream(async move |mut responses| {
                    while let Some(number) = numbers.message().await? {
                        responses.send(number.wrapping_mul(2)).await?;
                        running.0.count_message();
                    }
                    Ok(())
                });
                responses.send_all(Ok(Response::new(doubled))).await
            }
        },
    );
    let all = probe.clone();
    methods.streaming(&IDLE, move |request: Request<Streaming<u64>>, responses| {
        let running = all.run();
        async move {
            let _running = running;
            let _request = request;
            let never = stream(async move |responses: ResponseSender<u64>| {
                let _responses = responses;
                std::future::pending().await
            });
            responses.send_all(Ok(Response::new(never))).await
        }
    });
}
