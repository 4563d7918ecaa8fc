//! Peers of one host that use all memory which a process sets aside for what waits on their behalf. Peers of
//! other hosts go on.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;

use rpc_core::frame::{
    FRAGMENT, Flags, FrameHeader, FrameKind, LONG_BODY_LEN, LongBody, ONE_MESSAGE, SEGMENTS,
    TransferId,
};
use rpc_core::transport::{PeerMemory, Transport};
use rpc_core::{
    Caller, Code, Idempotency, Intents, MethodKind, MethodSpec, Request, Response, Streaming,
    stream,
};
use rpc_core_testing::{Faults, Network, Pair};

use crate::support::made::Made;
use crate::support::raw::{Frame, Raw, fragment, long, long_message, message, open};

const fn method(path: &'static str, kind: MethodKind) -> MethodSpec {
    MethodSpec::new(path, kind, Idempotency::Unknown, "bytes", "bytes")
}

const ECHO: MethodSpec = method("test.Scarce/Echo", MethodKind::Unary);
/// Reads nothing.
const UNREAD: MethodSpec = method("test.Scarce/Unread", MethodKind::ClientStreaming);
/// Sends without end.
const ENDLESS: MethodSpec = method("test.Scarce/Endless", MethodKind::ServerStreaming);

/// Sends twenty messages.
const TWENTY: MethodSpec = method("test.Scarce/Twenty", MethodKind::ServerStreaming);

/// Bytes of the heap that all hosts share, in these tests.
const LIMIT: u64 = 1 << 20;

/// What one host may use of it.
const SHARE: u64 = LIMIT / 4 * 3;

/// Streams of each hostile client.
const STREAMS: u32 = 100;

/// What each stream uses in any case: its state, two frames, and unread messages.
const OF_STREAM: u64 = (3 << 10) + 2 * 4352 + (8 << 10);

struct Scene {
    pair: Pair,
    memory: PeerMemory,
    /// Messages of 1,000 bytes that handlers have made.
    made: Rc<Cell<usize>>,
}

/// Runs `attack` of two clients of one host, beside which a good client's calls and streams go on. Afterwards
/// all memory is free.
fn attacked(attack: impl FnOnce(&Scene, &[Raw<'_>; 2])) {
    let scene = scene();
    let (pair, network) = (&scene.pair, scene.pair.network());
    let channel = pair.connect();
    network.use_address(SocketAddr::from(([192, 0, 2, 1], 1)));
    let clients = [Raw::client(network), Raw::client(network)];
    clients.iter().for_each(|raw| drop(raw.settle()));
    attack(&scene, &clients);
    for len in [100, 60_000] {
        let echo = channel.unary::<Vec<u8>, Vec<u8>>(&ECHO, Request::new(vec![7; len]));
        assert_eq!(pair.run(echo).unwrap().into_inner().len(), len);
    }
    pair.run(async {
        let stream = channel.server_streaming::<Vec<u8>, Vec<u8>>(&ENDLESS, Request::new(vec![]));
        let mut messages = stream.await.unwrap().into_inner();
        for _ in 0..1000 {
            assert_eq!(messages.message().await.unwrap().unwrap().len(), 1000);
        }
    });
    for raw in &clients {
        assert!(!raw.peer.is_closed());
        raw.peer.close();
        raw.settle();
    }
    drop(channel);
    network.settle();
    assert_eq!(scene.memory.heap_in_use(), 0);
    pair.assert_nothing_left();
}

fn scene() -> Scene {
    let intents = Intents {
        connections: 4,
        max_streams: STREAMS,
        ..Intents::default()
    };
    let made = Rc::<Cell<usize>>::default();
    let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
        methods.unary(&ECHO, |request: Request<Vec<u8>>| async {
            Ok(Response::new(request.into_inner()))
        });
        methods.client_streaming(&UNREAD, |request: Request<Streaming<Vec<u8>>>| async move {
            let _request = request;
            std::future::pending::<Result<Response<Vec<u8>>, _>>().await
        });
        for (method, count) in [(&ENDLESS, usize::MAX), (&TWENTY, 20)] {
            let made = Rc::clone(&made);
            methods.server_streaming(method, move |_: Request<Vec<u8>>, responses| {
                let messages = Made {
                    left: count,
                    len: 1000,
                    made: Rc::clone(&made),
                };
                responses.send_all(Ok(Response::new(messages)))
            });
        }
    });
    let memory = pair.server().with_transport(|it| it.peer_memory());
    memory.limit_heap(LIMIT);
    Scene { pair, memory, made }
}

/// Answers to calls with this code.
fn answers(frames: &[Frame], code: Code) -> usize {
    let of_code = |(header, _): &&Frame| {
        header.kind == FrameKind::Response && header.selector == code.number()
    };
    frames.iter().filter(of_code).count()
}

