//! A message of a stream allocates nothing. The test counts allocations on all threads of a client
//! and a server in one process, once both are warm.

use std::thread;
use std::time::Duration;

use rpc_core::{
    Caller, Channel, Idempotency, LocalPoller, MethodKind, MethodSpec, Methods, Request, Response,
    Server, Service, Streaming, block_on, sender, stream,
};

use crate::transport_harness::device;
use crate::{SECTIONS, allocations, alone};

const fn method(path: &'static str, kind: MethodKind) -> MethodSpec {
    MethodSpec::new(path, kind, Idempotency::Unknown, "uint64", "uint64")
}

const COUNT: MethodSpec = method("test.Streams/Count", MethodKind::ServerStreaming);
const ECHO: MethodSpec = method("test.Streams/Echo", MethodKind::Streaming);

/// Messages before the allocations are counted. Until then the window of a stream grows, and a reader
/// that pauses now and then finds all of it: the memory for messages that have arrived grows with it.
const WARM_UP: u64 = 400_000;
const MESSAGES_PER_PAUSE: u64 = 20_000;
const COUNTED: u64 = 50_000;

struct Streams;

impl Service for Streams {
    fn name(&self) -> &'static str {
        "test.Streams"
    }

    fn register(&self, methods: &mut Methods) {
        methods.server_streaming(&COUNT, |_: Request<u64>, responses| async move {
            let numbers = stream(async move |mut responses| {
                for number in 1..=u64::MAX {
                    responses.send(number).await?;
                }
                Ok(())
            });
            responses.send_all(Ok(Response::new(numbers))).await
        });
        methods.streaming(
            &ECHO,
            |request: Request<Streaming<u64>>, responses| async move {
                let mut numbers = request.into_inner();
                let echoed = stream(async move |mut responses| {
                    while let Some(number) = numbers.message().await? {
                        responses.send(number).await?;
                    }
                    Ok(())
                });
                responses.send_all(Ok(Response::new(echoed))).await
            },
        );
    }
}

/// Reads `COUNT` and returns the fewest allocations of a section of the later messages.
async fn allocations_of_a_server_stream<C: Caller>(channel: &C) -> u64 {
    let opened = channel.server_streaming(&COUNT, Request::new(0u64)).await;
    let mut numbers: Streaming<u64> = opened.unwrap().into_inner();
    let mut expected = 0;
    let mut read = async |count: u64, pauses: bool| {
        let before = allocations();
        for _ in 0..count {
            expected += 1;
            if pauses && expected % MESSAGES_PER_PAUSE == 0 {
                thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(numbers.message().await.unwrap(), Some(expected));
        }
        allocations() - before
    };
    read(WARM_UP, true).await;
    let mut fewest = u64::MAX;
    for _ in 0..SECTIONS {
        fewest = fewest.min(read(COUNTED, false).await);
    }
    fewest
}

/// Sends messages that come back one at a time, and returns the fewest allocations of a section of
/// the later ones.
async fn allocations_of_a_ping_pong<C: Caller>(channel: &C) -> u64 {
    let (mut sender, messages) = sender();
    let opened = channel.streaming(&ECHO, Request::new(messages)).await;
    let mut echoed: Streaming<u64> = opened.unwrap().into_inner();
    let mut number = 0;
    let mut exchange = async |count: u64| {
        let before = allocations();
        for _ in 0..count {
            number += 1;
            sender.send(number).await.unwrap();
            assert_eq!(echoed.message().await.unwrap(), Some(number));
        }
        allocations() - before
    };
    exchange(1_000).await;
    // Both pollers sleep for the first time, which allocates room for their events.
    thread::sleep(Duration::from_millis(50));
    exchange(1_000).await;
    let mut fewest = u64::MAX;
    for _ in 0..SECTIONS {
        fewest = fewest.min(exchange(1_000).await);
    }
    fewest
}

#[test]
fn a_message_of_a_warm_stream_allocates_nothing() {
    let _alone = alone();
    let device = device();
    let server = Server::builder(&device)
        .add_service(Streams)
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let address = server.local_addr().to_string();

    let poller = LocalPoller::new(&device).unwrap();
    let local = poller.connect(&address).unwrap();
    let ping_pong = poller.block_on(allocations_of_a_ping_pong(&local));
    assert_eq!(ping_pong, 0, "messages there and back, local");
    let count = poller.block_on(allocations_of_a_server_stream(&local));
    assert_eq!(count, 0, "{COUNTED} messages of a server stream, local");
    drop(local);
    drop(poller);

    let shared = block_on(Channel::builder(&device, &address).connect()).unwrap();
    let ping_pong = block_on(allocations_of_a_ping_pong(&shared));
    assert_eq!(ping_pong, 0, "messages there and back, shared");
    let count = block_on(allocations_of_a_server_stream(&shared));
    assert_eq!(count, 0, "{COUNTED} messages of a server stream, shared");
    drop(shared);
    server.shutdown().unwrap();
}
