//! Streams of long messages whose readers do not read, in either direction: unary calls with long
//! messages complete beside them, on the same connection and on another one of the same pollers.

mod transport_harness;

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rpc_core::{
    Caller, Idempotency, Intents, LocalChannel, LocalPoller, MethodKind, MethodSpec, Methods,
    Request, Response, Server, ServerHandle, Service, Status, Streaming, sender, stream,
};
use transport_harness::device;

const fn method(path: &'static str, kind: MethodKind) -> MethodSpec {
    MethodSpec::new(path, kind, Idempotency::Unknown, "bytes", "bytes")
}

const ECHO: MethodSpec = method("test.Slow/Echo", MethodKind::Unary);
/// Sends the request again and again.
const REPEAT: MethodSpec = method("test.Slow/Repeat", MethodKind::ServerStreaming);
/// Reads nothing, and never ends.
const IGNORE: MethodSpec = method("test.Slow/Ignore", MethodKind::ClientStreaming);

const LEN: usize = 256 << 10;

/// The streams that a connection may have.
const MOST_STREAMS: u32 = 160;

/// The memory of each process for a few messages.
const MEMORY: u64 = 8 << 20;

/// The longest time of a call. It bounds failing tests only.
const PATIENCE: Duration = Duration::from_secs(10);

struct Slow;

impl Service for Slow {
    fn name(&self) -> &'static str {
        "test.Slow"
    }

    fn register(&self, methods: &mut Methods) {
        methods.unary(&ECHO, |request: Request<Bytes>| async move {
            Ok::<_, Status>(Response::new(request.into_inner()))
        });
        methods.server_streaming(&REPEAT, |request: Request<Bytes>, responses| async move {
            // A copy, so that the handler keeps no memory of the transport.
            let message = Bytes::copy_from_slice(request.get_ref());
            drop(request);
            let messages = stream(async move |mut responses| {
                loop {
                    responses.send(message.clone()).await?;
                }
            });
            responses.send_all(Ok(Response::new(messages))).await
        });
        methods.client_streaming(&IGNORE, |request: Request<Streaming<Bytes>>| async move {
            let _unread = request.into_inner();
            pending::<Result<Response<Bytes>, Status>>().await
        });
    }
}

/// A server, and a client with two connections to it.
struct Scene {
    _server: ServerHandle,
    poller: LocalPoller,
    channels: [LocalChannel; 2],
}

impl Scene {
    fn new(memory: u64) -> Self {
        let device = device();
        let server = Server::builder(&device)
            .add_service(Slow)
            .pollers(1)
            .max_streams(MOST_STREAMS)
            .message_memory(memory)
            .bind("127.0.0.1:0")
            .unwrap()
            .spawn();
        let intents = Intents {
            message_memory: memory,
            ..Intents::default()
        };
        let poller = LocalPoller::builder(&device)
            .intents(intents.clone())
            .build()
            .unwrap();
        let address = server.local_addr().to_string();
        let channels = [(); 2].map(|()| poller.connect(&address).unwrap());
        Self {
            _server: server,
            poller,
            channels,
        }
    }

    /// Opens a stream of responses that is not read.
    fn open_unread(&self, message: &Bytes) -> Streaming<Bytes> {
        let request = Request::new(message.clone());
        let opened = self.channels[0].server_streaming::<Bytes, Bytes>(&REPEAT, request);
        self.poller.block_on(opened).unwrap().into_inner()
    }

    /// Takes turns until nothing more of the streams arrives or is fetched.
    fn settle(&self) {
        let end = Instant::now() + Duration::from_millis(100);
        while Instant::now() < end {
            self.poller.turn();
        }
    }

    /// Makes calls on both connections, and checks that they complete.
    fn assert_calls_complete(&self, message: &Bytes) {
        for round in 0..8 {
            for (number, channel) in self.channels.iter().enumerate() {
                let request = Request::new(message.clone()).with_timeout(PATIENCE);
                let reply = channel.unary::<Bytes, Bytes>(&ECHO, request);
                match self.poller.block_on(reply) {
                    Ok(reply) => assert!(reply.into_inner() == message),
                    Err(error) => panic!("connection {number}, round {round}: {error}"),
                }
            }
        }
    }
}

fn message(number: u8) -> Bytes {
    (0..LEN).map(|at| (at / 251) as u8 ^ number).collect()
}

fn poll_once<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

fn responses_that_are_not_read(memory: u64, streams: usize) {
    let scene = Scene::new(memory);
    let mut unread: Vec<_> = (0..streams)
        .map(|number| (number as u8, scene.open_unread(&message(number as u8))))
        .collect();
    scene.settle();
    scene.assert_calls_complete(&message(255));
    // All streams go on where they stopped.
    for (number, stream) in &mut unread {
        for _ in 0..4 {
            let next = scene.poller.block_on(stream.message()).unwrap();
            assert!(next == Some(message(*number)));
        }
    }
}

fn requests_that_are_not_read(memory: u64, streams: usize) {
    let scene = Scene::new(memory);
    let mut calls: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
    for number in 0..streams {
        let (mut sender, messages) = sender();
        let call = async {
            let request = Request::new(messages);
            let call = scene.channels[0].client_streaming::<_, Bytes>(&IGNORE, request);
            drop(call.await);
        };
        let message = message(number as u8);
        let send = async move { while sender.send(message.clone()).await.is_ok() {} };
        calls.push(Box::pin(call));
        calls.push(Box::pin(send));
    }
    let end = Instant::now() + Duration::from_millis(200);
    while Instant::now() < end {
        for call in &mut calls {
            assert!(poll_once(call).is_pending());
        }
        scene.poller.turn();
    }
    scene.assert_calls_complete(&message(255));
    let mut calls = pin!(calls);
    for call in calls.iter_mut() {
        assert!(poll_once(call).is_pending(), "the streams are still open");
    }
}

#[test]
fn one_stream_of_responses_stops_no_call() {
    responses_that_are_not_read(MEMORY, 1);
}

#[test]
fn one_stream_of_requests_stops_no_call() {
    requests_that_are_not_read(MEMORY, 1);
}

#[test]
fn many_streams_of_responses_stop_no_call() {
    responses_that_are_not_read(MEMORY, 40);
}

#[test]
fn many_streams_of_requests_stop_no_call() {
    requests_that_are_not_read(MEMORY, 40);
}

#[test]
fn streams_leave_calls_room_among_the_messages_under_way() {
    responses_that_are_not_read(MEMORY, 150);
    requests_that_are_not_read(MEMORY, 150);
}

#[test]
fn streams_stop_no_call_where_memory_is_for_one_message() {
    responses_that_are_not_read(LEN as u64 + 4096, 4);
    requests_that_are_not_read(LEN as u64 + 4096, 4);
}