/// Opens streams of `UNREAD`, sends messages on each, and returns how many were refused.
fn refused(
    scene: &Scene,
    clients: &[Raw<'_>; 2],
    send: impl Fn(&Raw<'_>, u32) -> Vec<Frame>,
) -> usize {
    let mut refused = 0;
    for raw in clients {
        for call in 0..STREAMS {
            // A credit for the answer of each.
            let opening = FrameHeader {
                credits: 1,
                ..open(call, 1, Flags::NONE)
            };
            let mut frames = raw.send(opening, &[]);
            frames.extend(send(raw, call));
            refused += answers(&frames, Code::ResourceExhausted);
            assert!(scene.memory.heap_in_use() <= SHARE);
        }
    }
    refused
}

#[test]
fn streams_beyond_the_share_of_their_host_are_refused_before_they_begin() {
    attacked(|scene, clients| {
        let refused = refused(scene, clients, |_, _| Vec::new());
        assert_eq!(refused, 2 * STREAMS as usize - (SHARE / OF_STREAM) as usize);
        let stats = scene.pair.server().poller().stats().total();
        assert_eq!(stats.handlers.awaited, SHARE / OF_STREAM);
    });
}

/// Its answer waits for a credit, and its messages arrive meanwhile: nothing of them is kept.
#[test]
fn a_stream_that_is_refused_grants_back_what_it_does_not_keep() {
    attacked(|scene, clients| {
        let raw = &clients[0];
        for call in 0..STREAMS {
            let answered = answers(
                &raw.send(open(call, 1, Flags::NONE), &[]),
                Code::ResourceExhausted,
            );
            assert_eq!(answered, 0, "there is no credit");
            assert!(!raw.peer.is_closed(), "{call}");
        }
        let stats = scene.pair.server().poller().stats().total();
        assert_eq!(stats.handlers.awaited, SHARE / OF_STREAM);
        let call = STREAMS - 1;
        // More than the window of a stream.
        for _ in 0..20 {
            raw.send(message(call, ONE_MESSAGE, Flags::NONE), &[7; 4000]);
            assert!(!raw.peer.is_closed());
        }
    });
}

#[test]
fn messages_that_nobody_reads_fail_their_streams() {
    attacked(|scene, clients| {
        // The whole window of each.
        let refused = refused(scene, clients, |raw, call| {
            let send = |_| raw.send(message(call, ONE_MESSAGE, Flags::NONE), &[7; 4000]);
            (0..8).flat_map(send).collect()
        });
        // Each would take some 24 KiB beyond the least.
        let kept = 2 * STREAMS as usize - refused;
        assert!((16..40).contains(&kept), "{kept} streams");
    });
}

#[test]
fn streams_whose_messages_cannot_leave_have_one_frame_each() {
    attacked(|scene, clients| {
        for raw in clients {
            for call in 0..STREAMS {
                // A credit for the first frame of each, or for its answer.
                let opening = FrameHeader {
                    credits: 1,
                    ..open(call, 2, Flags::LAST)
                };
                raw.send(opening, &[]);
            }
        }
        // For each stream a frame that was sent, one that waits, as much in its handler's hand, and a message.
        let most = SHARE + SHARE / OF_STREAM * (3 * 4000 + 1000);
        let made = scene.made.get() as u64 * 1000;
        assert!(made > SHARE / 2 && made < most, "{made} of at most {most}");
        assert!(scene.memory.heap_in_use() < SHARE + 4 * 4352);
    });
}

#[test]
fn long_messages_that_wait_on_the_heap_are_refused() {
    attacked(|scene, clients| {
        let refused = refused(scene, clients, |raw, call| {
            // All of it is sent without an answer.
            let (first, body) = long_message(call, 60_000, FRAGMENT, &[7; 4000]);
            let mut frames = raw.send(first, &body);
            for _ in 1..15 {
                let (next, body) = fragment(call, 4000);
                frames.extend(raw.send(next, &body));
            }
            frames
        });
        let kept = 2 * STREAMS as usize - refused;
        assert_eq!(kept as u64, SHARE / (60_000 + OF_STREAM));
    });
}

/// A sender may announce 64 segments of each message, also of a byte each, before one is fetched.
#[test]
fn messages_of_which_many_segments_may_wait_are_refused() {
    attacked(|scene, clients| {
        scene.pair.network().use_reads();
        let refused = refused(scene, clients, |raw, call| {
            let (first, body) = long_message(call, 1 << 20, SEGMENTS, &[]);
            raw.send(first, &body)
        });
        let kept = 2 * STREAMS as usize - refused;
        assert_eq!(kept as u64, SHARE / (64 * 64 + OF_STREAM));
    });
}

/// The server has sent all, and its status is OK: that is not what the client may hear.
#[test]
fn a_client_that_has_no_memory_for_a_message_does_not_take_the_end_for_a_complete_stream() {
    let scene = scene();
    let (pair, network) = (&scene.pair, scene.pair.network());
    let memory = pair.client().with_transport(|it| it.peer_memory());
    memory.limit_heap(0);
    let channel = pair.connect();
    let stream = channel.server_streaming::<Vec<u8>, Vec<u8>>(&TWENTY, Request::new(vec![]));
    let mut messages = pair.run(stream).unwrap().into_inner();
    network.settle();
    let mut count = 0;
    let error = loop {
        match pair.run(messages.message()) {
            Ok(message) => count += usize::from(message.expect("it has not ended").len() == 1000),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert!(
        (1..10).contains(&count),
        "{count} fit into what a stream has in any case"
    );
    drop((messages, channel));
    network.settle();
    assert_eq!(memory.heap_in_use(), 0);
    pair.assert_nothing_left();
}

/// Responses with metadata to calls that were dropped, for which there is no memory: nobody is told.
#[test]
fn a_client_without_memory_drops_what_nobody_wants() {
    let mut network = Network::new(Faults::none(), 0);
    let client = network.add("client", &Intents::default(), |_| ());
    let raw = Raw::server(&network, &[&ECHO]);
    let channel = client.poller().connect("hostile").unwrap();
    client.with_transport(|it| it.peer_memory()).limit_heap(0);
    let (mut calls, mut frames) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        let mut call =
            Box::pin(channel.unary::<Vec<u8>, Vec<u8>>(&ECHO, Request::new(vec![7; 10])));
        assert!(network.try_run(&mut call).is_none());
        calls.push(call);
        frames.extend(raw.settle());
    }
    drop(calls);
    let requests = frames
        .iter()
        .filter(|(header, _)| header.kind == FrameKind::Request);
    let requests: Vec<_> = requests.collect();
    assert_eq!(requests.len(), 8);
    for (transfer, (request, _)) in requests.into_iter().enumerate() {
        let response = FrameHeader {
            call: request.call,
            metadata_len: 3000,
            ..long(FrameKind::Response)
        };
        let mut body = vec![0; 3000 + LONG_BODY_LEN];
        let (number, len) = (TransferId(transfer as u32), 100_000);
        LongBody::encode(number, len, FRAGMENT, &mut body[3000..]);
        raw.send(response, &body);
    }
    assert!(!raw.peer.is_closed());
    raw.peer.close();
    raw.settle();
    drop(channel);
    network.settle();
    network.assert_nothing_left();
}

/// Is pending once.
async fn pass_a_turn() {
    let mut is_pending = true;
    poll_fn(|cx| {
        cx.waker().wake_by_ref();
        match std::mem::replace(&mut is_pending, false) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    })
    .await;
}

/// Between a handler and its stream, messages wait by number, because their length is not known yet.
#[test]
fn a_handler_whose_long_messages_nobody_reads_makes_few() {
    // The client has fetched two, two are under way, one waits, and the handler has two in its hand. Eight of the
    // second kind fit into the window of a stream.
    for (len, most) in [(100_000, 7), (10_000, 13), (10, 10_000)] {
        let made = Rc::<Cell<usize>>::default();
        let pair = Pair::with(&Intents::default(), Faults::none(), 0, |methods| {
            let made = Rc::clone(&made);
            methods.server_streaming(&ENDLESS, move |_: Request<Vec<u8>>, responses| {
                let made = Rc::clone(&made);
                let messages = stream(async move |mut responses| {
                    for _ in 0..10 {
                        pass_a_turn().await;
                    }
                    loop {
                        responses.send(vec![7; len]).await?;
                        made.set(made.get() + 1);
                    }
                });
                responses.send_all(Ok(Response::new(messages)))
            });
        });
        let channel = pair.connect();
        let messages = channel.server_streaming::<Vec<u8>, Vec<u8>>(&ENDLESS, Request::new(vec![]));
        let mut messages = pair.run(messages).unwrap().into_inner();
        pair.network().settle();
        let before = made.get();
        assert!((1..=most).contains(&before), "{before} of {len} bytes");
        // Its reader gets on, and stops again.
        for _ in 0..50 {
            assert_eq!(pair.run(messages.message()).unwrap().unwrap().len(), len);
        }
        pair.network().settle();
        let since = made.get() - before;
        assert!(since <= 50 + most, "{since} of {len} bytes");
        drop((messages, channel));
        pair.network().settle();
        pair.assert_nothing_left();
    }
}
